"""The whole pipelines under runs/, at toy size."""

import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import pytest
from golden_files import GOLDEN
from shell_blocks import Block, run_blocks

import zipflm

ROOT = Path(__file__).parents[1]
SPLITS = ("valid", "test")
TOY = """
    decoder.num_layers=1 decoder.dim=32 decoder.ffn_dim=64 input.dim=32 output.dim=32
    input.cutoffs=30,100 output.cutoffs=30,100 batches.block=32 batches.eval_block=32
    batches.tokens=128 training.tokens_per_update=128 training.max_updates=3
    training.compile=false training.dtype=float32
""".split()


def write_text(folder: Path, train_name: str) -> Path:
    """Write a small text and its dictionary under the names of WikiText."""
    folder.mkdir()
    for ours, theirs in {
        "train.txt": train_name,
        "valid.txt": "wiki.valid.tokens",
        "test.txt": "wiki.test.tokens",
    }.items():
        shutil.copy(GOLDEN / "data" / "text" / ours, folder / theirs)
    shutil.copy(GOLDEN / "data" / "dict.txt", folder)
    return folder


def run(script: str, folder: Path, *arguments: str | Path) -> str:
    words = ["bash", ROOT / "runs" / script, *arguments]
    (printed,) = run_blocks([Block("bash", shlex.join(map(str, words)))], folder)
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("recipe, text", [("modern", "rewritten"), ("adamw", "original")])
def test_wikipedia_track_runs_from_text_to_perplexity(tmp_path, recipe, text):
    run("wikipedia-data.sh", tmp_path, write_text(tmp_path / "text", "part0.tokens"), "data")
    run("wikipedia-track.sh", tmp_path, recipe, f"data/{text}", "run", *TOY)
    results = [json.loads((tmp_path / "run" / f"{split}.json").read_text()) for split in SPLITS]
    assert [result["split"] for result in results] == list(SPLITS)


@pytest.mark.slow
def test_factorizations_of_the_wikipedia_track_run_from_text_to_report(tmp_path):
    text = write_text(tmp_path / "text", "part0.tokens")
    run("wikipedia-data.sh", tmp_path, text, "data")
    some = ("--factorizations", "BPE-T,ADP-T", "--equal", "seconds")
    printed = run("wikipedia-factorizations.sh", tmp_path, text, "data", "study", *TOY, *some)
    assert "report: study/report.html" in printed


@pytest.mark.slow
def test_wikitext_2_runs_from_text_to_report(tmp_path):
    text = write_text(tmp_path / "text", "wiki.train.tokens")
    some = ("--factorizations", "BPE,ADP-T", "decoder.num_heads=2")
    printed = run("wikitext-2.sh", tmp_path, text, "out", *TOY, *some)
    assert "report: out/study/report.html" in printed


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
