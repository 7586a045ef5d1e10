"""The valid set, scored on the way: a fixed part of it often, all of it where that counts."""

from __future__ import annotations

import numpy as np
import torch

from zipflm.data.batches import Batches
from zipflm.data.loader import Loader
from zipflm.data.tokens import TokenArray, Tokens
from zipflm.evaluation.scoring import score_sums
from zipflm.model.precision import autocast, dtype_of_sums
from zipflm.runs.records import Sums, Validation
from zipflm.training import distributed, parallel
from zipflm.training.distributed import Process
from zipflm.training.run import Run

_RUNS_OF_LINES = 16
"""Into which a part of the valid set is spread, so that it has a bit of everything."""


def validate(run: Run, *, whole: bool) -> Validation | None:
    """Score the part of the valid set that the config asks for and, if `whole`, all of it, each
    process a share; report both. The result on all of it, if it was scored.

    None if there is no such set, too. What a checkpoint is chosen by and what a run ends with
    always covers everything; curves are drawn from the part, which is the same all along.
    """
    if "valid" not in run.data.splits:
        return None
    tokens = run.data.tokens("valid")
    share = run.config.training.validate_share
    part = part_of(tokens, share)
    if part is not tokens:
        _report(run, part, share)
        return _report(run, tokens, 1.0) if whole else None
    return _report(run, tokens, 1.0)


def part_of(tokens: Tokens, share: float) -> Tokens:
    """About that share of the lines, in runs that lie evenly over the text; the same lines whether
    they consist of words or of pieces. All of it where there are too few lines to choose from."""
    offsets = np.asarray(tokens.offsets, dtype=np.int64)
    lines = len(offsets) - 1
    length = round(share * lines / _RUNS_OF_LINES)
    if share == 1 or not 1 <= length < lines // _RUNS_OF_LINES:
        return tokens
    firsts = np.arange(_RUNS_OF_LINES) * lines // _RUNS_OF_LINES
    chosen = (firsts[:, None] + np.arange(length)).ravel()
    ids = [np.asarray(tokens.ids[offsets[i] : offsets[i + 1]]) for i in chosen]
    return TokenArray.of(ids)


def _report(run: Run, tokens: Tokens, share: float) -> Validation:
    sums = _scored(run, tokens)
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


def _scored(run: Run, tokens: Tokens) -> Sums:
    blocks, process, learner = run.config.batches.eval_blocks, run.process, run.learner
    batches = Batches(
        tokens,
        blocks,
        max_tokens=max(run.config.batches.tokens, blocks.block),
        shuffle=False,
        rank=process.rank,
        world_size=process.world_size,
    )
    ends_word = torch.from_numpy(run.data.ends_word) if run.config.batches.unit == "bpe" else None
    # FSDP gathers weights in the wrapper's forward; otherwise the plain model spares compiling it
    # for shapes that training does not have.
    sharded = parallel.is_sharded(learner.scorer)
    nll = learner.scorer if sharded else learner.model.nll
    learner.model.eval()
    with autocast(learner.precision, process.device):
        loaded = Loader(
            batches, process.device, finds_distinct_words=run.config.input.spells_words
        ).epoch(0)
        sums = score_sums(nll, loaded, process.device, ends_word)
    learner.model.train()
    return _over_processes(sums, process)


def _over_processes(sums: Sums, process: Process) -> Sums:
    own = torch.tensor([sums.nll, sums.tokens, sums.words], dtype=torch.float64)
    own = own.to(process.device, dtype_of_sums(process.device))
    nll, tokens, words = distributed.add_up(own, process).tolist()
    return Sums(nll, int(tokens), int(words))
