"""A complete model as a value, and its number of parameters, computed without building it."""

from __future__ import annotations

from dataclasses import dataclass, field

from zipflm.config.checks import require, require_positive
from zipflm.config.layers import (
    AdaptiveInput,
    AdaptiveOutput,
    DecoderConfig,
    FixedInput,
    FullOutput,
    InputConfig,
    OutputConfig,
    Tie,
)
from zipflm.model.bands import Bands


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
        object.__setattr__(self, "tie", Tie(self.tie))  # its value is welcome too
        require_positive(vocab_size=self.vocab_size)
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
