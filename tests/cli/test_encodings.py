"""Every command gives the same result for a text in any encoding."""

import pytest
from typer.testing import CliRunner

import zipflm.cli
from zipflm.data.folder import DataFolder

TEXT = "le caf\u00e9 est l\u00e0\nune \u00eele\n"


def run(*arguments, given=None):
    result = CliRunner().invoke(
        zipflm.cli.app, [*map(str, arguments)], input=given, catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def encoded(tmp_path):
    (tmp_path / "utf-8").write_text(TEXT, encoding="utf-8")
    (tmp_path / "other").write_text(TEXT, encoding="latin-1")
    return tmp_path / "utf-8", tmp_path / "other", "latin-1"


def test_prepare_gives_the_same_data_folder(encoded, tmp_path):
    plain, other, encoding = encoded
    run("prepare", plain, "--min-count", 1, "--out", tmp_path / "a")
    run("prepare", other, "--min-count", 1, "--out", tmp_path / "b", "--encoding", encoding)
    one, two = DataFolder.open(tmp_path / "a"), DataFolder.open(tmp_path / "b")
    assert one.split("train").sha256 == two.split("train").sha256
    assert one.vocabulary.hash == two.vocabulary.hash
    assert encoding not in (tmp_path / "b" / "data.json").read_text()


def test_score_and_evaluate_give_the_same_numbers(encoded, imported_run):
    plain, other, encoding = encoded
    how = ["--encoding", encoding]
    assert run("score", imported_run, other, *how) == run("score", imported_run, plain)
    given = other.read_bytes()
    assert run("score", imported_run, *how, given=given) == run("score", imported_run, plain)
    ours, theirs = (
        run("evaluate", imported_run, "--text", *arguments).splitlines()[0]
        for arguments in ([other, *how], [plain])
    )
    assert ours == theirs


def test_evaluate_can_replace_invalid_text(imported_run, tmp_path):
    (tmp_path / "x").write_bytes(TEXT.encode("latin-1"))
    with pytest.raises(ValueError, match=r"x: not UTF-8 .*use --errors replace"):
        run("evaluate", imported_run, "--text", tmp_path / "x")
    run("evaluate", imported_run, "--text", tmp_path / "x", "--errors", "replace")


def test_rejects_encoding_for_ids(word_data, imported_run, tmp_path):
    (tmp_path / "ids").write_text("1 2 3\n")
    for arguments in (
        ["prepare", "--ids", tmp_path / "ids", "--out", tmp_path / "x"],
        ["evaluate", imported_run, "--data", word_data.path],
    ):
        with pytest.raises(ValueError, match="--encoding latin-1: "):
            run(*arguments, "--encoding", "latin-1")
