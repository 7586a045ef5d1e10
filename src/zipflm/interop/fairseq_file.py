"""Options and weights from a fairseq checkpoint, without fairseq and without running any of it.

torch's restricted loader reads the file. Whatever it names of fairseq, omegaconf and a few more
becomes an instance of an empty class that keeps what it was given; any other name is refused. Knows
both kinds of contents: `args`, a flat Namespace, and `cfg`, options by section.
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

_KEPT_APART = re.compile(
    r"(fairseq|omegaconf|typing)\..*"
    r"|argparse\.Namespace|pathlib\.PosixPath"
    # Types of options, as omegaconf notes them: int, or List[int].
    r"|builtins\.(bool|bytes|dict|float|int|list|object|str|tuple|type)|_operator\.getitem"
    # A best loss among the scores of past validations may be one of numpy's numbers.
    r"|numpy\.dtype|numpy\._?core\.multiarray\.scalar"
)
_PYTHON_2 = {"long": "int", "unicode": "str"}  # whose names a pickle of protocol 2 uses
_STREAM_PICKLES = 4  # in front of the numbers, in files from before torch 1.6
_MISSING = "???"  # omegaconf's word for an option that has no value
_REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}", re.ASCII)


class _Foreign:
    """Stands for an object of a class that is not imported."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


@dataclass(frozen=True)
class CheckpointFile:
    """The parts of a checkpoint that say what its model computes."""

    options: dict[str, Any]
    """Those of the model and of the task by name; `arch` and `task` say which these are."""
    model_options: frozenset[str]
    """Names of those known to be the model's; none if the file has a single flat list."""
    weights: dict[str, Tensor]
    """fairseq's state dictionary; views of the mapped file, so copy what is to be kept."""
    updates: int
    """How many updates the model was trained for."""


def read_checkpoint(path: str | PathLike[str]) -> CheckpointFile:
    """Read a language model's checkpoint.

    Raises ValueError, naming file and reason, for what is cut short, foreign or hostile.
    """
    try:
        contents = _plain(_load(path))
        if not isinstance(contents, dict):
            raise _no_checkpoint(f"it holds a {type(contents).__name__}")
        options, model_options = _options(contents)
        return CheckpointFile(options, model_options, _weights(contents), _updates(contents))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def _load(path: str | PathLike[str]) -> Any:
    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"
        file.seek(0)
        # torch maps the numbers of an archive only, and only where they are not compressed.
        names, can_be_mapped = _inspect(file) if is_archive else (_stream_names(file), False)
    allowed: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
        (type(name, (_Foreign,), {}), name) for name in names if _KEPT_APART.fullmatch(name)
    ]
    allowed.append((_dictionary, "collections.defaultdict"))
    try:
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a pickle's protocol, or TorchScript
            return torch.load(path, "cpu", weights_only=True, mmap=can_be_mapped)
    except pickle.UnpicklingError as error:
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"refused, because it names {unquoted(refused[1])}; zipflm reads tensors, plain "
                "values, and what fairseq and omegaconf make of them, and loads no other classes, "
                "because that could run foreign code"
            ) from None
        raise ValueError("cut short, damaged or no file that torch.save wrote") from None
    except Exception as error:  # torch raises many kinds for bytes that are none of its files
        raise _damaged(error) from None


def _inspect(file: BinaryIO) -> tuple[set[str], bool]:
    """The names in an archive whose checksums are right, and whether nothing is compressed."""
    try:
        with zipfile.ZipFile(file) as archive:
            if (member := archive.testzip()) is not None:
                raise ValueError(f"the checksum of its member {quoted(member)} is wrong")
            program = next((n for n in archive.namelist() if n.endswith("/data.pkl")), None)
            if program is None:
                raise ValueError("an archive without data.pkl")
            names = _names(io.BytesIO(archive.read(program)))
            stored = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
            return names, stored
    except Exception as error:
        raise _damaged(error) from None


def _stream_names(file: BinaryIO) -> set[str]:
    try:
        return set[str]().union(*(_names(file) for _ in range(_STREAM_PICKLES)))
    except (ValueError, OverflowError, MemoryError):  # for lengths that bytes at random mean
        raise ValueError(
            "not a checkpoint that torch.save wrote, or cut short; name a whole .pt file"
        ) from None


