"""Read options and weights of a fairseq checkpoint, without fairseq and without running its code.

torch's restricted loader reads the file. Objects of fairseq, omegaconf and a few other classes are
replaced by placeholders that store their arguments; any other class is an error unless torch
allows it. Options are in `args`, a flat Namespace, or in `cfg`, by section.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO

import torch
from torch import Tensor

from zipflm.messages import quoted, unquoted

_PLACEHOLDERS = re.compile(
    r"(fairseq|omegaconf|typing)\..*"
    r"|argparse\.Namespace|pathlib\.PosixPath"
    # Types of options in omegaconf: int, or List[int].
    r"|builtins\.(bool|bytes|dict|float|int|list|object|str|tuple|type)|_operator\.getitem"
    # The best validation loss may be a NumPy scalar.
    r"|numpy\.dtype|numpy\._?core\.multiarray\.scalar"
)
_PYTHON_2 = {"long": "int", "unicode": "str"}  # names in Python 2 pickles
_STREAM_PICKLES = 4  # pickles before the tensor data, in files from before torch 1.6
_MISSING = "???"  # an option without a value in omegaconf
_REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}", re.ASCII)


class _Placeholder:
    """Stands for an object whose class is not imported."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


@dataclass(frozen=True)
class CheckpointFile:
    """The options and weights of a checkpoint."""

    options: dict[str, Any]
    """Options of the model and the task, whose names are the options `arch` and `task`."""
    model_options: frozenset[str]
    """Names of the options known to belong to the model; empty for a flat list."""
    weights: dict[str, Tensor]
    """fairseq's state dict. Tensors may be views of the mapped file."""
    updates: int
    """Number of training updates."""


def read_checkpoint(path: str | PathLike[str]) -> CheckpointFile:
    """Read the checkpoint of a language model.

    Raises ValueError, naming file and reason, if it is truncated, unsafe or another kind of file.
    """
    try:
        contents = _plain(_load(path))
        if not isinstance(contents, dict):
            raise _not_a_checkpoint(f"it contains a {type(contents).__name__}")
        options, model_options = _options(contents)
        return CheckpointFile(options, model_options, _weights(contents), _updates(contents))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def _load(path: str | PathLike[str]) -> Any:
    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"
        file.seek(0)
        # torch can map only uncompressed archives.
        names, can_be_mapped = _inspect(file) if is_archive else (_stream_names(file), False)
    allowed: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
        (type(name, (_Placeholder,), {}), name) for name in names if _PLACEHOLDERS.fullmatch(name)
    ]
    allowed.append((_plain_dict, "collections.defaultdict"))
    try:
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol or TorchScript
            return torch.load(path, "cpu", weights_only=True, mmap=can_be_mapped)
    except pickle.UnpicklingError as error:
        if rejected := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"refers to {unquoted(rejected[1])}, which is not allowed because loading it could "
                "run code; zipflm reads only tensors, plain values and the classes of fairseq and "
                "omegaconf"
            ) from None
        raise ValueError("truncated, damaged or not a file from torch.save") from None
    except Exception as error:  # torch raises many types for files of other formats
        raise _damaged(error) from None


def _inspect(file: BinaryIO) -> tuple[set[str], bool]:
    """Verify the archive. Return the names it refers to, and whether it is uncompressed."""
    try:
        with zipfile.ZipFile(file) as archive:
            if (member := archive.testzip()) is not None:
                raise ValueError(f"wrong checksum for member {quoted(member)}")
            program = next((n for n in archive.namelist() if n.endswith("/data.pkl")), None)
            if program is None:
                raise ValueError("the archive has no data.pkl")
            names = _names(io.BytesIO(archive.read(program)))
            is_stored = all(i.compress_type == zipfile.ZIP_STORED for i in archive.infolist())
            return names, is_stored
    except Exception as error:
        raise _damaged(error) from None


def _stream_names(file: BinaryIO) -> set[str]:
    try:
        return set[str]().union(*(_names(file) for _ in range(_STREAM_PICKLES)))
    except (ValueError, OverflowError, MemoryError):  # random bytes can encode huge lengths
        raise ValueError("truncated or not a checkpoint from torch.save") from None


