"""A run folder: its paths, its checkpoints, and `log.jsonl`, one `Report` or `Validation` per
line.
"""

from __future__ import annotations

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
    with path.open("a", encoding="utf-8") as file:
        file.write(as_json(line, LogLine, indent=None) + "\n")


def read_lines(path: Path) -> list[LogLine]:
    """All lines of a log; empty if there is none.

    A last line without its end is one that is being written, or that a killed process left; any
    other that cannot be read is a ValueError with its number.
    """
    try:
        text = read_file(path)
    except FileNotFoundError:
        return []
    *complete, _ = text.split(b"\n")
    return [_parse(path, number, line) for number, line in enumerate(complete, start=1)]


def curve_of(lines: Sequence[LogLine]) -> list[Validation]:
    """The validations that make a curve: those on a part of the valid set where there are any,
    because part and whole are not equally hard; else all of them."""
    found = [line for line in lines if isinstance(line, Validation)]
    return [line for line in found if line.share < 1] or found


def trim(path: Path, update: int) -> None:
    """Drop what was logged after `update`, and a last line that was cut short."""
    if not path.exists():
        return
    kept = [line for line in read_lines(path) if line.update <= update]
    atomic_write_text(path, "".join(as_json(line, LogLine, indent=None) + "\n" for line in kept))


def _parse(path: Path, number: int, line: bytes) -> LogLine:
    try:
        parsed: LogLine = parse(LogLine, load_object(line), "")
    except ValueError as error:
        raise ValueError(f"{path}: line {number}: damaged or of another release: {error}") from None
    return parsed


Choice = Literal["newest", "best"] | int
"""Which checkpoint of a run: an int is the number of updates after which it was saved."""


