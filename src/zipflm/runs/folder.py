"""Run folders with their checkpoints and their log, `log.jsonl`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.messages import read_file
from zipflm.runs.checkpoint import Checkpoint, Contents, has_checkpoint_name, is_checkpoint, save
from zipflm.runs.provenance import provenance
from zipflm.runs.records import LogLine, Origin, Resumption, TrainingState, Validation, Versions
from zipflm.settings import as_json, load_object, parse, read_record, write_record
from zipflm.storage import atomic_write_text, new_folder, sole_writer


def append_line(path: Path, line: LogLine) -> None:
    """Append a line to a log. After an OSError, no part of it is left."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(as_json(line, LogLine, indent=None) + "\n")
    except OSError:
        with suppress(OSError):
            os.truncate(path, size)
        raise


def read_lines(path: Path) -> list[LogLine]:
    """Return all complete lines of a log, or an empty list if the file does not exist.

    An incomplete last line is ignored. Raises ValueError with the line number for any other damaged
    line.
    """
    try:
        text = read_file(path)
    except FileNotFoundError:
        return []
    *complete, _ = text.split(b"\n")
    lines: list[LogLine] = []
    for number, line in enumerate(complete, start=1):
        try:
            lines.append(parse(LogLine, load_object(line), ""))
        except ValueError as error:
            raise ValueError(
                f"{path}: line {number}: damaged, or written by another version: {error}"
            ) from None
    return lines


def curve_of(lines: Sequence[LogLine]) -> list[Validation]:
    """Return comparable validations: those on a sample of the validation set if there are any,
    otherwise all. Losses on the sample and on the full set are not comparable."""
    validations = [line for line in lines if isinstance(line, Validation)]
    return [line for line in validations if line.share < 1] or validations


def trim(path: Path, update: int) -> None:
    """Drop lines after `update`, and an incomplete last line."""
    if not path.exists():
        return
    kept = [line for line in read_lines(path) if line.update <= update]
    atomic_write_text(path, "".join(as_json(line, LogLine, indent=None) + "\n" for line in kept))


Choice = Literal["newest", "best"] | int
"""Selects a checkpoint of a run; an int is its number of updates."""


