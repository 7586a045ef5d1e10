"""A complete run as a value: batches, optimisation, and all that a model is."""

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
    require,
)
from zipflm.config.model import ModelConfig
from zipflm.config.text import Blocks, BreakMode, Unit


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Checked):
    """How token streams become batches (section 4.3)."""

    unit: Unit = "word"
    """What one id stands for; a data folder made for the other unit is refused."""
    break_mode: BreakMode = "none"
    """Where training text is cut: `none` after `block` tokens, `complete` between sentences,
    `sentence` at every one of them, `stream` as `none`, with rows that continue those of the batch
    before (see `Blocks`)."""
    block: int = 512
    """Tokens in a training block."""
    tokens: Positive = 4096
    """At most this many tokens, padding included, go through a device at once."""
    eval_break_mode: BreakMode = "complete"
    """Where text is cut that is scored; the same choices, except that `stream` is for `zipflm
    evaluate` alone."""
    eval_block: int = 512
    """Tokens seen at once where text is scored."""
    eval_context: int = 0
    """Of `eval_block`, how many tokens are context that is not scored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.blocks
        try:
            _ = self.eval_blocks
        except ValueError as error:  # which names the field of Blocks
            raise ValueError(f"eval_{error}") from None
        require(
            self.eval_break_mode != "stream",
            "eval_break_mode",
            self.eval_break_mode,
            "validation scores parts of a text; use none, and evaluate with --break stream",
        )
        require(
            self.break_mode == "sentence" or self.tokens >= self.block,
            "tokens",
            self.tokens,
            f"a block of {self.block} tokens does not fit; raise tokens or lower block",
        )

    @property
    def blocks(self) -> Blocks:
        """How training text is cut."""
        return Blocks(break_mode=self.break_mode, block=self.block)

    @property
    def eval_blocks(self) -> Blocks:
        """How text is cut to be scored, unless something else is asked for."""
        return Blocks(
            break_mode=self.eval_break_mode, block=self.eval_block, context=self.eval_context
        )


@dataclass(frozen=True, kw_only=True)
class Nesterov(Checked):
    """The paper's optimizer (section 4.5); the schedule gives its learning rate."""

    momentum: Fraction = 0.99
    """How much of the last step goes on in the next."""
    weight_decay: NotNegative = 0.0
    """On all weights."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Checked):
    """AdamW for everything; the schedule multiplies the learning rates."""

    lr: AboveZero = 1e-3
    """Of everything but the tables."""
    table_lr: AboveZero = 1e-3
    """Of the embedding tables, bands included."""
    beta1: Fraction = 0.9
    """Of the running mean of gradients."""
    beta2: Fraction = 0.95
    """Of the running mean of their squares."""
    eps: AboveZero = 1e-8
    """Added to the root of that mean."""
    weight_decay: NotNegative = 0.0
    """On matrices and tables, not on biases and norms."""


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """Muon for the matrices of the decoder's layers, AdamW for all else."""

    matrix_lr: AboveZero = 2e-3
    """Of Muon, in AdamW's units (`match_rms_adamw`)."""
    momentum: Fraction = 0.95
    """Of Muon."""
    matrix_weight_decay: NotNegative = 0.0
    """On the matrices of the decoder's layers."""


@dataclass(frozen=True, kw_only=True)
class CosineCycles(Checked):
    """Linear warm-up, then cosine cycles that grow longer and lower (section 4.5)."""

    warmup_updates: Count = 16_000
    """Updates until the learning rate is at its height."""
    warmup_from: NotNegative = 1e-7
    """The learning rate of the first update."""
    first_cycle: Positive = 18_000
    """Updates of the first cycle, after the warm-up; each further one is twice as long."""
    max_lr: NotNegative = 1.0
    """The learning rate at the height of the first cycle."""
    min_lr: float = 1e-5
    """The learning rate at its end."""
    shrink: float = 0.75
    """Both ends of the learning rate are multiplied by this from one cycle to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.min_lr <= self.max_lr,
            "min_lr",
            self.min_lr,
            f"must lie between 0 and max_lr={self.max_lr}",
        )
        require(0 < self.shrink <= 1, "shrink", self.shrink, "must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class WarmupDecay(Checked):
    """Linear warm-up, full height, decay over the last part; a factor of the learning rates."""

    warmup: Share = 0.02
    """Fraction of the updates."""
    decay: Share = 0.7
    """Fraction of the updates, at the end; 1 - warmup decays from the start."""
    shape: Literal["linear", "cosine"] = "linear"
    """Of the decay."""
    final: Share = 0.0
    """Where the decay ends, as a fraction of the full height."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.warmup + self.decay <= 1 + 1e-9,
            "decay",
            self.decay,
            f"with warmup={self.warmup} takes more than all updates; lower one of them",
        )


