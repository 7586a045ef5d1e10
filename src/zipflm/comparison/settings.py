"""Settings that a study varies within a factorization: bands, and dropout in their tails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

from zipflm.config import AdaptiveInput, AdaptiveOutput, Config
from zipflm.quoting import quoted


@dataclass(frozen=True)
class Variation:
    """A config made into another one, and its name in the member's label."""

    name: str
    apply: Callable[[Config], Config]


def require_comparable(config: Config) -> None:
    """ValueError unless the model predicts every word of the data, as others do."""
    if config.num_predicted < config.vocab_size:
        raise ValueError(
            f"input.predicted_words={config.num_predicted}: models that are compared predict the "
            "same words; use zipflm train and zipflm evaluate for this one"
        )


def variations(bands: Sequence[str], tail_dropout: Sequence[float]) -> list[Variation]:
    """Every combination of the settings asked for; one without a name, that leaves a config as it
    is, if none were."""
    _require_distinct("--bands", bands, [cutoffs(text) for text in bands])
    _require_distinct("--tail-dropout", tail_dropout, tail_dropout)
    by_band = [Variation(f"bands {text}", _bands(text)) for text in bands]
    by_rate = [Variation(f"tail dropout {rate:g}", _tail_dropout(rate)) for rate in tail_dropout]
    groups = [group for group in (by_band, by_rate) if group]
    return [_combined(parts) for parts in product(*groups)]


def _require_distinct(option: str, given: Sequence[object], meant: Sequence[object]) -> None:
    """Two members of one name would pass for two seeds."""
    for place, value in enumerate(meant):
        if value in meant[:place]:
            same = given[meant.index(value)]
            raise ValueError(f"{option} {given[place]}: the same as {same}; name each setting once")


def _combined(parts: Iterable[Variation]) -> Variation:
    parts = tuple(parts)

    def apply(config: Config) -> Config:
        for part in parts:
            config = part.apply(config)
        return config

    return Variation(", ".join(part.name for part in parts), apply)


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


def _bands(text: str) -> Callable[[Config], Config]:
    ends = cutoffs(text)

    def apply(config: Config) -> Config:
        input, output = config.input, config.output
        if isinstance(input, AdaptiveInput):
            input = replace(input, cutoffs=ends)
        if isinstance(output, AdaptiveOutput):
            output = replace(output, cutoffs=ends)
        if not isinstance(output, AdaptiveOutput):
            raise ValueError(f"--bands {text}: {config.name} has no bands; leave it out")
        if ends[-1] >= config.vocab_size:
            raise ValueError(
                f"--bands {text}: the vocabulary has only {config.vocab_size:,} ids; all bands "
                "but the last must fit into it"
            )
        return replace(config, input=input, output=output)

    return apply


def _tail_dropout(rate: float) -> Callable[[Config], Config]:
    def apply(config: Config) -> Config:
        if not isinstance(config.output, AdaptiveOutput):
            raise ValueError(f"--tail-dropout {rate:g}: {config.name} has no tail; leave it out")
        return replace(config, output=replace(config.output, tail_dropout=rate))

    return apply
