"""From a run folder to a `Member` of a study: what the model is, how it trained, how it scores."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from zipflm.analysis.files import written_whole
from zipflm.analysis.study import CurvePoint, Member, SplitScore, split_score
from zipflm.config import AdaptiveInput, CharacterInput, Config, FullOutput, InputConfig, Tie
from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import Setting, evaluate
from zipflm.evaluation.run import checkpoint_folder
from zipflm.overrides import to_dict
from zipflm.training.checkpoint import read_json
from zipflm.training.run_folder import read_log

SCORES = "scores"
"""Folder inside a member's run folder that keeps what was scored."""


@dataclass(frozen=True)
class WordScores:
    """The loss of every word of a split, in the order of the text."""

    nll: NDArray[np.float64]
    protocol: dict[str, Any]


def score_run(run: Path, data: Path, split: str, setting: Setting) -> WordScores:
    """Score a split with a run's newest checkpoint."""
    scores = evaluate(run, data=data, split=split, setting=setting).scores
    return WordScores(scores.words(), asdict(scores.protocol))


def score_once(run: Path, data: Path, split: str, setting: Setting) -> WordScores:
    """The same, kept in the run folder and read from there while weights and text are the same."""
    key = {
        "weights": read_json(checkpoint_folder(run) / "checksums.json")["weights.safetensors"],
        "text": _text_hash(DataFolder.open(data), split),
        "setting": asdict(setting),
    }
    path = run / SCORES / f"{split}.npz"
    kept = _read_kept(path, key)
    if kept is not None:
        return kept
    scores = score_run(run, data, split, setting)
    path.parent.mkdir(exist_ok=True)
    facts = json.dumps({"key": key, "protocol": scores.protocol})
    with written_whole(path) as unfinished:
        np.savez(unfinished, nll=scores.nll, facts=np.array(facts))
    return scores


def _text_hash(data: DataFolder, split: str) -> str:
    """Of the ids, and of what they stand for."""
    return f"{data.vocabulary.hash} {data.facts['splits'][split]['sha256']}"


def _read_kept(path: Path, key: dict[str, Any]) -> WordScores | None:
    try:
        # Opened here: numpy would leave a file that is no archive open.
        with path.open("rb") as file, np.load(file) as held:
            facts = json.loads(str(held["facts"]))
            if facts["key"] != key:
                return None
            return WordScores(held["nll"], facts["protocol"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # absent or damaged: score again
        return None


def describe(config: Config) -> tuple[str, str]:
    """Input and output layer in the words of the paper's tables."""
    tied = " (tied)" if config.tie != Tie.NONE else ""
    pieces = "BPE " if config.batches.unit == "bpe" else ""
    if isinstance(config.output, FullOutput):
        output = f"{pieces}softmax {config.output.dim}"
    else:
        assert config.output_bands is not None
        output = f"adaptive {_sizes(config.output_bands.sizes)}"
    return pieces + _input(config.input, config), output + tied


def _input(layer: InputConfig, config: Config) -> str:
    if isinstance(layer, AdaptiveInput):
        assert config.input_bands is not None
        return f"adaptive {_sizes(config.input_bands.sizes)}"
    return "char-CNN" if isinstance(layer, CharacterInput) else f"embedding {layer.dim}"


def _sizes(sizes: tuple[int, ...]) -> str:
    return "/".join(f"{size / 1000:.3g}K" for size in sizes)


def make_member(
    run: Path,
    config: Config,
    data: DataFolder,
    *,
    label: str,
    factorization: str,
    scores: dict[str, WordScores],
    words: DataFolder,
    split: str,
    problem: str = "",
) -> Member:
    """A member from its run folder and its scores on the words of the folder `words`."""
    input, output = describe(config)
    log = _log(run)
    reports = [entry for entry in log if "valid" not in entry]
    return Member(
        label=label,
        factorization=factorization,
        seed=config.training.seed,
        run=str(run),
        input=input,
        output=output,
        params=config.params_by_part(),
        scores={name: _split_score(words, name, found) for name, found in scores.items()},
        nll=scores[split].nll if split in scores else None,
        curve=curve(log, _pieces_per_word(data)),
        seconds=reports[-1]["seconds"] if reports else None,
        tokens_per_second=_rate(reports),
        memory=max((entry["memory"] for entry in reports), default=None),
        config=to_dict(config),
        versions=_versions(run),
        problem=problem,
    )


def _split_score(words: DataFolder, split: str, scores: WordScores) -> SplitScore:
    ids = np.asarray(words.tokens(split).ids)
    return split_score(scores.nll, ids, scores.protocol)


def _log(run: Path) -> list[dict[str, Any]]:
    """Empty for a run that was imported, or never began."""
    return read_log(run) if (run / "log.jsonl").is_file() else []


def _versions(run: Path) -> dict[str, Any]:
    path = run / "versions.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _pieces_per_word(data: DataFolder) -> float:
    facts = data.facts["splits"].get("train", {})
    return float(facts["tokens"] / facts["words"]) if facts.get("words") else 1.0


def curve(log: list[dict[str, Any]], pieces_per_word: float) -> tuple[CurvePoint, ...]:
    """Losses per word: a sub-word model's training loss is per piece, its valid perplexity not."""
    found: dict[int, dict[str, float]] = {}
    for entry in log:
        point = found.setdefault(entry["update"], {"seconds": entry["seconds"]})
        if "valid" in entry:
            perplexity = entry["valid"]["perplexity"]
            if perplexity is not None:
                point["valid_loss"] = math.log(perplexity)
        elif entry["loss"] is not None:
            point["loss"] = entry["loss"] * pieces_per_word
    return tuple(CurvePoint(update=update, **found[update]) for update in sorted(found))


def _rate(reports: list[dict[str, Any]]) -> float | None:
    """Tokens per second of training: the median, which compiling the model does not touch."""
    rates = [entry["tokens_per_second"] for entry in reports]
    return statistics.median(rates) if rates else None
