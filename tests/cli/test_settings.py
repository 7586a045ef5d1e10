import pytest
import typer
from typer.testing import CliRunner

import zipflm.cli
from zipflm.api import assignments
from zipflm.cli.app import _size


def test_a_file_of_settings_stands_for_its_lines(tmp_path):
    path = tmp_path / "my.cfg"
    path.write_text("# mine\n\ndecoder.dim=8   # narrow\n  training.seed=2\n#a=b\nname=x#1\n")
    assert assignments(["a=1", f"@{path}", "b=2"]) == [
        *("a=1", "decoder.dim=8", "training.seed=2", "name=x#1", "b=2")
    ]
    (tmp_path / "x").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="x: not a text; name a file of lines key=value"):
        assignments([f"@{tmp_path / 'x'}"])


@pytest.mark.parametrize(
    ("text", "number"),
    [("5M", 5_000_000), ("0.5k", 500), ("1_000", 1000), ("2,500,000", 2_500_000)],
)
def test_numbers_as_people_write_them(text, number):
    assert _size(text) == number


@pytest.mark.parametrize("text", ["", "M", "x", "-5", "5 MB", ".5", "_", "1e9"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(typer.BadParameter, match="write a number"):
        _size(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("evaluate run --device h200", "--device h200: choose cpu, cuda, cuda:N or mps"),
        ("info --data d --device abacus", "--device abacus: choose cpu"),
        ("evaluate run --dtype int8", "--dtype int8: choose from float32, bfloat16, float16"),
        ("prepare t --out o --bpe much", "--bpe.*much: write a number, e.g. 5000000, 5M or 500k"),
    ],
)
def test_an_option_means_the_same_in_every_command(arguments, said):
    with pytest.raises(ValueError, match=said):
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)
