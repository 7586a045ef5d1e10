"""`zipflm info`: presets, settings, parameter counts and suggested bands."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import zipflm.cli
from zipflm.presets import DATASETS, FACTORIZATIONS, from_name, preset
from zipflm.presets.recipes import resolve
from zipflm.settings import override


def run(*arguments):
    result = CliRunner().invoke(zipflm.cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_lists_every_dataset():
    shown = run("info")
    for name, dataset in DATASETS.items():
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{name}/ADP-T ")]
        assert dataset.purpose and dataset.purpose in line
        assert f" {preset(name).num_params():,} " in line
    assert all(label in shown for label in FACTORIZATIONS)


@pytest.mark.parametrize("arguments", [[], ["tiny"], ["wikitext-103"], ["billion-word"]])
def test_listed_presets_exist(arguments):
    rows = json.loads(run("info", *arguments, "--json"))
    assert len(rows) >= 8
    for row in rows:
        config = from_name(row["preset"])
        assert config.name == row["preset"] and config.num_params() == row["parameters"]


def test_output_can_be_read_as_overrides(tmp_path):
    path = tmp_path / "my.cfg"
    path.write_text(run("info", "demo/SM", "decoder.num_layers=3"), encoding="utf-8")
    lines = path.read_text().splitlines()
    assert all(" # " in f" {line}" for line in lines)
    assert lines[0].startswith("# vocab_size=15984 ")
    again = run("info", "demo/SM", f"@{path}")
    assert again.splitlines() == lines
    assert "decoder.num_layers=3 " in again


def test_cutoffs_follow_the_vocabulary_size():
    sizes = ("vocab_size=128", "vocab_size=64")  # the last one counts
    assert "input.cutoffs=6,25 " in run("info", "tiny/ADP-T", *sizes)


def test_parameters_of_a_model_are_plain_text_on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\n# part " in run("info", "demo/SM")


def test_json_has_key_value_type_and_help():
    shown = json.loads(run("info", "tiny/ADP-T", "--recipe", "modern", "--json"))["settings"]
    by_key = {field["key"]: field for field in shown}
    field = by_key["training.max_updates"]
    assert (field["value"], field["type"]) == (200, "int") and field["help"]
    config = override(from_name("tiny/SM"), [f"{f['key']}={f['text']}" for f in shown])
    assert config == resolve("tiny/ADP-T", "modern", [], 4000)


def test_shows_parameters_by_part():
    config = override(from_name("tiny/ADP-T"), ["decoder.num_layers=3"])
    shown = run("info", "tiny/ADP-T", "decoder.num_layers=3")
    for part, count in config.params_by_part().items():
        assert any(line.split()[:3] == ["#", part, f"{count:,}"] for line in shown.splitlines())
    total = json.loads(run("info", "tiny/ADP-T", "decoder.num_layers=3", "--json"))["parameters"]
    assert total == {**config.params_by_part(), "total": config.num_params()}


def test_paper_counts_as_json():
    rows = json.loads(run("info", "--paper", "--json"))
    assert len(rows) == 34 and all(row["match"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tiny decoder.dim=8", "only for a single model; name one, e.g. tiny/ADP-T"),
        ("tini/SM", "did you mean tiny"),
        ("/tmp", "/tmp: not a preset; .* use --data /tmp"),
        ("--data /none", "not a data folder"),
    ],
)
def test_rejects_invalid_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        run("info", *arguments.split())


def test_uses_the_vocabulary_of_the_data_folder(word_data):
    shown = run("info", "tiny/ADP-T", "--data", str(word_data.path))
    config = resolve("tiny/ADP-T", "paper", [], len(word_data.vocabulary))
    assert f"# vocab_size={len(word_data.vocabulary)} " in shown
    assert f"input.cutoffs={','.join(map(str, config.input.cutoffs))} " in shown


def bands(*arguments):
    return run("info", "--device", "cpu", "--data", *map(str, arguments))


def test_table_of_bands_matches_json(word_data):
    table = bands(word_data.path, "--dim", 32)
    assert table.startswith("bands") and "\x1b" not in table
    assert "the paper's proportions" in table
    found = json.loads(bands(word_data.path, "--dim", 32, "--json"))
    cutoffs = ",".join(map(str, found["suggested"]["cutoffs"]))
    assert f"input.cutoffs={cutoffs} " in table
    counts = np.bincount(word_data.tokens("train").ids, minlength=len(word_data.vocabulary))
    for row in (found["suggested"], found["paper"]):
        parts = np.split(counts, row["cutoffs"])  # includes line ends and unknown words
        shares = [part.sum() / counts.sum() for part in parts]
        assert row["coverage"] == pytest.approx(shares)
    with pytest.raises(ValueError, match="--dim 0"):
        bands(word_data.path, "--dim", 0)


def test_suggests_bands_for_a_file_of_words_and_counts(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"word{rank} {1000 // rank}\n" for rank in range(1, 301)))
    assert sum(json.loads(bands(path, "--dim", 64, "--json"))["suggested"]["sizes"]) == 304
