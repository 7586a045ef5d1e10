"""`zipflm export-hf` and `import-hf`: a run as a folder of `transformers`, and back bit for bit.

    folder/
        config.json                  `ZipfConfig`, with the run's whole config in it
        generation_config.json       specials, and ids that are never written
        model.safetensors            or several, with model.safetensors.index.json
        vocabulary.txt  [bpe.codes]  [splitting.json]   as in a checkpoint
        tokenizer_config.json        of `ZipfTokenizer`
        README.md                    the model card
        checksums.json               SHA-256 of all of these; gone where transformers saved anew

A folder that is imported may be anybody's: nothing in it is run, every file is checked, and what
is missing or does not fit is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import logging

from zipflm.checksums import CHECKSUMS, read_checksums, require_unchanged, seal
from zipflm.config import PLAIN, CharacterInput, Config, Splitting
from zipflm.data.bpe import Codes
from zipflm.data.characters import spellings
from zipflm.data.folder import CODES_FILE, SPLITTING_FILE, VOCABULARY_FILE
from zipflm.data.lines import TextEncoder
from zipflm.data.vocabulary import END, FILLER, SPECIALS, Vocabulary
from zipflm.folders import new_folder
from zipflm.interop.huggingface.card import model_card
from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.interop.huggingface.modeling import ZipfForCausalLM
from zipflm.interop.huggingface.text_facts import TextFacts, parsed
from zipflm.interop.huggingface.tokenizer import ZipfTokenizer
from zipflm.quoting import quoted, unquoted
from zipflm.reading import read_file, require_file
from zipflm.records import load_object, read_record, to_dict
from zipflm.runs.building import model_with
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import Choice, write_imported
from zipflm.runs.loaded import LoadedRun, load_run
from zipflm.runs.records import ImportedState

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer_config.json"
_INDEX = "model.safetensors.index.json"
_PREFIX = "model."
"""Before the names of all weights: `LanguageModel` is this attribute of `ZipfForCausalLM`."""
_SPELLINGS = "input.spellings_VC"
_LARGEST_JSON = 1 << 28
"""Bytes; such files have a few thousand, an index of many weights some hundred thousand."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def export_run(
    path: str | PathLike[str],
    out: Path,
    *,
    checkpoint: Choice | None = None,
    max_shard_size: str | int = "5GB",
) -> LoadedRun:
    """Make the folder `out` of a run's checkpoint; it appears whole or not.

    Raises ValueError or OSError, naming the file, for what is damaged, does not fit or cannot be
    said in `transformers`, and FileExistsError if `out` is taken.
    """
    _require_size(max_shard_size)
    run = load_run(path, checkpoint)
    state = run.checkpoint.state()
    tokenizer = tokenizer_of(run)
    model = model_of(run)
    with new_folder(out) as folder, _quietly():
        try:
            model.save_pretrained(folder, max_shard_size=max_shard_size)
        except SafetensorError as error:  # its way of saying "disk full"
            raise OSError(f"{out}: {error}") from error
        tokenizer.save_pretrained(folder)
        card = model_card(run, state, run.folder.versions())
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
        seal(folder)
    return run


def _require_size(size: str | int) -> None:
    """Nothing that transformers would misread: of -5GB it makes a file for every weight."""
    known = re.fullmatch(r"\s*(\d+(\.\d+)?)\s*[KMGT]B\s*", str(size), re.ASCII | re.IGNORECASE)
    if not (size > 0 if isinstance(size, int) else known and float(known[1]) > 0):
        raise ValueError(f"--max-shard-size {size}: give a size with KB, MB, GB or TB, e.g. 500MB")


def model_of(run: LoadedRun) -> ZipfForCausalLM:
    """The model of a run, around the same weights."""
    if run.config.num_predicted < run.config.vocab_size:
        raise ValueError(
            f"input.predicted_words={run.config.num_predicted}: transformers' models predict every "
            "word that they read; export a model without it"
        )
    facts = to_dict(TextFacts.of(_encoder_of(run)))
    config = ZipfConfig.of(run.config, text=facts, updates=run.checkpoint.update)
    model = ZipfForCausalLM(config, run.model)
    model.eval()
    config.architectures = [type(model).__name__]
    config.dtype = torch.float32
    # As `zipflm generate` has it: ids that stand for no word are not written.
    model.generation_config.suppress_tokens = _never_written(run.vocabulary)
    model.generation_config._from_model_config = False
    return model


def tokenizer_of(run: LoadedRun) -> ZipfTokenizer:
    """The tokenizer of a run; ValueError if its vocabulary cannot be one."""
    return ZipfTokenizer(encoder=_encoder_of(run), unit=run.config.batches.unit)


def _encoder_of(run: LoadedRun) -> TextEncoder:
    return TextEncoder(run.vocabulary, run.codes, run.splitting)


