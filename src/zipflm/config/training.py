"""Configuration of batches, optimizers, schedules and complete runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from zipflm.config.checks import (
    ByKind,
    Checked,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
)
from zipflm.config.model import ModelConfig
from zipflm.config.text import Blocks, BreakMode, Unit


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Checked):
    """Cutting of text into blocks and batches (section 4.3)."""

    unit: Unit = "word"
    """Whether ids are words or BPE pieces. Must match the data folder."""
    break_mode: BreakMode = "none"
    """Where to cut training text: `none` after every `block` tokens, `complete` between lines,
    `sentence` after every line, `stream` like `none`, but each row of an update continues the same
    row of the previous update."""
    block: int = 512
    """Length of training blocks in tokens (maximum for `complete`)."""
    tokens: PositiveInt = 4096
    """Maximum number of tokens per device and forward pass, padding included."""
    eval_break_mode: BreakMode = "complete"
    """Where to cut text for scoring: as `break_mode`, except `stream`, which only `zipflm evaluate`
    supports."""
    eval_block: int = 512
    """Block length for scoring, in tokens."""
    eval_context: int = 0
    """Number of tokens of each block after the first that are context and not scored."""

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

    momentum: FractionBelowOne = 0.99
    """Momentum coefficient."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay on all weights."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Checked):
    """AdamW for all weights. The schedule multiplies the learning rates."""

    lr: PositiveFloat = 1e-3
    """Learning rate for everything except tables."""
    table_lr: PositiveFloat = 1e-3
    """Learning rate for tables, which have one row per id, band or byte: embeddings and softmax."""
    beta1: FractionBelowOne = 0.9
    """Decay of the running mean of gradients."""
    beta2: FractionBelowOne = 0.95
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator for stability."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay on matrices and tables, not on vectors (biases, norms) or sparse tables."""


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """Muon for the matrices of the decoder layers, AdamW for everything else."""

    lr: PositiveFloat = 1e-3
    """Learning rate for everything except tables and the matrices of the decoder layers."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay on tables and on matrices outside the decoder layers, not on vectors (biases,
    norms) or sparse tables."""
    matrix_lr: PositiveFloat = 2e-3
    """Learning rate for the matrices of the decoder layers. Muon's updates are scaled to the size
    of AdamW's (`match_rms_adamw`)."""
    momentum: FractionBelowOne = 0.95
    """Momentum of Muon."""
    matrix_weight_decay: NonNegativeFloat = 0.0
    """Weight decay on the matrices of the decoder layers."""


