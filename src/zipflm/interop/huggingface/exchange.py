"""Export and import `transformers` folders, and write their model card."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined
from safetensors import SafetensorError
from transformers.utils import logging

from zipflm import __version__
from zipflm.config import Config
from zipflm.data.encoding import TextEncoder
from zipflm.data.folder import VOCABULARY_FILE
from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.interop.huggingface.modeling import ZipfForCausalLM
from zipflm.interop.huggingface.tokenizer import ZipfTokenizer
from zipflm.messages import quoted, unquoted
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint, Contents, checkpoint_path
from zipflm.runs.folder import Choice, RunFolder, write_imported
from zipflm.runs.load import LoadedRun, load_run, model_with
from zipflm.runs.records import ImportedState, SavedState, Versions
from zipflm.settings import load_object
from zipflm.storage import CHECKSUMS, file_hash, new_folder, read_checksums, require_unchanged, seal

_CONFIG = "config.json"
_SPELLINGS = "input.spellings_VC"
_SIZE = re.compile(r"(?=.*[1-9])[0-9]+(\.[0-9]+)? *[KMGT]B", re.IGNORECASE)


def model_card(run: LoadedRun, state: SavedState, versions: Versions | None) -> str:
    """Return the README.md of an exported run."""
    config = run.config
    imported, valid = None, None
    if isinstance(state, ImportedState):
        imported = Path(state.imported_from).name  # without the local folder
    else:
        valid = state.valid
    is_measured = valid is not None and None not in (valid.perplexity, valid.nats_per_word)
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"cell": _cell, "safe_text": unquoted}
    template = (files(__package__) / "model_card.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        version=__version__,
        run=run,
        config=config,
        layers=config.describe(config.batches.unit),
        decoder=config.decoder,
        training=config.training,
        batches=config.batches,
        state=state,
        imported_from=imported,
        versions=None if versions is None else versions.latest,
        valid=valid if is_measured else None,
    )


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return (text if text.isprintable() else quoted(text)).replace("|", "\\|")


def export_run(
    path: str | PathLike[str],
    out: Path,
    *,
    checkpoint: Choice | None = None,
    max_shard_size: str = "5GB",
) -> LoadedRun:
    """Export a checkpoint of a run to the folder `out`.

    Raises ValueError or OSError, naming the file, if a file is damaged or `transformers` does not
    support the model, and FileExistsError if `out` exists and is not an empty folder.
    """
    if not _SIZE.fullmatch(max_shard_size):
        raise ValueError(
            f"max_shard_size={max_shard_size}: write a positive number and a unit (KB, MB, GB or "
            "TB), e.g. 500MB"
        )
    run = load_run(path, checkpoint)
    state = run.checkpoint.state()
    encoder = TextEncoder(run.vocabulary, run.codes, run.splitting)
    tokenizer = ZipfTokenizer(encoder=encoder, unit=run.config.batches.unit)
    model = model_of(run)
    with new_folder(out) as folder, _quietly():
        try:
            model.save_pretrained(folder, max_shard_size=max_shard_size)
        except SafetensorError as error:  # raised for a full disk
            raise OSError(f"{out}: {error}") from error
        tokenizer.save_pretrained(folder)
        card = model_card(run, state, run.folder.versions())
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
        seal(folder)
    return run


def model_of(run: LoadedRun) -> ZipfForCausalLM:
    """Wrap the model of a run without copying its weights."""
    if run.config.num_predicted < run.config.vocab_size:
        raise ValueError(
            f"input.predicted_words={run.config.num_predicted}: not supported by transformers, "
            "where models predict every word; export a model without it"
        )
    config = ZipfConfig.of(run.config, updates=run.checkpoint.state().update)
    model = ZipfForCausalLM(config, run.model)
    model.eval()
    config.architectures = [type(model).__name__]
    config.dtype = torch.float32
    # Ids that are not words are never generated, as by default in `zipflm generate`.
    model.generation_config.suppress_tokens = np.flatnonzero(
        run.vocabulary.is_never_generated
    ).tolist()
    model.generation_config._from_model_config = False
    return model


def import_run(path: str | PathLike[str], out: Path) -> Config:
    """Import an exported folder as the run folder `out`. The run cannot be resumed.

    Weights become float32. Raises ValueError or OSError, naming the file or folder, if a file is
    missing or damaged or the files do not match, and FileExistsError if `out` exists and is not an
    empty folder.
    """
    folder = Path(path)
    _verify_checksums(folder)
    contents, _ = _read(folder)
    write_imported(out, contents)
    return contents.config


def load_exported(path: str | PathLike[str]) -> LoadedRun:
    """Load an exported folder as a run in memory. Raises ValueError or OSError if it is invalid."""
    folder = Path(path)
    known = _verify_checksums(folder)
    contents, model = _read(folder)
    weights = sorted(folder.glob("*.safetensors"))
    sums = [known.get(file.name) or file_hash(file) for file in weights]
    return LoadedRun(
        folder=RunFolder(folder),
        checkpoint=Checkpoint(checkpoint_path(folder, contents.state.update)),
        model=model,
        config=contents.config,
        vocabulary=contents.vocabulary,
        codes=contents.codes,
        splitting=contents.splitting,
        weights_hash=hashlib.sha256(" ".join(sums).encode()).hexdigest(),
    )


def download(repository: str) -> Path:
    """Download a model from the Hugging Face Hub to the cache of `huggingface_hub`.

    Return the folder. Raises ValueError if it is not a zipflm model or the download fails.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        _require_model_type(Path(hf_hub_download(repository, _CONFIG)))  # before large files
        return Path(snapshot_download(repository))
    except Exception as error:  # raised by several libraries
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{repository}: not a local folder, and cannot be downloaded from the Hugging Face Hub "
            f"({reason}); use a run folder, a checkpoint, an exported folder or a model id"
        ) from None


