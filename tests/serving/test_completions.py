import pytest

from zipflm.serving.completions import CompletionAnswer, completion_request
from zipflm.serving.continuation import Delta
from zipflm.serving.errors import Refusal
from zipflm.serving.tickets import Limits


def request(models, **fields):
    return completion_request({"prompt": "ba"} | fields, models, Limits(max_words=50))


def test_defaults_are_openai_s(models):
    asked = request(models)
    assert (asked.max_tokens, asked.n, asked.logprobs, asked.echo) == (16, 1, None, False)
    assert (asked.choice.temperature, asked.choice.top_p) == (1.0, 1.0)
    assert asked.seed is None and not asked.is_streamed and asked.lines == 1


def test_rows_have_generators_of_their_own(models):
    asked = request(models, prompt=["ba", "be"], n=3, seed=9)
    seeds = [row.generator.initial_seed() for row in asked.rows()]
    assert seeds[:3] == seeds[3:] and len(set(seeds)) == 3 and seeds[0] == 9
    assert request(models, seed=-1).seed == 2**63 - 1


def test_prompts_are_scored_only_where_their_scores_are_shown(models):
    assert not request(models, echo=True).documents()
    assert not request(models, logprobs=1).documents()
    (document,) = request(models, echo=True, logprobs=3).documents()
    assert document.top == 3 and document.asked.tolist() == [0]


def test_nothing_is_written_where_no_token_is_wanted(models):
    asked = request(models, max_tokens=0)
    assert asked.rows() == [] and CompletionAnswer(asked).is_complete


def test_an_answer_is_complete_when_every_choice_is(models):
    answer = CompletionAnswer(request(models, n=2))
    answer.add(1, Delta("x", [], "stop"))
    assert not answer.is_complete
    answer.add(0, Delta("a"))
    answer.add(0, Delta("b", [], "length"))
    assert answer.is_complete
    assert [choice["text"] for choice in answer.whole()["choices"]] == ["ab", "x"]


def test_a_part_without_anything_to_say_is_not_sent(models):
    answer = CompletionAnswer(request(models))
    assert answer.chunk(0, Delta()) is None
    assert answer.chunk(0, Delta("x"))["choices"][0]["text"] == "x"
    assert answer.chunk(0, Delta(finish_reason="stop"))["choices"][0]["finish_reason"] == "stop"


def test_equal_settings_are_drawn_together(models):
    one, other = request(models, temperature=0, top_p=0.3), request(models, temperature=0)
    assert one.choice == other.choice
    assert request(models, top_p=0).choice == other.choice


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["ba " * 40] * 16, "n": 16, "echo": True, "logprobs": 10, "max_tokens": 0},
        {"n": 256, "max_tokens": 40, "logprobs": 10},
        {"prompt": ["ba " * 40] * 256, "echo": True, "logprobs": 10, "max_tokens": 0},
    ],
)
def test_log_probabilities_that_would_fill_the_memory_are_refused(models, fields):
    with pytest.raises(Refusal, match="100000 of one answer") as caught:
        request(models, **fields)
    assert caught.value.status == 400 and caught.value.param == "logprobs"
    assert request(models, **fields | {"logprobs": None}).n == fields.get("n", 1)
    assert request(models, **fields | {"n": 1, "logprobs": 1}).logprobs == 1
