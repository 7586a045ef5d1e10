"""Texts written beside others are those that are written alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from zipflm.serving.decoding import Choice, Continuation, Row, Spelling, Steps, generator_of

PROMPTS = ["ba", "be noro boro", "bu ban bi ka ke", "mila"]
DRAWN, NUCLEUS, GREEDY = Choice(1.0, 0, 1.0), Choice(0.8, 0, 0.9), Choice(0.0, 0, 1.0)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def a_row(model, prompt, seed=0, max_tokens=10, choice=DRAWN, lines=0):
    spelling = Spelling(model.reader)
    text = Continuation(spelling, max_tokens=max_tokens, lines=lines)
    ids = model.reader.prefix(prompt)
    return Row(ids, choice, generator_of(seed, 0), text)


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


def test_equal_prompts_are_read_once(words, monkeypatch):
    steps = Steps(words.engine, words.lm.reader)
    sizes, new_cache = [], words.engine.model.new_cache
    monkeypatch.setattr(
        words.engine.model, "new_cache", lambda *size: sizes.append(size) or new_cache(*size)
    )
    steps.join([a_row(words, "ba be", seed) for seed in range(3)] + [a_row(words, "bu")])
    assert sizes == [(2, 3)]
    finish(steps)


def test_rows_wait_where_there_is_no_room(words):
    steps = Steps(replace(words.engine, batch_tokens=40), words.lm.reader)
    rows = [a_row(words, "ba be", max_tokens=9) for _ in range(4)]  # of 12 places each
    places = steps.places()
    assert [places.take(row) for row in rows] == [True, True, True, False]
    assert places.take(a_row(words, "ba", max_tokens=1)) is False  # 4 places of 12 are too many
    steps.join(rows[:3])
    assert not steps.places().take(rows[3])
    assert Steps(replace(words.engine, batch_tokens=1), words.lm.reader).places().take(rows[0])
