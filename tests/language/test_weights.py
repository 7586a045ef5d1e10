import pytest

from zipflm.language.weights import complete_weights


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
