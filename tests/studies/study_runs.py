"""Small data folders, a trainer that only pretends, and one study that is trained for real."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import in_processes

from zipflm.cli import app
from zipflm.config import PLAIN, Blocks, Config
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import RunFolder, append_line
from zipflm.runs.load import LoadedRun, load_run
from zipflm.runs.records import Place, Report, SinceReport, TrainingState, Validation
from zipflm.storage import seal
from zipflm.studies import members
from zipflm.studies.compare import compare
from zipflm.studies.members import ScoredRun, WordScores
from zipflm.studies.plan import Plan, Request, make_plans, open_words

SHORT = (
    "training.max_updates=3",
    "training.tokens_per_update=64",
    "batches.tokens=64",
    "batches.block=16",
    "batches.eval_block=16",
    "decoder.num_layers=1",
    "training.report_every=1",
)
"""Three updates of a model that makes one in a few milliseconds."""

SENTENCES = [
    "the cat sat on the mat and the dog sat on the rug",
    "the dog saw the cat and the cat saw the dog",
    "a bird sang in the tree near the house by the river",
    "the river ran past the house and the tree",
]


def make_data(
    folder: Path, *, twin: bool = True, train: Sequence[str] = tuple(SENTENCES * 20)
) -> Path:
    """Forty words as a data folder, with its sub-word twin."""
    texts = {}
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in (("train", train), ("valid", SENTENCES), ("test", SENTENCES[:3])):
        texts[split] = [folder / f"{split}.txt"]
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


@dataclass(frozen=True)
class WholeStudy:
    """A study on disk, and what was read to make it."""

    out: Path
    request: Request
    opened: tuple[Path, ...]
    """The data folders, as often as they were opened."""
    loaded: tuple[Path, ...]
    """The checkpoints whose models were loaded."""

    def run_of(self, label: str) -> Path:
        return self.out / "members" / label / "seed-1"


def train_whole_study(data: Path, out: Path) -> WholeStudy:
    request = Request(
        data=data,
        preset="tiny",
        out=out,
        factorizations=("BPE-T", "ADP-T"),
        recipe="modern",
        overrides=SHORT,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zipflm.studies.report.save_figures", lambda study, folder: [])
        opened, loaded = count_opened(patch), count_loaded(patch)
        compare(request, device="cpu")
    return WholeStudy(out, request, tuple(opened), tuple(loaded))


def count_opened(patch: pytest.MonkeyPatch) -> list[Path]:
    """Every data folder that is opened from now on."""
    seen: list[Path] = []
    open_folder = DataFolder.open

    def opened(path: Path) -> DataFolder:
        seen.append(Path(path))
        return open_folder(path)

    patch.setattr(DataFolder, "open", opened)
    return seen


def count_loaded(patch: pytest.MonkeyPatch, module: ModuleType = members) -> list[Path]:
    """Every run that a module loads from now on."""
    seen: list[Path] = []

    def loaded(path: Path) -> LoadedRun:
        seen.append(path)
        return load_run(path)

    patch.setattr(module, "load_run", loaded)
    return seen


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
    """Writes the folder of a finished run; fails, is interrupted or runs uncompiled where told."""

    def __init__(self, diverges: str = "", stops_at: str = "", uncompiled: str = "") -> None:
        self.trained: list[str] = []
        self.diverges, self.stops_at, self.uncompiled = diverges, stops_at, uncompiled
        self.valid = 30.0
        """Perplexity on the valid set."""

    def __call__(self, config: Config, data: DataFolder, out: Path) -> bool:
        self.trained.append(config.name.split("/")[1])
        print("a line of the trainer")
        run = RunFolder(out)
        run.open(config, data, 0)
        if self.trained[-1] == self.diverges:
            raise ValueError("so many updates in a row had a non-finite loss")
        last = config.training.max_updates
        compiled = self.trained[-1] != self.uncompiled if config.training.compile else None
        for line in (
            report(1, 1.0, 5.0, speed=1.0),
            report(2, 1.5, 4.5, speed=18.0),
            report(last, 2.0, 4.0, memory=9),
        ):
            append_line(run.log_path, replace(line, compiled=compiled))
        append_line(run.log_path, validation(last, 2.0, self.valid))
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
            valid=validation(last, 2.0, self.valid),
        )
        weights = {"pretended": torch.zeros(2)}
        run.save(Contents(weights, {}, state, config, data.vocabulary, data.codes, PLAIN))
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
            dtype="float32",
        )
        scores[split] = WordScores(np.full(words, level), protocol)
    return ScoredRun("update-00000200", scores)


def compare_together(arguments: Sequence[object], place: Path) -> list[str]:
    """`zipflm compare` in two processes, as torchrun starts them; what each of them says."""
    said = [place / f"said-{rank}.txt" for rank in range(2)]
    assert in_processes(2, _compare_and_say, list(map(str, arguments)), said) == [0, 0]
    return [path.read_text() for path in said]


def _compare_and_say(arguments: list[str], said: list[Path]) -> None:
    torch.set_num_threads(1)
    with said[int(os.environ["RANK"])].open("w") as file, redirect_stdout(file):
        app(["compare", *arguments], standalone_mode=False)