def import_run(path: str | PathLike[str], out: Path) -> Config:
    """Make the run folder `out` of an exported folder, to use, not to resume; the run's config.

    Weights of a lower precision become float32, which holds them exactly. Raises ValueError or
    OSError, naming the file, for what is missing, damaged or does not fit, and FileExistsError if
    `out` is taken.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no folder; give the --out of `zipflm export-hf`")
    _require_whole(folder)
    config = _read_config(folder)
    encoder = _read_encoder(folder, config)
    weights = _native_weights(folder, config.native, encoder.vocabulary)
    try:
        model_with(weights, config.native, encoder.vocabulary)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    contents = Contents(
        weights=weights,
        optimizer={},
        state=ImportedState(update=config.updates, imported_from=str(path)),
        config=config.native,
        vocabulary=encoder.vocabulary,
        codes=encoder.codes,
        splitting=encoder.splitter.splitting,
    )
    write_imported(out, contents)
    return config.native


def _never_written(vocabulary: Vocabulary) -> list[int]:
    """Specials but the line end, and fillers."""
    counts = vocabulary.counts.tolist()
    return [
        id
        for id, word in enumerate(vocabulary.words)
        if id != END and (id < len(SPECIALS) or (not counts[id] and word.startswith(FILLER)))
    ]


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the bars that `transformers` draws over whatever else is being written."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


# --- Reading what anybody may have written. ---


def _require_whole(folder: Path) -> None:
    """Every file as it was exported, where checksums say how that was."""
    if not (folder / CHECKSUMS).exists():
        return
    sums = read_checksums(folder, (_CONFIG, VOCABULARY_FILE))
    for name in sums:
        if Path(name).name != name or not name:
            raise ValueError(f"{folder / CHECKSUMS}: {quoted(name)} is no file of the folder")
        require_file(folder / name)
        try:
            require_unchanged(folder, name, sums)
        except ValueError as error:
            raise ValueError(
                f"{error} (if it was changed on purpose, remove {CHECKSUMS})"
            ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return load_object(read_file(path, _LARGEST_JSON))
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if str(path) in reason else f"{path}: {reason}") from None


def _read_config(folder: Path) -> ZipfConfig:
    path = folder / _CONFIG
    values = _read_json(path)
    kind = values.get("model_type")
    if kind != ZipfConfig.model_type or "zipflm" not in values:
        raise ValueError(
            f"{path}: model_type={quoted(kind)}: not a model that `zipflm export-hf` or "
            "ZipfForCausalLM.save_pretrained wrote"
        )
    # Nothing else is read: what transformers keeps there is its own, and follows from these.
    ours = {name: values[name] for name in ("zipflm", "text", "updates") if name in values}
    try:
        return ZipfConfig(**ours)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_encoder(folder: Path, config: ZipfConfig) -> TextEncoder:
    """With what the folder's tokenizer reads text."""
    path = folder / VOCABULARY_FILE
    require_file(path)
    try:
        vocabulary = Vocabulary.load(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path}: missing; save the tokenizer into the folder too (tokenizer.save_pretrained)"
        ) from None
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"{path}: has {len(vocabulary)} words, {_CONFIG} vocab_size={config.vocab_size}; the "
            "folder was put together from two"
        )
    encoder = TextEncoder(vocabulary, _read_codes(folder), _read_splitting(folder))
    for facts in (config.text, _read_json(folder / _TOKENIZER).get("text")):
        try:
            if (known := parsed(facts)) is not None:
                known.require(encoder)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
    return encoder


def _read_codes(folder: Path) -> Codes | None:
    path = folder / CODES_FILE
    require_file(path)
    return Codes.load(path) if path.is_file() else None


def _read_splitting(folder: Path) -> Splitting:
    path = folder / SPLITTING_FILE
    require_file(path)
    return read_record(Splitting, path) if path.is_file() else PLAIN


def _native_weights(folder: Path, config: Config, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Under the names and in the precision of a run."""
    weights: dict[str, Tensor] = {}
    for name, tensor in _read_weights(folder):
        ours = name.removeprefix(_PREFIX)
        if ours == name:
            raise ValueError(f"{folder}: unknown weight {unquoted(name)}")
        weights[ours] = tensor.float() if tensor.dtype in _FLOATS else tensor
    if isinstance(config.input, CharacterInput):
        chars = config.input
        table = torch.from_numpy(spellings(vocabulary, chars.max_bytes, markers=chars.markers))
        saved = weights.pop(_SPELLINGS, None)
        if saved is None or not torch.equal(saved, table):
            raise ValueError(
                f"{folder}: {_PREFIX}{_SPELLINGS} does not spell the words of {VOCABULARY_FILE}; "
                "the folder was put together from two"
            )
    return weights


def _read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    if not (folder / _INDEX).exists():
        yield from _read_tensors(folder / _WEIGHTS)
        return
    path = folder / _INDEX
    if (folder / _WEIGHTS).exists():  # from_pretrained reads it, however old it is
        raise ValueError(
            f"{folder}: {_WEIGHTS} and {_INDEX} are two sets of weights, one saved over the other; "
            "remove the older one"
        )
    placed = _read_json(path).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        raise ValueError(f"{path}: weight_map does not give a file for every weight")
    found: set[str] = set()
    for file in sorted(set(placed.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(f"{path}: {quoted(file)} is no file of weights in this folder")
        for name, tensor in _read_tensors(folder / file):
            if placed.get(name) != file:
                raise ValueError(f"{folder / file}: holds {unquoted(name)}, not named by {_INDEX}")
            found.add(name)
            yield name, tensor
    for name in placed.keys() - found:
        raise ValueError(f"{path}: {unquoted(name)} is not in {unquoted(placed[name])}")


def _read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                yield name, file.get_tensor(name)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except SafetensorError as error:
        raise ValueError(f"{path}: cut short or damaged: {unquoted(str(error))}") from None
