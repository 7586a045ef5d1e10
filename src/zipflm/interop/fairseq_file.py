"""Options and weights from a fairseq checkpoint, without fairseq and without running any of it.

Both kinds of contents: `args`, a flat Namespace, and `cfg`, options by section. Does not know what
options or weights mean, nor how they lie in the file (`torch_file` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from torch import Tensor

from zipflm.interop.messages import shown, type_name
from zipflm.interop.omegaconf_values import MISSING, named_values, resolved, unwrapped
from zipflm.interop.torch_file import TorchFile, read_torch_file
from zipflm.interop.torch_pickle import StoredTensor

# Far more than fairseq writes, and few enough to be looked at one by one.
_MAX_OPTIONS = 10_000
_MAX_WEIGHTS = 10_000
# A tied weight has two names. With more, a small file could fill the memory with copies.
_MAX_NAMES_OF_A_WEIGHT = 2


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
        file = read_torch_file(path)
        contents = file.contents
        if not isinstance(contents, dict):
            raise _foreign(f"it holds a {type_name(contents)}")
        options, model_options = _options(contents)
        weights = _weights(contents, file)
        return CheckpointFile(options, model_options, weights, _updates(contents))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _options(contents: Mapping[Any, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options as one flat list, whatever the file's style, and which are the model's."""
    if contents.get("cfg") is None:
        if "args" not in contents:
            raise _foreign("it has neither args nor cfg")
        return _section("args", contents["args"], {}), frozenset()
    sections = named_values(contents["cfg"])
    if sections is None:
        raise _foreign(f"cfg holds no options, but {type_name(contents['cfg'])}")
    model = _section("cfg.model", sections.get("model"), sections)
    task = _section("cfg.task", sections.get("task"), sections)
    task_name = task.pop("_name", None)
    arch = model.pop("_name", None)
    # A section that is a Namespace holds the flat list, options of training among them.
    is_sectioned = isinstance(unwrapped(sections["model"]), dict)
    # A field of both is the model's: it was filled in from the task where it was left open.
    names = {"task": task_name or task.get("task"), "arch": model.get("arch", arch)}
    return task | model | names, frozenset(model) if is_sectioned else frozenset()


def _section(name: str, value: Any, sections: Mapping[Any, Any]) -> dict[str, Any]:
    fields = named_values(value)
    if fields is None:
        raise _foreign(f"{name} holds no options, but {type_name(value)}")
    if len(fields) > _MAX_OPTIONS:
        raise _foreign(f"{name} holds {len(fields):,} options")
    for field in fields:
        if not isinstance(field, str):
            raise _foreign(f"{name} holds no options: one has the name {shown(field)}")
    options = {field: resolved(value, sections) for field, value in fields.items()}
    return {field: value for field, value in options.items() if value != MISSING}


def _weights(contents: Mapping[Any, Any], file: TorchFile) -> dict[str, Tensor]:
    weights = contents.get("model")
    if not isinstance(weights, dict) or not weights:
        raise _foreign("it has no weights under model")
    if len(weights) > _MAX_WEIGHTS:
        raise _foreign(f"it has {len(weights):,} weights")
    for name, stored in weights.items():
        if not isinstance(name, str):
            raise _foreign(f"one of its weights has the name {shown(name)}")
        if not isinstance(stored, StoredTensor):
            raise _foreign(f"model[{shown(name)}] is a {type_name(stored)}, not a tensor")
        if not stored.shape or 0 in stored.shape:
            raise _foreign(f"model[{shown(name)}] has the shape {stored.shape}")
        # One number can stand for any shape; a copy of it would fill the memory.
        if stored.num_bytes > stored.storage.num_bytes:
            raise _foreign(f"model[{shown(name)}] has more numbers than the file holds for it")
    named = sum(stored.num_bytes for stored in weights.values())
    storages = {stored.storage.key: stored.storage.num_bytes for stored in weights.values()}
    held = sum(storages.values())
    if named > _MAX_NAMES_OF_A_WEIGHT * held:
        raise _foreign(f"its weights are {named:,} bytes, made of only {held:,} in the file")
    return {name: file.tensor(stored) for name, stored in weights.items()}


def _updates(contents: Mapping[Any, Any]) -> int:
    history = contents.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    updates = last.get("num_updates") if isinstance(last, dict) else None
    return updates if isinstance(updates, int) and 0 <= updates < 2**63 else 0


def _foreign(reason: str) -> ValueError:
    return ValueError(f"no fairseq checkpoint of a language model: {reason}")
