"""Settings that a study varies within a factorization: bands, and dropout in their tails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

from zipflm.config import AdaptiveInput, AdaptiveOutput, Config
from zipflm.quoting import quoted


@dataclass(frozen=True)
class Variation:
    """One combination of settings; without any, a config stays as it is."""

    bands: str | None = None
    tail_dropout: float | None = None

    @property
    def name(self) -> str:
        """`bands 5k/155k/100k, tail dropout 0.2`, for the member's label."""
        bands = [] if self.bands is None else [f"bands {self.bands}"]
        rate = [] if self.tail_dropout is None else [f"tail dropout {self.tail_dropout:g}"]
        return ", ".join(bands + rate)

    def apply(self, config: Config) -> Config:
        """The config with these settings; ValueError if it has no bands."""
        if not self.name:
            return config
        input, output = config.input, config.output
        if not isinstance(output, AdaptiveOutput):
            option = "--tail-dropout" if self.bands is None else "--bands"
            raise ValueError(f"{option}: {config.name} has no bands; leave it out")
        if self.bands is not None:
            ends = cutoffs(self.bands)
            if ends[-1] >= config.vocab_size:
                raise ValueError(
                    f"--bands {self.bands}: the vocabulary has only {config.vocab_size:,} ids; all "
                    "bands but the last must fit into it"
                )
            output = replace(output, cutoffs=ends)
            if isinstance(input, AdaptiveInput):
                input = replace(input, cutoffs=ends)
        if self.tail_dropout is not None:
            output = replace(output, tail_dropout=self.tail_dropout)
        return replace(config, input=input, output=output)


def variations(bands: Sequence[str], tail_dropout: Sequence[float]) -> list[Variation]:
    """Every combination of the settings asked for."""
    _require_distinct("--bands", bands, [cutoffs(text) for text in bands])
    _require_distinct("--tail-dropout", tail_dropout, tail_dropout)
    every_band: Sequence[str | None] = bands or [None]
    every_rate: Sequence[float | None] = tail_dropout or [None]
    return [Variation(*pair) for pair in product(every_band, every_rate)]


def _require_distinct(option: str, given: Sequence[object], meant: Sequence[object]) -> None:
    """Two members of one name would pass for two seeds."""
    for place, value in enumerate(meant):
        if value in meant[:place]:
            same = given[meant.index(value)]
            raise ValueError(f"{option} {given[place]}: the same as {same}; name each setting once")


def cutoffs(text: str) -> tuple[int, ...]:
    """The cutoffs of bands written as words per band; the last takes what remains.

    >>> cutoffs("5k/155k/100k")
    (5000, 160000)
    """
    sizes = []
    for part in text.lower().split("/"):
        found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(k?)", part.strip())
        if found is None:
            raise ValueError(f"--bands {quoted(text)}: write words per band, e.g. 5k/155k/100k")
        sizes.append(round(float(found[1]) * (1000 if found[2] else 1)))
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"--bands {quoted(text)}: give at least two bands of at least one word")
    return tuple(accumulate(sizes[:-1]))


def require_comparable(config: Config) -> None:
    """ValueError unless the model predicts every word of the data, as others do."""
    if config.num_predicted < config.vocab_size:
        raise ValueError(
            f"input.predicted_words={config.num_predicted}: models that are compared predict the "
            "same words; use zipflm train and zipflm evaluate for this one"
        )