@dataclass(frozen=True, kw_only=True)
class CosineCycles(Checked):
    """Linear warm-up, then cosine cycles that grow longer and lower (section 4.5). With AdamW and
    Muon, its rates are factors on the optimizer's learning rates."""

    warmup_updates: NonNegativeInt = 16_000
    """Updates until the learning rate reaches its maximum."""
    warmup_from: NonNegativeFloat = 1e-7
    """Learning rate of the first update."""
    first_cycle: PositiveInt = 18_000
    """Updates of the first cycle after warm-up. Each later cycle is twice as long."""
    max_lr: NonNegativeFloat = 1.0
    """Learning rate at the start of the first cycle."""
    min_lr: NonNegativeFloat = 1e-5
    """Learning rate at the end of the first cycle."""
    shrink: PositiveFraction = 0.75
    """Factor on `max_lr` and `min_lr` from one cycle to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("min_lr", self.min_lr <= self.max_lr, f"must be at most max_lr={self.max_lr}")


@dataclass(frozen=True, kw_only=True)
class WarmupDecay(Checked):
    """Linear warm-up, a constant phase, then decay. Multiplies the optimizer's learning rates."""

    warmup: Fraction = 0.02
    """Fraction of the updates spent on warm-up."""
    decay: Fraction = 0.7
    """Fraction of the updates, at the end of the run, spent on decay."""
    shape: Literal["linear", "cosine"] = "linear"
    """Shape of the decay."""
    final: Fraction = 0.0
    """Learning rate at the end, as a fraction of the maximum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"decay and warmup={self.warmup} add up to more than 1; lower one of them"
        self.require("decay", self.warmup + self.decay <= 1 + 1e-9, remedy)


Recompute = Literal["none", "attention", "layer"]
OptimizerConfig = Annotated[Nesterov | AdamW | Muon, ByKind()]
ScheduleConfig = Annotated[CosineCycles | WarmupDecay, ByKind()]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """Optimization, validation and checkpoints. The defaults are the paper's for WikiText-103."""

    optimizer: OptimizerConfig = field(default_factory=Nesterov)
    schedule: ScheduleConfig = field(default_factory=CosineCycles)
    max_updates: PositiveInt = 286_000
    """Number of updates."""
    epochs: NonNegativeFloat = 0.0
    """Length of the run in passes over the training text, instead of max_updates. The schedule is
    stretched to this length. 0: use max_updates."""
    patience: NonNegativeInt = 0
    """Stop when the validation loss has not improved for this many consecutive validations, and
    save a checkpoint whenever it improves. 0: never stop early."""
    tokens_per_update: PositiveInt = 65_536
    """Tokens per update over all devices. Gradients are accumulated to reach it."""
    clip_norm: NonNegativeFloat = 0.1
    """Maximum gradient norm (0: no clipping)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float16"
    """Precision of activations and matrix products. Weights, loss and statistics stay in float32.
    On a CPU, `train` and `compare` default to float32."""
    stages: tuple[tuple[float, int], ...] = ()
    """Block lengths early in training, as pairs of end and block length. Ends are fractions of the
    updates: `0.3:128,0.8:256` uses blocks of 128 tokens up to 30% of the updates, 256 up to 80%,
    and `batches.block` after that."""
    compile: bool = False
    """Compile the model with `torch.compile`."""
    recompute: Recompute = "none"
    """Activations to recompute in the backward pass: those of the attention block (`attention`) or
    of the full layer (`layer`). The result of attention is not recomputed, except where PyTorch has
    no fused operator for it. Saves memory at the cost of time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: replicate the model (`ddp`) or shard it (`fsdp`)."""
    tables: Literal["replicated", "sharded"] = "replicated"
    """With several processes: `sharded` splits the rows of each word table over the processes, for
    vocabularies too large for one device. The model is the same either way, so a resumed run can
    change this setting."""
    seed: NonNegativeInt = 1
    """Seed for initial weights, data order and dropout."""
    report_every: PositiveInt = 100
    """Updates between log lines."""
    validate_every: NonNegativeInt = 2_000
    """Updates between validations (0: only at the end)."""
    validate_share: PositiveFraction = 1.0
    """Maximum fraction of the validation set to score during training. The sample is fixed, spread
    over the full set, and limited to a quarter of the tokens trained on between validations. It has
    at least 2,000 words. The full set is scored at the end, and at validations that coincide with a
    checkpoint."""
    checkpoint_every: NonNegativeInt = 2_000
    """Updates between checkpoints (0: only at the end)."""
    max_bad_updates: PositiveInt = 20
    """Stop after this many consecutive updates with a non-finite loss or gradient."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            "patience",
            not self.patience or self.validate_every > 0,
            "needs validate_every above 0; raise it, or use patience=0",
        )
        ends = [end for end, _ in self.stages]
        self.require(
            "stages",
            ends == sorted(set(ends)) and all(0 < end <= 1 <= block for end, block in self.stages),
            "give end:block, with increasing ends between 0 and 1, e.g. 0.3:128,0.8:256",
        )


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Complete configuration of a run: model, batches and training."""

    name: str
    """`dataset/factorization[/size][/variant]`, as on the command line."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_printable = self.name != "" and self.name.isprintable()
        self.require("name", is_printable, "must be non-empty and printable")
        self.require(
            "input.predicted_words",
            self.batches.unit == "word" or self.num_predicted == self.vocab_size,
            "not supported for subword models, which can predict every word; leave it out",
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
            not self.input.sparse or (training.parallel, training.tables) == ("ddp", "replicated"),
            "needs training.parallel=ddp and training.tables=replicated; use input.sparse=false",
        )
        longest = max((block for _, block in training.stages), default=0)
        tokens = self.batches.tokens
        self.require(
            "training.stages",
            self.batches.break_mode == "sentence" or longest <= tokens,
            f"a block of {longest} exceeds batches.tokens={tokens}; raise batches.tokens or use "
            "shorter blocks",
        )
