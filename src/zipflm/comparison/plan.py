"""What a study trains: factorizations x settings x seeds, each an ordinary run with its own folder.

Everything that can be wrong with a study is found here, before the first member is trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from zipflm.config import AdaptiveInput, AdaptiveOutput, Config, Tie
from zipflm.data.folder import DataFolder
from zipflm.overrides import UnknownKey
from zipflm.presets import FACTORIZATIONS, from_name
from zipflm.recipes import resolve

SUBWORDS = ("BPE", "BPE-T")
TWIN = "bpe"
"""Name of the folder, inside the data folder, with the same text in sub-words."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for."""

    data: Path
    preset: str
    """`wikitext-103`, or with a size: `billion-word/large`."""
    out: Path
    factorizations: tuple[str, ...] = FACTORIZATIONS
    seeds: int = 1
    recipe: str = "paper"
    overrides: tuple[str, ...] = ()
    """Changes to every member; those of a layer's fields, to the members that have such a layer."""
    bands: tuple[str, ...] = ()
    """Settings to compare, words per band: `5k/155k/100k`."""
    tail_dropout: tuple[float, ...] = ()
    """Settings to compare: dropout in the tail bands."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One member: what to train, on what, where."""

    label: str
    factorization: str
    seed: int
    config: Config
    data: Path
    folder: Path


@dataclass(frozen=True)
class Setting:
    """A change to a config, and its name in the member's label; the plain one has none."""

    name: str
    change: Callable[[Config], Config]


def make_plans(request: Request) -> list[Plan]:
    """All members in the order in which they are trained.

    Raises ValueError for anything that cannot be trained, before anything is.
    """
    _require_known(request)
    folders = {name: _folder(request, name) for name in request.factorizations}
    configs = _resolved(request, folders)
    chosen = settings(request.bands, request.tail_dropout)
    plans = []
    for factorization, setting in product(request.factorizations, chosen):
        plans += seeded(
            setting.change(configs[factorization]),
            request.seeds,
            label=f"{factorization} {setting.name}".strip(),
            factorization=factorization,
            data=folders[factorization].path,
            out=request.out,
        )
    return plans


def _resolved(request: Request, folders: Mapping[str, DataFolder]) -> dict[str, Config]:
    """The config of every factorization; a change that none of them can take is an error."""
    dataset, _, size = request.preset.partition("/")
    configs: dict[str, Config] = {}
    refused: dict[str, list[UnknownKey]] = {}
    for factorization, data in folders.items():
        name = f"{dataset}/{factorization}" + (f"/{size}" if size else "")
        changes = list(request.overrides)
        while factorization not in configs:
            try:
                configs[factorization] = resolve(
                    name, request.recipe, changes, len(data.vocabulary)
                )
            except UnknownKey as error:
                if not error.key.startswith(("input.", "output.")):
                    raise
                refused.setdefault(error.key, []).append(error)
                changes = [text for text in changes if not text.startswith(f"{error.key}=")]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        _require_as_named(configs[factorization], from_name(name))
    for errors in refused.values():
        if len(errors) == len(configs):
            raise errors[-1]
    return configs


def _require_as_named(config: Config, named: Config) -> None:
    """A row goes by the name of its factorization, so overrides may not make another one of it."""
    for key, ours, theirs in (
        ("name", config.name, named.name),
        ("input", type(config.input).__name__, type(named.input).__name__),
        ("output", type(config.output).__name__, type(named.output).__name__),
        ("batches.unit", config.batches.unit, named.batches.unit),
    ):
        if ours != theirs:
            raise ValueError(f"{key}={ours}: {_another(named)}")
    if (config.tie == Tie.NONE) != (named.tie == Tie.NONE):
        raise ValueError(f"tie={config.tie}: {_another(named)}")


def _another(named: Config) -> str:
    return (
        f"{named.name} would no longer be what its name says; leave it out, or choose members that "
        "are so with --factorizations"
    )


def seeded(
    config: Config, seeds: int, *, label: str, factorization: str, data: Path, out: Path
) -> list[Plan]:
    """The same model with as many seeds, counted on from the config's own."""
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: must be at least 1")
    first = config.training.seed
    return [
        Plan(
            label=label,
            factorization=factorization,
            seed=seed,
            config=replace(config, training=replace(config.training, seed=seed)),
            data=data,
            folder=out / "members" / re.sub(r"[^A-Za-z0-9.-]+", "-", label) / f"seed-{seed}",
        )
        for seed in range(first, first + seeds)
    ]