class RunFolder:
    """A run on disk, there or yet to be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path: Path = path / "log.jsonl"
        self.checkpoints_path: Path = path / "checkpoints"
        self._config_path = path / "config.json"
        self._versions_path = path / "versions.json"

    def __fspath__(self) -> str:
        return str(self.path)

    # --- What is there. ---

    @property
    def holds_a_run(self) -> bool:
        return self._config_path.is_file()

    def config(self) -> Config:
        return read_record(Config, self._config_path)

    def versions(self) -> Versions | None:
        """None for a model that was trained elsewhere."""
        path = self._versions_path
        return read_record(Versions, path) if path.exists() else None

    def log(self) -> list[LogLine]:
        """Empty for a run that was imported, or has not said anything yet."""
        return read_lines(self.log_path)

    def checkpoints(self) -> list[Checkpoint]:
        """The complete ones, newest first."""
        root = self.checkpoints_path
        paths = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
        found = [Checkpoint(path) for path in paths if has_checkpoint_name(path)]
        return sorted(found, key=lambda checkpoint: checkpoint.update, reverse=True)

    def choose(self, choice: Choice) -> Checkpoint:
        """One checkpoint; ValueError, with those there are, if the run has no such."""
        found = self.checkpoints()
        if not found:
            raise ValueError(
                f"{self.path}: no run with a checkpoint; give one from zipflm train or "
                "zipflm import, one folder of its checkpoints/, or state-of-the-union, which comes "
                "with zipflm"
            )
        if choice == "newest":
            return found[0]
        updates = ", ".join(str(checkpoint.update) for checkpoint in found)
        if choice == "best":
            best = self.best()
            if best is None:
                raise ValueError(
                    f"--checkpoint best: no checkpoint of {self.path} was scored on a valid set; "
                    f"choose newest, or an update: {updates}"
                )
            return best
        for checkpoint in found:
            if checkpoint.update == choice:
                return checkpoint
        raise ValueError(f"--checkpoint {choice}: {self.path} has those of the updates {updates}")

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest loss on the valid set, of those that were scored and are
        not damaged."""
        scored: list[tuple[float, Checkpoint]] = []
        for checkpoint in self.checkpoints():
            with suppress(ValueError, OSError):  # damaged, or on a bad disk
                state = checkpoint.state()
                valid = state.valid if isinstance(state, TrainingState) else None
                if valid is not None and valid.nats_per_word is not None:
                    scored.append((valid.nats_per_word, checkpoint))
        for _, checkpoint in sorted(scored, key=lambda pair: pair[0]):
            with suppress(ValueError, OSError):
                checkpoint.verify()
                return checkpoint
        return None

    # --- What training writes. ---

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes into the run; `storage.InUse` if another one does.

        Removes what killed processes left unfinished, and the folder if nothing is put into it.
        """
        with sole_writer(self.path) as is_locked:
            if is_locked:
                self._clean()
            yield

    def open(
        self,
        config: Config,
        data: DataFolder,
        update: int,
        device: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Write what identifies the run, and drop what a killed process logged after `update`,
        from which the run is resumed; 0 for one that starts, with the weights of `origin`."""
        self.path.mkdir(parents=True, exist_ok=True)
        trim(self.log_path, update)
        now = provenance(data, device)
        first = self.versions() if update > 0 else None
        if first is None:
            versions = Versions(**vars(now), origin=origin)
        else:
            # What the run was started with stays where it was.
            resumed = (*first.resumed, Resumption(**vars(now), update=update))
            versions = replace(first, resumed=resumed)
        write_record(self._versions_path, versions)
        # Last, because its presence says that the folder holds a run.
        write_record(self._config_path, config)

    def save(self, contents: Contents) -> Checkpoint:
        """Write a checkpoint; nothing is removed for it.

        OSError if that fails, after which everything saved before is as it was.
        """
        return save(self.checkpoints_path, contents)

    def prune(self, keep: int) -> None:
        """Remove checkpoints, except the newest `keep` and the best; 0 keeps all.

        To be called when the newest is known to be good: until then an older one may be needed.
        """
        old = self.checkpoints()[keep:] if keep > 0 else []
        best = self.best() if old else None
        for checkpoint in old:
            if best is None or checkpoint.path != best.path:
                checkpoint.remove()

    def set_aside(self, update: int) -> list[Path]:
        """Rename the checkpoints after `update`, which could not be read; their new paths."""
        return [c.set_aside() for c in self.checkpoints() if c.update > update]

    def _clean(self) -> None:
        """Remove checkpoints that were being saved or removed when a process was killed."""
        for path in list(self.checkpoints_path.glob(".update-*")):
            if path.is_dir():
                shutil.rmtree(path)
            else:  # a lock
                path.unlink()


def write_imported(out: Path, contents: Contents) -> None:
    """A run with one checkpoint of a model from elsewhere; appears whole or not at all.

    Raises FileExistsError if `out` is taken.
    """
    with new_folder(out) as folder:
        run = RunFolder(folder)
        save(run.checkpoints_path, contents)
        write_record(run._config_path, contents.config)


MODELS = Path(__file__).parents[1] / "models"
"""Models that come with the package, each a run folder under its name."""


def locate(path: Path, choice: Choice | None) -> tuple[RunFolder, Checkpoint]:
    """The run and the checkpoint that a path means: of a run the `choice`, its newest unless said
    otherwise, or the path itself if it is a checkpoint. A bare name without a folder may be a model
    that comes with the package."""
    if path.name == str(path) and not path.exists() and (MODELS / path).is_dir():
        path = MODELS / path
    if not is_checkpoint(path):
        run = RunFolder(path)
        return run, run.choose("newest" if choice is None else choice)
    if choice is not None:
        raise ValueError(f"--checkpoint {choice}: {path} is one checkpoint already; leave it out")
    run = RunFolder(path.resolve().parent.parent)
    # One that was copied out of its run has nothing but itself.
    return (run if run.holds_a_run else RunFolder(path)), Checkpoint(path)


def parse_choice(text: str | None) -> Choice | None:
    """The value of `--checkpoint`."""
    if text is None or text == "newest" or text == "best":
        return text  # type: ignore[return-value]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"--checkpoint {text}: choose newest, best or a number of updates")
    return int(text)
