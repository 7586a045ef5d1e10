"""Help with examples and defaults, and one-line errors, for every command."""

import io
import os
import re
import shutil
import subprocess

import pytest
import typer.main
from training_runs import call, command, environment
from typer.testing import CliRunner

import zipflm.cli

COMMANDS = {
    f"{name} {inner}" if inner else name: found
    for name, command in typer.main.get_command(zipflm.cli.app).commands.items()
    for inner, found in getattr(command, "commands", {"": command}).items()
}
HAS_DEFAULT = re.compile(r"\[default|can be repeated", re.IGNORECASE)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")


def help_of(name):
    result = CliRunner().invoke(zipflm.cli.app, [*name.split(), "--help"])
    assert result.exit_code == 0
    return result.stdout


def test_help_has_valid_examples():
    for name in COMMANDS:
        shown = help_of(name)
        examples = shown[shown.index("Examples:") :]
        lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
        assert lines and all(f"zipflm {name}" in line for line in lines)
        known = {option for param in COMMANDS[name].params for option in param.opts}
        for line in lines:
            own = line[line.index(f"zipflm {name}") :].partition("(")[0]
            assert set(re.findall(r"(?<= )--[\w-]+", own)) <= known, line


def test_help_shows_defaults():
    missing = []
    for name in COMMANDS:
        shown = help_of(name)
        for param in COMMANDS[name].params:
            option = next((each for each in param.opts if each.startswith("--")), None)
            if option is None or param.required or getattr(param, "is_flag", False):
                continue
            row = re.search(rf"^\W+{option} .*", shown, re.MULTILINE)[0]
            if not HAS_DEFAULT.search(f"{param.help} {row}") and param.name not in OPTIONAL:
                missing.append(f"{name} {option}")
    assert not missing


OPTIONAL = {
    *("corpus", "names", "vocabulary", "bpe", "bpe_codes", "prefix", "prompt", "bands", "data"),
    *("tail_dropout", "context_sizes", "reference", "scores", "costs", "scores_out", "out"),
    *("curves", "dictionary", "figure", "from_run", "factorizations", "text", "decoders"),
    "api_key_file",
}
"""Options without a default: nothing happens without them."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train tiny/ADP-T --training.max_updates=5", "without dashes, e.g. training.seed="),
        ("train tiny/ADP-T --dat d --out o", "No such option: --dat .*--data"),
        ("score run --colour", "No such option: --colour; see zipflm score --help"),
        ("train tiny/ADP-T --out o", "--data.*; see zipflm train --help"),
        ("train tiny/ADP-T --data d --out o --keep x", "--keep.*; see zipflm train --help"),
        ("trian tiny/ADP-T", "No such command 'trian'.*; see zipflm --help"),
        ("--verison", "No such option: --verison.*; see zipflm --help"),
        ("compare --data d --preset tiny --out o --decoders=", "--decoders: empty"),
    ],
)
def test_usage_errors_are_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        CliRunner().invoke(
            zipflm.cli.app, arguments.split(), catch_exceptions=False, prog_name="zipflm"
        )
    assert "\n" not in str(error.value)


def test_commands_are_listed_in_workflow_order():
    assert [*COMMANDS][:4] == ["prepare", "train", "evaluate", "score"]


@pytest.mark.parametrize("arguments", [["--help"], ["info", "tiny/SM", "--json"]])
def test_closed_pipe_exits_with_141(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        ended = subprocess.run(
            command(*arguments), env=environment(), stdout=closed, stderr=subprocess.PIPE
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_values_can_look_like_options():
    for arguments in (["--prompt", "--lr", "none"], ["--", "--lr"]):
        with pytest.raises((ValueError, OSError)) as error:
            CliRunner().invoke(zipflm.cli.app, ["generate", *arguments], catch_exceptions=False)
        assert "no such option" not in str(error.value)


def test_resume_needs_a_run(word_data, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", "tiny/ADP-T", "--data", str(word_data.path), "--out", str(out)]
    with pytest.raises(ValueError, match="--resume: no run in .*; check the path"):
        CliRunner().invoke(zipflm.cli.app, [*arguments, "--resume"], catch_exceptions=False)
    assert not out.exists()
    (out / "checkpoints" / "update-00000001").mkdir(parents=True)
    with pytest.raises(ValueError, match="no config.json; restore it"):
        CliRunner().invoke(zipflm.cli.app, [*arguments, "--resume"], catch_exceptions=False)
    shutil.rmtree(out)
    arguments += ["--resume-if-any", "training.max_updates=1", "--device", "cpu"]
    for _ in range(2):
        assert CliRunner().invoke(zipflm.cli.app, arguments).exit_code == 0
    assert (out / "checkpoints" / "update-00000001").is_dir()


def test_ctrl_c_exits_with_130(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("zipflm.language.model.load", interrupt)
    result = CliRunner().invoke(zipflm.cli.app, ["generate", "run"])
    assert result.exit_code == 130
    assert result.stderr == "zipflm: generate: interrupted\n"


def test_ctrl_c_during_an_import_exits_with_130(tmp_path):
    swallows = "try: signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: pass\n"
    (tmp_path / "torch.py").write_text(f"import signal\n{swallows}")
    done = call(command("generate", "run"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "zipflm: interrupted\n")


def test_pipes_get_utf_8_in_any_locale(imported_run, tmp_path, monkeypatch):
    word = "na\u00efve \u4e2d\u6587 \u2019"
    (tmp_path / "text").write_text(word + "\n", encoding="utf-8")
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, encoding="latin-1"))
    monkeypatch.setattr("sys.argv", ["zipflm", "score", str(imported_run), str(tmp_path / "text")])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    assert exit.value.code == 0
    words = [line.split("\t")[2] for line in pipe.getvalue().decode("utf-8").splitlines()[1:]]
    assert words[:3] == word.split()
