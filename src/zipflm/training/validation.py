"""Validation during training: on a fixed sample, and also on the full set before saving."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.data.batches import Batches, prefetch
from zipflm.data.token_file import TokenArray
from zipflm.model.precision import autocast, dtype_of_sums
from zipflm.runs.records import Sums, Validation
from zipflm.training import parallel, step
from zipflm.training.setup import Run

_STRETCHES = 16
"""Number of contiguous stretches in a sample of the validation set."""
_TRAINED_PER_SCORED = 4
"""Minimum number of tokens trained on per word scored in the sample. Scoring a token costs a third
of training on it, so the sample takes less than a tenth of the time."""
_MIN_WORDS = 2_000
"""Minimum size of the sample, even if scoring it takes longer. A smaller sample would consist of
words without context."""


def validate(run: Run, *, full: bool) -> Validation | None:
    """Score and report a sample of the validation set and, if `full`, all of it.

    With `patience`, all of it is also scored if the loss on the sample requires a checkpoint.

    Returns the result on the full set, or None if it was not scored or does not exist. Checkpoints
    are compared on the full set; learning curves use the sample, which is always the same.
    """
    if "valid" not in run.data.splits:
        return None
    tokens, share = run.data.tokens("valid"), _share(run)
    sample = sample_of(tokens, share, run.data.ends_word)
    is_full = sample is tokens
    with run.log.status("validating"):
        result = _score_and_report(run, sample, 1.0 if is_full else share)
        run.tally.record_validation(result.nats_per_word)
        if is_full:
            return result
        should_score_full = run.full_validation and (full or run.should_save_after_validation)
        return _score_and_report(run, tokens, 1.0) if should_score_full else None


def _share(run: Run) -> float:
    """Return the fraction of the validation set to sample."""
    training, words = run.config.training, run.data.split("valid").words
    trained = (training.validate_every or training.max_updates) * training.tokens_per_update
    sample = min(training.validate_share * words, trained / _TRAINED_PER_SCORED)
    return max(sample, _MIN_WORDS) / words


def sample_of(tokens: TokenArray, share: float, ends_word: NDArray[np.bool_]) -> TokenArray:
    """Return about this share of the words, in stretches spread evenly over the text, or `tokens`
    itself if that is everything.

    The words are the same for word and subword models. `ends_word` [V] marks ids that end a word.
    """
    ends = np.flatnonzero(ends_word[np.asarray(tokens.ids)]) + 1
    length = math.ceil(share * len(ends) / _STRETCHES)
    if share >= 1 or _STRETCHES * length >= len(ends):
        return tokens
    starts = np.concatenate([[0], ends])
    lines = np.asarray(tokens.offsets, dtype=np.int64)
    ids = []
    for first in np.arange(_STRETCHES) * len(ends) // _STRETCHES:
        start, end = starts[first], starts[first + length]
        inside = lines[(start < lines) & (lines < end)]
        cuts = [start, *inside, end]
        ids += [np.asarray(tokens.ids[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    return TokenArray.of(ids)


def _score_and_report(run: Run, tokens: TokenArray, share: float) -> Validation:
    sums = _score(run, tokens)
    result = Validation(
        update=run.update,
        seconds=run.tally.seconds,
        split="valid",
        nats_per_word=sums.nats_per_word,
        perplexity=sums.perplexity,
        nats_per_token=sums.nats_per_token,
        token_unit=run.config.batches.unit,
        tokens=sums.tokens,
        words=sums.words,
        blocks=run.config.batches.eval_blocks,
        share=share,
    )
    run.log.report(result)
    return result


def _score(run: Run, tokens: TokenArray) -> Sums:
    blocks, process, learner = run.config.batches.eval_blocks, run.process, run.learner
    batches = Batches(
        tokens,
        blocks,
        max_tokens=max(run.config.batches.tokens, blocks.block),
        shuffle=False,
        rank=process.rank,
        world_size=process.world_size,
    )
    # FSDP gathers weights in the forward of the scorer. Otherwise the model is called directly.
    is_sharded = parallel.should_shard(process, run.config.training)
    score = learner.scorer if is_sharded else learner.model.nll
    learner.model.eval()
    own = batches.epoch(0)
    if run.config.input.spells_words:
        own = (batch.with_unique_tokens() for batch in own)
    totals = torch.zeros(3, dtype=dtype_of_sums(process.device), device=process.device)
    with torch.no_grad(), autocast(learner.precision, process.device):
        for batch in prefetch(own, process.device):
            nll = score(batch.inputs, batch.targets, batch.scored).sum(dtype=totals.dtype)
            totals += step.sums_of(learner, batch, nll)
    learner.model.train()
    total, num_tokens, num_words = process.all_reduce(totals).tolist()
    return Sums(total, int(num_tokens), int(num_words))
