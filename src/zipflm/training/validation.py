"""The valid set, scored on the way."""

from __future__ import annotations

import torch

from zipflm.data.batches import Batches
from zipflm.data.loader import Loader
from zipflm.evaluation.scoring import score_sums
from zipflm.model.precision import autocast
from zipflm.runs.records import Sums, Validation
from zipflm.training import distributed
from zipflm.training.distributed import Process
from zipflm.training.run import Run


def validate(run: Run) -> Validation | None:
    """Score the valid set, each process a share of it; report and return the result.

    None if there is no such set.
    """
    if "valid" not in run.data.splits:
        return None
    sums = _scored(run)
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
    )
    run.log.report(result)
    return result


def _scored(run: Run) -> Sums:
    blocks, process, learner = run.config.batches.eval_blocks, run.process, run.learner
    batches = Batches(
        run.data.tokens("valid"),
        blocks,
        max_tokens=max(run.config.batches.tokens, blocks.block),
        shuffle=False,
        rank=process.rank,
        world_size=process.world_size,
    )
    ends_word = torch.from_numpy(run.data.ends_word) if run.config.batches.unit == "bpe" else None
    # FSDP gathers weights in the wrapper's forward; otherwise the plain model spares compiling it
    # for shapes that training does not have.
    sharded = distributed.is_sharded(learner.scorer)
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
    nll, tokens, words = distributed.add_up(own.to(process.device), process).tolist()
    return Sums(nll, int(tokens), int(words))
