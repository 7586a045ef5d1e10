import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.language.weights import complete_weights, format_weights, parse_weights


def test_parses_weights():
    assert parse_weights("lm=0.7, words=-2e-1,TM0.1=1") == {"lm": 0.7, "words": -0.2, "TM0.1": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lm", "'lm' is not NAME=NUMBER"),
        ("=1", "'=1' is not"),
        ("lm=x", "'lm=x' is not"),
        ("lm=nan", "'lm=nan' is not"),
        ("lm=1,lm=2", "lm is repeated"),
    ],
)
def test_rejects_invalid_weights(text, message):
    with pytest.raises(ValueError, match=f"--weights: {message}"):
        parse_weights(text)


@given(
    st.dictionaries(
        st.sampled_from(["lm", "words", "ac"]),
        st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.6g}")),
        min_size=1,
    )
)
def test_round_trip(weights):
    assert parse_weights(format_weights(weights)) == weights


def test_default_weights():
    assert complete_weights({}, ["ac", "graph"], "lm") == {"ac": 1, "graph": 1, "lm": 1, "words": 0}
    found = complete_weights({"lm": 0.5, "ac": 0, "words": -1}, ["ac", "graph"], "lm")
    assert found == {"ac": 0, "graph": 1, "lm": 0.5, "words": -1}


def test_total_replaces_its_parts():
    found = complete_weights({"lm": 0.5}, ["LM0", "total"], "lm")
    assert found == {"LM0": 0, "total": 1, "lm": 0.5, "words": 0}
    found = complete_weights({"LM0": 0.5, "total": 0}, ["LM0", "total"], "lm")
    assert found == {"LM0": 0.5, "total": 0, "lm": 1, "words": 0}
    with pytest.raises(ValueError, match="may already include LM0; also set total=0"):
        complete_weights({"LM0": 0.5}, ["LM0", "total"], "lm")


def test_rejects_unknown_names():
    with pytest.raises(ValueError, match="no score am; choose from ac, lm, words"):
        complete_weights({"am": 1}, ["ac"], "lm")


def test_rejects_a_name_that_the_list_has():
    with pytest.raises(ValueError, match="--name lm: the list already has a score"):
        complete_weights({}, ["ac", "lm"], "lm")
    assert complete_weights({}, ["ac", "lm"], "lm2")["lm2"] == 1
    with pytest.raises(ValueError, match="the score name words is reserved"):
        complete_weights({}, ["ac", "words"], "lm")
