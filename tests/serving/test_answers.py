import numpy as np
import pytest

from zipflm.serving.answers import models_answer, score_answer
from zipflm.serving.requests import score_request
from zipflm.serving.scoring import DocumentScores
from zipflm.serving.tickets import Limits, Scored


def answer(models, nll, **fields):
    request = score_request(fields, models, Limits())
    scores = DocumentScores(np.array(nll, dtype=np.float32), [], [])
    return score_answer(request, [Scored(0, scores, [])])["texts"][0]


def test_totals_are_over_all_words(models):
    text = answer(models, [1.0, 2.0, 3.0], text="ba be")
    assert text["logprob"] == -6 and text["perplexity"] == pytest.approx(np.exp(2))
    assert text["surprisal"] == pytest.approx(6 / np.log(2), abs=1e-6)
    assert [word["logprob"] for word in text["words"]] == [-1, -2, -3]


def test_a_perplexity_beyond_all_numbers_is_null_and_certainty_is_0(models):
    text = answer(models, [0.0, 3e3, 3e3], text="ba be")
    assert text["perplexity"] is None
    assert str(text["words"][0]["logprob"]) == "0.0" and text["words"][0]["surprisal"] == 0


def test_places_count_characters_not_bytes(models):
    words = answer(models, [1.0] * 3, text="\U0001f600\u00e9 ba")["words"]
    assert [word["span"] for word in words] == [[0, 2], [3, 5], None]
    assert words[0]["is_unknown"]


def test_models_are_listed_in_order(models):
    listed = models_answer(list(models.values()))
    assert listed["object"] == "list" and [each["id"] for each in listed["data"]] == list(models)
