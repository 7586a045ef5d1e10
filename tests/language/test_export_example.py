"""`examples/export.py`: score with an exported program, without zipflm."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_runs

import zipflm

EXAMPLE = Path(__file__).parents[2] / "examples" / "export.py"


@pytest.mark.slow
def test_exported_program_scores_without_zipflm(word_data, tmp_path):
    # The modern recipe uses all custom operators.
    small = [o for o in training_runs.SMALL if "warmup" not in o]
    options = {"recipe": "modern", "base": small}
    training_runs.run(word_data, tmp_path / "run", "training.max_updates=2", **options)
    program = tmp_path / "scorer.pt2"
    subprocess.run([sys.executable, EXAMPLE, tmp_path / "run", program], check=True)
    code = (
        "import sys; sys.modules['zipflm'] = None\n"
        "import torch; words = torch.arange(10).view(2, 5)\n"
        f"scorer = torch.export.load({str(program)!r}).module()\n"
        "print(scorer(words, words).sum().item())\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    words = torch.arange(10).view(2, 5)
    expected = zipflm.load(tmp_path / "run", device="cpu").model.nll(words, words).sum().item()
    assert float(printed) == pytest.approx(expected, rel=1e-5)
