"""The whole pipelines under runs/, at toy size."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from golden_files import GOLDEN

ROOT = Path(__file__).parents[1]
TOY = """
    decoder.num_layers=1 decoder.dim=32 decoder.ffn_dim=64 input.dim=32 output.dim=32
    input.cutoffs=30,100 output.cutoffs=30,100 batches.block=32 batches.eval_block=32
    batches.tokens=128 training.tokens_per_update=128 training.max_updates=3
    training.compile=false training.precision=float32
""".split()


@pytest.mark.slow
def test_the_wikipedia_track_runs_from_text_to_perplexity(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for ours, theirs in {
        "train.txt": "part0.tokens",
        "valid.txt": "wiki.valid.tokens",
        "test.txt": "wiki.test.tokens",
    }.items():
        shutil.copy(GOLDEN / "data" / "text" / ours, text / theirs)
    shutil.copy(GOLDEN / "data" / "dict.txt", text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", ROOT / "runs" / "wikipedia-track.sh", text, tmp_path / "out", *TOY],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("perplexity  ") == 2  # valid and test
