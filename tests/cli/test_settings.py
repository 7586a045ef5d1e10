import pytest
import typer
from typer.testing import CliRunner

import zipflm.cli
from zipflm.api import assignments
from zipflm.cli.app import _size


def test_reads_overrides_from_a_file(tmp_path):
    path = tmp_path / "my.cfg"
    path.write_text(
        "\ufeff# mine\n\ndecoder.dim = 8   # narrow\n  training.seed=2\n#a=b\nname=x#1\n",
        encoding="utf-8",
    )
    assert assignments(["a=1", f"@{path}", "b=2"]) == [
        *("a=1", "decoder.dim=8", "training.seed=2", "name=x#1", "b=2")
    ]
    (tmp_path / "x").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="x: not UTF-8 text; name a file of key=value lines"):
        assignments([f"@{tmp_path / 'x'}"])


@pytest.mark.parametrize(
    ("text", "number"),
    [("5M", 5_000_000), ("0.5k", 500), ("1_000", 1000), ("2,500,000", 2_500_000)],
)
def test_size_suffixes(text, number):
    assert _size(text) == number


@pytest.mark.parametrize("text", ["", "M", "x", "-5", "5 MB", ".5", "_", "1e9", "2,5M", "1,00"])
def test_rejects_invalid_sizes(text):
    with pytest.raises(typer.BadParameter, match="write a number"):
        _size(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate run --device h200", "--device h200: choose cpu, cuda, cuda:N or mps"),
        ("info --data d --device abacus", "--device abacus: choose cpu"),
        ("evaluate run --dtype int8", "--dtype 'int8': choose from float32, bfloat16, float16"),
        ("prepare t --out o --bpe much", "--bpe.*much: write a number, e.g. 5000000, 5M or 500k"),
    ],
)
def test_options_are_checked_in_every_command(arguments, message):
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)
