"""JSON records of a run except its config: training state, provenance, log lines.

Losses are in nats. Numbers that are compared between runs are per word, even if tokens are BPE
pieces. `nll` is a negative log-likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from zipflm.config import Blocks, Splitting, Unit
from zipflm.config.checks import ByKind
from zipflm.units import perplexity


@dataclass(frozen=True)
class Sums:
    """Sums over scored tokens."""

    nll: float
    """In nats."""
    tokens: int
    """Number of scored tokens."""
    words: int
    """Number of tokens that end a word, including `</s>`."""

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
    """Statistics of the updates since the previous report, and totals of the run so far."""

    update: int
    epoch: float
    """Passes over the training text so far."""
    seconds: float
    """Training time so far, excluding validation and checkpoints."""
    token_unit: Unit
    loss: float | None
    """Training loss in nats per token. None if it is not finite or every update was skipped."""
    nats_per_word: float | None
    perplexity: float | None
    """Per word."""
    learning_rate: float
    """Learning rate of the first parameter group. With Nesterov, it contains all weights;
    otherwise, usually the matrices of the decoder layers."""
    grad_norm: float | None
    """Gradient norm of the last update that was not skipped, before clipping."""
    tokens_per_second: float
    data_share: float
    """Fraction of the time spent waiting for data."""
    skipped: int
    """Number of updates of the run that were skipped because of a non-finite loss or gradient."""
    block: int
    """Current block length."""
    memory: int
    """Peak memory of the process in bytes: allocated GPU memory on a GPU, else host memory."""
    seconds_left: float
    """Estimated training time left, excluding validation and checkpoints."""
    flop_utilisation: float | None = None
    """Achieved fraction of the devices' peak FLOP/s. None if the peak is unknown."""
    compiled: bool | None = None
    """True if every update since the start or resumption ran compiled; None without compilation."""
    compile_seconds: float = 0.0
    """Part of `seconds` spent in updates that compiled the model."""
    cpu_seconds: float | None = None
    """CPU time of the training thread, excluding compilation. If it is much less than
    `seconds - compile_seconds`, other processes probably used the CPU. None on a GPU or with
    several processes."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The loss on the validation set, or on a sample of it."""

    update: int
    seconds: float
    """Training time before this validation."""
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
    """Approximate fraction of the words in the validation set that were scored."""


LogLine = Annotated[Report | Validation, ByKind()]


@dataclass(frozen=True)
class Position:
    """Position in the training data, counted in batches of all processes together."""

    epoch: int = 0
    consumed: int = 0
    """Number of batches of this epoch that were used."""
    total: int = 1
    """Number of batches in an epoch."""


@dataclass(kw_only=True)
class SinceReport:
    """Sums over the updates since the last report."""

    updates: int = 0
    nll: float = 0.0
    """In nats. `nll`, `tokens` and `words` exclude skipped updates."""
    tokens: int = 0
    words: int = 0
    grad_norm: float = 0.0
    """Gradient norm of the last update that was not skipped."""
    seconds: float = 0.0
    """Training time."""
    waited: float = 0.0
    """Part of `seconds` spent waiting for data."""


@dataclass(kw_only=True)
class Counters:
    """Counters of a run, which are saved with checkpoints."""

    update: int = 0
    """Number of the last update that is counted."""
    seconds: float = 0.0
    """Training time."""
    compile_seconds: float = 0.0
    """Part of `seconds` spent in updates that compiled the model."""
    cpu_seconds: float | None = None
    """CPU time of the training thread, without compilation; see `Report`. Other threads are
    excluded, because OpenMP threads can use CPU time while they wait."""
    skipped: int = 0
    """Number of skipped updates: their loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    """Number of consecutive skipped updates up to now."""
    since_report: SinceReport = field(default_factory=SinceReport)
    best_loss: float | None = None
    """Lowest validation loss so far, on the sample that every validation scores."""
    since_best: int = 0
    """Number of validations since the one with the lowest loss."""

    def counters(self) -> dict[str, Any]:
        """Return the counters by name, to copy them to another record."""
        counters = {item.name: getattr(self, item.name) for item in fields(Counters)}
        return counters | {"since_report": replace(self.since_report)}  # it changes


@dataclass(kw_only=True)
class TrainingState(Counters):
    """State other than tensors that a run needs to continue exactly where it stopped."""

    place: Position
    loss_scale: tuple[float, float] | None
    """For float16: the loss scale, and the number of updates since it last changed."""
    seed: int
    world_size: int
    vocabulary: str
    """Hash of the vocabulary."""
    text: str
    """SHA-256 of the token file of the training split."""
    valid: Validation | None
    """The result of these weights on the full validation set, if they were scored on it."""

    @property
    def has_finite_loss(self) -> bool:
        """True if these weights have a finite loss on the full validation set."""
        loss = self.valid.nats_per_word if self.valid else None
        return loss is not None and math.isfinite(loss)


@dataclass(frozen=True, kw_only=True)
class ImportedState:
    """State of an imported model, which cannot be resumed."""

    update: int
    imported_from: str


SavedState = Annotated[TrainingState | ImportedState, ByKind()]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Software, data and device with which a run was started or resumed."""

    python: str
    packages: Mapping[str, str]
    commit: str | None
    """Commit of the checkout that the package ran from, if any."""
    vocabulary: str
    """Hash of the vocabulary."""
    text: str
    """SHA-256 of the token file of the training split."""
    splitting: Splitting
    """Rule that split the text into words."""
    data: str
    """Path of the data folder."""
    device: str = ""
    """Model name of the GPU or CPU."""


@dataclass(frozen=True, kw_only=True)
class Resumption(Provenance):
    """The provenance of a run that was resumed after `update`."""

    update: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The checkpoint of another run that provided the initial weights."""

    run: str
    checkpoint: str
    """Name of the checkpoint folder."""
    weights: str
    """Hash of the weights."""


@dataclass(frozen=True, kw_only=True)
class Versions(Provenance):
    """Contents of `versions.json`: the provenance of the start and of each resumption."""

    origin: Origin | None = None
    """The source of the initial weights. None if they were random."""
    resumed: tuple[Resumption, ...] = ()

    @property
    def latest(self) -> Provenance:
        return self.resumed[-1] if self.resumed else self
