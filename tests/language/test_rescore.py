import json

import pytest
from language.toy_models import Bigrams

import zipflm
from zipflm.evaluation.progress import on_progress
from zipflm.language import rescoring as module
from zipflm.language.rescoring import model_scorer, rescore_file

MODEL = Bigrams("the cat sat", "the dog ran", "the cat ran")
TSV = """id\ttext\tac
u1\tthe rat sat\t-1
u1\tthe cat sat\t-1.5
u1\t\t-9
u2\tthe dog ran\t-2
u2\tdog the ran\t-2
"""


@pytest.fixture
def rescore(tmp_path):
    """Rescore a list and return the lines of the output."""

    def rescore(content=TSV, format="tsv", scorer=MODEL, weights=None, costs=None, **options):
        (tmp_path / "list").write_text(content)
        rescore_file(
            str(tmp_path / "list"),
            lambda: scorer,
            say=lambda text: None,
            format=format,
            weights=weights or {},
            costs=costs,
            out=str(tmp_path / "out"),
            **options,
        )
        return (tmp_path / "out").read_text().splitlines()

    return rescore


def test_adds_scores_and_sorts(rescore):
    header, *rows = rescore(weights={"lm": 0.5, "words": 0.25})
    assert header == "id\ttext\tac\tlm\ttotal"
    rows = [row.split("\t") for row in rows]
    assert [row[1] for row in rows] == [
        "the cat sat",
        "the rat sat",
        "",
        "the dog ran",
        "dog the ran",
    ]
    for _, text, ac, lm, total in rows:
        assert float(lm) == pytest.approx(MODEL.log_prob(text), abs=1e-6)
        expected = float(ac) + 0.5 * MODEL.log_prob(text) + 0.25 * len(text.split())
        assert float(total) == pytest.approx(expected, abs=1e-6)


def test_reports_progress(rescore):
    reports = []
    with on_progress(lambda *args: reports.append(args)):
        rescore()
    assert reports == [("rescoring", 5, 5)]


def test_weight_0_keeps_the_order_of_the_scores(rescore):
    rows = rescore(weights={"lm": 0})
    assert [row.split("\t")[1] for row in rows[1:]] == [
        "the rat sat",
        "the cat sat",
        "",
        "the dog ran",  # a tie
        "dog the ran",
    ]


def test_one_best(rescore):
    rows = rescore(one_best=True)
    assert rows == ["u1 the cat sat", "u2 the dog ran"]


def test_one_best_of_moses_has_no_ids(rescore):
    content = (
        "0 ||| the rat ||| f= 1 ||| -1\n0 ||| the cat ||| f= 1 ||| -1\n1 |||  ||| f= 1 ||| 0\n"
    )
    rows = rescore(content, "moses", one_best=True)
    assert rows == ["the cat", ""]
    rows = rescore(content, "moses", weights={"lm": 2})
    best = MODEL.log_prob("the cat")
    assert rows[0] == f"0 ||| the cat ||| f= 1 lm= {best:.6f} ||| {2 * best - 1:.6f}"


def test_kaldi_scores_are_written_to_a_file(rescore, tmp_path):
    content = "u-1 the rat\nu-2 the cat\n"
    (tmp_path / "ac").write_text("u-1 1\nu-2 1.5\n")
    options = {"weights": {"lm": 1, "ac": 0.1}, "costs": {"ac": str(tmp_path / "ac")}}
    rows = rescore(content, "kaldi", scores_out=str(tmp_path / "scores"), **options)
    assert rows == ["u-2 the cat", "u-1 the rat"]
    scores = [line.split() for line in (tmp_path / "scores").read_text().splitlines()]
    for (key, lm, total), text, ac in zip(scores, ("the cat", "the rat"), (-1.5, -1), strict=True):
        assert key == {"the cat": "u-2", "the rat": "u-1"}[text]
        assert float(lm) == pytest.approx(MODEL.log_prob(text), abs=1e-6)
        assert float(total) == pytest.approx(MODEL.log_prob(text) + 0.1 * ac, abs=1e-6)


def test_json_lines_keep_other_fields(rescore):
    content = '{"id": 1, "text": "the cat", "scores": {"ac": 2}, "note": "kept"}\n'
    rows = rescore(content, "jsonl", name="big")
    found = json.loads(rows[0])
    assert found["note"] == "kept" and found["id"] == 1
    assert found["scores"].keys() == {"ac", "big", "total"}


def test_scores_equal_texts_once(rescore):
    model = Bigrams("the cat")
    content = "id\ttext\tac\nu\tthe cat\t1\nu\tthe  cat \t2\nu\tthe rat\t1\n"
    rescore(content, scorer=model)
    assert model.calls == [["the cat", "the rat"]]


def test_scores_in_groups(rescore, monkeypatch):
    monkeypatch.setattr(module, "_TEXTS_PER_GROUP", 4)
    model = Bigrams("the cat")
    rows = "".join(f"u{n}\ttext {n} {m}\n" for n in range(9) for m in range(2))
    rescore("id\ttext\n" + rows, scorer=model)
    assert [len(call) for call in model.calls] == [4, 4, 4, 4, 2]


def test_rejects_missing_scores_that_have_a_weight(rescore):
    content = "0 ||| a ||| f= 1 g= 1 ||| 2\n0 ||| b ||| f= 1 ||| 2\n"
    rescore(content, "moses")
    with pytest.raises(ValueError, match="list: line 2: has no score g; add it"):
        rescore(content, "moses", weights={"g": 1, "total": 1})


@pytest.mark.parametrize("name", ["words", "id", "text", "total", "a b", ""])
def test_rejects_names_that_would_replace_other_columns(rescore, name):
    with pytest.raises(ValueError, match="--name .*: must consist of letters"):
        rescore(name=name)


def test_failure_leaves_no_file(rescore, tmp_path):
    with pytest.raises(ValueError, match="line 7"):
        rescore(TSV + "u3\n")
    assert not (tmp_path / "out").exists()


def test_model_scores_match_lm_score(run):
    scorer = model_scorer(str(run), checkpoint=None, device="cpu", dtype="float32")
    lm = zipflm.load(run, device="cpu")
    expected = [text.logprob for text in lm.score(["ba de fila", "ba", "\n"])]
    assert scorer(["ba de fila", "ba", ""]) == pytest.approx(expected, rel=1e-5)
