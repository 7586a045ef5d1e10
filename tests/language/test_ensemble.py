import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.language.ensemble import average_logprobs, em_weights, ensemble

TEXT = ["the cat sat", "", "the dog"]
PROTOCOL = {"unit": "word", "lines": "independent", "block": "16"}


def words(text=TEXT):
    for line, sentence in enumerate(text, start=1):
        for position, word in enumerate([*sentence.split(), "</s>"], start=1):
            yield line, position, word


@pytest.fixture
def write(tmp_path):
    """Write a file of scores."""

    def write(name, probabilities, text=TEXT, unknown=(), **protocol):
        pairs = " ".join(f"{k}={v}" for k, v in (PROTOCOL | {"run": name} | protocol).items())
        rows = [f"line\tposition\tword\tlogprob\tband\tcount\tunknown\t# {pairs}"]
        for (line, position, word), p in zip(words(text), probabilities, strict=True):
            fields = (line, position, word, math.log(p), 0, 5, int(word in unknown))
            rows.append("\t".join(map(str, fields)))
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        return str(tmp_path / name)

    return write


A = np.array([0.5, 0.1, 0.2, 0.9, 0.3, 0.4, 0.05, 0.8])
B = np.array([0.1, 0.6, 0.3, 0.7, 0.3, 0.2, 0.25, 0.9])


def perplexity(p):
    return math.exp(-np.log(p).mean())


def test_averages_probabilities(write):
    found = ensemble([write("a", A), write("b", B)])
    assert math.exp(found.nll) == pytest.approx(perplexity((A + B) / 2))
    assert [math.exp(m.nll) for m in found.members] == pytest.approx([perplexity(A), perplexity(B)])
    assert (found.words, found.ends, found.unknown) == (8, 3, 0)
    assert found.notes == ()


def test_normalizes_weights(write):
    found = ensemble([write("a", A), write("b", B)], [3, 1])
    assert math.exp(found.nll) == pytest.approx(perplexity(0.75 * A + 0.25 * B))
    assert found.as_text().endswith("--weights 0.75,0.25")


def test_ensembles_can_be_nested(write, tmp_path):
    names = [write("a", A), write("b", B), write("c", (A + 2 * B) / 4)]
    out = str(tmp_path / "ab")
    ensemble(names[:2], out=out)
    nested = ensemble([out, names[2]], [2, 1])
    flat = ensemble(names)
    assert nested.nll == pytest.approx(flat.nll, abs=1e-6)
    header = (tmp_path / "ab").read_text().splitlines()[0]
    assert header.endswith("# run=ensemble weights=0.5,0.5 unit=word lines=independent block=16")


def test_rejects_different_texts(write):
    other = ["the cat sat", "", "the rat"]
    message = "b: line 8: 'rat' is word 2 of text line 3, but in .*a, 'dog' is word 2"
    with pytest.raises(ValueError, match=message):
        ensemble([write("a", A), write("b", B, other)])
    with pytest.raises(ValueError, match="b: line 6: the file ends, but in .*a, .* is word 1 of"):
        ensemble([write("a", A), write("b", B[:4], TEXT[:1])])
    with pytest.raises(ValueError, match="b: line 7: .* is word 1 of .*a, the file ends"):
        ensemble([write("a", A[:5], TEXT[:2]), write("b", B)])


def test_rejects_different_line_breaks(write):
    with pytest.raises(ValueError, match="b: line 5: 'the' is word 4 of text line 1, but .*a"):
        ensemble([write("a", A), write("b", B[:6], ["the cat sat the dog"])])


def test_notes_different_protocols(write):
    found = ensemble([write("a", A), write("b", B, lines="running")])
    assert len(found.notes) == 1 and "different values of lines: independent (" in found.notes[0]
    assert "note: scored with different values of lines" in found.as_text()
    assert ensemble([write("a", A), write("b", B, checkpoint="x")]).notes == ()


def test_output_header_marks_mixed_settings(write, tmp_path):
    out = tmp_path / "out"
    ensemble([write("a", A), write("b", B, lines="running", block=8)], out=str(out))
    header = out.read_text().splitlines()[0]
    assert header.endswith("# run=ensemble weights=0.5,0.5 unit=word lines=mixed block=mixed")


def test_notes_words_unknown_to_some_models(write):
    found = ensemble([write("a", A, unknown=("cat",)), write("b", B, unknown=("cat", "dog"))])
    assert found.unknown == 2 and [m.unknown for m in found.members] == [1, 2]
    assert found.notes[0].startswith("1 words are unknown to only some")


def test_em_minimizes_perplexity(write):
    found = ensemble([write("a", A), write("b", B)], "fit")
    every = [perplexity(w * A + (1 - w) * B) for w in np.linspace(0, 1, 1001)]
    assert math.exp(found.nll) == pytest.approx(min(every), abs=1e-6)
    assert found.members[0].weight == pytest.approx(np.argmin(every) / 1000, abs=2e-3)
    again = ensemble([write("a", A), write("b", B)], [m.weight for m in found.members])
    assert again.nll == pytest.approx(found.nll, abs=1e-9)


@settings(max_examples=30)
@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_em_weights_are_optimal(members, seed):
    draw = np.random.default_rng(seed)
    logprob = np.log(draw.uniform(1e-4, 1, (50, members)))
    best = em_weights(logprob)
    assert best.sum() == pytest.approx(1) and (best >= 0).all()
    most = average_logprobs(logprob, best).mean()
    for other in draw.dirichlet(np.ones(members), 50):
        assert average_logprobs(logprob, other).mean() <= most + 1e-6


def test_weight_0_ignores_a_model():
    logprob = np.array([[-2000.0, -1.0], [-1.0, -2000.0]])
    assert average_logprobs(logprob, np.array([1.0, 0.0])).tolist() == [-2000, -1]
    assert average_logprobs(logprob, np.array([0.5, 0.5])) == pytest.approx([-1 - math.log(2)] * 2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "weights=1: 1 weights for 2 files"),
        ([1, -1], "weights=1,-1: must be finite, 0 or more"),
        ([0, 0], "weights=0,0: must be finite, 0 or more, and not all 0"),
    ],
)
def test_rejects_bad_weights(write, weights, message):
    with pytest.raises(ValueError, match=message):
        ensemble([write("a", A), write("b", B)], weights)


def test_failed_ensemble_leaves_no_output(write, tmp_path):
    with pytest.raises(ValueError, match="the file ends"):
        ensemble([write("a", A), write("b", B[:4], TEXT[:1])], out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