def _read(folder: Path) -> tuple[Contents, LanguageModel]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: not a folder; use one from `zipflm export`")
    _require_zipflm_model(folder)
    try:
        with _quietly():
            tokenizer = ZipfTokenizer.from_pretrained(folder)
            # Weights of the wrong shape are not ignored: ZipfForCausalLM reports them itself.
            options = {"use_safetensors": True, "ignore_mismatched_sizes": True}
            model = ZipfForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
        encoder = tokenizer.text_encoder
        config: Config = model.config.native
        weights = model.model.state_dict()
        weights.pop(_SPELLINGS, None)  # computed from the vocabulary
        built = model_with(weights, config, encoder.vocabulary)
    except SafetensorError as error:
        raise ValueError(f"{folder}: weights are truncated or damaged: {error}") from None
    except Exception as error:  # transformers raises many types for unreadable files
        raise ValueError(f"{folder}: {str(error).partition(chr(10))[0]}") from None
    contents = Contents(
        weights=weights,
        optimizer={},
        state=ImportedState(update=model.config.updates, imported_from=str(folder)),
        config=config,
        vocabulary=encoder.vocabulary,
        codes=encoder.codes,
        splitting=encoder.splitter.splitting,
    )
    return contents, built


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the progress bars and reports of `transformers`."""
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def _verify_checksums(folder: Path) -> dict[str, str]:
    """Compare all files with their checksums, if the folder has any. Return the checksums."""
    if not (folder / CHECKSUMS).exists():
        return {}
    sums = read_checksums(folder, (_CONFIG, VOCABULARY_FILE))
    for name in sums:
        try:
            require_unchanged(folder, name, sums)
        except ValueError as error:
            raise ValueError(f"{error} (if the change was intended, remove {CHECKSUMS})") from None
    return sums


def _require_zipflm_model(folder: Path) -> None:
    """Reject other models, which transformers would load with only a warning."""
    for name in (_CONFIG, VOCABULARY_FILE):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder / name}: missing; use a folder from `zipflm export`, or save both model "
                "and tokenizer with save_pretrained"
            )
    _require_model_type(folder / _CONFIG)


def _require_model_type(config: Path) -> None:
    try:
        model_type = load_object(config.read_bytes()).get("model_type")
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None
    if model_type != ZipfConfig.model_type:
        raise ValueError(f"{config}: model_type={quoted(model_type)}: not a zipflm model")
