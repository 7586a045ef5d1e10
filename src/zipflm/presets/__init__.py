"""Named configs: every model of the paper, and smaller ones.

`preset("wikitext-103", "ADP-T")` is a row of the paper's comparison. Rows of its appendix are
variants of the presets (`variants`). Where the paper and the authors' code differ, presets follow
the paper and the variant `fairseq` follows the code (docs/reproduction/paper.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from zipflm.config import Config, require
from zipflm.config.model import BY_LABEL
from zipflm.presets import paper, rivals, small
from zipflm.presets.family import Family
from zipflm.presets.paper import SIZES as SIZES
from zipflm.presets.small import MODERN_DECODER as MODERN_DECODER
from zipflm.presets.variants import variants_of as variants_of

DATASETS: dict[str, Family] = paper.FAMILIES | small.FAMILIES
FACTORIZATIONS = tuple(BY_LABEL)


def preset(
    dataset: str, factorization: str = "ADP-T", *, size: str = "base", variant: str | None = None
) -> Config:
    """Return the config of a model of the paper, or of a smaller one for less text.

    Models for `wikitext-2` train on a GPU in minutes, those for `toy`, `tiny`, `demo` and `small`
    on a CPU. For datasets of the paper, `size` (`base`, `large` or `very-large`) scales the decoder
    as in the paper's Billion Word models. `variant` is one of `presets.variants_of(dataset,
    factorization)`.
    """
    family = dataset_of(dataset)
    published = rivals.MODELS.get(dataset, {})
    _choose("factorization", factorization, {**BY_LABEL, **published})
    is_scaled = family.is_of_the_paper and factorization not in published
    sizes = dict.fromkeys(SIZES if is_scaled else SIZES[:1])
    _choose(f"size of {dataset}/{factorization}", size, sizes)
    name = f"{dataset}/{factorization}" + ("" if size == "base" else f"/{size}")
    if factorization in published:
        config = published[factorization]
    elif family.is_of_the_paper:
        config = paper.family(dataset, factorization, size).member(factorization, name)
    else:
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


def dataset_of(name: str) -> Family:
    """Return the models of a preset's dataset, by the preset's name."""
    return _choose("dataset", name.partition("/")[0], DATASETS)


T = TypeVar("T")


def _choose(field: str, value: str, known: Mapping[str, T]) -> T:
    near = get_close_matches(value.lower(), (by_lower := {key.lower(): key for key in known}), n=1)
    hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
    require(value in known, field, value, "choose from " + (", ".join(known) or "none") + hint)
    return known[value]
