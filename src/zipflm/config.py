"""What a model and its training are, as frozen values; sizes are computed from them alone.

Variants are types (`FixedInput | AdaptiveInput | CharacterInput`), so that a combination that
makes no sense cannot be written or fails at once, naming field, value and remedy. This module
builds nothing and reads no file; `overrides` turns these values into dictionaries and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from zipflm.model.bands import Bands


class Tie(StrEnum):
    """Which weights the output layer shares with the input layer (the paper's appendix A)."""

    NONE = "none"
    EMBEDDINGS = "embeddings"
    PROJECTIONS = "projections"
    """Embeddings and the projections of the tail bands: ADP-T on WikiText-103."""
    HEAD = "head"
    """Embeddings and every projection, the head's too."""


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"{field}={value!r}: {remedy}")


def _require_fraction(field: str, value: float) -> None:
    require(0 <= value < 1, field, value, "a dropout rate lies in [0, 1)")


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        require(value >= 1, name, value, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class FixedInput:
    """One table for all words or sub-words, projected to the decoder's width if it differs."""

    dim: int
    """Width of the table."""

    def __post_init__(self) -> None:
        _require_positive(dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class AdaptiveInput:
    """A table and a projection per band (section 3)."""

    cutoffs: tuple[int, ...]
    """Cumulative ends of all bands but the last."""
    dim: int
    """Width of the head; band i has floor(dim / factor**i)."""
    factor: float = 4
    """By how much each band is narrower than the one before."""


@dataclass(frozen=True, kw_only=True)
class CharacterInput:
    """A convolution over the bytes of each word, highway layers, a projection (section 4.4)."""

    char_dim: int = 128
    """Width of a byte's embedding."""
    filters: tuple[tuple[int, int], ...] = (
        (1, 128),
        (2, 256),
        (3, 384),
        (4, 512),
        (5, 512),
        (6, 512),
        (7, 512),
    )
    """(bytes seen at once, features) of every filter."""
    highway_layers: int = 1
    """The paper uses 1 for WikiText-103 and 2 for Billion Word."""
    max_bytes: int = 50
    """Longer words are cut, shorter ones padded."""

    def __post_init__(self) -> None:
        _require_positive(char_dim=self.char_dim, max_bytes=self.max_bytes)
        require(
            self.highway_layers >= 0, "highway_layers", self.highway_layers, "must be 0 or more"
        )
        require(len(self.filters) > 0, "filters", self.filters, "give at least one filter")
        for size, features in self.filters:
            require(
                1 <= size <= self.max_bytes and features >= 1,
                "filters",
                self.filters,
                f"each is (bytes, features) with 1 <= bytes <= max_bytes={self.max_bytes}",
            )

    @property
    def num_features(self) -> int:
        return sum(features for _, features in self.filters)


@dataclass(frozen=True, kw_only=True)
class FullOutput:
    """One softmax over the whole vocabulary, behind a projection if `dim` is not the decoder's."""

    dim: int
    """Width of the table."""

    def __post_init__(self) -> None:
        _require_positive(dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class AdaptiveOutput:
    """A softmax over the head's words and one class per tail band, and one softmax per tail."""

    cutoffs: tuple[int, ...]
    """Cumulative ends of all bands but the last."""
    dim: int
    """Width of the head; band i has floor(dim / factor**i)."""
    factor: float = 4
    """By how much each band is narrower than the one before."""
    tail_dropout: float = 0.0
    """Dropout after each tail projection (section 5.3), never on the head."""
    input_dropout: float = 0.0
    """Dropout on everything that enters the layer, head included: fairseq's, not the paper's."""

    def __post_init__(self) -> None:
        _require_fraction("tail_dropout", self.tail_dropout)
        _require_fraction("input_dropout", self.input_dropout)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The Transformer decoder (section 4.1); the defaults are the paper's for WikiText-103."""

    dim: int = 1024
    num_layers: int = 16
    num_heads: int = 16
    ffn_dim: int = 4096
    dropout: float = 0.3
    """On the input, and on what attention and feed-forward add to the residual."""
    attention_dropout: float = 0.1
    relu_dropout: float = 0.1
    """Inside the feed-forward, after its activation."""
    final_norm: bool = False
    """A norm after the last layer; the paper's parameter counts leave no room for one."""
    init: Literal["paper", "fairseq", "zero-output"] = "paper"
    """`paper`: Xavier everywhere, no bias. `fairseq`: that code's later rules, with PyTorch's own
    for the feed-forward. `zero-output`: as `paper`, but what adds to the residual starts at 0."""
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    qk_norm: bool = False
    """Normalise queries and keys per head."""
    activation: Literal["relu", "relu_squared"] = "relu"
    norm: Literal["layer", "rms"] = "layer"
    """`rms` has no weights."""
    bias: bool = True
    """Biases in attention and feed-forward."""

    def __post_init__(self) -> None:
        _require_positive(
            dim=self.dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            ffn_dim=self.ffn_dim,
        )
        require(
            self.dim % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"must divide dim={self.dim}",
        )
        require(
            self.positions != "rotary" or self.dim // self.num_heads % 2 == 0,
            "num_heads",
            self.num_heads,
            f"rotary positions need an even head width, not {self.dim // self.num_heads}",
        )
        for name in ("dropout", "attention_dropout", "relu_dropout"):
            _require_fraction(name, getattr(self, name))

    @property
    def num_norm_params(self) -> int:
        return 2 * self.dim if self.norm == "layer" else 0

    @property
    def num_layer_params(self) -> int:
        matrices = 4 * self.dim * self.dim + 2 * self.dim * self.ffn_dim
        biases = 5 * self.dim + self.ffn_dim if self.bias else 0
        return matrices + biases + 2 * self.num_norm_params


InputConfig = FixedInput | AdaptiveInput | CharacterInput
OutputConfig = FullOutput | AdaptiveOutput


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A complete model: one input layer, one decoder, one output layer, and what they share."""

    vocab_size: int
    """Number of ids, specials and fillers included."""
    input: InputConfig
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    output: OutputConfig
    tie: Tie = Tie.NONE

    def __post_init__(self) -> None:
        _require_positive(vocab_size=self.vocab_size)
        # Cutoffs and widths are checked by Bands, here rather than when the model is built.
        bands_in, bands_out = self.input_bands, self.output_bands
        if self.tie == Tie.NONE:
            return
        if isinstance(self.input, FixedInput) and isinstance(self.output, FullOutput):
            require(
                self.tie == Tie.EMBEDDINGS,
                "tie",
                self.tie.value,
                "one table without bands shares its embeddings only; use tie=embeddings",
            )
            require(
                self.input.dim == self.output.dim,
                "tie",
                self.tie.value,
                f"input.dim={self.input.dim} and output.dim={self.output.dim} cannot share one "
                "table; make them equal or use tie=none",
            )
            return
        require(
            bands_in is not None and bands_out is not None,
            "tie",
            self.tie.value,
            f"{type(self.input).__name__} and {type(self.output).__name__} have no weights in "
            "common; use tie=none, or make both adaptive or both plain tables",
        )
        require(
            bands_in == bands_out,
            "tie",
            self.tie.value,
            f"input and output must have the same bands, not {bands_in} and {bands_out}; give "
            "both the same cutoffs, dim and factor, or use tie=none",
        )
        require(
            self.tie == Tie.HEAD or self.output.dim == self.decoder.dim,
            "tie",
            self.tie.value,
            f"the head is scored without a projection, so output.dim={self.output.dim} must be "
            f"decoder.dim={self.decoder.dim}; or use tie=head, which projects the head too",
        )

    @property
    def input_bands(self) -> Bands | None:
        return self._bands(self.input) if isinstance(self.input, AdaptiveInput) else None

    @property
    def output_bands(self) -> Bands | None:
        return self._bands(self.output) if isinstance(self.output, AdaptiveOutput) else None

    def _bands(self, layer: AdaptiveInput | AdaptiveOutput) -> Bands:
        return Bands(self.vocab_size, layer.cutoffs, layer.dim, layer.factor)

    def num_params(self) -> int:
        """Number of trained parameters; a shared one counts once."""
        return sum(self.params_by_part().values())

    def params_by_part(self) -> dict[str, int]:
        """The same number, part by part in the order of the data's path."""
        return {
            **{f"input.{part}": count for part, count in self._input_params().items()},
            "decoder.layers": self.decoder.num_layers * self.decoder.num_layer_params,
            **({"decoder.final_norm": self.decoder.num_norm_params} if self._has_norm else {}),
            **{f"output.{part}": count for part, count in self._output_params().items()},
        }

    @property
    def _has_norm(self) -> bool:
        return self.decoder.final_norm and self.decoder.num_norm_params > 0

    def _input_params(self) -> dict[str, int]:
        width = self.decoder.dim
        if isinstance(self.input, FixedInput):
            return self._table_params(self.input.dim)
        if isinstance(self.input, AdaptiveInput):
            assert self.input_bands is not None
            return _band_params(self.input_bands, width)
        chars = self.input
        features = chars.num_features
        return {
            "bytes": 257 * chars.char_dim,
            "convolutions": sum(n * (k * chars.char_dim + 1) for k, n in chars.filters),
            "highway": chars.highway_layers * 2 * features * (features + 1),
            "projection": width * (features + 1),
            "symbols": 2 * width,
        }

    def _output_params(self) -> dict[str, int]:
        if isinstance(self.output, FullOutput):
            table = self._table_params(self.output.dim)
            return (
                table if self.tie == Tie.NONE else {k: n for k, n in table.items() if k != "table"}
            )
        bands = self.output_bands
        assert bands is not None
        parts = {"clusters": bands.num_tails * bands.dim}
        if self.tie == Tie.NONE and bands.dim != self.decoder.dim:
            parts["projection"] = bands.dim * self.decoder.dim
        # Tail projections read what enters the layer, which is `bands.dim` wide when untied.
        for name, count in _band_params(bands, bands.dim).items():
            is_table = name.startswith("embedding")
            if self.tie == Tie.NONE and name != "projection.band0":
                parts[name] = count
            elif self.tie == Tie.EMBEDDINGS and not is_table and name != "projection.band0":
                parts[name] = count
        return parts

    def _table_params(self, dim: int) -> dict[str, int]:
        parts = {"table": self.vocab_size * dim}
        if dim != self.decoder.dim:
            parts["projection"] = dim * self.decoder.dim
        return parts


def _band_params(bands: Bands, width: int) -> dict[str, int]:
    """Tables of all bands, then the matrices between each band's width and `width`."""
    tables = {
        f"embedding.band{i}": size * dim
        for i, (size, dim) in enumerate(zip(bands.sizes, bands.widths, strict=True))
    }
    projections = {f"projection.band{i}": dim * width for i, dim in enumerate(bands.widths)}
    return tables | projections


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How token streams become batches (section 4.3)."""

    unit: Literal["word", "bpe"] = "word"
    """What one id stands for; a data folder made for the other unit is refused."""
    break_mode: Literal["none", "complete", "sentence"] = "none"
    """`none`: blocks of exactly `block` tokens. `complete`: as many whole sentences as fit.
    `sentence`: one sentence each, batched with others of similar length."""
    block: int = 512
    """Tokens in a training block."""
    tokens: int = 4096
    """At most this many tokens, padding included, go through a device at once."""
    eval_break_mode: Literal["none", "complete", "sentence"] = "complete"
    eval_block: int = 512
    eval_context: int = 0
    """Of `eval_block`, how many tokens are context that is not scored."""

    def __post_init__(self) -> None:
        _require_positive(block=self.block, tokens=self.tokens, eval_block=self.eval_block)
        require(
            self.break_mode == "sentence" or self.tokens >= self.block,
            "tokens",
            self.tokens,
            f"a block of {self.block} tokens does not fit; raise tokens or lower block",
        )
        require(
            0 <= self.eval_context < self.eval_block,
            "eval_context",
            self.eval_context,
            f"must leave room for scored tokens in eval_block={self.eval_block}",
        )


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """The paper's optimizer (section 4.5); the schedule gives its learning rate."""

    momentum: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must lie in [0, 1)")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW for everything; the schedule multiplies the learning rates."""

    lr: float = 1e-3
    """Of everything but the tables."""
    table_lr: float = 1e-3
    """Of the embedding tables, bands included."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    """On matrices and tables, not on biases and norms."""

    def __post_init__(self) -> None:
        for name in ("lr", "table_lr"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "lies in [0, 1)")
        require(self.eps > 0, "eps", self.eps, "must be above 0")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """Muon for the matrices of the decoder's layers, AdamW for all else."""

    matrix_lr: float = 2e-3
    """Of Muon, in AdamW's units (`match_rms_adamw`)."""
    momentum: float = 0.95
    matrix_weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.matrix_lr > 0, "matrix_lr", self.matrix_lr, "must be above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must lie in [0, 1)")
        require(
            self.matrix_weight_decay >= 0,
            "matrix_weight_decay",
            self.matrix_weight_decay,
            "must be 0 or more",
        )


@dataclass(frozen=True, kw_only=True)
class CosineCycles:
    """Linear warm-up, then cosine cycles that grow longer and lower (section 4.5)."""

    warmup_updates: int = 16_000
    warmup_from: float = 1e-7
    first_cycle: int = 18_000
    """Updates of the first cycle, after the warm-up; each further one is twice as long."""
    max_lr: float = 1.0
    min_lr: float = 1e-5
    shrink: float = 0.75
    """Both ends of the learning rate are multiplied by this from one cycle to the next."""

    def __post_init__(self) -> None:
        require(
            self.warmup_updates >= 0, "warmup_updates", self.warmup_updates, "must be 0 or more"
        )
        _require_positive(first_cycle=self.first_cycle)
        require(
            0 <= self.min_lr <= self.max_lr,
            "min_lr",
            self.min_lr,
            f"must lie between 0 and max_lr={self.max_lr}",
        )
        require(0 < self.shrink <= 1, "shrink", self.shrink, "must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class WarmupDecay:
    """Linear warm-up, full height, decay over the last part; a factor of the learning rates."""

    warmup: float = 0.02
    """Fraction of the updates."""
    decay: float = 0.7
    """Fraction of the updates, at the end; 1 - warmup decays from the start."""
    shape: Literal["linear", "cosine"] = "linear"
    final: float = 0.0
    """Where the decay ends, as a fraction of the full height."""

    def __post_init__(self) -> None:
        for name in ("warmup", "decay", "final"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, value, "is a fraction, 0 to 1")
        require(
            self.warmup + self.decay <= 1 + 1e-9,
            "decay",
            self.decay,
            f"with warmup={self.warmup} takes more than all updates; lower one of them",
        )


OptimizerConfig = Nesterov | AdamW | Muon
ScheduleConfig = CosineCycles | WarmupDecay


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Optimisation; the defaults are the paper's for WikiText-103."""

    optimizer: OptimizerConfig = field(default_factory=Nesterov)
    schedule: ScheduleConfig = field(default_factory=CosineCycles)
    max_updates: int = 286_000
    tokens_per_update: int = 65_536
    """Reached with all devices together, by accumulating gradients where needed."""
    clip_norm: float = 0.1
    """Gradients above this norm are scaled down to it; 0 leaves them as they are."""
    precision: Literal["float32", "bfloat16", "float16"] = "float16"
    """Of activations and matrix products; weights, loss and statistics stay in float32."""
    stages: tuple[tuple[float, int], ...] = ()
    """Block lengths in turn, as (fraction of the updates at which it ends, block); `batches.block`
    is used after the last. `0.3:128,0.8:256` on the command line."""
    compile: bool = False
    """Compile the model with `torch.compile`."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: a whole copy of the model on each device, or a part of it."""
    seed: int = 1
    report_every: int = 100
    """Updates between two lines of the log."""
    validate_every: int = 2_000
    """Updates between two passes over the valid set; 0 does it only at the end."""
    checkpoint_every: int = 2_000
    """Updates between two checkpoints; 0 saves only at the end."""
    max_bad_updates: int = 20
    """Stop after so many non-finite losses or gradients in a row."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        _require_positive(
            max_updates=self.max_updates,
            tokens_per_update=self.tokens_per_update,
            report_every=self.report_every,
            max_bad_updates=self.max_bad_updates,
        )
        for name in ("validate_every", "checkpoint_every", "clip_norm", "seed"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be 0 or more")
        ends = [end for end, _ in self.stages]
        require(
            ends == sorted(set(ends)) and all(0 < end <= 1 for end in ends),
            "stages",
            self.stages,
            "ends are fractions that rise from above 0 to at most 1, e.g. 0.3:128,0.8:256",
        )
        for _, block in self.stages:
            _require_positive(stages=block)


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """Everything a run needs: the model's fields, batches and training."""

    name: str
    """`dataset/factorization`, as on the command line."""
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for _, block in self.training.stages:
            require(
                self.batches.break_mode == "sentence" or block <= self.batches.tokens,
                "training.stages",
                self.training.stages,
                f"a block of {block} does not fit into batches.tokens={self.batches.tokens}",
            )
