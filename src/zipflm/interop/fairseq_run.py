"""`zipflm import-fairseq`: a checkpoint and its dictionary become a run folder."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from zipflm.config import PLAIN, Splitting
from zipflm.data.bpe import Codes
from zipflm.interop.fairseq_model import ImportedModel, read_model
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import write_imported
from zipflm.runs.records import ImportedState

Source = str | PathLike[str]


def import_run(
    checkpoint: Source,
    dictionary: Source,
    out: Path,
    *,
    bpe_codes: Source | None = None,
    splitting: Splitting = PLAIN,
) -> ImportedModel:
    """Make the run folder `out`, to evaluate and analyse, not to resume; it appears whole or not.

    `bpe_codes` and `splitting` are kept, to split raw text into words and pieces as the training
    text was. Raises ValueError or OSError, naming the file, for what is damaged, hostile or does
    not fit, and FileExistsError if `out` is taken.
    """
    codes = None if bpe_codes is None else Codes.load(bpe_codes)
    model = read_model(checkpoint, dictionary, unit=None if codes is None else "bpe")
    state = ImportedState(update=model.updates, imported_from=str(checkpoint))
    contents = Contents(model.weights, {}, state, model.config, model.vocabulary, codes, splitting)
    write_imported(out, contents)
    return model
