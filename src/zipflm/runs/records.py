"""The records that a run keeps as JSON, except its config: state, provenance, lines of the log.

Losses are in nats. A token is what one id stands for, a word or a piece of one; numbers that are
compared between runs are per word, whatever their tokens are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from zipflm.config import Blocks, Splitting, Unit
from zipflm.config.checks import ByKind
from zipflm.units import perplexity


@dataclass(frozen=True)
class Sums:
    """Sums over scored tokens; those of several processes add up."""

    nll: float
    """In nats."""
    tokens: int
    words: int
    """Tokens that end a word; `</s>` is one."""

    @property
    def nats_per_token(self) -> float:
        return self.nll / self.tokens if self.tokens else math.nan

    @property
    def nats_per_word(self) -> float:
        return self.nll / self.words if self.words else math.nan

    @property
    def perplexity(self) -> float:
        """Per word."""
        return perplexity(self.nats_per_word)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What training says of the updates since the last report."""

    update: int
    epoch: float
    """Passes over the training text so far."""
    seconds: float
    """Spent training so far; validation and checkpoints are not counted."""
    token_unit: Unit
    loss: float | None
    """What is minimised: nats per token, of whatever `token_unit` says. None if it is not finite
    or every update was skipped."""
    nats_per_word: float | None
    perplexity: float | None
    """Per word."""
    learning_rate: float
    grad_norm: float | None
    """Of the last update that was not skipped, before clipping."""
    tokens_per_second: float
    data_share: float
    """Part of the time spent waiting for data."""
    skipped: int
    """Updates of the whole run that had a non-finite loss or gradient and changed nothing."""
    block: int
    memory: int
    """Peak, in bytes: of the GPU's allocator, or of the process."""
    seconds_left: float
    """Estimated, passes over the valid set included."""
    flop_utilisation: float | None = None
    compiled: bool | None = None
    """Whether the model ran compiled; None where that was not asked for."""
    compile_seconds: float = 0.0
    """Of `seconds`, those in which the model was being compiled."""
    cpu_seconds: float | None = None
    """CPU time of the training thread, without compilation; far less than the rest of `seconds` if
    other processes held the CPU. None on a GPU and with several processes, where threads wait."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One pass over the valid set on the way."""

    update: int
    seconds: float
    """Spent training before it."""
    split: str
    nats_per_word: float | None
    perplexity: float | None
    """Per word."""
    nats_per_token: float | None
    token_unit: Unit
    tokens: int
    words: int
    blocks: Blocks
    share: float = 1.0
    """Of the words of the valid set, how many were scored; 1 is all of them."""


LogLine = Annotated[Report | Validation, ByKind()]


@dataclass(frozen=True)
class Place:
    """Before batch number `consumed` of `total` in an epoch, counted over all processes."""

    epoch: int = 0
    consumed: int = 0
    total: int = 1


@dataclass(kw_only=True)
class SinceReport:
    """What the next report will say of the updates since the last one, as far as they are done."""

    updates: int = 0
    nll: float = 0.0
    """In nats; this and the next two are summed over the updates that were not skipped."""
    tokens: int = 0
    words: int = 0
    grad_norm: float = 0.0
    """Of the last update that was not skipped."""
    seconds: float = 0.0
    """Spent training."""
    waited: float = 0.0
    """Of these, seconds spent waiting for data."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a run needs besides weights and momenta to go on as if it had never stopped."""

    update: int
    place: Place
    seconds: float
    compile_seconds: float = 0.0
    """Of `seconds`, those in which the model was being compiled."""
    cpu_seconds: float | None = None
    """As in a report."""
    skipped: int
    skipped_in_a_row: int
    """The last so many updates were skipped."""
    since_report: SinceReport
    loss_scale: tuple[float, float] | None
    """Of float16: the factor, and updates since it last changed; None for other precisions."""
    seed: int
    world_size: int
    vocabulary: str
    """Its hash."""
    text: str
    """SHA-256 of the training text's token file."""
    valid: Validation | None
    """The result on the valid set with these very weights, if they were scored."""
    best_loss: float | None = None
    """Lowest loss on the way, of the part of the valid set that is always scored."""
    since_best: int = 0
    """Validations since then."""

    @property
    def is_proven(self) -> bool:
        """Whether the valid set shows that these weights are of use: they gave finite losses."""
        loss = self.valid.nats_per_word if self.valid else None
        return loss is not None and math.isfinite(loss)


@dataclass(frozen=True, kw_only=True)
class ImportedState:
    """Of a model that was trained elsewhere: it can be scored, not trained on."""

    update: int
    imported_from: str


SavedState = Annotated[TrainingState | ImportedState, ByKind()]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """With what, and on what, a run was started or resumed."""

    python: str
    packages: Mapping[str, str]
    commit: str | None
    """Of the checkout that this package was run from, if it was one."""
    vocabulary: str
    """Its hash."""
    text: str
    """SHA-256 of the training text's token file."""
    splitting: Splitting
    """How that text became words."""
    data: str
    """The data folder."""
    device: str = ""
    """Model name of the GPU or CPU that trains."""


@dataclass(frozen=True, kw_only=True)
class Resumption(Provenance):
    """The same, for a run that went on after `update`."""

    update: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The checkpoint of another run from which a run took its first weights."""

    run: str
    checkpoint: str
    """Name of its folder."""
    weights: str
    """Their hash."""


@dataclass(frozen=True, kw_only=True)
class Versions(Provenance):
    """All of `versions.json`: how the run was started, and each time it was resumed."""

    origin: Origin | None = None
    """None for a run that started from random weights."""
    resumed: tuple[Resumption, ...] = ()

    @property
    def latest(self) -> Provenance:
        return self.resumed[-1] if self.resumed else self
