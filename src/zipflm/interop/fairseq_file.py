"""Reading a fairseq checkpoint without fairseq and without running anything it holds.

Both layouts of the file (torch's zip, and the stream from before torch 1.6) and both of its
contents (`args`, a Namespace, and `cfg`, nested dictionaries). Every name that a pickle mentions
is compared with the few that such files hold, and PyTorch's restricted unpickler, which imports
nothing, builds the rest. Does not know what options or weights mean.
"""

from __future__ import annotations

import lzma
import pickletools
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor


class _Namespace:
    """Stands for `argparse.Namespace`: a bag of options."""


class _Meter:
    """Stands for fairseq's running averages, which old files hold and nobody needs."""


_STUBS: dict[str, type] = {
    "argparse.Namespace": _Namespace,
    "fairseq.meters.AverageMeter": _Meter,
    "fairseq.meters.TimeMeter": _Meter,
    "fairseq.meters.StopwatchMeter": _Meter,
}
_KINDS = ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool")
_ALLOWED = frozenset(
    {
        *_STUBS,
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        # Weights saved from a GPU name its storages; they are read into main memory all the same.
        *(f"torch.{place}{kind}Storage" for kind in _KINDS for place in ("", "cuda.")),
    }
)
# Magic number, version, system, contents, keys of the tensors: each a pickle of its own.
_PICKLES_OF_A_STREAM = 5
_TEXT_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING"}
_UNREADABLE = (
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    MemoryError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class CheckpointFile:
    """The parts of a checkpoint that say what its model computes."""

    options: dict[str, Any]
    """Model options by name; `task` is the name of the task, and its options stand beside."""
    model_options: frozenset[str]
    """Which of these are known to be the model's own; none where all stand in one flat list."""
    weights: dict[str, Tensor]
    updates: int
    """How many updates the model was trained for."""


def read_checkpoint(path: str | PathLike[str]) -> CheckpointFile:
    """Read a language model's checkpoint.

    Raises ValueError, naming file and reason, for what is cut short, foreign or hostile.
    """
    path = Path(path)
    _refuse_foreign_names(path)
    contents = _load(path)
    if not isinstance(contents, Mapping):
        raise _foreign(path, f"it holds a {type(contents).__name__}")
    options, model_options = _options(path, contents)
    return CheckpointFile(options, model_options, _weights(path, contents), _updates(contents))


def _refuse_foreign_names(path: Path) -> None:
    names: set[str] = set()
    try:
        for stream in _pickles(path):
            names |= set(_names(stream))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: cut short or damaged: {error}") from None
    except (zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cut short or damaged: {error}") from None
    except (ValueError, KeyError, IndexError, EOFError, RuntimeError) as error:
        if not names - _ALLOWED:
            raise _foreign(path, f"not a pickle: {error}") from None
    if refused := sorted(names - _ALLOWED):
        raise ValueError(
            f"{path}: refused, because it names {', '.join(refused)}; a fairseq checkpoint needs "
            "no such thing, and loading it could run foreign code"
        )


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    """Streams that stand at the beginning of each pickle of the file."""
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            file.seek(0)
            for _ in range(_PICKLES_OF_A_STREAM):
                yield file
            return
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".pkl")]
        if not members:
            raise KeyError("a zip file without a pickle")
        for name in members:
            with archive.open(name) as file:
                yield file


def _names(stream: IO[bytes]) -> Iterator[str]:
    """Names that the next pickle of a stream would import; reads it, runs nothing."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".")
        elif opcode.name == "STACK_GLOBAL":
            yield ".".join(texts[-2:])
        elif opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))


def _load(path: Path) -> Any:
    stubs: list[Any] = [(stub, name) for name, stub in _STUBS.items()]
    try:
        with torch.serialization.safe_globals(stubs):
            # Mapped where it can be: the optimizer's state, half of a file, is never looked at.
            mmap = _is_mappable(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except _UNREADABLE as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: cut short, damaged or no fairseq checkpoint: {reason}") from None


def _is_mappable(path: Path) -> bool:
    """Whether tensors lie in the file as they are: not so in a stream, nor if packed anew.

    torch does not look, and takes compressed bytes for numbers.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _options(path: Path, contents: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options, the old flat way whatever the file's style, and which are the model's."""
    cfg = contents.get("cfg")
    if cfg is None:
        if "args" not in contents:
            raise _foreign(path, "it has neither args nor cfg")
        return _fields(path, "args", contents["args"]), frozenset()
    sections = _fields(path, "cfg", cfg)
    model = _fields(path, "cfg.model", sections.get("model"))
    task = _fields(path, "cfg.task", sections.get("task"))
    task_name = task.pop("_name", None)
    arch = model.pop("_name", None)
    # A section that is still a Namespace holds the flat list.
    names = frozenset() if isinstance(sections["model"], _Namespace) else frozenset(model)
    # A field of both is the model's: it was filled in from the task where it was left open.
    return task | model | {"task": task_name, "arch": model.get("arch", arch)}, names


def _fields(path: Path, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, _Namespace):
        value = vars(value)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _foreign(path, f"{name} holds no options, but {type(value).__name__}")
    return dict(value)


def _weights(path: Path, contents: Mapping[str, Any]) -> dict[str, Tensor]:
    weights = contents.get("model")
    if not isinstance(weights, Mapping) or not weights:
        raise _foreign(path, "it has no weights under model")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise _foreign(path, f"model[{name!r}] is a {type(tensor).__name__}, not a tensor")
        if tensor.ndim == 0 or tensor.numel() == 0:
            raise _foreign(path, f"model[{name!r}] has the shape {tuple(tensor.shape)}")
        # One number can stand for any shape; a copy of it would fill the memory.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise _foreign(path, f"model[{name!r}] has more numbers than the file holds for it")
    return dict(weights)


def _updates(contents: Mapping[str, Any]) -> int:
    history = contents.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else {}
    updates = last.get("num_updates", 0) if isinstance(last, Mapping) else 0
    return updates if isinstance(updates, int) and updates >= 0 else 0


def _foreign(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: no fairseq checkpoint of a language model: {reason}")
