"""`zipflm export` and `zipflm import`."""

import json
import subprocess
import sys

import pytest
import training_runs
from typer.testing import CliRunner

import zipflm.cli
from zipflm.runs.load import load_run


def zipflm_command(*arguments):
    return CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def run(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("exchange") / "run"
    training_runs.run(word_data, out, "training.max_updates=4", "training.checkpoint_every=2")
    return out


def test_round_trip(run, tmp_path):
    output = zipflm_command("export", run, tmp_path / "hf").output
    assert output.startswith(f"{tmp_path / 'hf'}: tiny/ADP-T, update-00000004, ")
    output = zipflm_command("import", tmp_path / "hf", tmp_path / "back").output
    assert output.startswith(f"{tmp_path / 'back'}: tiny/ADP-T, ")
    metadata = json.loads(zipflm_command("export", run, tmp_path / "again", "--json").output)
    assert metadata["name"] == "tiny/ADP-T" and metadata["checkpoint"] == "update-00000004"
    assert load_run(tmp_path / "back").weights_hash == load_run(run).weights_hash


def test_exports_a_checkpoint_in_shards(run, tmp_path):
    options = ["--checkpoint", 2, "--max-shard-size", "5KB"]
    zipflm_command("export", run, tmp_path / "hf", *options)
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 1
    zipflm_command("import", tmp_path / "hf", tmp_path / "back")
    assert load_run(tmp_path / "back").weights_hash == load_run(run, 2).weights_hash
    assert load_run(tmp_path / "back").checkpoint.update == 2


def test_bad_input_exits_with_2_and_one_line(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a\n")
    for arguments, message in [
        (("import", tmp_path / "empty", tmp_path / "x"), "config.json: missing"),
        (("import", tmp_path / "none", tmp_path / "x"), "no such file or folder"),
        (("import", tmp_path / "file", tmp_path / "x"), "--dict: missing; name the dict.txt"),
        (("export", tmp_path / "none", tmp_path / "x"), "none: no such folder"),
        (("export", run, tmp_path / "x", "--checkpoint", "3"), "--checkpoint 3"),
        *(
            (
                ("export", run, tmp_path / "x", f"--max-shard-size={size}"),
                f"--max-shard-size {size}: write",
            )
            for size in ("big", "5", "-5MB", "0KB")
        ),
    ]:
        monkeypatch.setattr(sys, "argv", ["zipflm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            zipflm.cli.main()
        output = capsys.readouterr()
        assert exit.value.code == 2 and output.out == ""
        assert message in output.err and len(output.err.splitlines()) == 1
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("arguments", [["export", "runs/first", "x"], ["score", "rnus/first"]])
def test_missing_transformers_names_the_extra(arguments):
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        f"sys.argv[1:] = {arguments}\n"
        "import zipflm.cli; zipflm.cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "pip install 'zipflm[hf] @ git+" in result.stderr


def test_transformers_is_imported_on_demand():
    code = (
        "import sys, zipflm, zipflm.cli, zipflm.language.model, zipflm.training.trainer\n"
        "import zipflm.interop.fairseq\n"
        "print('transformers' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