Recompute = Literal["none", "attention", "layer"]
OptimizerConfig = Annotated[Nesterov | AdamW | Muon, ByKind()]
ScheduleConfig = Annotated[CosineCycles | WarmupDecay, ByKind()]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """Optimisation; the defaults are the paper's for WikiText-103."""

    optimizer: OptimizerConfig = field(default_factory=Nesterov)
    schedule: ScheduleConfig = field(default_factory=CosineCycles)
    max_updates: Positive = 286_000
    """Updates of the whole run."""
    epochs: NotNegative = 0.0
    """Length of the run in passes over the training text, instead of max_updates: the schedule is
    stretched from that number of updates to this length. 0: max_updates decides."""
    patience: Count = 0
    """Stop early when the valid loss has not improved for this many validations in a row. Whenever
    it improves, a checkpoint is saved. 0: never stop early."""
    tokens_per_update: Positive = 65_536
    """Reached with all devices together, by accumulating gradients where needed."""
    clip_norm: NotNegative = 0.1
    """Gradients above this norm are scaled down to it; 0 leaves them as they are."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float16"
    """Of activations and matrix products; weights, loss and statistics stay in float32. On a CPU
    `train` and `compare` use float32 unless you ask for another one."""
    stages: tuple[tuple[float, int], ...] = ()
    """Block lengths in turn, as (fraction of the updates at which it ends, block); `batches.block`
    is used after the last. `0.3:128,0.8:256` on the command line."""
    compile: bool = False
    """Compile the model with `torch.compile`."""
    recompute: Recompute = "none"
    """What the backward pass computes again instead of keeping it, for long blocks: queries, keys
    and values, or everything in a layer; never the attention between them. Same numbers, less
    memory, more time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: a whole copy of the model on each device, or a part of it."""
    tables: Literal["replicated", "sharded"] = "replicated"
    """With several processes: `sharded` leaves each of them its own rows of every table of words,
    for vocabularies that fit no single device; `replicated` treats tables like the other weights.
    The result is the same, and so is a run that changes it when it is resumed."""
    seed: Count = 1
    """Of the first weights, the order of the text and dropout."""
    report_every: Positive = 100
    """Updates between two lines of the log."""
    validate_every: Count = 2_000
    """Updates between two passes over the valid set; 0 does it only at the end."""
    validate_share: float = 1.0
    """Share of the valid set that a pass on the way scores at most: always the same words, spread
    over all of it, and no more than a quarter of the tokens trained on since the last pass (but
    2,000 words). All of it is scored as well when a checkpoint is saved and at the end."""
    checkpoint_every: Count = 2_000
    """Updates between two checkpoints; 0 saves only at the end."""
    max_bad_updates: Positive = 20
    """Stop after so many non-finite losses or gradients in a row."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.validate_share <= 1,
            "validate_share",
            self.validate_share,
            "is a share of the valid set, above 0 and up to 1, which is all of it",
        )
        require(
            not self.patience or self.validate_every > 0,
            "patience",
            self.patience,
            "validate_every=0 validates only at the end; raise it, or leave patience out",
        )
        ends = [end for end, _ in self.stages]
        require(
            ends == sorted(set(ends)) and all(0 < end <= 1 for end in ends),
            "stages",
            self.stages,
            "ends are fractions that rise from above 0 to at most 1, e.g. 0.3:128,0.8:256",
        )
        for _, block in self.stages:
            require(block >= 1, "stages", self.stages, "blocks have at least 1 token")


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Everything a run needs: the model's fields, batches and training."""

    name: str
    """`dataset/factorization`, as on the command line."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.name != "" and self.name.isprintable(),
            "name",
            self.name,
            "give characters that can be printed",
        )
        require(
            self.batches.unit == "word" or self.num_predicted == self.vocab_size,
            "input.predicted_words",
            self.num_predicted,
            "counts words; a model of sub-words can spell every word, so leave it out",
        )
        is_transformer = not self.decoder.has_constant_state
        require(
            self.training.recompute == "none" or is_transformer,
            "training.recompute",
            self.training.recompute,
            "is for Transformers; use training.recompute=none",
        )
        require(
            self.training.parallel == "ddp" or is_transformer,
            "training.parallel",
            self.training.parallel,
            "is for Transformers; use training.parallel=ddp",
        )
        require(
            self.training.parallel != "fsdp" or not self.input.has_sparse_gradients,
            "input.sparse",
            True,
            "training.parallel=fsdp spreads whole gradients over the processes; use "
            "training.parallel=ddp, or leave input.sparse out",
        )
        require(
            self.training.tables != "sharded" or not self.input.has_sparse_gradients,
            "input.sparse",
            True,
            "training.tables=sharded has gradients of whole shards; use "
            "training.tables=replicated, or leave input.sparse out",
        )
        for _, block in self.training.stages:
            require(
                self.batches.break_mode == "sentence" or block <= self.batches.tokens,
                "training.stages",
                self.training.stages,
                f"a block of {block} does not fit into batches.tokens={self.batches.tokens}",
            )
