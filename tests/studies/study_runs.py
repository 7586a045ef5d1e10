"""Small data folders, a fake trainer, and one study that is really trained."""

import json
import os
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import in_processes

from zipflm.cli import app
from zipflm.config import PLAIN, Blocks
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.runs.checkpoint import Contents, save
from zipflm.runs.folder import RunFolder, append_line
from zipflm.runs.load import load_run
from zipflm.runs.records import Position, Report, SinceReport, TrainingState, Validation
from zipflm.storage import seal
from zipflm.studies import members
from zipflm.studies.compare import compare
from zipflm.studies.members import ScoredRun, WordScores
from zipflm.studies.plan import Request, make_plans, open_words

SHORT = (
    "training.max_updates=3",
    "training.tokens_per_update=64",
    "batches.tokens=64",
    "batches.block=16",
    "batches.eval_block=16",
    "decoder.num_layers=1",
    "training.report_every=1",
)
"""Overrides for three updates of a few milliseconds each."""

SENTENCES = [
    "the cat sat on the mat and the dog sat on the rug",
    "the dog saw the cat and the cat saw the dog",
    "a bird sang in the tree near the house by the river",
    "the river ran past the house and the tree",
]


def make_data(folder, *, twin=True, train=tuple(SENTENCES * 20)):
    """A data folder of forty words, with its subword data if `twin`."""
    texts = {}
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in (("train", train), ("valid", SENTENCES), ("test", SENTENCES[:3])):
        texts[split] = [folder / f"{split}.txt"]
        texts[split][0].write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepare(folder / "data", texts, Options(min_count=1))
    if twin:
        prepare(folder / "data" / "bpe", texts, Options(bpe=12))
    return folder / "data"


def change_metadata(folder, change):
    """Change `data.json` and update its checksums."""
    metadata = json.loads((folder / "data.json").read_text())
    change(metadata)
    (folder / "data.json").write_text(json.dumps(metadata))
    seal(folder)


@dataclass(frozen=True)
class WholeStudy:
    """A study on disk."""

    out: Path
    request: Request
    opened: tuple[Path, ...]
    """Data folders, once per time they were opened."""
    loaded: tuple[Path, ...]
    """Loaded checkpoints."""

    def run_of(self, label):
        return self.out / "members" / label / "seed-1"


def train_whole_study(data, out):
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


def count_opened(patch):
    """A list that collects the data folders opened from now on."""
    seen = []
    open_folder = DataFolder.open

    def opened(path):
        seen.append(Path(path))
        return open_folder(path)

    patch.setattr(DataFolder, "open", opened)
    return seen


def count_loaded(patch, module=members):
    """A list that collects the runs that a module loads from now on."""
    seen = []

    def loaded(path):
        seen.append(path)
        return load_run(path)

    patch.setattr(module, "load_run", loaded)
    return seen


def request_for(data, out, **changes):
    return Request(**{"data": data, "preset": "tiny", "out": out, **changes})


def plans_for(data, out=Path("s"), **changes):
    request = request_for(data, out, **changes)
    return make_plans(request, open_words(request.data))


def run_study(data, out, trainer=None, score=None, **changes):
    """Compare SM, BPE and ADP-T with a fake trainer and fake scores."""
    request = request_for(data, out, **{"factorizations": ("SM", "BPE", "ADP-T"), **changes})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zipflm.studies.compare.train_run", trainer or FakeTrainer())
        patch.setattr("zipflm.studies.compare.score_once", score or fake_score)
        return compare(request)


def report(update, seconds, loss, speed=20.0, memory=7):
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


def validation(update, seconds, perplexity):
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


class FakeTrainer:
    """Writes the folder of a finished run. The members given as options diverge, stop early or run
    uncompiled."""

    def __init__(self, diverges="", stops_at="", uncompiled=""):
        self.trained = []
        self.diverges, self.stops_at, self.uncompiled = diverges, stops_at, uncompiled
        self.valid = 30.0

    def __call__(self, config, data, out, **options):
        self.trained.append(config.name.split("/")[1])
        print("a line of the trainer")
        run = RunFolder(out)
        run.record_start(config, data, 0, "cpu")
        if self.trained[-1] == self.diverges:
            raise ValueError("the loss is not finite")
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
            place=Position(),
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
        weights = {"fake": torch.zeros(2)}
        contents = Contents(weights, {}, state, config, data.vocabulary, data.codes, PLAIN)
        save(run.checkpoints_path, contents)
        return True


def fake_score(run, data, splits, options, process):
    """Constant losses, lower for names later in the alphabet."""
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


def compare_together(arguments, place):
    """Run `zipflm compare` in two processes; returns the output of each."""
    outputs = [place / f"stdout-{rank}.txt" for rank in range(2)]
    assert in_processes(2, _compare_into, list(map(str, arguments)), outputs) == [0, 0]
    return [path.read_text() for path in outputs]


def _compare_into(arguments, outputs):
    torch.set_num_threads(1)
    with outputs[int(os.environ["RANK"])].open("w") as file, redirect_stdout(file):
        app(["compare", *arguments], standalone_mode=False)
