import json
import math
import subprocess
import sys

import pytest
from language.toy_models import Bigrams
from training_runs import command, environment

import zipflm.cli
from zipflm.language import rescoring

LIST = "id\ttext\tac\nu1\tthe rat sat\t-1\nu1\tthe cat sat\t-1.5\nu2\tthe dog ran\t-2\n"
MODEL = Bigrams("the cat sat", "the dog ran", "the cat ran")


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    monkeypatch.setattr(rescoring, "model_scorer", lambda *_, **__: MODEL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.tsv").write_text(LIST)
    (tmp_path / "refs").write_text("u1 the cat sat\nu2 the dog ran\n")


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command; return its exit status, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["zipflm", *arguments])
        with pytest.raises(SystemExit) as exit:
            zipflm.cli.main()
        said = capsys.readouterr()
        return exit.value.code or 0, said.out, said.err

    return call


def test_sorts_the_best_hypothesis_first(call):
    status, out, err = call("rescore", "run", "list.tsv", "--weights", "lm=1,words=-0.2")
    assert (status, err) == (0, "scores in the list: ac; weights ac=1,lm=1,words=-0.2\n")
    header, *rows = out.splitlines()
    assert header == "id\ttext\tac\tlm\ttotal"
    assert [row.split("\t")[1] for row in rows] == ["the cat sat", "the rat sat", "the dog ran"]
    lm, total = map(float, rows[0].split("\t")[3:])
    assert lm == pytest.approx(MODEL.log_prob("the cat sat"), abs=1e-6)
    assert total == pytest.approx(lm - 1.5 - 0.6, abs=1e-6)


def test_writes_one_best_to_a_file(call, tmp_path):
    status, out, err = call("rescore", "run", "list.tsv", "--one-best", "--out", "best.txt")
    assert (status, out) == (0, "") and len(err.splitlines()) == 1
    assert (tmp_path / "best.txt").read_text() == "u1 the cat sat\nu2 the dog ran\n"


def test_kaldi_costs(call, tmp_path):
    (tmp_path / "nbest").write_text("u-1 the rat\nu-2 the cat\n")
    (tmp_path / "1.acwts").write_text("u-1 1\nu-2 1.5\n")
    options = ["--format", "kaldi", "--costs", "ac=1.acwts", "--scores-out", "scores"]
    status, out, _ = call("rescore", "run", "nbest", *options)
    assert (status, out) == (0, "u-2 the cat\nu-1 the rat\n")
    key, lm, total = (tmp_path / "scores").read_text().splitlines()[0].split()
    assert key == "u-2" and float(total) == pytest.approx(float(lm) - 1.5, abs=1e-5)


def test_repeated_options_add_up(call, tmp_path):
    (tmp_path / "nbest").write_text("u-1 the rat\nu-2 the cat\n")
    (tmp_path / "ac").write_text("u-1 1\nu-2 2\n")
    (tmp_path / "graph").write_text("u-1 9\nu-2 3\n")
    options = "--format kaldi --costs ac=ac --costs graph=graph --weights lm=0 --weights words=1"
    status, out, err = call("rescore", "run", "nbest", *options.split(), "--scores-out", "scores")
    assert (status, out) == (0, "u-2 the cat\nu-1 the rat\n")
    assert err == "scores in the list: ac, graph; weights ac=1,graph=1,lm=0,words=1\n"
    totals = [float(line.split()[2]) for line in (tmp_path / "scores").read_text().splitlines()]
    assert totals == [-3, -8]


