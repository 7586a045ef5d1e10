"""What there is can be found out on the command line."""

import json

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


def test_every_dataset_is_listed_with_its_size_and_purpose():
    shown = run("presets")
    for name, dataset in DATASETS.items():
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{name}/ADP-T ")]
        assert dataset.purpose and dataset.purpose in line
        assert f" {preset(name).num_params():,} " in line
    assert all(label in shown for label in FACTORIZATIONS)


@pytest.mark.parametrize("arguments", [[], ["tiny"], ["wikitext-103"], ["billion-word"]])
def test_every_preset_that_is_listed_can_be_trained(arguments):
    rows = json.loads(run("presets", *arguments, "--json"))
    assert len(rows) >= 8
    for row in rows:
        config = from_name(row["preset"])
        assert config.name == row["preset"] and config.num_params() == row["parameters"]


def test_the_lines_of_a_config_are_a_file_of_overrides(tmp_path):
    """Of another preset, and with changes."""
    path = tmp_path / "my.cfg"
    path.write_text(run("config", "demo/SM", "decoder.num_layers=3"), encoding="utf-8")
    lines = path.read_text().splitlines()
    assert all(" # " in line for line in lines)
    assert lines[0].startswith("# vocab_size=15984 ")
    again = run("config", "demo/SM", f"@{path}")
    assert again.splitlines() == lines
    assert "decoder.num_layers=3 " in again


def test_json_has_key_value_type_and_help():
    shown = json.loads(run("config", "tiny/ADP-T", "--recipe", "modern", "--json"))
    by_key = {field["key"]: field for field in shown}
    field = by_key["training.max_updates"]
    assert (field["value"], field["type"]) == (200, "a whole number") and field["help"]
    config = override(from_name("tiny/SM"), [f"{f['key']}={f['text']}" for f in shown])
    assert config == resolve("tiny/ADP-T", "modern", [], 4000)


def test_a_config_follows_the_data_folder(word_data):
    shown = run("config", "tiny/ADP-T", "--data", str(word_data.path))
    config = resolve("tiny/ADP-T", "paper", [], len(word_data.vocabulary))
    assert f"# vocab_size={len(word_data.vocabulary)} " in shown
    assert f"input.cutoffs={','.join(map(str, config.input.cutoffs))} " in shown