def _names(stream: io.BytesIO | BinaryIO) -> set[str]:
    """Return the classes and functions that the next pickle refers to, without running it."""
    names = (name for opcode, name, _ in pickletools.genops(stream) if opcode.name == "GLOBAL")
    return {_python_3(str(name).replace(" ", ".")) for name in names}


def _python_3(name: str) -> str:
    module, _, kind = name.rpartition(".")
    return f"builtins.{_PYTHON_2.get(kind, kind)}" if module == "__builtin__" else name


def _plain_dict(*arguments: Any) -> dict[Any, Any]:
    return {}  # the loader adds the entries


def _plain(value: Any) -> Any:
    """Copy a dict, because one from a file may have attributes that hide its methods."""
    return dict(dict.items(value)) if isinstance(value, dict) else value


def _options(contents: Mapping[Any, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return all options in one dict, and the names of the model options."""
    if contents.get("cfg") is None:
        if "args" not in contents:
            raise _not_a_checkpoint("it has neither args nor cfg")
        return _section("args", contents["args"], {}), frozenset()
    sections = _entries(contents["cfg"]) or {}
    model = _section("cfg.model", sections.get("model"), sections)
    task = _section("cfg.task", sections.get("task"), sections)
    task_name = task.pop("_name", None)
    arch = model.pop("_name", None)
    # If the section is a Namespace, it is the flat list, including training options.
    is_sectioned = isinstance(_unwrapped(sections["model"]), dict)
    # Model options take precedence: unset ones were filled in from the task.
    names = {"task": task_name or task.get("task"), "arch": model.get("arch", arch)}
    return task | model | names, frozenset(model) if is_sectioned else frozenset()


def _section(name: str, value: Any, sections: Mapping[Any, Any]) -> dict[str, Any]:
    fields = _entries(value)
    if fields is None or not all(isinstance(field, str) for field in fields):
        raise _not_a_checkpoint(f"{name} has no named options")
    options = {field: _resolved(value, sections) for field, value in fields.items()}
    return {
        field: value
        for field, value in options.items()
        if not (isinstance(value, str) and value == _MISSING)
    }


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """Return the entries of a dict, DictConfig or Namespace; None for other values."""
    value = _unwrapped(value)
    if isinstance(value, _Placeholder) and type(value).__name__ == "argparse.Namespace":
        value = value.state or {}
    return _plain(value) if isinstance(value, dict) else None


def _unwrapped(value: Any) -> Any:
    """Return the value of an omegaconf node or container, and other values unchanged.

    For some time, fairseq saved `cfg` as a DictConfig with a node per option. An enum member
    becomes its text.
    """
    if not isinstance(value, _Placeholder):
        return value
    if isinstance(value.state, dict):
        for attribute in ("_content", "_val"):
            if attribute in value.state:
                return _unwrapped(value.state[attribute])
    is_member = type(value).__name__.startswith("fairseq.") and len(value.arguments) == 1
    return value.arguments[0] if is_member else value


def _resolved(value: Any, sections: Mapping[Any, Any]) -> Any:
    """Resolve omegaconf's `${section.option}`. Dangling references are left as text."""
    value = _unwrapped(value)
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    section = _entries(sections.get(reference[1])) or {}
    return _resolved(section[reference[2]], sections) if reference[2] in section else value


def _weights(contents: Mapping[Any, Any]) -> dict[str, Tensor]:
    weights = _plain(contents.get("model"))
    if not isinstance(weights, dict) or not weights:
        raise _not_a_checkpoint("it has no weights under model")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise _not_a_checkpoint(f"model[{quoted(name)}] is not a tensor")
    return weights


def _updates(contents: Mapping[Any, Any]) -> int:
    history = contents.get("optimizer_history")
    last = _plain(history[-1]) if isinstance(history, list) and history else None
    updates = last.get("num_updates") if isinstance(last, dict) else None
    return updates if isinstance(updates, int) and updates >= 0 else 0


def _not_a_checkpoint(reason: str) -> ValueError:
    return ValueError(f"not a fairseq checkpoint of a language model: {reason}")


def _damaged(error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return ValueError(f"truncated, damaged or not a torch file: {reason}")
