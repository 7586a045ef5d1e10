"""Texts written beside others are those that are written alone."""

import numpy as np
import pytest
import torch

from zipflm.serving.continuation import Continuation, Spelling
from zipflm.serving.models import with_batch_words
from zipflm.serving.steps import Choice, Row, Steps, generator_of

PROMPTS = ["ba", "be noro boro", "bu ban bi ka ke", "mila"]
DRAWN, NUCLEUS, GREEDY = Choice(1.0, 0, 1.0), Choice(0.8, 0, 0.9), Choice(0.0, 0, 1.0)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def a_row(model, prompt, seed=0, max_tokens=10, choice=DRAWN, lines=0, top=0):
    spelling = Spelling(model.reader)
    text = Continuation(spelling, max_tokens=max_tokens, lines=lines)
    ids = model.reader.prefix(prompt)
    return Row(ids, choice, generator_of(seed, 0), text, top)


def finish(steps):
    while steps.rows:
        steps.step()


def alone(model, *args, **options):
    steps, row = Steps(model.engine, model.lm.reader), a_row(model, *args, **options)
    steps.join([row])
    finish(steps)
    return row


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_a_text_does_not_depend_on_who_joins_and_leaves_beside_it(models, name):
    model = models[name]
    steps = Steps(model.engine, model.lm.reader)
    # Longer than the block of 16, so that they slide while others are in the middle.
    wanted = [
        (prompt, seed, 5 + 9 * seed, choice)
        for seed, (prompt, choice) in enumerate(
            zip(PROMPTS, (DRAWN, NUCLEUS, GREEDY, DRAWN), strict=True)
        )
    ]
    rows = [a_row(model, *each) for each in wanted]
    steps.join(rows[:1])
    steps.step()
    steps.join(rows[1:3])
    for _ in range(3):
        steps.step()
    steps.join(rows[3:])
    finish(steps)
    for row, each in zip(rows, wanted, strict=True):
        expected = alone(model, *each)
        assert row.written == expected.written
        assert row.continuation.text == expected.continuation.text
        ours, theirs = ([t.logprob for t in r.continuation.tokens] for r in (row, expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "temperature": 0.8}, {"temperature": 0}])
def test_a_seed_gives_the_text_that_the_library_gives(words, seed, options):
    prompt, max_words = "ba be", 30
    expected = words.lm.generate(prompt, seed=seed, max_words=max_words, **options)[0]
    choice = Choice(options.get("temperature", 1.0), 0, options.get("top_p", 1.0))
    row = alone(words, prompt, seed, max_words + 1, choice, lines=1)
    tokens = row.continuation.tokens[: len(expected.words)]
    names = [words.lm.vocabulary.words[token.token] for token in tokens]
    assert names == [word.word for word in expected.words]
    np.testing.assert_allclose(
        [token.logprob for token in tokens], [w.logprob for w in expected.words], atol=1e-5
    )


def test_a_text_that_outgrows_the_block_goes_on_as_the_library_does(words):
    for prompt in ("ba be", "ba be bu " * 12):  # of which the second does not fit at all
        expected = words.lm.generate(prompt, seed=4, max_words=40, lines=0)[0]
        assert expected.has_slid
        row = alone(words, prompt, 4, max_tokens=40)
        tokens = row.continuation.tokens
        names = [words.lm.vocabulary.words[token.token] for token in tokens]
        assert names == [word.word for word in expected.words[:40]]
        logprobs = [word.logprob for word in expected.words[:40]]
        np.testing.assert_allclose([token.logprob for token in tokens], logprobs, atol=1e-5)


def test_texts_of_one_prompt_differ_by_their_number(words):
    seeds = {generator_of(7, number).initial_seed() for number in range(256)}
    assert len(seeds) == 256 and generator_of(7, 0).initial_seed() == 7
    assert generator_of(None, 0).initial_seed() != generator_of(None, 0).initial_seed()


def test_equal_prompts_are_read_once(words, monkeypatch):
    steps = Steps(words.engine, words.lm.reader)
    sizes, new_cache = [], words.engine.model.new_cache
    monkeypatch.setattr(
        words.engine.model, "new_cache", lambda *size: sizes.append(size) or new_cache(*size)
    )
    steps.join([a_row(words, "ba be", seed) for seed in range(3)] + [a_row(words, "bu")])
    assert sizes == [(2, 3)]
    finish(steps)


def test_the_most_likely_words_are_told_where_they_are_asked_for(words):
    steps = Steps(words.engine, words.lm.reader)
    rows = [a_row(words, "ba", top=top, choice=GREEDY, max_tokens=2) for top in (0, 3)]
    steps.join(rows)
    finish(steps)
    assert [len(token.top) for token in rows[0].continuation.tokens] == [0, 0]
    expected = [(each.word, each.logprob) for each in words.lm.next_words("ba", 3)]
    names = words.lm.vocabulary.words
    found = [(names[token], logprob) for token, logprob in rows[1].continuation.tokens[0].top]
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert found[0][1] == pytest.approx(expected[0][1], abs=1e-5)


def test_rows_wait_where_there_is_no_room(words):
    steps = Steps(with_batch_words(words, 40), words.lm.reader)
    rows = [a_row(words, "ba be", max_tokens=9) for _ in range(4)]  # of 12 places each
    places = steps.places()
    assert [places.take(row) for row in rows] == [True, True, True, False]
    assert places.take(a_row(words, "ba", max_tokens=1)) is False  # 4 places of 12 are too many
    steps.join(rows[:3])
    assert not steps.places().take(rows[3])
    assert Steps(with_batch_words(words, 1), words.lm.reader).places().take(rows[0])
