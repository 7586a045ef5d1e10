import itertools
import random
import sys

import pytest
from language.toy_models import Bigrams

from zipflm.language.nbest import Table, read_lists, read_references
from zipflm.language.rescoring import add_scores, rank_hypotheses, rescore_file
from zipflm.language.weights import complete_weights, import_levenshtein, tune

MODEL = Bigrams("the cat sat", "the dog ran", "the cat ran", "a dog sat")
WORDS = "the a cat dog sat ran".split()


def toy(folder, seed=1, utterances=12, scores=("ac",)):
    """Lists in which the reference is often likely and rarely first."""
    draw = random.Random(seed)
    rows, references = ["\t".join(["id", "text", *scores])], []
    for number in range(utterances):
        truth = draw.choice(["the cat sat", "the dog ran", "a dog sat", "the cat ran"]).split()
        references.append(f"u{number} {' '.join(truth)}")
        for _ in range(6):
            words = [draw.choice(WORDS) if draw.random() < 0.3 else word for word in truth]
            words = words[: draw.randint(1, 3)] if draw.random() < 0.3 else words
            numbers = [f"{draw.uniform(-6, 0):.3f}" for _ in scores]
            rows.append("\t".join([f"u{number}", " ".join(words), *numbers]))
    (folder / "dev.tsv").write_text("\n".join(rows) + "\n")
    (folder / "refs").write_text("\n".join(references) + "\n")


def by_hand(folder, rows):
    """Lists in which the first hypothesis is the reference."""
    lists = [f"u{number}\t{text}\t{ac}" for number, row in enumerate(rows) for text, ac in row]
    (folder / "dev.tsv").write_text("\n".join(["id\ttext\tac", *lists]) + "\n")
    references = [f"u{number} {row[0][0]}\n" for number, row in enumerate(rows)]
    (folder / "refs").write_text("".join(references))


def tuned(folder, names=("lm", "words"), given=None, model=MODEL):
    """Tune on the lists in a folder; return the result, the scored lists and the references."""
    given = given or {}
    references = read_references(str(folder / "refs"), Table())
    lists = read_lists(str(folder / "dev.tsv"), Table())
    weights = complete_weights(given | dict.fromkeys(names, 1.0), lists[0][0].scores, "lm")
    lists = add_scores(lists, model, "lm")
    return tune(lists, references, weights, names, given=given), lists, references


def num_errors(utterances, references, weights):
    best = [rank_hypotheses(utterance, weights)[0][0] for utterance in utterances]
    return sum(import_levenshtein().distance(references[e.utterance], e.words) for e in best)


def errors_by_row(tuning):
    return {row.label: sum(row.edits) for row in tuning.rows}


def test_table_matches_rescoring(tmp_path):
    toy(tmp_path)
    tuning, lists, references = tuned(tmp_path)
    rows = errors_by_row(tuning)
    assert rows["tuned, with the model"] == num_errors(lists, references, tuning.weights)
    assert rows["without the model"] == num_errors(lists, references, {"ac": 1.0})
    assert rows["before rescoring"] == num_errors(lists, references, {})
    assert rows["oracle"] <= rows["tuned, with the model"] < rows["without the model"]
    assert "36 words in 12 utterances\n" in tuning.as_text()
    assert tuned(tmp_path)[0] == tuning  # deterministic


@pytest.mark.parametrize("seed", range(4))
def test_is_at_least_as_good_as_a_coarse_grid(tmp_path, seed):
    toy(tmp_path, seed)
    tuning, lists, references = tuned(tmp_path)
    lms = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    penalties = [0, 0.1, -0.1, 0.2, -0.2, 0.5, -0.5, 1, -1, 2, -2, 5, -5, 10, -10]
    fewest = min(
        num_errors(lists, references, {"ac": 1, "lm": lm, "words": words})
        for lm, words in itertools.product(lms, penalties)
    )
    assert errors_by_row(tuning)["tuned, with the model"] <= fewest


def test_counts_edits(tmp_path):
    by_hand(tmp_path, [[("a b c d", 0)]])
    (tmp_path / "refs").write_text("u0 a x c e f\n")
    tuning, _, _ = tuned(tmp_path)
    assert tuning.rows[0].edits == [2, 1, 0]


def test_ties_go_to_the_smallest_weights(tmp_path):
    by_hand(tmp_path, [[("the cat", 0), ("cat the", 0)]])
    assert tuned(tmp_path)[0].weights == {"ac": 1, "lm": 0, "words": 0}


