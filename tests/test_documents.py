"""What the pages under docs/ say is so: blocks run and print what is shown, files are there."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from fairseq_checkpoints import DICT, OLDEST
from shell_blocks import Block, blocks_of, require_shown_output, run_blocks

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.filterwarnings(  # torch.export's
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The given buffer is not writable:UserWarning",
)
@pytest.mark.parametrize("name", ["scoring.md", "rescoring.md", "comparison.md"])
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_shows(
    name, tmp_path, one_thread_of_a_cpu
):
    blocks = blocks_of((DOCS / name).read_text(encoding="utf-8"))
    assert {block.language for block in blocks} >= {"bash", ""}
    published = tmp_path / "adaptive_lm_wiki103"  # a download of fairseq's
    published.mkdir()
    shutil.copy(OLDEST, published / "model.pt")
    shutil.copy(DICT, published / "dict.txt")
    require_shown_output(blocks, run_blocks(blocks, tmp_path))


@pytest.mark.slow
def test_the_tour_runs_from_top_to_bottom_and_prints_what_it_shows(tmp_path, one_thread_of_a_cpu):
    """With the mistakes that are part of it."""
    blocks = blocks_of((DOCS / "tour.md").read_text(encoding="utf-8"))
    require_shown_output(blocks, run_blocks(blocks, tmp_path, tells_errors=True))


def test_a_command_that_fails_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="here it ends"):
        run_blocks([Block("bash", "echo here it ends\nfalse\necho not here")], tmp_path)
    with pytest.raises(ValueError, match="nothing"):
        run_blocks([Block("bash", "zipflm evaluate nothing --text x | cat")], tmp_path)


@pytest.mark.parametrize(
    ("shown", "is_true"),
    [
        ("a word  -1.53", True),
        ("a word -1.63", False),
        ("a word", False),
        ("another word -1.53", False),
    ],
)
def test_output_that_was_not_printed_is_noticed(tmp_path, shown, is_true):
    blocks = blocks_of(f"```bash\necho A WORD -1.53 | tr A-Z a-z\n```\n\n```\n{shown}\n```\n")
    outputs = run_blocks(blocks, tmp_path)
    with nullcontext() if is_true else pytest.raises(AssertionError, match="not printed"):
        require_shown_output(blocks, outputs)
