"""What the README and the pages on training, evaluation and models show runs."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq_checkpoints import DICT, GOLDEN, OLDEST
from shell_blocks import blocks_of, require_shown_output, run_blocks
from started_together import run_together
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

import zipflm.cli
from zipflm.data.prepare import prepare

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MODELS = (ROOT / "docs" / "models.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", MODELS, flags=re.DOTALL)
NBEST = "id\ttext\tac\na\tthe cat sat on the mat\t-3.5\na\tthe cat sat on a mat\t-3.25\n"
TOY = """
    --device cpu decoder.num_layers=1 decoder.dim=32 decoder.ffn_dim=64 input.dim=32 output.dim=32
    input.cutoffs=30,100 output.cutoffs=30,100 batches.block=32 batches.eval_block=32
    batches.tokens=128 training.tokens_per_update=256 training.max_updates=2
    training.compile=false training.dtype=float32 training.stages=0.5:16
""".split()
TOY_STUDY = """
    --device cpu decoder.num_layers=1 decoder.ffn_dim=64
    batches.block=32 batches.eval_block=32 batches.tokens=128 training.tokens_per_update=256
    training.max_updates=2
""".split()


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_examples_run(code):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code]  # not torch's
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout


def section(name):
    return README.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_the_pair_prints_what_is_shown(tmp_path):
    blocks = blocks_of(section("The pair"))
    assert [block.language for block in blocks] == ["python", ""]
    require_shown_output(blocks, run_blocks(blocks, tmp_path))


def test_the_readme_can_be_read_in_a_few_minutes():
    assert len(README.split()) < 900


def commands(text):
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.multi_process
def test_models_are_trained_evaluated_and_used_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = GOLDEN / "data" / "text"
    splits = {split: [text / f"{split}.txt"] for split in ("train", "valid", "test")}
    for name in ("union", "wikitext-103"):
        prepare(f"data/{name}", splits)
    shutil.copy(text / "test.txt", "article.txt")
    Path("adaptive_lm_wiki103").mkdir()
    shutil.copy(OLDEST, "adaptive_lm_wiki103/model.pt")
    shutil.copy(DICT, "adaptive_lm_wiki103/dict.txt")
    for split in splits:
        shutil.copy(text / f"{split}.txt", f"{split}.txt")
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("training", "evaluation")]
    lines = [line for page in pages for line in commands(page)]
    assert len(lines) >= 8
    for line in lines:
        small = TOY if "train" in line else []
        if any(word.startswith("training.epochs=") for word in line):
            small = [word for word in TOY if "max_updates" not in word] + ["training.epochs=0.1"]
        run(line + small)
    five = commands(section("Five commands"))
    assert len(five) == 5
    shutil.move("runs/adp-t", "runs/published-sizes")
    for line in five:
        if ">" in line:  # into a file
            line = line[: line.index(">")]
        small = TOY_STUDY if "compare" in line else TOY if "train" in line else []
        run(line + small)
    Path("nbest.tsv").write_text(NBEST)
    blocks = blocks_of(section("Use a trained model"))
    assert [block.language for block in blocks] == ["python", "bash"]
    assert all(run_blocks(blocks, tmp_path))
    assert Path("rescored.tsv").read_text().count("\n") == 3


def run(words):
    """In this process, because importing torch takes seconds; or in two forked from one that has
    imported it, where a page has torchrun start eight."""
    if words[0] == "torchrun":
        asked = get_args_parser().parse_args(words[1:])
        assert (asked.module, asked.nproc_per_node, asked.training_script) == (True, "8", "zipflm")
        ended = run_together(Path("said"), 2, command, asked.training_script_args)
        assert [each.status for each in ended] == [0, 0], ended
        return
    assert words[0] == "zipflm", words
    result = CliRunner().invoke(zipflm.cli.app, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def command(words):
    sys.argv = ["zipflm", *words]
    zipflm.cli.main()
