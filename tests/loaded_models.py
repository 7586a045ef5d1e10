"""Untrained models in memory, for tests."""

from pathlib import Path

import torch
from training_runs import config_of

from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.language.model import TrainedModel
from zipflm.runs.checkpoint import Checkpoint, Contents
from zipflm.runs.folder import RunFolder, write_imported
from zipflm.runs.load import LoadedRun, untrained_model
from zipflm.runs.records import ImportedState

BLOCKS = ["decoder.num_layers=2", "batches.block=16", "batches.eval_block=16", "batches.tokens=64"]


class UnsavedCheckpoint(Checkpoint):
    def state(self):
        return ImportedState(update=1, imported_from="made up")


def loaded(data, label="ADP-T", overrides=(), sharpness=3.0, **options):
    """An untrained model with `sharpness` times larger logits."""
    config = config_of(data, *overrides, preset=f"tiny/{label}", base=BLOCKS)
    model = untrained_model(config, data.vocabulary).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "final_norm" in name:
                weight.mul_(sharpness)
    run = LoadedRun(
        folder=RunFolder(Path("made-up")),
        checkpoint=UnsavedCheckpoint(Path("made-up/checkpoints/update-00000001")),
        model=model,
        config=config,
        vocabulary=data.vocabulary,
        codes=data.codes,
        splitting=data.splitting,
        weights_hash="",
    )
    return TrainedModel(run, ScoringOptions(**({"device": "cpu"} | options)))


def on_disk(lm, out, splitting=None):
    """Write a model as a run folder."""
    run = lm.run
    contents = Contents(
        weights={name: tensor.clone() for name, tensor in run.model.state_dict().items()},
        optimizer={},
        state=ImportedState(update=7, imported_from="made up"),
        config=run.config,
        vocabulary=run.vocabulary,
        codes=run.codes,
        splitting=splitting or run.splitting,
    )
    write_imported(out, contents)
    return out