class RunFolder:
    """The folder of a run, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path: Path = path / "log.jsonl"
        self.checkpoints_path: Path = path / "checkpoints"
        self._config_path = path / "config.json"
        self._versions_path = path / "versions.json"

    def __repr__(self) -> str:
        return f"<RunFolder {self.path}>"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def holds_a_run(self) -> bool:
        return self._config_path.is_file()

    def config(self) -> Config:
        return read_record(Config, self._config_path)

    def versions(self) -> Versions | None:
        """Read versions.json. Returns None for an imported model, which has none."""
        path = self._versions_path
        return read_record(Versions, path) if path.exists() else None

    def log(self) -> list[LogLine]:
        return read_lines(self.log_path)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, newest first."""
        root = self.checkpoints_path
        paths = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
        checkpoints = [Checkpoint(path) for path in paths if has_checkpoint_name(path)]
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.update, reverse=True)

    def choose(self, choice: Choice) -> Checkpoint:
        """Return the selected checkpoint.

        Raises ValueError, listing the available ones, if it does not exist.
        """
        checkpoints = self.checkpoints()
        if not checkpoints:
            problem = "no checkpoints found" if self.path.exists() else "no such folder"
            raise ValueError(
                f"{self.path}: {problem}; use a folder from zipflm train or zipflm import, one of "
                "its checkpoints, or the bundled model state-of-the-union"
            )
        if choice == "newest":
            return checkpoints[0]
        updates = ", ".join(str(checkpoint.update) for checkpoint in checkpoints)
        if choice == "best":
            best = self.best()
            if best is None:
                raise ValueError(
                    f"checkpoint=best: no checkpoint in {self.path} has a validation loss; use "
                    f"newest or one of: {updates}"
                )
            return best
        for checkpoint in checkpoints:
            if checkpoint.update == choice:
                return checkpoint
        raise ValueError(f"checkpoint={choice}: not found; available in {self.path}: {updates}")

    def best(self) -> Checkpoint | None:
        """Return the undamaged checkpoint with the lowest loss on the full validation set, or None
        if no checkpoint has one."""
        for checkpoint in self._by_loss():
            with suppress(ValueError, OSError):
                checkpoint.verify()
                return checkpoint
        return None

    def _by_loss(self) -> list[Checkpoint]:
        """Return the checkpoints with a recorded loss on the full validation set, lowest first."""
        scored: list[tuple[float, Checkpoint]] = []
        for checkpoint in self.checkpoints():
            with suppress(ValueError, OSError):  # damaged, or on a bad disk
                state = checkpoint.state()
                valid = state.valid if isinstance(state, TrainingState) else None
                if valid is not None and valid.nats_per_word is not None:
                    scored.append((valid.nats_per_word, checkpoint))
        return [checkpoint for _, checkpoint in sorted(scored, key=lambda pair: pair[0])]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for writing. Raises `storage.InUse` if another process holds the lock.

        Removes unfinished files of killed processes. If the lock creates the folder and it stays
        empty, the folder is removed at the end.
        """
        with sole_writer(self.path) as is_locked:
            if is_locked:
                self._clean()
            yield

    def record_start(
        self,
        config: Config,
        data: DataFolder,
        update: int,
        device: str,
        origin: Origin | None = None,
    ) -> None:
        """Write the config and versions when a run starts or resumes after `update`.

        Log lines after `update` are dropped. `origin` is the checkpoint that provides the initial
        weights of a new run, if any.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        trim(self.log_path, update)
        now = provenance(data, device)
        first = self.versions() if update > 0 else None
        if first is None:
            versions = Versions(**vars(now), origin=origin)
        else:
            resumed = (*first.resumed, Resumption(**vars(now), update=update))
            versions = replace(first, resumed=resumed)
        write_record(self._versions_path, versions)
        # Written last, because it marks the folder as a run.
        write_record(self._config_path, config)

    def prune(self, keep: int) -> None:
        """Remove all checkpoints except the newest `keep` and the best; 0 keeps all.

        Call this only if the weights of the newest checkpoint are known to be good.
        """
        old = self.checkpoints()[keep:] if keep > 0 else []
        # Verifying the best one would read all of it at every save.
        best = [checkpoint.path for checkpoint in self._by_loss()[:1]] if old else []
        for checkpoint in old:
            if checkpoint.path not in best:
                checkpoint.remove()

    def set_aside(self, update: int) -> Iterator[Path]:
        """Rename all checkpoints after `update`, which are damaged, so that they are no longer
        listed. Yield the new paths."""
        for checkpoint in self.checkpoints():
            if checkpoint.update > update:
                aside = checkpoint.path.with_name(f".damaged-{checkpoint.name}")
                shutil.rmtree(aside, ignore_errors=True)  # from an earlier attempt
                yield checkpoint.path.rename(aside)

    def _clean(self) -> None:
        """Remove checkpoints that a killed process was saving or removing."""
        for path in list(self.checkpoints_path.glob(".update-*")):
            if path.is_dir():
                shutil.rmtree(path)
            else:  # a lock
                path.unlink()


def write_imported(out: Path, contents: Contents) -> None:
    """Write a run with one checkpoint atomically. Raises FileExistsError if `out` exists and is not
    an empty folder."""
    with new_folder(out) as folder:
        run = RunFolder(folder)
        save(run.checkpoints_path, contents)
        write_record(run._config_path, contents.config)


MODELS = Path(__file__).parents[1] / "models"
"""Bundled models, each a run folder."""


def locate(path: Path, choice: Choice | None) -> tuple[RunFolder, Checkpoint]:
    """Find the run and checkpoint for a path: a run folder (default choice: newest), a checkpoint
    folder, or the name of a bundled model."""
    if path.name == str(path) and not path.exists() and (MODELS / path).is_dir():
        path = MODELS / path
    if not is_checkpoint(path):
        run = RunFolder(path)
        return run, run.choose("newest" if choice is None else choice)
    if choice is not None:
        raise ValueError(f"checkpoint={choice}: {path} is already a checkpoint; omit this option")
    run = RunFolder(path.resolve().parent.parent)
    # If it was copied out of its run, the checkpoint folder takes the place of the run folder.
    return (run if run.holds_a_run else RunFolder(path)), Checkpoint(path)


def parse_choice(text: Choice | str | None) -> Choice | None:
    """Parse `newest`, `best` or a number of updates. None and ints are returned unchanged."""
    if text is None or isinstance(text, int) or text in ("newest", "best"):
        return text  # type: ignore[return-value]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"checkpoint={text}: choose newest, best or a number of updates")
    return int(text)
