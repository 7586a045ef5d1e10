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

COMMANDS = {
    f"{name} {inner}" if inner else name: found
    for name, command in typer.main.get_command(zipflm.cli.app).commands.items()
    for inner, found in getattr(command, "commands", {"": command}).items()
}
DEFAULT_IS_SAID = re.compile(
    r"unless given|if not given|stdin if none|can be repeated|instead of|\[default", re.IGNORECASE
)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")


def help_of(name):
    result = CliRunner().invoke(zipflm.cli.app, [*name.split(), "--help"])
    assert result.exit_code == 0
    return result.stdout


def test_help_has_examples_that_the_command_understands():
    for name in COMMANDS:
        shown = help_of(name)
        examples = shown[shown.index("Examples:") :]
        lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
        assert lines and all(f"zipflm {name}" in line for line in lines)
        known = {option for param in COMMANDS[name].params for option in param.opts}
        for line in lines:
            own = line[line.index(f"zipflm {name}") :].partition("(")[0]
            assert set(re.findall(r"(?<= )--[\w-]+", own)) <= known, line
        assert "bool" not in shown.lower()  # a flag has no type


def test_every_option_says_what_happens_without_it():
    silent = []
    for name in COMMANDS:
        shown = help_of(name)
        for param in COMMANDS[name].params:
            option = next((each for each in param.opts if each.startswith("--")), None)
            if option is None or param.required or getattr(param, "is_flag", False):
                continue
            said = f"{param.help} {shown[shown.index(option + ' ') :].split(chr(10))[0]}"
            if not DEFAULT_IS_SAID.search(said) and param.name not in NEED_NO_DEFAULT:
                silent.append(f"{name} {option}")
    assert not silent


NEED_NO_DEFAULT = {
    *("corpus", "names", "max_size", "vocabulary", "bpe", "bpe_codes", "test", "valid"),  # nothing
    *("prefix", "prompt", "bands", "tail_dropout", "context_sizes", "data", "grid", "reference"),
    *("scores", "costs", "scores_out", "out", "context", "format", "tune", "curves"),
    "dictionary",
}
"""Without these nothing is done that they would do, or what is done is said in other words."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train tiny/ADP-T --training.max_updates=5 --data d", "dashes: training.max_updates="),
        ("train tiny/ADP-T --data d --out o --seed 2", "dashes: training.seed="),
        ("train tiny/ADP-T --dat d --out o", "--dat: .*no such option; did you mean --data?"),
        ("score run --colour", "--colour: .*no such option; see zipflm score --help"),
        ("generate run -prompt a", "-prompt: .*no such option; did you mean --prompt?"),
        ("train tiny/ADP-T --out o", "--data.*; see zipflm train --help"),
        ("generate run some words", "some words.*; a text to continue follows --prompt"),
        ("train tiny/ADP-T --data d --out o --keep x", "--keep x: .*; see zipflm train --help"),
        ("train tiny/ADP-T --lr 3", "--lr: .* without dashes: training.schedule.max_lr=VALUE or "),
        ("train tiny/ADP-T --batch-size 3", "; see zipflm train --help, and zipflm info PRESET"),
        ("train tiny/ADP-T --data d --out o --out p", "--out: given twice"),
        ("trian tiny/ADP-T", "zipflm trian: no such command; did you mean zipflm train?"),
        ("frobnicate", "zipflm frobnicate: no such command; see zipflm --help"),
        ("--verison", "--verison: no such option; see zipflm --help"),
        ("score run --per=line --per word", "--per: given twice"),
        ("generate run --allow-unknown --forbid-unknown", "--allow-unknown: given twice"),
    ],
)
def test_wrong_usage_is_answered_in_one_line(arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("presets tiny", "zipflm presets: is zipflm info now"),
        ("bands data/words", "is zipflm info --data DATA now"),
        ("analyse runs/a --data d --out o", "is zipflm report now"),
        ("import-fairseq model.pt --dict d --out o", "is zipflm import FILE OUT --dict DICT now"),
        ("prepare text --split words --out d", "has no such option; write --words"),
        ("evaluate run --precision float16", "write --dtype"),
        ("rescore run list --tune-names lm", "write --tune"),
        ("ensemble a.tsv b.tsv", "zipflm ensemble: is zipflm evaluate FILE FILE now"),
        ("compare --data d --preset tiny --out o --tune a=1", "write --grid"),
        ("export run --out hf", "no such option; write zipflm export RUN OUT"),
    ],
)
def test_what_was_renamed_is_answered_with_its_new_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        CliRunner().invoke(zipflm.cli.app, arguments.split(), catch_exceptions=False)


def test_a_flag_may_be_repeated():
    assert CliRunner().invoke(zipflm.cli.app, ["info", "--json", "--json"]).exit_code == 0


def test_commands_are_listed_in_the_order_of_work():
    assert [*COMMANDS][:4] == ["prepare", "train", "evaluate", "score"]


@pytest.mark.parametrize("arguments", [["--help"], ["info", "tiny/SM", "--json"]])
def test_a_pipe_that_is_closed_early_ends_a_command_with_141(arguments):
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


def test_an_unknown_key_is_answered_with_the_closest(word_data, tmp_path):
    arguments = ["train", "tiny/ADP-T", "--data", word_data.path, "--out", tmp_path]
    arguments = [*map(str, arguments), "max_updates=1"]
    with pytest.raises(ValueError, match="key max_updates: did you mean training.max_updates"):
        CliRunner().invoke(zipflm.cli.app, arguments, catch_exceptions=False)


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

    monkeypatch.setattr("zipflm.language.model.load", interrupt)
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
