"""A run, loaded once and passed on: nothing that uses it has to look at the disk again."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from zipflm.config import Config, Splitting
from zipflm.data.bpe import Codes
from zipflm.data.folder import VOCABULARY_FILE
from zipflm.data.vocabulary import Vocabulary
from zipflm.model.language_model import LanguageModel
from zipflm.runs.building import model_with
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import Choice, RunFolder, locate


@dataclass(frozen=True)
class LoadedRun:
    """One checkpoint of a run in memory, and where it came from.

    A run that is still training may write newer checkpoints; this one stays what it was.
    """

    folder: RunFolder
    checkpoint: Checkpoint
    """The one that was read."""
    model: LanguageModel
    """In evaluation mode, on the CPU."""
    config: Config
    vocabulary: Vocabulary
    codes: Codes | None
    """Byte-pair codes, with which a sub-word model splits raw text."""
    splitting: Splitting
    """How raw text becomes words."""
    weights_hash: str

    def __str__(self) -> str:
        """For messages: what the user knows it as."""
        return str(self.folder.path)


def load_run(path: str | PathLike[str], choice: Choice | None = None) -> LoadedRun:
    """A run folder's newest or chosen checkpoint, or one checkpoint by its own folder.

    Raises ValueError, naming the file, for what is missing, damaged or does not fit.
    """
    folder, checkpoint = locate(Path(path), choice)
    checkpoint.verify(optimizer=False)
    config, vocabulary = checkpoint.config(), checkpoint.vocabulary()
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"{checkpoint.path}: its {VOCABULARY_FILE} has {len(vocabulary)} words, its config "
            f"vocab_size={config.vocab_size}; the folder was put together from two runs"
        )
    weights = checkpoint.weights()
    try:
        model = model_with(weights, config, vocabulary)
    except ValueError as error:
        raise ValueError(f"{checkpoint.path / checkpoint.weights_files[0]}: {error}") from None
    return LoadedRun(
        folder=folder,
        checkpoint=checkpoint,
        model=model,
        config=config,
        vocabulary=vocabulary,
        codes=checkpoint.codes(),
        splitting=checkpoint.splitting(),
        weights_hash=checkpoint.weights_hash,
    )
