"""A run, loaded once and passed on: nothing that uses it has to look at the disk again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from threading import Lock

import torch

from zipflm.config import Config, Splitting
from zipflm.config.layers import CharacterInput
from zipflm.data.bpe import Codes
from zipflm.data.characters import spelled
from zipflm.data.folder import VOCABULARY_FILE
from zipflm.data.vocabulary import UNKNOWN, Vocabulary
from zipflm.model.inputs import CharacterEmbedding
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


class UnseenWords:
    """Ids for words outside the vocabulary, which a character CNN reads by their bytes.

    There is room for a fixed number: the words of a service's users must not fill its memory, and a
    CUDA graph must find the table where it was. Words beyond that are `<unk>`.
    """

    def __init__(self, model: LanguageModel, room: int) -> None:
        assert isinstance(model.input, CharacterEmbedding)
        assert isinstance(model.config.input, CharacterInput)
        self._layer, self._config = model.input, model.config.input
        self._first, self._room = self._layer.reserve(room), room
        self._ids: dict[str, int] = {}
        self._lock = Lock()

    def __call__(self, words: Sequence[str]) -> list[int]:
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
            if new := new[: self._room - len(self._ids)]:
                config, first = self._config, self._first + len(self._ids)
                rows = torch.from_numpy(spelled(new, config.max_bytes, markers=config.markers))
                self._layer.spellings_VC[first : first + len(new)] = rows
                self._ids |= zip(new, range(first, first + len(new)), strict=True)
            return [self._ids.get(word, UNKNOWN) for word in words]


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


def with_words(run: LoadedRun, words: Sequence[str]) -> LoadedRun:
    """The run, which reads words by their bytes, with more words in its vocabulary."""
    new = [word for word in words if word not in run.vocabulary]
    UnseenWords(run.model, len(new))(new)
    listed = Vocabulary([*run.vocabulary.words, *new], [*run.vocabulary.counts, *(0 for _ in new)])
    return replace(run, vocabulary=listed)
