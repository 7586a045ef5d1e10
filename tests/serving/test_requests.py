import pytest

from zipflm.serving.errors import Refusal
from zipflm.serving.requests import score_request
from zipflm.serving.tickets import Limits

LIMITS = Limits(max_words=20)


def test_the_first_model_is_the_default(models):
    assert score_request({"text": "ba"}, models, LIMITS).model.name == "words"
    assert score_request({"text": "ba", "model": "pieces"}, models, LIMITS).model.name == "pieces"


def test_places_are_words_and_documents_ask_about_their_first_ids(models):
    request = score_request(
        {"text": ["ba noro be", "be bu"], "prefix": "ba", "at": [1, 1, 0], "top": 2, "ranks": True},
        models,
        LIMITS,
    )
    assert [places.tolist() for places in request.places] == [[0, 1]] * 2
    first, second = request.documents()
    assert first.asked.tolist() == [1, 2] and first.skip == 1 and first.top == 2 and first.ranks
    pieces = score_request(
        {"text": "noro noro", "at": [1], "top": 2, "model": "pieces"}, models, LIMITS
    )
    (document,) = pieces.documents()
    assert document.asked.tolist() == [2] and document.top == 0 and pieces.search == 2


def test_a_prefix_counts_as_well(models):
    score_request({"text": "ba " * 19}, models, LIMITS)
    with pytest.raises(Refusal, match="21 words, and a text has 20 at most"):
        score_request({"text": "ba " * 19, "prefix": "be"}, models, LIMITS)


def test_no_more_alternatives_than_there_are_words(models, words):
    request = score_request({"text": "ba", "top": 100}, models, LIMITS)
    assert request.top == min(100, len(words.lm.vocabulary))
