import json

import pytest
from language.toy_models import Bigrams

from zipflm.evaluation.progress import on_progress
from zipflm.language import rescoring as module
from zipflm.language.nbest import NBest
from zipflm.language.rescoring import Results, open_lists, rescore

MODEL = Bigrams("the cat sat", "the dog ran", "the cat ran")
TSV = """id\ttext\tac
u1\tthe rat sat\t-1
u1\tthe cat sat\t-1.5
u1\t\t-9
u2\tthe dog ran\t-2
u2\tdog the ran\t-2
"""


@pytest.fixture
def lists(tmp_path):
    def lists(content=TSV, format="tsv", given=None, lm="lm", **options):
        path = tmp_path / "list"
        path.write_text(content)
        return open_lists(NBest(str(path), format, **options), given or {}, lm)

    return lists


def run(lists, tmp_path, scorer=MODEL, **options):
    number = rescore(lists, scorer, Results(out=str(tmp_path / "out"), **options))
    return number, (tmp_path / "out").read_text().splitlines()


def test_scores_are_added_and_the_best_comes_first(lists, tmp_path):
    number, (header, *rows) = run(lists(given={"lm": 0.5, "words": 0.25}), tmp_path)
    assert number == 2 and header == "id\ttext\tac\tlm\ttotal"
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


def test_whoever_watches_hears_of_the_hypotheses(lists, tmp_path):
    heard = []
    with on_progress(lambda *news: heard.append(news)):
        run(lists(), tmp_path)
    assert heard == [("rescoring", 5, 6)]  # of so many lines, the header among them


def test_without_a_weight_for_the_model_the_order_is_the_lists_own(lists, tmp_path):
    _, rows = run(lists(given={"lm": 0}), tmp_path)
    assert [row.split("\t")[1] for row in rows[1:]] == [
        "the rat sat",
        "the cat sat",
        "",
        "the dog ran",  # a tie
        "dog the ran",
    ]


def test_one_best_is_text_by_id(lists, tmp_path):
    _, rows = run(lists(), tmp_path, one_best=True)
    assert rows == ["u1 the cat sat", "u2 the dog ran"]


def test_one_best_of_moses_lists_is_one_line_per_sentence(lists, tmp_path):
    content = (
        "0 ||| the rat ||| f= 1 ||| -1\n0 ||| the cat ||| f= 1 ||| -1\n1 |||  ||| f= 1 ||| 0\n"
    )
    _, rows = run(lists(content, "moses"), tmp_path, one_best=True)
    assert rows == ["the cat", ""]
    _, rows = run(lists(content, "moses", {"lm": 2}), tmp_path)
    best = MODEL.log_prob("the cat")
    assert rows[0] == f"0 ||| the cat ||| f= 1 lm= {best:.6f} ||| {2 * best - 1:.6f}"


def test_kaldi_lists_keep_their_ids_and_get_their_scores_in_a_file(lists, tmp_path):
    content = "u-1 the rat\nu-2 the cat\n"
    (tmp_path / "ac").write_text("u-1 1\nu-2 1.5\n")
    opened = lists(content, "kaldi", {"lm": 1, "ac": 0.1}, costs={"ac": str(tmp_path / "ac")})
    _, rows = run(opened, tmp_path, scores_out=str(tmp_path / "scores"))
    assert rows == ["u-2 the cat", "u-1 the rat"]
    scores = [line.split() for line in (tmp_path / "scores").read_text().splitlines()]
    for (key, lm, total), text, ac in zip(scores, ("the cat", "the rat"), (-1.5, -1), strict=True):
        assert key == {"the cat": "u-2", "the rat": "u-1"}[text]
        assert float(lm) == pytest.approx(MODEL.log_prob(text), abs=1e-6)
        assert float(total) == pytest.approx(MODEL.log_prob(text) + 0.1 * ac, abs=1e-6)


def test_json_lines_keep_what_they_had(lists, tmp_path):
    content = '{"id": 1, "text": "the cat", "scores": {"ac": 2}, "note": "kept"}\n'
    _, rows = run(lists(content, "jsonl", lm="big"), tmp_path)
    found = json.loads(rows[0])
    assert found["note"] == "kept" and found["id"] == 1
    assert found["scores"].keys() == {"ac", "big", "total"}


def test_texts_that_differ_in_spaces_alone_are_scored_once(lists, tmp_path):
    model = Bigrams("the cat")
    content = "id\ttext\tac\nu\tthe cat\t1\nu\tthe  cat \t2\nu\tthe rat\t1\n"
    run(lists(content), tmp_path, model)
    assert model.calls == [[["the cat", "the rat"]]]


def test_lists_are_scored_in_groups_while_they_are_read(lists, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_HYPOTHESES_AT_ONCE", 4)
    model = Bigrams("the cat")
    rows = "".join(f"u{n}\ttext {n} {m}\n" for n in range(9) for m in range(2))
    opened = lists("id\ttext\n" + rows)
    taken = []
    watched = (taken.append(entries[0].utterance) or entries for entries in opened.utterances)
    scored = module.scored(watched, model)
    next(scored)
    assert taken == ["u0", "u1"]  # no more is read than is scored
    assert len(list(scored)) == 8
    assert [len(call) for call in model.calls] == [2, 2, 2, 2, 1]


def test_features_that_some_lines_lack_are_refused_only_if_they_count(lists, tmp_path):
    content = "0 ||| a ||| f= 1 g= 1 ||| 2\n0 ||| b ||| f= 1 ||| 2\n"
    run(lists(content, "moses"), tmp_path)
    with pytest.raises(ValueError, match="list: line 2: has no score g, which counts"):
        run(lists(content, "moses", {"g": 1, "total": 1}), tmp_path)


def test_a_list_that_ends_badly_leaves_no_file(lists, tmp_path):
    with pytest.raises(ValueError, match="line 7"):
        run(lists(TSV + "u3\n"), tmp_path)
    assert not (tmp_path / "out").exists()


def test_weights_are_checked_when_the_first_utterance_is_read(lists):
    with pytest.raises(ValueError, match="no score am; there are ac, lm, words"):
        lists(given={"am": 1.0})
