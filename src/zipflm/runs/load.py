"""Build models from configs and vocabularies, and load runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from zipflm.config import CharacterInput, Config, Splitting
from zipflm.data.bpe import Codes
from zipflm.data.encoding import spelled, spellings
from zipflm.data.vocabulary import UNKNOWN, Vocabulary
from zipflm.model.initialization import fills, first_value
from zipflm.model.inputs import CharacterEmbedding
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import MODELS, Choice, RunFolder, locate


def empty_model(config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """Return the model on the meta device. Only the table of word spellings, if any, has values."""
    table = _spellings(config, vocabulary)
    with torch.device("meta"):
        return LanguageModel(config, table)


def first_values(model: LanguageModel, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the initial values of each parameter."""
    initializers = fills(model)
    for name, param in model.named_parameters():
        yield name, first_value(seed, name, initializers[name], param)


def untrained_model(config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """Return the model with its initial weights, on the CPU."""
    model = empty_model(config, vocabulary)
    model.load_state_dict(dict(first_values(model, config.training.seed)), assign=True)
    return model


def model_with(weights: dict[str, Tensor], config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """Return the model with these weights, in evaluation mode.

    float16 weights are converted to float32. Raises ValueError if the weights do not match.
    """
    model = empty_model(config, vocabulary)
    types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    weights = {
        name: tensor.float() if tensor.dtype == torch.float16 else tensor
        for name, tensor in weights.items()
    }
    try:
        for name, tensor in weights.items():
            if tensor.dtype != types.get(name, tensor.dtype):
                raise RuntimeError(f"{name} has dtype {tensor.dtype}, not {types[name]}")
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # torch lists names and shapes on many lines
        reason = " ".join(str(error).split())
        raise ValueError(f"weights do not match the config: {reason}") from None
    return model.eval()


def _spellings(config: Config, vocabulary: Vocabulary) -> Tensor | None:
    if not isinstance(config.input, CharacterInput):
        return None
    chars = config.input
    return torch.from_numpy(spellings(vocabulary, chars.max_bytes, markers=chars.markers))


@dataclass(frozen=True)
class LoadedRun:
    """A checkpoint of a run, loaded into memory."""

    folder: RunFolder
    checkpoint: Checkpoint
    model: LanguageModel
    """In evaluation mode, on the CPU."""
    config: Config
    vocabulary: Vocabulary
    codes: Codes | None
    """BPE codes with which a subword model splits text; None for a word model."""
    splitting: Splitting
    """Rule that splits text into words."""
    weights_hash: str

    def __str__(self) -> str:
        """The path of the run, or the name of a bundled model."""
        path = self.folder.path
        return path.name if path.parent == MODELS else str(path)


class UnseenWords:
    """Assigns ids to words outside the vocabulary, which a character CNN reads as bytes.

    The number of such words is limited to `capacity`, because requests to a server must not fill
    its memory, and CUDA graphs need the table at a fixed address. Further words become `<unk>`.
    """

    def __init__(self, model: LanguageModel, capacity: int) -> None:
        assert isinstance(model.input, CharacterEmbedding)
        assert isinstance(model.config.input, CharacterInput)
        self._layer, self._config = model.input, model.config.input
        self._first, self._capacity = self._layer.reserve(capacity), capacity
        self._ids: dict[str, int] = {}
        self._lock = Lock()

    def __call__(self, words: Sequence[str]) -> list[int]:
        words = [word[: self._config.max_bytes] for word in words]  # the model reads no more
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._ids]
            if new := new[: self._capacity - len(self._ids)]:
                self._ids |= zip(new, self.add(new), strict=True)
            return [self._ids.get(word, UNKNOWN) for word in words]

    def add(self, words: Sequence[str]) -> range:
        """Store the spellings of these words. Return their ids."""
        config, first = self._config, self._first + len(self._ids)
        rows = torch.from_numpy(spelled(words, config.max_bytes, markers=config.markers))
        self._layer.spellings_VC[first : first + len(words)] = rows
        return range(first, first + len(words))


def load_run(path: str | PathLike[str], choice: Choice | None = None) -> LoadedRun:
    """Load a run: `path` is a run folder, a checkpoint folder, or the name of a bundled model.

    From a run folder, it loads the chosen checkpoint, by default the newest.

    Raises ValueError, naming the file, if a file is missing or damaged or does not match the rest.
    """
    folder, checkpoint = locate(Path(path), choice)
    checkpoint.verify(optimizer=False)
    config, vocabulary = checkpoint.config(), checkpoint.vocabulary()
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
    """Return a run with more words in its vocabulary, for a model that reads words as bytes.

    The model is shared with `run`, and its table of spellings grows.
    """
    new = [word for word in words if word not in run.vocabulary]
    UnseenWords(run.model, len(new)).add(new)
    listed = Vocabulary([*run.vocabulary.words, *new], [*run.vocabulary.counts, *(0 for _ in new)])
    return replace(run, vocabulary=listed)
