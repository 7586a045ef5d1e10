"""Named configs: every model of the paper, and smaller ones.

`preset("wikitext-103", "ADP-T")` is a row of the paper's comparison. Rows of its appendix are
variants of the presets (`variants`). Where the paper and the authors' code differ, presets follow
the paper and the variant `fairseq` follows the code (docs/reproduction/paper.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from zipflm.config import Config, require
from zipflm.config.model import BY_LABEL
from zipflm.presets import paper, rivals, small
from zipflm.presets.paper import SIZES as SIZES
from zipflm.presets.small import MODERN_DECODER as MODERN_DECODER
from zipflm.presets.variants import variants_of


@dataclass(frozen=True)
class Dataset:
    """Properties of the presets of a dataset that are not part of their configs."""

    is_of_the_paper: bool = False
    """True if cutoffs are fixed, as in the paper. Otherwise they are scaled with the vocabulary."""
    is_for_a_cpu: bool = False
    """True if the models are small enough to train on a CPU, without compilation."""
    purpose: str = ""
    """The column `for` of `zipflm info`."""


DATASETS = {
    "wikitext-103": Dataset(
        is_of_the_paper=True, purpose="the paper's, for 100 million words and 8 GPUs"
    ),
    "billion-word": Dataset(
        is_of_the_paper=True, purpose="the paper's, for a billion words and 32 or 64 GPUs"
    ),
    "wikitext-2": Dataset(purpose="texts of a few million words; minutes on a GPU"),
    "toy": Dataset(is_for_a_cpu=True, purpose="a handful of sentences; seconds on a CPU"),
    "tiny": Dataset(is_for_a_cpu=True, purpose="quick experiments; a minute on a CPU"),
    "demo": Dataset(
        is_for_a_cpu=True, purpose="a first comparison on a small text; minutes on a CPU"
    ),
    "small": Dataset(
        is_for_a_cpu=True,
        purpose="texts of 1 to 3 million words; a quarter of an hour on a CPU",
    ),
}
FACTORIZATIONS = tuple(BY_LABEL)


def preset(
    dataset: str, factorization: str = "ADP-T", *, size: str = "base", variant: str | None = None
) -> Config:
    """Return the config of a model of the paper, or of a smaller one for less text.

    Models for `wikitext-2` train on a GPU in minutes, those for `toy`, `tiny`, `demo` and `small`
    on a CPU. For datasets of the paper, `size` (`base`, `large` or `very-large`) scales the decoder
    as in the paper's Billion Word models. `variant` is one of `presets.variants(dataset,
    factorization)`.
    """
    is_of_the_paper = _choose("dataset", dataset, DATASETS).is_of_the_paper
    published = rivals.MODELS.get(dataset, {})
    if factorization in published:
        require(size == "base", "size", size, f"{dataset}/{factorization} has one size, base")
        require(not variant, "variant", variant, f"{dataset}/{factorization} has no variants")
        return published[factorization]
    _choose("factorization", factorization, {**BY_LABEL, **published})
    name = f"{dataset}/{factorization}" + ("" if size == "base" else f"/{size}")
    if is_of_the_paper:
        _choose("size", size, dict.fromkeys(SIZES))
        family = paper.family(dataset, factorization, size)
    else:
        require(size == "base", "size", size, f"{dataset} has one size, base")
        family = small.FAMILIES[dataset]
    config = family.member(factorization, name)
    if variant is None:
        return config
    vary = _choose(f"variant of {name}", variant, variants_of(dataset, factorization))
    return replace(vary(config), name=f"{name}/{variant}")


class Name(NamedTuple):
    """The parts of a preset's name, `dataset[/factorization][/size][/variant]`."""

    dataset: str
    factorization: str | None
    """None for all models of a dataset."""
    size: str
    variant: str | None


def parse_name(name: str) -> Name:
    """Parse the name of a model, or of all models of a dataset.

    Examples: `wikitext-103`, `billion-word/large`, `billion-word/ADP-T/very-large`,
    `wikitext-103/ASM/input-128`.
    """
    dataset, *rest = name.split("/")
    factorization = rest.pop(0) if rest and rest[0] not in SIZES else None
    size = rest.pop(0) if rest and rest[0] in SIZES else "base"
    require(len(rest) <= 1, "preset", name, "write dataset/factorization[/size][/variant]")
    return Name(dataset, factorization, size, rest[0] if rest else None)


def from_name(name: str) -> Config:
    """Return the config of a model by its full name."""
    dataset, factorization, size, variant = parse_name(name)
    if not factorization:
        example = f"{dataset if dataset in DATASETS else 'tiny'}/ADP-T"
        raise ValueError(f"preset={name!r}: write dataset/factorization, e.g. {example}")
    return preset(dataset, factorization, size=size, variant=variant)


def dataset_of(name: str) -> Dataset:
    """Return the dataset of a preset, by the preset's name."""
    return _choose("dataset", name.partition("/")[0], DATASETS)


def variants(dataset: str, factorization: str) -> tuple[str, ...]:
    """Return the names of the variants of a model."""
    return tuple(variants_of(dataset, factorization))


T = TypeVar("T")


def _choose(field: str, value: str, known: Mapping[str, T]) -> T:
    near = get_close_matches(value.lower(), (by_lower := {key.lower(): key for key in known}), n=1)
    hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
    require(value in known, field, value, "choose from " + (", ".join(known) or "none") + hint)
    return known[value]