def test_tuning_prints_a_table_and_applies_the_weights(call):
    status, out, err = call("rescore", "run", "list.tsv", "--reference", "refs", "--one-best")
    assert (status, out) == (0, "u1 the cat sat\nu2 the dog ran\n")
    *table, option = err.splitlines()
    assert table[0] == "scores in the list: ac"
    labels = ["before rescoring", "without the model", "tuned, without", "tuned, with the"]
    assert all(row.startswith(label) for row, label in zip(table[2:6], labels, strict=True))
    assert "16.67%" in table[2] and "0.00%" in table[5]
    again = call("rescore", "run", "list.tsv", "--one-best", *option.split())
    assert again[:2] == (0, out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("list.tsv --weights am=1", "--weights, --tune: no score am; choose from ac, lm, words"),
        ("list.tsv --reference refs --tune am", "--tune: no score am; choose from ac, lm, words"),
        ("list.tsv --format htk", "--format htk: choose from kaldi, moses, jsonl, tsv"),
        ("refs", "refs: needs --format: choose from kaldi"),
        ("list.tsv --format jsonl", "list.tsv: line 1: is not a JSON object"),
        ("absent.tsv", "absent.tsv: no such file"),
        ("list.tsv --tune lm", "--tune: needs --reference"),
        ("list.tsv --scores ac=ac.txt", "--scores, --costs: only for --format kaldi"),
        ("list.tsv --scores ac", "--scores ac: write NAME=VALUE, e.g. ac=ac.txt"),
        ("list.tsv --weights lm", "--weights lm: write NAME=VALUE, e.g. lm=0.7,words=-0.2"),
        ("list.tsv --weights lm=x", "--weights lm=x: write NAME=NUMBER, e.g. lm=0.7,words=-0.2"),
        ("list.tsv --weights lm=nan", "--weights lm=nan: write NAME=NUMBER"),
        ("list.tsv --weights lm=1,lm=2", "--weights lm=2: write NAME=VALUE"),
        ("list.tsv --scores-out file", "--scores-out: only for --format kaldi"),
        ("list.tsv --costs ac=a --costs ac=b", "--costs ac=b: write NAME=VALUE"),
        ("list.tsv --out list.tsv", "--out list.tsv: would overwrite an input; choose another"),
        ("list.tsv --out refs --reference refs", "--out refs: would overwrite an input"),
        (
            "a --format kaldi --costs ac=refs --scores-out refs",
            "--scores-out refs: would",
        ),
        (
            "list.tsv --out new --scores-out ./new",
            "--scores-out ./new: same file as --out; choose another file",
        ),
    ],
)
def test_bad_input_exits_with_2_and_one_line(call, tmp_path, arguments, message):
    before = sorted(tmp_path.iterdir())
    status, out, err = call("rescore", "run", *arguments.split())
    assert (status, out) == (2, "")
    assert message in err and len(err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_checks_the_list_before_loading_the_model(call, monkeypatch):
    def load(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr(rescoring, "model_scorer", load)
    for arguments in (["--weights", "am=1"], ["--reference", "list.tsv", "--weights", "am=1"]):
        assert call("rescore", "run", "list.tsv", *arguments)[0] == 2


# --- Ensembles. ---


def write_scores(path, probabilities, words=("the", "cat", "</s>")):
    rows = ["line\tposition\tword\tlogprob\tband\tcount\tunknown\t# run=runs/a lines=independent"]
    for place, (word, p) in enumerate(zip(words, probabilities, strict=True), start=1):
        rows.append(f"1\t{place}\t{word}\t{math.log(p):.6f}\t0\t5\t0")
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def scores(tmp_path):
    write_scores(tmp_path / "a.tsv", [0.5, 0.1, 0.8])
    write_scores(tmp_path / "b.tsv", [0.1, 0.5, 0.4])


def test_ensemble_perplexity(call, scores, tmp_path):
    status, out, err = call("evaluate", "a.tsv", "b.tsv", "--weights", "1,3", "--out", "ab.tsv")
    assert (status, err) == (0, "")
    expected = (0.2 * 0.4 * 0.5) ** (-1 / 3)
    (row,) = [line for line in out.splitlines() if line.startswith("ensemble")]
    assert float(row.split()[1]) == pytest.approx(expected, abs=1e-4)
    assert "3 words, including 1 line ends and 0 unknown words" in out
    assert out.splitlines()[-1] == "--weights 0.25,0.75"
    assert len((tmp_path / "ab.tsv").read_text().splitlines()) == 4
    _, out, _ = call("evaluate", "a.tsv", "b.tsv", "--weights", "1,3", "--json")
    assert json.loads(out)["perplexity"] == pytest.approx(expected, abs=1e-4)


def test_fits_ensemble_weights(call, scores):
    _, out, _ = call("evaluate", "a.tsv", "b.tsv", "--weights", "fit", "--json")
    _, equal, _ = call("evaluate", "a.tsv", "b.tsv", "--json")
    assert json.loads(out)["nll"] < json.loads(equal)["nll"]


def test_stdout_has_only_scores_with_out_dash(call, scores):
    status, out, err = call("evaluate", "a.tsv", "b.tsv", "--out", "-")
    assert status == 0 and out.startswith("line\tposition\tword\tlogprob\tunknown\t# run=ensemble")
    assert "perplexity" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (". a.tsv", ".: evaluate one run at a time; to average runs, score the same text"),
        ("a.tsv b.tsv --out b.tsv", "--out b.tsv: would overwrite an input; choose another file"),
        ("a.tsv b.tsv --weights 1", "--weights 1: 1 weights for 2 files"),
        ("a.tsv b.tsv --weights 1,x", "--weights 1,x: write numbers separated by commas"),
        ("a.tsv other.tsv", "other.tsv: line 3: 'dog' is word 2 of text line 1, but in a.tsv, "),
    ],
)
def test_bad_ensemble_exits_with_2_and_one_line(call, scores, tmp_path, arguments, message):
    write_scores(tmp_path / "other.tsv", [0.5, 0.1, 0.8], ("the", "dog", "</s>"))
    status, out, err = call("evaluate", *arguments.split())
    assert (status, out) == (2, "")
    assert message in err and len(err.splitlines()) == 1


def test_closed_pipe_is_silent(tmp_path):
    for name in ("a.tsv", "b.tsv"):
        write_scores(tmp_path / name, [0.5] * 100_000, ["word"] * 100_000)
    with subprocess.Popen(
        command("evaluate", "a.tsv", "b.tsv", "--out", "-"),
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline().startswith("line\t")
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == ""
