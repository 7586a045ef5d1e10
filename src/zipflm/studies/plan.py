"""Plans of a study: the config, data and run folder of every member, checked before training.

A member is one model trained with one seed. A factorization is a choice of input layer, output
layer and shared weights, named as in the paper: SM, SM-T, BPE, BPE-T, ASM, CNN, ADP or ADP-T.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from pathlib import Path

from zipflm.config import AdaptiveInput, AdaptiveOutput, Config, require
from zipflm.config.model import BY_LABEL
from zipflm.data.folder import METADATA_FILE, DataFolder
from zipflm.messages import quoted
from zipflm.presets import FACTORIZATIONS, dataset_of, parse_name
from zipflm.presets.recipes import resolve
from zipflm.presets.rivals import DECODERS
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report
from zipflm.settings import UnknownKey
from zipflm.studies.paper import REFERENCE
from zipflm.training.checks import epochs_to_updates

BUDGETS = ("updates", "text", "seconds")
SUBWORDS = tuple(label for label, kind in BY_LABEL.items() if kind.unit == "bpe")
CURVE_POINTS = 8
"""Minimum number of validations on a learning curve."""
_CURVE_SHARE = 0.1
"""Share of the validation set that is scored for each point."""
MEMORY_MARK = " + "
"""Separates the label of a member from the memories that it is scored with."""
FULL_DISK_REMEDY = "free some space and run the same command again"
MEMBERS = "members"
"""Subfolder of a study with the run folders of its members."""
BPE_FOLDER = "bpe"
"""Subfolder of a data folder with the same text in subwords."""
_Kind = tuple[str, str]
"""Factorization and decoder; the decoder is empty unless decoders are compared."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `zipflm compare`."""

    data: Path
    preset: str
    """A dataset, for all of its models (`wikitext-103`, `billion-word/large`), or one model."""
    out: Path
    factorizations: tuple[str, ...] = ()
    """Models to train. Default: all of them, or ADP-T if bands, tail dropout or decoders are
    compared."""
    seeds: int = 1
    recipe: str = "paper"
    overrides: tuple[str, ...] = ()
    """Settings to change: `FIELD=value`, in every member that has the field."""
    bands: tuple[str, ...] = ()
    """Bands (frequency ranges of the vocabulary) to compare, as words per band: `5k/155k/100k`."""
    tail_dropout: tuple[float, ...] = ()
    decoders: tuple[str, ...] = ()
    """Decoders to compare, from `presets.rivals.DECODERS`, all of about the same size."""
    equal: str = "updates"
    """Training budget that all members share: `updates`, `text` or `seconds`."""
    grid: tuple[str, ...] = ()
    """Settings to tune for each member: `FIELD=a,b,c`."""
    memory: tuple[str, ...] = ()
    """Specs of caches. Every member is also scored with all of them together, in a separate row."""

    def __post_init__(self) -> None:
        name = parse_name(self.preset)
        if name.variant or (name.factorization and self.factorizations):
            raise ValueError(
                f"preset={self.preset}: give a dataset, e.g. {name.dataset}, and choose its models "
                "with `factorizations`, or give one of its models"
            )
        dataset_of(self.preset)
        is_ablation = bool(self.bands or self.tail_dropout or self.decoders)
        default = ("ADP-T",) if is_ablation else FACTORIZATIONS
        members = (name.factorization,) if name.factorization else self.factorizations or default
        for field, values, known in (
            ("factorizations", members, FACTORIZATIONS),
            ("decoders", self.decoders, DECODERS),
            ("equal", (self.equal,), BUDGETS),
        ):
            if unknown := [value for value in values if value not in known]:
                raise ValueError(f"{field}={unknown[0]}: choose from {', '.join(known)}")
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds}: give 1 or more")
        family = name.dataset if name.size == "base" else f"{name.dataset}/{name.size}"
        object.__setattr__(self, "preset", family)
        object.__setattr__(self, "factorizations", members)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The config, data and run folder of one member."""

    label: str
    factorization: str
    config: Config
    data: DataFolder
    run: RunFolder
    setting: str = ""
    """The values of tuned settings, with `grid`."""
    memory: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def updates(self) -> int:
        return self.config.training.max_updates


def make_plans(request: Request, words: DataFolder, *, on_cpu: bool = False) -> list[Plan]:
    """Return the plans of all members in training order. Raises ValueError for an invalid request.

    `words` is the opened `request.data`; `on_cpu` is passed to `recipes.resolve`.
    """
    folders = _folders(request, words)
    configs = _resolve_configs(request, words, folders, on_cpu)
    every_band: Sequence[str | None] = request.bands or [None]
    every_rate: Sequence[float | None] = request.tail_dropout or [None]
    plans = []
    for (factorization, decoder), bands, rate in product(configs, every_band, every_rate):
        config = _vary(configs[factorization, decoder], bands, rate)
        settings = [f"bands {bands}"] if bands is not None else []
        settings += [f"tail dropout {rate:g}"] if rate is not None else []
        label = " ".join(filter(None, (factorization, decoder, ", ".join(settings))))
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
        raise ValueError("bands, tail_dropout, decoders: give each value once")
    return plans


def _resolve_configs(
    request: Request, words: DataFolder, folders: Mapping[str, DataFolder], on_cpu: bool
) -> dict[_Kind, Config]:
    """Return the config of every kind of model. Raises UnknownKey for a field that none has."""
    dataset, _, size = request.preset.partition("/")
    configs: dict[_Kind, Config] = {}
    rejected: dict[str, list[UnknownKey]] = {}
    runs = sorted((request.out / MEMBERS).rglob("seed-*/config.json"))
    held = RunFolder(runs[0].parent).config() if runs else None
    optional = ("input.", "output.", "decoder.") if request.decoders else ("input.", "output.")
    for kind in product(folders, request.decoders or [""]):
        factorization, decoder = kind
        variant = "" if decoder == "transformer" else decoder
        name = "/".join(filter(None, (dataset, factorization, size, variant)))
        changes = list(request.overrides)
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
                rejected.setdefault(error.key, []).append(error)
                changes = [text for text in changes if not text.startswith(f"{error.key}=")]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        _require_same_kind(configs[kind], factorization)
        require(
            not (patience := configs[kind].training.patience),
            "training.patience",
            patience,
            "the members of a study train for a fixed number of updates; leave it out",
        )
    for errors in rejected.values():
        if len(errors) == len(configs):
            raise errors[-1]
    equalized = _with_same_tokens(configs, request.overrides)
    # Convert epochs of the word data to updates, so that all models make the same number of them.
    return {kind: epochs_to_updates(config, words) for kind, config in equalized.items()}


def _with_same_tokens(
    configs: dict[_Kind, Config], overrides: Sequence[str]
) -> dict[_Kind, Config]:
    """Use the largest `tokens_per_update` for all members, unless it is overridden.

    The paper halved it for SM and SM-T to save GPU memory. Here gradients are accumulated instead.
    """
    if any(text.startswith("training.tokens_per_update=") for text in overrides):
        return configs
    largest = max(config.training.tokens_per_update for config in configs.values())
    return {
        kind: replace(config, training=replace(config.training, tokens_per_update=largest))
        for kind, config in configs.items()
    }


def _require_same_kind(config: Config, factorization: str) -> None:
    """Raise ValueError if overrides turned a model into one that the study cannot compare."""
    label = config.factorization(config.batches.unit)
    if label != factorization:
        raise ValueError(
            f"overrides: would turn {factorization} into {label or 'another model'}; choose other "
            "`factorizations` instead"
        )
    require_comparable(config)


def require_comparable(config: Config) -> None:
    """Raise ValueError if the model does not predict every word of the vocabulary."""
    if config.num_predicted < config.vocab_size:
        raise ValueError(
            f"input.predicted_words={config.num_predicted}: only models that predict the same "
            "words can be compared; use zipflm train and zipflm evaluate for this one"
        )


def _vary(config: Config, bands: str | None, tail_dropout: float | None) -> Config:
    """Return the config with these bands, in input and output, and this tail dropout, if given."""
    if bands is None and tail_dropout is None:
        return config
    input, output = config.input, config.output
    if not isinstance(output, AdaptiveOutput):
        option = "tail_dropout" if bands is None else "bands"
        raise ValueError(f"{option}: {config.name} has no bands; leave this model out")
    if bands is not None:
        ends = cutoffs(bands)
        if ends[-1] >= config.vocab_size:
            raise ValueError(
                f"bands={bands}: the vocabulary has only {config.vocab_size:,} ids; all bands but "
                "the last must fit into it"
            )
        output = replace(output, cutoffs=ends)
        if isinstance(input, AdaptiveInput):
            input = replace(input, cutoffs=ends)
    if tail_dropout is not None:
        output = replace(output, tail_dropout=tail_dropout)
    return replace(config, input=input, output=output)


def cutoffs(text: str) -> tuple[int, ...]:
    """Convert words per band to cutoffs. The last band contains the rest of the vocabulary.

    >>> cutoffs("5k/155k/100k")
    (5000, 160000)
    """
    sizes = []
    for part in text.lower().split("/"):
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(k?)", part.strip())
        if match is None:
            raise ValueError(f"bands={quoted(text)}: write words per band, e.g. 5k/155k/100k")
        sizes.append(round(float(match[1]) * (1000 if match[2] else 1)))
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"bands={quoted(text)}: give at least two bands of at least one word")
    return tuple(accumulate(sizes[:-1]))


def first_seeds(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans with the first seed of every label."""
    first = {plan.label: plan.seed for plan in reversed(plans)}
    return [plan for plan in plans if plan.seed == first[plan.label]]


