"""Small data folders and a trainer that only pretends, for the tests of studies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zipflm.checksums import seal
from zipflm.comparison.members import ScoredRun, WordScores
from zipflm.comparison.plan import Plan, Request, make_plans, open_words
from zipflm.config import Blocks, Config
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.evaluation.scores import ScoringProtocol
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import RunFolder
from zipflm.runs.log import append_line
from zipflm.runs.records import Place, Report, SinceReport, TrainingState, Validation

SENTENCES = [
    "the cat sat on the mat and the dog sat on the rug",
    "the dog saw the cat and the cat saw the dog",
    "a bird sang in the tree near the house by the river",
    "the river ran past the house and the tree",
]


def make_data(folder: Path, *, twin: bool = True) -> Path:
    """Forty words as a data folder, with its sub-word twin."""
    texts = {}
    for split, lines in (("train", SENTENCES * 20), ("valid", SENTENCES), ("test", SENTENCES[:3])):
        texts[split] = [folder / f"{split}.txt"]
        texts[split][0].parent.mkdir(parents=True, exist_ok=True)
        texts[split][0].write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepare(folder / "data", texts, Options(min_count=1))
    if twin:
        prepare(folder / "data" / "bpe", texts, Options(bpe=12))
    return folder / "data"


def change_facts(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Make another data folder of one, with checksums to match."""
    facts = json.loads((folder / "data.json").read_text())
    change(facts)
    (folder / "data.json").write_text(json.dumps(facts))
    seal(folder)


def plans_for(request: Request) -> list[Plan]:
    return make_plans(request, open_words(request.data))


def report(
    update: int, seconds: float, loss: float, speed: float = 20.0, memory: int = 7
) -> Report:
    return Report(
        update=update,
        epoch=0.5,
        seconds=seconds,
        token_unit="word",
        loss=loss,
        nats_per_word=loss,
        perplexity=float(np.exp(loss)),
        learning_rate=1.0,
        grad_norm=1.0,
        tokens_per_second=speed,
        data_share=0.0,
        skipped=0,
        block=64,
        memory=memory,
        seconds_left=0.0,
    )


def validation(update: int, seconds: float, perplexity: float) -> Validation:
    loss = float(np.log(perplexity))
    return Validation(
        update=update,
        seconds=seconds,
        split="valid",
        nats_per_word=loss,
        perplexity=perplexity,
        nats_per_token=loss,
        token_unit="word",
        tokens=9,
        words=9,
        blocks=Blocks(break_mode="complete", block=64),
    )


class PretendTrainer:
    """Writes the folder of a finished run; fails or is interrupted where told to."""

    def __init__(self, diverges: str = "", stops_at: str = "") -> None:
        self.trained: list[str] = []
        self.diverges, self.stops_at = diverges, stops_at

    def __call__(self, config: Config, data: DataFolder, out: Path) -> bool:
        self.trained.append(config.name.split("/")[1])
        print("a line of the trainer")
        run = RunFolder(out)
        run.open(config, data, 0)
        if self.trained[-1] == self.diverges:
            raise ValueError("so many updates in a row had a non-finite loss")
        last = config.training.max_updates
        for line in (
            report(1, 1.0, 5.0, speed=1.0),
            report(2, 1.5, 4.5, speed=18.0),
            report(last, 2.0, 4.0, memory=9),
            validation(last, 2.0, 30.0),
        ):
            append_line(run.log_path, line)
        if self.trained[-1] == self.stops_at:
            return False
        for checkpoint in run.checkpoints():
            checkpoint.remove()
        state = TrainingState(
            update=last,
            place=Place(),
            seconds=2.0,
            skipped=0,
            skipped_in_a_row=0,
            since_report=SinceReport(),
            loss_scale=None,
            seed=config.training.seed,
            world_size=1,
            vocabulary=data.vocabulary.hash,
            text=data.split("train").sha256,
            keep=1,
            valid=None,
        )
        weights = {"pretended": torch.zeros(2)}
        run.save(Contents(weights, {}, state, config, data.vocabulary, data.codes))
        return True


def pretend_score(
    run: Path, data: DataFolder, splits: Sequence[str], options: ScoringOptions
) -> ScoredRun:
    """As many losses as each split has words, lower for names later in the alphabet."""
    level = 5.0 - 0.1 * (ord(run.parent.name[0]) - ord("A"))
    scores = {}
    for split in splits:
        words = data.split(split).words
        protocol = ScoringProtocol(
            unit=data.unit,
            blocks=Blocks(break_mode="complete", block=64),
            tokens=data.split(split).tokens,
            words=words,
            unk=0,
            eos=0,
            positions=words,
            precision="float32",
        )
        scores[split] = WordScores(np.full(words, level), protocol)
    return ScoredRun("update-00000200", scores)
