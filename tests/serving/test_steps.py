"""Generation in batches gives the same texts as one by one."""

import numpy as np
import pytest

from zipflm.language.decoding import SamplingOptions, TextDecoder, TextInProgress

PROMPTS = ["ba", "be noro boro", "bu ban bi ka ke", "mila"]
DRAWN, NUCLEUS, GREEDY = {}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 0.0}


def a_row(model, prompt, seed=0, max_tokens=10, choice=DRAWN):
    options = SamplingOptions(max_tokens=max_tokens, lines=0, seed=seed, max_words=None, **choice)
    return TextInProgress(model.reader.prefix(prompt), model.reader.detokenizer(), options)


def finish(decoder):
    while decoder.rows:
        decoder.step()


def alone(model, *args, **options):
    decoder, row = TextDecoder(model.engine, model.lm.reader), a_row(model, *args, **options)
    decoder.join([row])
    finish(decoder)
    return row


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_texts_do_not_depend_on_the_batch(models, name):
    model = models[name]
    decoder = TextDecoder(model.engine, model.lm.reader)
    # Longer than the block of 16, so that the window slides.
    wanted = [
        (prompt, seed, 5 + 9 * seed, choice)
        for seed, (prompt, choice) in enumerate(
            zip(PROMPTS, (DRAWN, NUCLEUS, GREEDY, DRAWN), strict=True)
        )
    ]
    rows = [a_row(model, *each) for each in wanted]
    decoder.join(rows[:1])
    decoder.step()
    decoder.join(rows[1:3])
    for _ in range(3):
        decoder.step()
    decoder.join(rows[3:])
    finish(decoder)
    for row, each in zip(rows, wanted, strict=True):
        expected = alone(model, *each)
        assert (row.ids, row.text) == (expected.ids, expected.text)
        assert row.has_slid == expected.has_slid
        ours, theirs = ([t.logprob for t in r.release().tokens] for r in (row, expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_equal_prompts_are_processed_once(words, monkeypatch):
    decoder = TextDecoder(words.engine, words.lm.reader)
    sizes, new_cache = [], words.engine.model.new_cache
    monkeypatch.setattr(
        words.engine.model, "new_cache", lambda *size: sizes.append(size) or new_cache(*size)
    )
    decoder.join([a_row(words, "ba be", seed) for seed in range(3)] + [a_row(words, "bu")])
    assert sizes == [(2, 3)]
    finish(decoder)
