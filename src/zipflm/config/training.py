"""Configuration of batches, optimizers, schedules and whole runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from zipflm.config.checks import (
    AboveZero,
    ByKind,
    Checked,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Share,
)
from zipflm.config.model import ModelConfig
from zipflm.config.text import Blocks, BreakMode, Unit


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Checked):
    """Batching of token streams (section 4.3)."""

    unit: Unit = "word"
    """Unit of one id. Must match the data folder."""
    break_mode: BreakMode = "none"
    """Where to cut training text: `none` after every `block` tokens, `complete` between sentences,
    `sentence` after every sentence, `stream` like `none`, but each row continues the same row of
    the previous batch (see `Blocks`)."""
    block: int = 512
    """Tokens in a training block."""
    tokens: Positive = 4096
    """Maximum number of tokens per device and forward pass, padding included."""
    eval_break_mode: BreakMode = "complete"
    """Where to cut text for scoring. Same choices, except `stream`, which only `zipflm evaluate`
    supports."""
    eval_block: int = 512
    """Block length for scoring."""
    eval_context: int = 0
    """Tokens of each `eval_block` that serve as context and are not scored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.blocks
        try:
            _ = self.eval_blocks
        except ValueError as error:  # starts with the name of the field
            raise ValueError(f"eval_{error}") from None
        self.require(
            "eval_break_mode",
            self.eval_break_mode != "stream",
            "not supported for validation; use none, and run `zipflm evaluate --break stream`",
        )
        self.require(
            "tokens",
            self.break_mode == "sentence" or self.tokens >= self.block,
            f"must be at least block={self.block}; raise tokens or lower block",
        )

    @property
    def blocks(self) -> Blocks:
        return Blocks(break_mode=self.break_mode, block=self.block)

    @property
    def eval_blocks(self) -> Blocks:
        return Blocks(
            break_mode=self.eval_break_mode, block=self.eval_block, context=self.eval_context
        )


