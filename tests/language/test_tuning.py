import itertools
import random
import sys

import pytest
from language.toy_models import Bigrams

from zipflm.language.nbest import NBest
from zipflm.language.rescoring import Results, open_lists, parse_weights, ranked, rescore, write
from zipflm.language.tuning import read_development, tune_on, word_errors

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
    return NBest(str(folder / "dev.tsv")), str(folder / "refs")


def tuned(folder, given=None, names=None, **options):
    nbest, references = toy(folder, **options)
    return tune_on(read_development(nbest, given or {}, references, names), MODEL)


def errors(utterances, references, weights):
    total = 0
    for utterance in utterances:
        best = ranked(utterance, weights, "lm")[0][0].entry
        total += word_errors(references[best.utterance], [best.words])[0]
    return total


def test_table_matches_rescoring(tmp_path):
    found, utterances = tuned(tmp_path)
    lines = [line.split() for line in (tmp_path / "refs").read_text().splitlines()]
    references = {key: words for key, *words in lines}
    rows = {row.label: row.edits.errors for row in found.rows}
    assert rows["tuned"] == errors(utterances, references, found.weights)
    assert rows["without the model"] == errors(utterances, references, {"ac": 1.0})
    assert rows["first in the lists"] == errors(utterances, references, {})
    assert rows["oracle"] <= rows["tuned"] < rows["without the model"]
    assert found.reference_words == 36 and found.utterances == 12


@pytest.mark.parametrize("seed", range(4))
def test_is_at_least_as_good_as_the_coarse_grid(tmp_path, seed):
    found, utterances = tuned(tmp_path, seed=seed)
    lines = [line.split() for line in (tmp_path / "refs").read_text().splitlines()]
    references = {key: words for key, *words in lines}
    lms = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    penalties = [0, 0.1, -0.1, 0.2, -0.2, 0.5, -0.5, 1, -1, 2, -2, 5, -5, 10, -10]
    least = min(
        errors(utterances, references, {"ac": 1, "lm": lm, "words": words})
        for lm, words in itertools.product(lms, penalties)
    )
    assert {row.label: row.edits.errors for row in found.rows}["tuned"] <= least


def test_is_deterministic(tmp_path):
    assert tuned(tmp_path)[0] == tuned(tmp_path)[0]


def test_ties_go_to_the_smallest_weights(tmp_path):
    (tmp_path / "dev.tsv").write_text("id\ttext\tac\nu\tthe cat\t0\nu\tcat the\t0\n")
    (tmp_path / "refs").write_text("u the cat\n")
    development = read_development(NBest(str(tmp_path / "dev.tsv")), {}, str(tmp_path / "refs"))
    found, _ = tune_on(development, MODEL)
    assert found.weights == {"ac": 1, "lm": 0, "words": 0}


def test_refines_between_coarse_values(tmp_path):
    """Only weights from 0.74 to 0.81 rank the references first."""

    class Model:
        def log_probs_of(self, utterances):
            return [[{"x": 1.0, "y": 0.0}[text[0]] for text in texts] for texts in utterances]

    (tmp_path / "dev.tsv").write_text(
        "id\ttext\tac\nu\tx a\t0\nu\ty b\t0.74\nv\tx a\t0\nv\ty b\t0.81\nw\tx a\t0\nw\ty b\t0.3\n"
    )
    (tmp_path / "refs").write_text("u x a\nv y b\nw x a\n")
    nbest = NBest(str(tmp_path / "dev.tsv"))
    found, _ = tune_on(read_development(nbest, {}, str(tmp_path / "refs"), ["lm"]), Model())
    assert 0.74 <= found.weights["lm"] <= 0.81
    assert found.rows[-2].edits.errors == 0


class OnlyOnes:
    """A model that slightly prefers texts starting with `x`."""

    def log_probs_of(self, utterances):
        return [[0.001 * text.startswith("x") for text in texts] for texts in utterances]


def tuned_by_hand(folder, rows, names):
    """The first hypothesis of every list is the reference."""
    lists = [f"u{number}\t{text}\t{ac}" for number, row in enumerate(rows) for text, ac in row]
    (folder / "dev.tsv").write_text("\n".join(["id\ttext\tac", *lists]) + "\n")
    references = [f"u{number} {row[0][0]}\n" for number, row in enumerate(rows)]
    (folder / "refs").write_text("".join(references))
    nbest = NBest(str(folder / "dev.tsv"))
    return tune_on(read_development(nbest, {}, str(folder / "refs"), names), OnlyOnes())[0]


def test_extends_the_grid(tmp_path):
    """The best weight is between 35 and 40."""
    rows = [[("a b", ac), ("a", 0)] for ac in (-6, -15, -35)] + [[("a", 0), ("a b", -40)]]
    found = tuned_by_hand(tmp_path, rows, ["words"])
    assert 35 <= found.weights["words"] <= 40
    assert not found.at_end and found.rows[-2].edits.errors == 0


