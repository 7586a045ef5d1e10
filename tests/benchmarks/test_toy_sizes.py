"""Benchmarks run at toy size; some have their own test files."""

from pathlib import Path

import pytest
from benchmark_scripts import FOLDER, load

SMALL = ["decoder.num_layers=1", "decoder.ffn_dim=32"]
TINY = ["--preset", "tiny/ADP-T", "--device", "cpu"]
UPDATES = ["batches.tokens=256", "training.tokens_per_update=512"]
RUNS = {
    "band_costs": [
        *("--device", "cpu", "--tokens", "16", "--dim", "32", "--words", "20", "--repeats", "1")
    ],
    "decoders": [*TINY, "--steps", "2", "--seconds", "0.1", *UPDATES, "decoder.dropout=0.0"],
    "decoding": [
        *("--prompt", "3", "--words", "2", "--rounds", "1", "--batch", "1", "2", *TINY, *SMALL)
    ],
    "evaluation": [
        *(*TINY, "--block", "32", "--context", "24", "--tokens", "100", "--batch-tokens", "64"),
        *SMALL,
    ],
    "memory": [
        *(*TINY, "--block", "32", "--tokens", "200", "--window", "50", "--repeats", "1"),
        *("--keys", "300", "--queries", "4", "--neighbors", "10", *SMALL),
    ],
    "scoring": [*TINY, "--lines", "9", "--rounds", "1", *SMALL],
    "training_step": [*TINY, "--steps", "2", *UPDATES, *SMALL],
}


@pytest.mark.parametrize("script", RUNS)
def test_prints_numbers(script, capsys):
    load(script).main(RUNS[script])
    output = capsys.readouterr().out
    assert any(character.isdigit() for character in output) and "nan" not in output.lower()


def test_every_script_has_a_test():
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    scripts = {script.stem for script in FOLDER.glob("*.py")}
    assert scripts - {"common"} == tested - {"toy_sizes"} | set(RUNS)