def path_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)


def training_seconds(report: Report) -> float:
    """Return the training time so far, without compilation, which depends on the compiler cache."""
    return max(0.0, report.seconds - report.compile_seconds)


def with_validations(config: Config, overrides: Sequence[str]) -> Config:
    """Return a config that validates often enough for a learning curve, on part of the data.

    The config is unchanged if it already validates often enough or `overrides` set how to validate.
    """
    training = config.training
    points = training.max_updates // training.validate_every if training.validate_every else 0
    if points >= CURVE_POINTS or any(o.startswith("training.validate_") for o in overrides):
        return config
    every = max(1, training.max_updates // (CURVE_POINTS + 2))
    share = min(training.validate_share, _CURVE_SHARE)
    return replace(config, training=replace(training, validate_every=every, validate_share=share))


RESULT_NEUTRAL = (
    "batches.tokens",
    "training.compile",
    "training.parallel",
    "training.recompute",
    "training.tables",
    "training.report_every",
    "training.validate_every",
    "training.validate_share",
    "training.checkpoint_every",
    "training.max_bad_updates",
    "training.tensorboard",
)
"""Settings that can differ between members, and when a study is continued."""


def _folders(request: Request, words: DataFolder) -> dict[str, DataFolder]:
    if not set(SUBWORDS) & set(request.factorizations):
        return dict.fromkeys(request.factorizations, words)
    others = ", ".join(name for name in request.factorizations if name not in SUBWORDS)
    bpe_data = open_bpe_data(words, f"train only {others or REFERENCE}")
    return {name: bpe_data if name in SUBWORDS else words for name in request.factorizations}


def open_words(path: Path) -> DataFolder:
    """Open a data folder. Raises ValueError if its unit is not words, which frequency bins need."""
    data = DataFolder.open(path)
    if data.unit != "word":
        raise ValueError(
            f"{path}: its unit is {data.unit}; a study needs a data folder of words (subwords "
            f"belong in its subfolder {BPE_FOLDER}/)"
        )
    return data


def scored_splits(words: DataFolder) -> tuple[str, ...]:
    """Return the splits to score: valid and test, if present. The report analyzes the last one."""
    splits = tuple(split for split in ("valid", "test") if split in words.splits)
    if not splits:
        raise ValueError(f"{words.path}: has no validation or test split; prepare it with --test")
    return splits


def open_bpe_data(words: DataFolder, otherwise: str) -> DataFolder:
    """Open the subword data of the same text.

    If it is missing, the error message suggests `otherwise` as an alternative.
    """
    path = words.path / BPE_FOLDER
    if not (path / METADATA_FILE).is_file():
        merges = min(32_000, len(words.vocabulary) // 4)
        raise ValueError(
            f"{path}: no subword data for {' and '.join(SUBWORDS)}; prepare it from the same text "
            f"(zipflm prepare ... {words.splitting} --bpe {merges} --out {path}), or {otherwise}"
        )
    bpe_data = DataFolder.open(path)
    for split in words.splits:
        has_split = split in bpe_data.splits
        if not has_split or words.split(split).words_sha256 != bpe_data.split(split).words_sha256:
            raise ValueError(
                f"{path}: its {split} split is missing or differs from {words.path}; prepare both "
                f"from the same text with {words.splitting}"
            )
    return bpe_data
