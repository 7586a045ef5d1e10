import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.language.rescoring import check_name, complete_weights, parse_weights, written_weights


def test_weights_are_names_and_numbers():
    assert parse_weights("lm=0.7, words=-2e-1,TM0.1=1") == {"lm": 0.7, "words": -0.2, "TM0.1": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lm", "'lm' is not a name, = and a number"),
        ("=1", "'=1' is not"),
        ("lm=x", "'lm=x' is not"),
        ("lm=nan", "'lm=nan' is not"),
        ("lm=1,lm=2", "lm is there twice"),
    ],
)
def test_what_does_not_parse_is_named(text, message):
    with pytest.raises(ValueError, match=f"--weights: {message}"):
        parse_weights(text)


@given(
    st.dictionaries(
        st.sampled_from(["lm", "words", "ac"]),
        st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.6g}")),
        min_size=1,
    )
)
def test_weights_that_were_written_are_read_as_they_were(weights):
    assert parse_weights(written_weights(weights)) == weights


def test_scores_count_1_unless_a_weight_is_given():
    assert complete_weights({}, ["ac", "graph"], "lm") == {"ac": 1, "graph": 1, "lm": 1, "words": 0}
    found = complete_weights({"lm": 0.5, "ac": 0, "words": -1}, ["ac", "graph"], "lm")
    assert found == {"ac": 0, "graph": 1, "lm": 0.5, "words": -1}


def test_a_total_stands_for_what_it_was_made_of():
    found = complete_weights({"lm": 0.5}, ["LM0", "total"], "lm")
    assert found == {"LM0": 0, "total": 1, "lm": 0.5, "words": 0}
    found = complete_weights({"LM0": 0.5, "total": 0}, ["LM0", "total"], "lm")
    assert found == {"LM0": 0.5, "total": 0, "lm": 1, "words": 0}
    with pytest.raises(ValueError, match="has a total, which may hold LM0 already; give total a"):
        complete_weights({"LM0": 0.5}, ["LM0", "total"], "lm")


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no score am; there are ac, lm, words"):
        complete_weights({"am": 1}, ["ac"], "lm")


def test_a_list_that_has_the_score_already_is_refused():
    with pytest.raises(ValueError, match="already has a score lm; .* --name"):
        complete_weights({}, ["ac", "lm"], "lm")
    assert complete_weights({}, ["ac", "lm"], "lm2")["lm2"] == 1


@pytest.mark.parametrize("name", ["words", "id", "", "a b", "a=b"])
def test_names_that_would_be_misunderstood_are_refused(name):
    with pytest.raises(ValueError, match="--name .*: must be letters, digits and _"):
        check_name(name)