@dataclass(frozen=True, kw_only=True)
class Nesterov(Checked):
    """The paper's optimizer (section 4.5). The schedule sets its learning rate."""

    momentum: Fraction = 0.99
    """Momentum coefficient."""
    weight_decay: NotNegative = 0.0
    """Weight decay on all weights."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Checked):
    """AdamW for all weights. The schedule multiplies the learning rates."""

    lr: AboveZero = 1e-3
    """Learning rate for everything except the embedding tables."""
    table_lr: AboveZero = 1e-3
    """Learning rate for the embedding tables, including bands."""
    beta1: Fraction = 0.9
    """Decay of the running mean of gradients."""
    beta2: Fraction = 0.95
    """Decay of the running mean of squared gradients."""
    eps: AboveZero = 1e-8
    """Added to the denominator for stability."""
    weight_decay: NotNegative = 0.0
    """Weight decay on matrices and tables, not on biases, norms and sparse tables."""


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """Muon for the matrices of the decoder layers, AdamW for everything else."""

    matrix_lr: AboveZero = 2e-3
    """Learning rate for Muon, in AdamW units (`match_rms_adamw`)."""
    momentum: Fraction = 0.95
    """Momentum of Muon."""
    matrix_weight_decay: NotNegative = 0.0
    """Weight decay on the matrices of the decoder layers."""


@dataclass(frozen=True, kw_only=True)
class CosineCycles(Checked):
    """Linear warm-up, then cosine cycles that grow longer and lower (section 4.5)."""

    warmup_updates: Count = 16_000
    """Updates until the learning rate reaches its maximum."""
    warmup_from: NotNegative = 1e-7
    """Learning rate of the first update."""
    first_cycle: Positive = 18_000
    """Updates of the first cycle after warm-up. Each later cycle is twice as long."""
    max_lr: NotNegative = 1.0
    """Learning rate at the start of the first cycle."""
    min_lr: float = 1e-5
    """Learning rate at the end of the first cycle."""
    shrink: float = 0.75
    """Factor on both learning rates from one cycle to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"must lie between 0 and max_lr={self.max_lr}"
        self.require("min_lr", 0 <= self.min_lr <= self.max_lr, remedy)
        self.require("shrink", 0 < self.shrink <= 1, "must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class WarmupDecay(Checked):
    """Linear warm-up, constant, then decay: a factor on the learning rates."""

    warmup: Share = 0.02
    """Fraction of the updates spent on warm-up."""
    decay: Share = 0.7
    """Fraction of the updates, at the end, spent on decay."""
    shape: Literal["linear", "cosine"] = "linear"
    """Shape of the decay."""
    final: Share = 0.0
    """Final factor, as a fraction of the maximum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"decay and warmup={self.warmup} add up to more than 1; lower one of them"
        self.require("decay", self.warmup + self.decay <= 1 + 1e-9, remedy)


Recompute = Literal["none", "attention", "layer"]
OptimizerConfig = Annotated[Nesterov | AdamW | Muon, ByKind()]
ScheduleConfig = Annotated[CosineCycles | WarmupDecay, ByKind()]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """Optimization. The defaults are the paper's for WikiText-103."""

    optimizer: OptimizerConfig = field(default_factory=Nesterov)
    schedule: ScheduleConfig = field(default_factory=CosineCycles)
    max_updates: Positive = 286_000
    """Number of updates."""
    epochs: NotNegative = 0.0
    """Length of the run in passes over the training text, instead of max_updates. The schedule is
    scaled to this length. 0: use max_updates."""
    patience: Count = 0
    """Stop when the validation loss has not improved for this many validations in a row. A
    checkpoint is saved whenever it improves. 0: never stop early."""
    tokens_per_update: Positive = 65_536
    """Tokens per update over all devices. Gradients are accumulated to reach it."""
    clip_norm: NotNegative = 0.1
    """Maximum gradient norm (0: no clipping)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float16"
    """Precision of activations and matrix products. Weights, loss and statistics stay in float32.
    On a CPU, `train` and `compare` default to float32."""
    stages: tuple[tuple[float, int], ...] = ()
    """Block lengths early in training: pairs of (fraction of the updates where the stage ends,
    block length), then `batches.block`. On the command line: `0.3:128,0.8:256`."""
    compile: bool = False
    """Compile the model with `torch.compile`."""
    recompute: Recompute = "none"
    """Activations to recompute in the backward pass: queries, keys and values (`attention`) or
    whole layers (`layer`), but never attention itself. Saves memory at the cost of time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: replicate the model (`ddp`) or shard it (`fsdp`)."""
    tables: Literal["replicated", "sharded"] = "replicated"
    """With several processes: `sharded` splits the rows of each word table over the processes, for
    vocabularies too large for one device. The result is the same, and it can be changed when a run
    is resumed."""
    seed: Count = 1
    """Seed for initial weights, data order and dropout."""
    report_every: Positive = 100
    """Updates between log lines."""
    validate_every: Count = 2_000
    """Updates between validations (0: only at the end)."""
    validate_share: float = 1.0
    """Maximum fraction of the validation set to score during training. The sample is fixed, spread
    over the whole set, and limited to a quarter of the tokens trained on since the last validation
    (but at least 2,000 words). The whole set is scored at the end, and at validations that coincide
    with a checkpoint."""
    checkpoint_every: Count = 2_000
    """Updates between checkpoints (0: only at the end)."""
    max_bad_updates: Positive = 20
    """Stop after this many non-finite losses or gradients in a row."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.validate_share
        self.require("validate_share", 0 < share <= 1, "must be above 0 and at most 1")
        self.require(
            "patience",
            not self.patience or self.validate_every > 0,
            "needs validate_every above 0; raise it, or use patience=0",
        )
        ends = [end for end, _ in self.stages]
        self.require(
            "stages",
            ends == sorted(set(ends)) and all(0 < end <= 1 for end in ends),
            "must end at increasing fractions between 0 and 1, e.g. 0.3:128,0.8:256",
        )
        is_positive = all(block >= 1 for _, block in self.stages)
        self.require("stages", is_positive, "block lengths must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Complete configuration of a run: model, batches and training."""

    name: str
    """`dataset/factorization`, as on the command line."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_printable = self.name != "" and self.name.isprintable()
        self.require("name", is_printable, "must be non-empty and printable")
        self.require(
            "input.predicted_words",
            self.batches.unit == "word" or self.num_predicted == self.vocab_size,
            "not supported for sub-word models, which can predict every word; leave it out",
        )
        training, is_transformer = self.training, not self.decoder.has_constant_state
        self.require(
            "training.recompute",
            training.recompute == "none" or is_transformer,
            "only supported for Transformers; use training.recompute=none",
        )
        self.require(
            "training.parallel",
            training.parallel == "ddp" or is_transformer,
            "only supported for Transformers; use training.parallel=ddp",
        )
        self.require(
            "input.sparse",
            training.parallel != "fsdp" or not self.input.sparse,
            "not supported with training.parallel=fsdp; use training.parallel=ddp or "
            "input.sparse=false",
        )
        self.require(
            "input.sparse",
            training.tables != "sharded" or not self.input.sparse,
            "not supported with training.tables=sharded; use training.tables=replicated or "
            "input.sparse=false",
        )
        longest = max((block for _, block in training.stages), default=0)
        tokens = self.batches.tokens
        self.require(
            "training.stages",
            self.batches.break_mode == "sentence" or longest <= tokens,
            f"a block of {longest} exceeds batches.tokens={tokens}; raise it, or use shorter "
            "blocks",
        )