def settings(bands: Sequence[str], tail_dropout: Sequence[float]) -> list[Setting]:
    """Every combination of the settings asked for; one that changes nothing if none were."""
    _require_distinct("--bands", bands, [cutoffs(text) for text in bands])
    _require_distinct("--tail-dropout", tail_dropout, tail_dropout)
    by_band = [Setting(f"bands {text}", _bands(text)) for text in bands]
    by_rate = [Setting(f"tail dropout {rate:g}", _tail_dropout(rate)) for rate in tail_dropout]
    groups = [group for group in (by_band, by_rate) if group]
    return [_combined(parts) for parts in product(*groups)]


def _require_distinct(option: str, given: Sequence[object], meant: Sequence[object]) -> None:
    """Two members of one name would pass for two seeds."""
    for place, value in enumerate(meant):
        if value in meant[:place]:
            same = given[meant.index(value)]
            raise ValueError(f"{option} {given[place]}: the same as {same}; name each setting once")


def _combined(parts: Iterable[Setting]) -> Setting:
    parts = tuple(parts)

    def change(config: Config) -> Config:
        for part in parts:
            config = part.change(config)
        return config

    return Setting(", ".join(part.name for part in parts), change)


def cutoffs(text: str) -> tuple[int, ...]:
    """The cutoffs of bands written as words per band; the last takes what remains.

    >>> cutoffs("5k/155k/100k")
    (5000, 160000)
    """
    sizes = []
    for part in text.lower().split("/"):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(k?)", part.strip())
        if found is None:
            raise ValueError(f"--bands {text}: write words per band, e.g. 5k/155k/100k")
        sizes.append(round(float(found[1]) * (1000 if found[2] else 1)))
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"--bands {text}: give at least two bands of at least one word")
    return tuple(sum(sizes[:end]) for end in range(1, len(sizes)))


def _bands(text: str) -> Callable[[Config], Config]:
    ends = cutoffs(text)

    def change(config: Config) -> Config:
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

    return change


def _tail_dropout(rate: float) -> Callable[[Config], Config]:
    def change(config: Config) -> Config:
        if not isinstance(config.output, AdaptiveOutput):
            raise ValueError(f"--tail-dropout {rate:g}: {config.name} has no tail; leave it out")
        return replace(config, output=replace(config.output, tail_dropout=rate))

    return change


def _require_known(request: Request) -> None:
    dataset, _, size = request.preset.partition("/")
    if size in FACTORIZATIONS:
        raise ValueError(
            f"--preset {request.preset}: a study takes the dataset, --preset {dataset}; choose its "
            f"members with --factorizations {size},..."
        )
    for name in request.factorizations:
        if name not in FACTORIZATIONS:
            raise ValueError(f"--factorizations {name}: choose from {', '.join(FACTORIZATIONS)}")
    if len(set(request.factorizations)) < max(1, len(request.factorizations)):
        given = ",".join(request.factorizations)
        raise ValueError(f"--factorizations {given}: name at least one, and each of them once")


def _folder(request: Request, factorization: str) -> DataFolder:
    words = open_words(request.data)
    if factorization not in SUBWORDS:
        return words
    others = ",".join(name for name in request.factorizations if name not in SUBWORDS)
    return open_twin(words, f"leave them out: --factorizations {others or 'ADP-T'}")


def open_words(path: Path) -> DataFolder:
    """A data folder of words, which the frequency bins need."""
    data = DataFolder.open(path)
    if data.unit != "word":
        raise ValueError(
            f"{path}: its unit is {data.unit}; a study starts from words and looks for sub-words "
            f"in {TWIN}/ inside that folder"
        )
    return data


def open_twin(words: DataFolder, otherwise: str) -> DataFolder:
    """The sub-word folder of the same text; `otherwise` says what to do without it."""
    path = words.path / TWIN
    if not (path / "data.json").is_file():
        raise ValueError(
            f"{path}: no sub-word data for {' and '.join(SUBWORDS)}; prepare it from the same text "
            f"(zipflm prepare ... --bpe 32000 --out {path}), or {otherwise}"
        )
    twin = DataFolder.open(path)
    for split in words.splits:
        # As many words may be other words; as many bytes besides are hardly an accident.
        for unit in ("words", "bytes"):
            ours, theirs = (data.facts["splits"].get(split, {}).get(unit) for data in (words, twin))
            if ours != theirs:
                raise ValueError(
                    f"{path}: its {split} split has {theirs} {unit}, that of {words.path} {ours}; "
                    "prepare both from the same text"
                )
    return twin