def test_refines_between_coarse_values(tmp_path):
    """Only weights from 0.74 to 0.81 rank the references first."""
    rows = [[("x a", 0), ("y b", 0.74)], [("y b", 0.81), ("x a", 0)], [("x a", 0), ("y b", 0.3)]]
    by_hand(tmp_path, rows)
    tuning, _, _ = tuned(tmp_path, ["lm"], model=lambda texts: [text[0] == "x" for text in texts])
    assert 0.74 <= tuning.weights["lm"] <= 0.81
    assert errors_by_row(tuning)["tuned, with the model"] == 0


def test_scores_can_be_in_the_hundreds(tmp_path):
    by_hand(tmp_path, [[("a b", -300), ("a", 0)], [("a", 0), ("a b", -900)]])
    tuning, _, _ = tuned(tmp_path, ["words"])
    assert 300 <= tuning.weights["words"] <= 900
    assert errors_by_row(tuning)["tuned, with the model"] == 0


def test_shows_the_gain_without_the_model(tmp_path):
    by_hand(tmp_path, [[("y b", -1.2), ("y", 0)], [("y", 0), ("y b", -2)]])
    tuning, _, _ = tuned(tmp_path, model=lambda texts: [0.0] * len(texts))
    errors = errors_by_row(tuning)
    assert errors["without the model"] == 1
    assert errors["tuned, without the model"] == errors["tuned, with the model"] == 0
    assert tuning.rows[2].weights.startswith("lm=0,words=1.2")


def test_given_weights_apply_without_the_model(tmp_path):
    toy(tmp_path)
    tuning, lists, references = tuned(tmp_path, ["lm"], {"words": 2})
    errors = errors_by_row(tuning)
    expected = num_errors(lists, references, {"ac": 1.0, "words": 2.0})
    assert errors["without the model"] == expected
    assert "tuned, without the model" not in errors


def test_keeps_given_weights(tmp_path):
    toy(tmp_path)
    tuning, _, _ = tuned(tmp_path, ["lm"], {"words": -0.3, "ac": 0.5})
    assert tuning.weights["words"] == -0.3 and tuning.weights["ac"] == 0.5
    assert tuning.option.startswith("ac=0.5,lm=") and tuning.option.endswith(",words=-0.3")


def test_tunes_other_scores(tmp_path):
    toy(tmp_path, scores=("ac", "graph"))
    both, _, _ = tuned(tmp_path, ["lm", "graph"], {"words": 0})
    one, _, _ = tuned(tmp_path, ["lm"], {"words": 0})
    assert sum(both.rows[-2].edits) <= sum(one.rows[-2].edits)
    assert "graph=" in both.option and "ac=" not in both.option


def rescore(folder, say=lambda text: None, **options):
    options = {"reference": str(folder / "refs"), "weights": {}} | options
    out = str(folder / "out")
    rescore_file(str(folder / "dev.tsv"), lambda: MODEL, say=say, out=out, **options)
    return (folder / "out").read_bytes()


def test_printed_option_gives_the_same_list(tmp_path):
    toy(tmp_path)
    messages = []
    first = rescore(tmp_path, messages.append)
    option = messages[-1].rpartition("--weights ")[2]
    pairs = [part.split("=") for part in option.split(",")]
    weights = {name: float(number) for name, number in pairs}
    assert rescore(tmp_path, weights=weights, reference=None) == first


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        ({"lm": 1, "words": 0}, [], "no weights left to tune"),
        ({"lm": 1}, ["lm"], "--tune lm: already has a weight in --weights"),
        ({}, ["lm", "lm"], "give 1 to 3 different names"),
        ({}, ["lm", "words", "ac", "graph"], "give 1 to 3 different names"),
        ({}, ["am"], "no score am; choose from ac, lm, words"),
    ],
)
def test_rejects_weights_that_cannot_be_tuned(tmp_path, given, names, message):
    toy(tmp_path)
    with pytest.raises(ValueError, match=message):
        rescore(tmp_path, weights=given, tuned=names)


def test_needs_a_reference_per_utterance(tmp_path):
    toy(tmp_path)
    with open(tmp_path / "refs", "a") as file:
        file.write("other the cat\n")
    assert "(1 references without hypotheses are ignored)" in tuned(tmp_path)[0].summary
    (tmp_path / "refs").write_text("u1 the cat\n")
    with pytest.raises(ValueError, match="refs: no reference for utterance u0"):
        rescore(tmp_path)
    (tmp_path / "refs").write_text("other cat\n" + "".join(f"u{n}\n" for n in range(12)))
    with pytest.raises(ValueError, match="the references have no words"):
        rescore(tmp_path)


def test_needs_rapidfuzz(tmp_path, monkeypatch):
    toy(tmp_path)
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(ValueError, match="--reference: needs rapidfuzz; pip install rapidfuzz"):
        rescore(tmp_path)