def _names(stream: io.BytesIO | BinaryIO) -> set[str]:
    """The names in the next pickle of the stream, which is not run."""
    found = (text for opcode, text, _ in pickletools.genops(stream) if opcode.name == "GLOBAL")
    return {_python_3(str(text).replace(" ", ".")) for text in found}


def _python_3(name: str) -> str:
    module, _, kind = name.rpartition(".")
    return f"builtins.{_PYTHON_2.get(kind, kind)}" if module == "__builtin__" else name


def _dictionary(*arguments: Any) -> dict[Any, Any]:
    return {}  # entries follow; a default for missing ones is of no use here


def _plain(value: Any) -> Any:
    """A dictionary without attributes, which in a file may hide its methods; else the value."""
    return dict(dict.items(value)) if isinstance(value, dict) else value


def _options(contents: Mapping[Any, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options as one flat list, whatever the file's style, and which are the model's."""
    if contents.get("cfg") is None:
        if "args" not in contents:
            raise _no_checkpoint("it has neither args nor cfg")
        return _section("args", contents["args"], {}), frozenset()
    sections = _entries(contents["cfg"]) or {}
    model = _section("cfg.model", sections.get("model"), sections)
    task = _section("cfg.task", sections.get("task"), sections)
    task_name = task.pop("_name", None)
    arch = model.pop("_name", None)
    # A section that is a Namespace holds the flat list, options of training among them.
    is_sectioned = isinstance(_unwrapped(sections["model"]), dict)
    # A field of both is the model's: it was filled in from the task where it was left open.
    names = {"task": task_name or task.get("task"), "arch": model.get("arch", arch)}
    return task | model | names, frozenset(model) if is_sectioned else frozenset()


def _section(name: str, value: Any, sections: Mapping[Any, Any]) -> dict[str, Any]:
    fields = _entries(value)
    if fields is None or not all(isinstance(field, str) for field in fields):
        raise _no_checkpoint(f"{name} holds no options by name")
    options = {field: _resolved(value, sections) for field, value in fields.items()}
    return {
        field: value
        for field, value in options.items()
        if not (isinstance(value, str) and value == _MISSING)
    }


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """The entries of a section, be it a dictionary, a DictConfig or a Namespace; else None."""
    value = _unwrapped(value)
    if isinstance(value, _Foreign) and type(value).__name__ == "argparse.Namespace":
        value = value.state or {}
    return _plain(value) if isinstance(value, dict) else None


def _unwrapped(value: Any) -> Any:
    """The value in an omegaconf node or container, or any other value as it is.

    Between two releases, fairseq saved its `cfg` in omegaconf's own containers: a section is a
    DictConfig, an option a node with a value. An enumeration's member is its text.
    """
    if not isinstance(value, _Foreign):
        return value
    if isinstance(value.state, dict):
        for attribute in ("_content", "_val"):
            if attribute in value.state:
                return _unwrapped(value.state[attribute])
    is_member = type(value).__name__.startswith("fairseq.") and len(value.arguments) == 1
    return value.arguments[0] if is_member else value


def _resolved(value: Any, sections: Mapping[Any, Any]) -> Any:
    """An option's value, with omegaconf's `${section.option}` followed to where it leads.

    A reference that leads nowhere stays the text that it is.
    """
    value = _unwrapped(value)
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    section = _entries(sections.get(reference[1])) or {}
    return _resolved(section[reference[2]], sections) if reference[2] in section else value


def _weights(contents: Mapping[Any, Any]) -> dict[str, Tensor]:
    weights = _plain(contents.get("model"))
    if not isinstance(weights, dict) or not weights:
        raise _no_checkpoint("it has no weights under model")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not _is_table(tensor):
            raise _no_checkpoint(f"model[{quoted(name)}] is not a table of weights")
    return weights


def _is_table(value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    return is_dense and value.ndim > 0 and not value.is_complex()


def _updates(contents: Mapping[Any, Any]) -> int:
    history = contents.get("optimizer_history")
    last = _plain(history[-1]) if isinstance(history, list) and history else None
    updates = last.get("num_updates") if isinstance(last, dict) else None
    return updates if isinstance(updates, int) and updates >= 0 else 0


def _no_checkpoint(reason: str) -> ValueError:
    return ValueError(f"no fairseq checkpoint of a language model: {reason}")


def _damaged(error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return ValueError(f"cut short, damaged or no file of torch: {reason}")
