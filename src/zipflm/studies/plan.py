"""The members of a study: what each trains, on what, where; early checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from pathlib import Path
from typing import Literal, get_args

from zipflm.config import AdaptiveInput, AdaptiveOutput, Config, Tie, require
from zipflm.config.model import BY_LABEL
from zipflm.data.folder import FACTS_FILE, DataFolder
from zipflm.messages import quoted
from zipflm.presets import FACTORIZATIONS, from_name, parse_name
from zipflm.presets.recipes import resolve
from zipflm.presets.rivals import DECODERS
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report
from zipflm.settings import UnknownKey
from zipflm.studies.paper import REFERENCE
from zipflm.training.setup import in_updates

Equal = Literal["updates", "text", "seconds"]
SUBWORDS = tuple(label for label, kind in BY_LABEL.items() if kind.unit == "bpe")
CURVE_POINTS = 8
"""The fewest validations of a member, for its learning curve."""
_CURVE_SHARE = 0.1
"""The share of the valid set that such a validation scores."""
MEMORY_MARK = " + "
"""Between the label of a member and the memory that it is scored with."""
MEMBERS = "members"
"""Folder, inside that of a study, with the run of every member."""
TWIN = "bpe"
"""Folder, inside the data folder, with the same text in sub-words."""
_SAME_TEXT = "prepare both from the same text"


_Kind = tuple[str, str]
"""Factorization and decoder; without the latter where decoders are not compared."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for."""

    data: Path
    preset: str
    """All models of a dataset, `wikitext-103` or `billion-word/large`, or one of them."""
    out: Path
    factorizations: tuple[str, ...] = ()
    """Those of its models to train; unless given all, or ADP-T where settings are compared."""
    seeds: int = 1
    recipe: str = "paper"
    overrides: tuple[str, ...] = ()
    """Changes to every member; those of a layer's fields, to the members that have such a layer."""
    bands: tuple[str, ...] = ()
    """Settings to compare, words per band: `5k/155k/100k`."""
    tail_dropout: tuple[float, ...] = ()
    """Settings to compare: dropout in the tail bands."""
    decoders: tuple[str, ...] = ()
    """Decoders to compare, of `presets.rivals.DECODERS`, each with about as many parameters."""
    equal: str = "updates"
    """What is held equal between members: `updates`, `text` or `seconds`."""
    grid: tuple[str, ...] = ()
    """Settings of which every member takes the one that suits it: `FIELD=a,b,c`."""
    memory: tuple[str, ...] = ()
    """Caches with which every member is scored in a row of its own."""

    def __post_init__(self) -> None:
        name = parse_name(self.preset)
        if name.variant or (name.factorization and self.factorizations):
            raise ValueError(
                f"--preset {self.preset}: name a dataset, e.g. {name.dataset}, and choose its "
                "models with --factorizations, or one of its models"
            )
        is_one = bool(self.bands or self.tail_dropout or self.decoders)
        every = ("ADP-T",) if is_one else FACTORIZATIONS
        members = (name.factorization,) if name.factorization else self.factorizations or every
        family = name.dataset if name.size == "base" else f"{name.dataset}/{name.size}"
        object.__setattr__(self, "preset", family)
        object.__setattr__(self, "factorizations", members)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One member: what to train, on what, where."""

    label: str
    factorization: str
    config: Config
    data: DataFolder
    run: RunFolder
    setting: str = ""
    """The point of a grid that is tried, or was chosen."""
    memory: tuple[str, ...] = ()
    """Memories that it is scored with."""

    def with_memory(self, memory: tuple[str, ...]) -> Plan:
        return replace(self, label=MEMORY_MARK.join([self.label, *memory]), memory=memory)

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def updates(self) -> int:
        return self.config.training.max_updates


def make_plans(request: Request, words: DataFolder, *, on_cpu: bool = False) -> list[Plan]:
    """All members in the order in which they are trained; `words` is `request.data`, opened, and
    `on_cpu` as in `recipes.resolve`.

    Raises ValueError for anything that cannot be trained, before anything is.
    """
    _require_known(request)
    folders = _folders(request, words)
    configs = _resolved(request, words, folders, on_cpu)
    chosen = variations(request.bands, request.tail_dropout)
    plans = []
    for (factorization, decoder), variation in product(configs, chosen):
        config = variation.apply(configs[factorization, decoder])
        label = " ".join(filter(None, (factorization, decoder, variation.name)))
        first = config.training.seed
        for seed in range(first, first + request.seeds):
            plan = Plan(
                label=label,
                factorization=factorization,
                config=replace(config, training=replace(config.training, seed=seed)),
                data=folders[factorization],
                run=RunFolder(request.out / MEMBERS / path_name(label) / f"seed-{seed}"),
            )
            plans.append(plan)
    if len({plan.run.path for plan in plans}) < len(plans):
        raise ValueError("--bands, --tail-dropout, --decoders: name each setting once")
    return plans


def _resolved(
    request: Request, words: DataFolder, folders: Mapping[str, DataFolder], on_cpu: bool
) -> dict[_Kind, Config]:
    """The config of every kind of model; a change that none of them can take is an error."""
    dataset, _, size = request.preset.partition("/")
    configs: dict[_Kind, Config] = {}
    refused: dict[str, list[UnknownKey]] = {}
    optional = ("input.", "output.", "decoder.") if request.decoders else ("input.", "output.")
    for kind in product(folders, request.decoders or [""]):
        factorization, decoder = kind
        variant = "" if decoder == "transformer" else decoder
        name = "/".join(filter(None, (dataset, factorization, size, variant)))
        changes = list(request.overrides)
        folder = path_name(" ".join(filter(None, kind)))
        runs = sorted((request.out / MEMBERS / folder).rglob("config.json"))
        held = RunFolder(runs[0].parent).config() if runs else None
        while kind not in configs:
            try:
                configs[kind] = resolve(
                    name,
                    request.recipe,
                    changes,
                    len(folders[factorization].vocabulary),
                    on_cpu=on_cpu,
                    held=held,
                )
            except UnknownKey as error:
                if not error.key.startswith(optional):
                    raise
                refused.setdefault(error.key, []).append(error)
                changes = [text for text in changes if not text.startswith(f"{error.key}=")]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        _require_as_named(configs[kind], from_name(name))
        require(
            not (patience := configs[kind].training.patience),
            "training.patience",
            patience,
            "members of a study are trained equally long; leave it out",
        )
    for errors in refused.values():
        if len(errors) == len(configs):
            raise errors[-1]
    same = _same_tokens(configs, request.overrides)
    # Passes over the text in words for all of them, so that they make the same number of updates.
    return {kind: in_updates(config, words) for kind, config in same.items()}


def _same_tokens(configs: dict[_Kind, Config], overrides: Sequence[str]) -> dict[_Kind, Config]:
    """Every config with as many tokens an update as the one that has most, unless the user decides.

    The paper gave SM and SM-T half of the others' tokens because no more fitted into its GPUs. Here
    batches are accumulated, so memory decides how many go through a device at once and no more.
    """
    if any(text.startswith("training.tokens_per_update=") for text in overrides):
        return configs
    most = max(config.training.tokens_per_update for config in configs.values())
    return {
        kind: replace(config, training=replace(config.training, tokens_per_update=most))
        for kind, config in configs.items()
    }


def _require_as_named(config: Config, named: Config) -> None:
    """A row goes by the name of its factorization, so overrides may not make another one of it."""
    is_tied, should_be = config.tie != Tie.NONE, named.tie != Tie.NONE
    for key, ours, is_same in (
        ("name", config.name, config.name == named.name),
        ("input", type(config.input).__name__, type(config.input) is type(named.input)),
        ("output", type(config.output).__name__, type(config.output) is type(named.output)),
        ("batches.unit", config.batches.unit, config.batches.unit == named.batches.unit),
        ("tie", config.tie, is_tied == should_be),
    ):
        if not is_same:
            raise ValueError(
                f"{key}={ours}: {named.name} would no longer be what its name says; leave it out, "
                "or choose members that are so with --factorizations"
            )
    require_comparable(config)


def require_comparable(config: Config) -> None:
    """ValueError unless the model predicts every word of the data, as others do."""
    if config.num_predicted < config.vocab_size:
        raise ValueError(
            f"input.predicted_words={config.num_predicted}: models that are compared predict the "
            "same words; use zipflm train and zipflm evaluate for this one"
        )


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
    every_band: Sequence[str | None] = bands or [None]
    every_rate: Sequence[float | None] = tail_dropout or [None]
    return [Variation(*pair) for pair in product(every_band, every_rate)]


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


def first_seeds(plans: Sequence[Plan]) -> list[Plan]:
    """Of every label the plans with its first seed."""
    first = {plan.label: plan.seed for plan in reversed(plans)}
    return [plan for plan in plans if plan.seed == first[plan.label]]


def path_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)


def training_seconds(report: Report) -> float:
    """Spent training so far, without compilation, which depends on what the compiler has cached."""
    return max(0.0, report.seconds - report.compile_seconds)


def watched(config: Config, overrides: Sequence[str]) -> Config:
    """A config that validates often enough for a curve, on a part of the valid set, unless the user
    decides how often."""
    training = config.training
    points = training.max_updates // training.validate_every if training.validate_every else 0
    if points >= CURVE_POINTS or any(o.startswith("training.validate_") for o in overrides):
        return config
    every = max(1, training.max_updates // (CURVE_POINTS + 2))
    share = min(training.validate_share, _CURVE_SHARE)
    return replace(config, training=replace(training, validate_every=every, validate_share=share))


_WATCHING = (
    "compile",
    "parallel",
    "tables",
    "report_every",
    "validate_every",
    "validate_share",
    "checkpoint_every",
    "max_bad_updates",
    "tensorboard",
)


def watched_alike(config: Config, other: Config) -> Config:
    """`config` with those fields of `other` that decide how and how closely watched a member is
    trained, not what comes of it."""
    theirs = {name: getattr(other.training, name) for name in _WATCHING}
    return replace(
        config,
        batches=replace(config.batches, tokens=other.batches.tokens),
        training=replace(config.training, **theirs),
    )


def _require_known(request: Request) -> None:
    for name in request.factorizations:
        if name not in FACTORIZATIONS:
            raise ValueError(f"--factorizations {name}: choose from {', '.join(FACTORIZATIONS)}")
    if len(set(request.factorizations)) < len(request.factorizations):
        given = ",".join(request.factorizations)
        raise ValueError(f"--factorizations {given}: name each of them once")
    for name in request.decoders:
        if name not in DECODERS:
            raise ValueError(f"--decoders {name}: choose from {', '.join(DECODERS)}")
    if request.seeds < 1:
        raise ValueError(f"--seeds {request.seeds}: give 1 or more")
    if request.equal not in get_args(Equal):
        raise ValueError(f"--equal {request.equal}: choose from {', '.join(get_args(Equal))}")


def _folders(request: Request, words: DataFolder) -> dict[str, DataFolder]:
    """The data of every factorization."""
    if not set(SUBWORDS) & set(request.factorizations):
        return dict.fromkeys(request.factorizations, words)
    others = ",".join(name for name in request.factorizations if name not in SUBWORDS)
    twin = open_twin(words, f"leave them out: --factorizations {others or REFERENCE}")
    return {name: twin if name in SUBWORDS else words for name in request.factorizations}


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
    if not (path / FACTS_FILE).is_file():
        raise ValueError(
            f"{path}: no sub-word data for {' and '.join(SUBWORDS)}; prepare it from the same text "
            f"(zipflm prepare ... {words.splitting} --bpe 32000 --out {path}), or {otherwise}"
        )
    twin = DataFolder.open(path)
    if twin.splitting != words.splitting:
        raise ValueError(
            f"{path}: was prepared with {twin.splitting}, but {words.path} with {words.splitting}; "
            f"{_SAME_TEXT}"
        )
    for split in words.splits:
        if split not in twin.splits:
            raise ValueError(f"{path}: has no {split} split, but {words.path} has; {_SAME_TEXT}")
        if words.split(split).words_sha256 != twin.split(split).words_sha256:
            raise ValueError(
                f"{path}: the words of its {split} split are not those of {words.path}; "
                f"{_SAME_TEXT}"
            )
    return twin
