"""Every command has help with examples and defaults, and answers what is wrong in one line."""

import io
import os
import re
import subprocess

import pytest
import typer.main
from training_runs import command, environment
from typer.testing import CliRunner

import zipflm.cli

COMMANDS = typer.main.get_command(zipflm.cli.app).commands
DEFAULT_IS_SAID = re.compile(
    r"unless given|if not given|stdin if none|can be repeated|instead of|\[default", re.IGNORECASE
)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")


def help_of(name):
    result = CliRunner().invoke(zipflm.cli.app, [name, "--help"])
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_the_command_understands(name):
    shown = help_of(name)
    examples = shown[shown.index("Examples:") :]
    lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    assert lines and all(f"zipflm {name}" in line for line in lines)
    known = {option for param in COMMANDS[name].params for option in param.opts}
    for line in lines:
        own = line[line.index(f"zipflm {name}") :].partition("(")[0]
        assert set(re.findall(r"(?<= )--[\w-]+", own)) <= known, line


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_has_no_type(name):
    assert "bool" not in help_of(name).lower()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_happens_without_it(name):
    shown = help_of(name)
    for param in COMMANDS[name].params:
        option = next((each for each in param.opts if each.startswith("--")), None)
        if option is None or param.required or getattr(param, "is_flag", False):
            continue
        said = f"{param.help} {shown[shown.index(option + ' ') :].split(chr(10))[0]}"
        is_said = DEFAULT_IS_SAID.search(said) or param.name in NEED_NO_DEFAULT
        assert is_said, f"{name} {option}: {param.help}"


NEED_NO_DEFAULT = {
    *("corpus", "names", "max_size", "vocabulary", "bpe", "bpe_codes", "test", "valid"),  # nothing
    *("prefix", "prompt", "bands", "tail_dropout", "context_sizes", "data", "tune", "scores"),
    *("costs", "scores_out", "out", "context", "format", "tune_names"),
}
"""Without these nothing is done that they would do, or what is done is said in other words."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train tiny/ADP-T --lr 0.1 --data d --out o", "training.schedule.max_lr=0.1"),
        ("train demo/ADP-T --lr=0.1 --data d --out o", "training.optimizer.lr=0.1"),
        ("train tiny/ADP-T --training.max_updates=5 --data d", "training.max_updates=5"),
        ("train tiny/ADP-T --data d --out o --seed", "training.seed=VALUE"),
        ("compare --preset tiny --decoder.num_layers 3 --data d", "decoder.num_layers=3"),
        ("train tiny/ADP-T --dat d --out o", "did you mean --data?"),
        ("score run --colour", "see zipflm score --help"),
        ("generate run -prompt a", "did you mean --prompt?"),
        ("train tiny/ADP-T --data d --out o --resum", "did you mean --resume?"),
        ("train tiny/ADP-T --batch-size 64 --data d", "training.tokens_per_update=TOKENS"),
    ],
)
def test_an_option_that_is_none_is_answered_with_what_to_write(arguments, said):
    with pytest.raises(ValueError) as error:
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)
    assert said in str(error.value) and "has no such option" in str(error.value)


def test_no_hint_takes_epochs_for_updates():
    with pytest.raises(ValueError) as error:
        arguments = ["train", "tiny/ADP-T", "--epochs", "3"]
        CliRunner().invoke(zipflm.cli.app, arguments, catch_exceptions=False)
    assert "updates=3" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("train tiny/ADP-T --data d --out o --out p", "--out: given twice"),
        ("score run --per=line --per word", "--per: given twice"),
        ("generate run --allow-unknown --forbid-unknown", "--forbid-unknown: contradicts"),
    ],
)
def test_an_option_that_would_replace_another_is_refused(arguments, option):
    with pytest.raises(ValueError, match=option):
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)


def test_a_flag_may_be_repeated():
    assert CliRunner().invoke(zipflm.cli.app, ["presets", "--json", "--json"]).exit_code == 0


def test_commands_are_listed_in_the_order_of_work():
    assert [*COMMANDS][:4] == ["prepare", "train", "evaluate", "score"]


@pytest.mark.parametrize("arguments", [["--help"], ["presets"], ["config", "tiny/SM", "--json"]])
def test_a_pipe_that_is_closed_early_ends_every_command_alike(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        ended = subprocess.run(
            command(*arguments), env=environment(), stdout=closed, stderr=subprocess.PIPE
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_what_looks_like_an_option_may_be_a_value_or_follow_two_dashes():
    """The run is refused, not its prompt."""
    for arguments in (["--prompt", "--lr", "none"], ["--", "--lr"]):
        with pytest.raises((ValueError, OSError)) as error:
            CliRunner().invoke(zipflm.cli.app, ["generate", *arguments], catch_exceptions=False)
        assert "no such option" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("lr", "training.schedule.max_lr"), ("training.lr", "training.schedule.max_lr")]
    + [("max_updates", "training.max_updates"), ("decoder.layers", "decoder.num_layers")],
)
def test_a_key_that_is_none_is_answered_with_the_one_that_is_meant(word_data, tmp_path, key, meant):
    arguments = ["train", "tiny/ADP-T", f"{key}=1", "--data", word_data.path, "--out", tmp_path]
    with pytest.raises(ValueError, match=f"unknown key {key}: did you mean {meant}"):
        CliRunner().invoke(zipflm.cli.app, [*map(str, arguments)], catch_exceptions=False)


def test_resuming_what_is_not_there_is_refused_and_leaves_nothing(word_data, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", "tiny/ADP-T", "--data", str(word_data.path), "--out", str(out)]
    with pytest.raises(ValueError, match="--resume: there is no run in .*--resume-if-any"):
        CliRunner().invoke(zipflm.cli.app, [*arguments, "--resume"], catch_exceptions=False)
    assert not out.exists()
    arguments += ["--resume-if-any", "training.max_updates=1", "--device", "cpu"]
    for _ in range(2):
        assert CliRunner().invoke(zipflm.cli.app, arguments).exit_code == 0
    assert (out / "checkpoints" / "update-00000001").is_dir()


def test_ctrl_c_ends_a_command_with_130_and_a_line(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("zipflm.language.trained.load", interrupt)
    result = CliRunner().invoke(zipflm.cli.app, ["generate", "run"])
    assert result.exit_code == 130
    assert result.stderr == "zipflm: generate was interrupted\n"


def test_no_word_stops_a_command_whatever_the_encoding_of_the_system(
    imported_run, tmp_path, monkeypatch
):
    """Files and pipes get UTF-8, which everything else here reads."""
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
