"""`zipflm export-hf` and `import-hf`: a run as a folder of `transformers`, and back bit for bit.

    folder/
        config.json                  `ZipfConfig`, with the run's whole config in it
        generation_config.json       specials, and ids that are never written
        model.safetensors            or several, with model.safetensors.index.json
        vocabulary.txt  [bpe.codes]  [splitting.json]   as in a checkpoint
        tokenizer_config.json        of `ZipfTokenizer`
        README.md                    the model card
        checksums.json               SHA-256 of all of these; gone where transformers saved anew

A folder that is imported may be anybody's: nothing in it is run, because its weights are read as
safetensors only, and what is missing or does not fit is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers.utils import logging

from zipflm.checksums import CHECKSUMS, read_checksums, require_unchanged, seal
from zipflm.config import Config
from zipflm.data.folder import VOCABULARY_FILE
from zipflm.data.lines import TextEncoder
from zipflm.data.vocabulary import END, FILLER, SPECIALS, Vocabulary
from zipflm.folders import new_folder
from zipflm.interop.huggingface.card import model_card
from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.interop.huggingface.modeling import ZipfForCausalLM
from zipflm.interop.huggingface.text_facts import TextFacts, parsed
from zipflm.interop.huggingface.tokenizer import ZipfTokenizer
from zipflm.quoting import quoted
from zipflm.records import load_object, to_dict
from zipflm.runs.building import model_with
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import Choice, write_imported
from zipflm.runs.loaded import LoadedRun, load_run
from zipflm.runs.records import ImportedState

_CONFIG = "config.json"
_SPELLINGS = "input.spellings_VC"


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
    _require_ours(folder)
    try:
        with _quietly():
            tokenizer = ZipfTokenizer.from_pretrained(folder)
            # Weights of another shape are refused by the model itself, by their names.
            options = {"use_safetensors": True, "ignore_mismatched_sizes": True}
            model = ZipfForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
        encoder = tokenizer.text_encoder
        config: Config = model.config.native
        if (facts := parsed(model.config.text)) is not None:
            facts.require(encoder)
        weights = model.model.state_dict()
        weights.pop(_SPELLINGS, None)  # they follow from the vocabulary
        model_with(weights, config, encoder.vocabulary)
    except SafetensorError as error:
        raise ValueError(f"{folder}: its weights are cut short or damaged: {error}") from None
    except Exception as error:  # transformers raises many kinds for files that it cannot read
        raise ValueError(f"{folder}: {str(error).partition(chr(10))[0]}") from None
    contents = Contents(
        weights=weights,
        optimizer={},
        state=ImportedState(update=model.config.updates, imported_from=str(path)),
        config=config,
        vocabulary=encoder.vocabulary,
        codes=encoder.codes,
        splitting=encoder.splitter.splitting,
    )
    write_imported(out, contents)
    return config


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
    """Without the bars and reports that `transformers` writes between everything else."""
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def _require_whole(folder: Path) -> None:
    """Every file as it was exported, where checksums say how that was."""
    if not (folder / CHECKSUMS).exists():
        return
    sums = read_checksums(folder, (_CONFIG, VOCABULARY_FILE))
    for name in sums:
        try:
            require_unchanged(folder, name, sums)
        except ValueError as error:
            raise ValueError(
                f"{error} (if it was changed on purpose, remove {CHECKSUMS})"
            ) from None


def _require_ours(folder: Path) -> None:
    """Of other models transformers would make ours all the same, with a warning."""
    for name, remedy in (
        (_CONFIG, "give the --out of `zipflm export-hf`"),
        (VOCABULARY_FILE, "save the tokenizer into the folder too (tokenizer.save_pretrained)"),
    ):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing; {remedy}")
    path = folder / _CONFIG
    try:
        values = load_object(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    kind = values.get("model_type")
    if kind != ZipfConfig.model_type or "zipflm" not in values:
        raise ValueError(
            f"{path}: model_type={quoted(kind)}: not a model that `zipflm export-hf` or "
            "ZipfForCausalLM.save_pretrained wrote"
        )
