"""The whole pipelines under runs/, at toy size."""

import importlib.util
import shlex
import shutil
from pathlib import Path

import pytest
from golden_files import GOLDEN
from shell_blocks import Block, run_blocks

import zipflm

ROOT = Path(__file__).parents[1]
TOY = """
    decoder.num_layers=1 decoder.dim=32 decoder.ffn_dim=64 input.dim=32 output.dim=32
    input.cutoffs=30,100 output.cutoffs=30,100 batches.block=32 batches.eval_block=32
    batches.tokens=128 training.tokens_per_update=128 training.max_updates=3
    training.compile=false training.dtype=float32
""".split()


def run(script: str, place: Path, train_name: str, *options: str) -> str:
    """What the script prints, on a small text."""
    text = place / "text"
    text.mkdir()
    for ours, theirs in {
        "train.txt": train_name,
        "valid.txt": "wiki.valid.tokens",
        "test.txt": "wiki.test.tokens",
    }.items():
        shutil.copy(GOLDEN / "data" / "text" / ours, text / theirs)
    shutil.copy(GOLDEN / "data" / "dict.txt", text)
    words = ["bash", ROOT / "runs" / script, text, place / "out", *TOY, *options]
    (said,) = run_blocks([Block("bash", shlex.join(map(str, words)))], place)
    return said


@pytest.mark.slow
def test_the_wikipedia_track_runs_from_text_to_perplexity(tmp_path):
    said = run("wikipedia-track.sh", tmp_path, "part0.tokens")
    assert said.count("perplexity  ") == 2  # valid and test


@pytest.mark.slow
def test_wikitext_2_runs_from_text_to_report(tmp_path):
    some = ("--factorizations", "BPE,ADP-T", "decoder.num_heads=2")
    said = run("wikitext-2.sh", tmp_path, "wiki.train.tokens", *some)
    assert f"report: {tmp_path}/out/study/report.html" in said


@pytest.mark.slow
def test_the_script_of_the_bundled_model_packs_a_model_with_its_card(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("script", ROOT / "runs/state_of_the_union.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    toy = dict(assignment.split("=") for assignment in TOY)
    toy |= {"decoder.num_heads": "2", "batches.eval_context": "0"}
    monkeypatch.setattr(script, "SETTINGS", script.SETTINGS | toy)
    monkeypatch.setattr(script, "MODELS", tmp_path)
    script.main(tmp_path / "work")
    packed = tmp_path / script.NAME
    assert zipflm.load(packed).perplexity("the Union") > 1
    assert "| valid | " in (packed / "README.md").read_text()
