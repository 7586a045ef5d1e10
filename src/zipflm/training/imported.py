"""A run folder for a model that was trained elsewhere: to evaluate and analyse, not to resume."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from torch import Tensor

from zipflm.config import Config
from zipflm.data.bpe import Codes
from zipflm.data.folder import CODES_FILE, new_folder
from zipflm.data.vocabulary import Vocabulary
from zipflm.overrides import to_dict
from zipflm.training import checkpoint as checkpoints


def write_run(
    out: str | PathLike[str],
    config: Config,
    weights: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    *,
    updates: int,
    origin: str,
    bpe_codes: str | PathLike[str] | None = None,
) -> None:
    """Write a run with one checkpoint; the folder appears whole or not at all.

    `bpe_codes` are kept for scoring raw text. Raises FileExistsError if `out` is taken.
    """
    if bpe_codes is not None:
        Codes.load(bpe_codes)  # that they cannot be read should not turn out later
    state = {"update": updates, "imported_from": origin}
    contents = checkpoints.Checkpoint(dict(weights), {}, state, to_dict(config))

    def add_texts(folder: Path) -> None:
        vocabulary.save(folder / "vocabulary.txt")
        if bpe_codes is not None:
            shutil.copyfile(bpe_codes, folder / CODES_FILE)

    with new_folder(out) as folder:
        checkpoints.save(folder, contents, add_texts)
        checkpoints.write_json(folder / "config.json", to_dict(config))