def test_extends_a_grid_without_effect(tmp_path):
    """Scores are in the hundreds, so the first grid has no effect."""
    rows = [[("a b", -300), ("a", 0)], [("a", 0), ("a b", -900)]]
    found = tuned_by_hand(tmp_path, rows, ["words"])
    assert 300 <= found.weights["words"] <= 900
    assert found.rows[-2].edits.errors == 0


def test_warns_of_weights_at_the_end_of_the_grid(tmp_path):
    rows = [[("x a", ac), ("y a", 0)] for ac in (-0.06, -0.9, -9.99)]
    found = tuned_by_hand(tmp_path, rows, ["lm"])
    assert found.at_end == ("lm=10000",) and "warning: lm=10000" in found.as_text()


def test_shows_the_gain_without_the_model(tmp_path):
    found = tuned_by_hand(tmp_path, [[("y b", -1.2), ("y", 0)], [("y", 0), ("y b", -2)]], None)
    rows = {row.label: row for row in found.rows}
    assert rows["without the model"].edits.errors == 1
    assert rows["tuned without it"].edits.errors == rows["tuned"].edits.errors == 0
    assert rows["tuned without it"].weights.startswith("lm=0,words=1.2")


def test_given_weights_apply_without_the_model(tmp_path):
    nbest, references = toy(tmp_path)
    found, utterances = tune_on(read_development(nbest, {"words": 2}, references), MODEL)
    lines = [line.split() for line in (tmp_path / "refs").read_text().splitlines()]
    references = {key: words for key, *words in lines}
    rows = {row.label: row.edits.errors for row in found.rows}
    assert rows["without the model"] == errors(utterances, references, {"ac": 1.0, "words": 2.0})
    assert "tuned without it" not in rows


def test_keeps_given_weights(tmp_path):
    found, _ = tuned(tmp_path, {"words": -0.3, "ac": 0.5})
    assert found.weights["words"] == -0.3 and found.weights["ac"] == 0.5
    assert found.option.startswith("ac=0.5,lm=") and found.option.endswith(",words=-0.3")


def test_tunes_other_scores(tmp_path):
    found, _ = tuned(tmp_path, {"words": 0}, ["lm", "graph"], scores=("ac", "graph"))
    fewer, _ = tuned(tmp_path, {"words": 0}, ["lm"], scores=("ac", "graph"))
    assert found.rows[-2].edits.errors <= fewer.rows[-2].edits.errors
    assert "graph=" in found.option and "ac=" not in found.option


def test_printed_option_gives_the_same_list(tmp_path):
    found, utterances = tuned(tmp_path)
    nbest, _ = toy(tmp_path)
    next(nbest.utterances())
    write(nbest, utterances, found.weights, lm="lm", results=Results(out=str(tmp_path / "a")))
    nbest, _ = toy(tmp_path)
    lists = open_lists(nbest, parse_weights(found.option))
    rescore(lists, MODEL, Results(out=str(tmp_path / "b")))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert found.as_text().endswith(f"--weights {found.option}")


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        ({"lm": 1, "words": 0}, None, "no weights left to tune"),
        ({"lm": 1}, ["lm"], "--tune lm: already has a weight in --weights"),
        ({}, ["lm", "lm"], "give 1 to 3 different names"),
        ({}, ["lm", "words", "ac", "graph"], "give 1 to 3 different names"),
        ({}, ["am"], "no score am; choose from ac, lm, words"),
    ],
)
def test_rejects_weights_that_cannot_be_tuned(tmp_path, given, names, message):
    with pytest.raises(ValueError, match=message):
        tuned(tmp_path, given, names)


def test_needs_a_reference_per_utterance(tmp_path):
    nbest, references = toy(tmp_path)
    with open(references, "a") as file:
        file.write("other the cat\n")
    found, _ = tune_on(read_development(nbest, {}, references), MODEL)
    assert "(1 references without hypotheses are ignored)" in found.as_text()
    nbest, references = toy(tmp_path)
    (tmp_path / "refs").write_text("u1 the cat\n")
    with pytest.raises(ValueError, match="refs: no reference for utterance u0"):
        read_development(nbest, {}, references)
    (tmp_path / "refs").write_text("other cat\n" + "".join(f"u{n}\n" for n in range(12)))
    nbest = NBest(nbest.name)
    with pytest.raises(ValueError, match="the references have no words"):
        tune_on(read_development(nbest, {}, references), MODEL)


def test_needs_rapidfuzz(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    nbest, references = toy(tmp_path)
    with pytest.raises(ValueError, match="--reference: needs rapidfuzz; pip install rapidfuzz"):
        read_development(nbest, {}, references)
