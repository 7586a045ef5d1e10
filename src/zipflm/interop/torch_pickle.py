"""What names mean in the pickles of torch and fairseq: tensors, containers, and other objects.

Tensors are described, not built: most of a checkpoint is the optimizer's and never used. Other
objects stay the records that `inert_pickle` makes of them; few are ever looked into.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from zipflm.interop.inert_pickle import InertUnpickler, Instance, Named
from zipflm.interop.messages import listed, shown

NAMESPACE = "argparse.Namespace"

_DTYPES = {
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Double": torch.float64,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
# Weights saved from a GPU name its storages; they are read into main memory all the same.
_STORAGES = {
    f"torch.{place}{kind}Storage": dtype
    for kind, dtype in _DTYPES.items()
    for place in ("", "cuda.")
}
_DICTIONARIES = frozenset({"collections.OrderedDict", "collections.defaultdict"})
# omegaconf notes the types of options. Pickles of protocol 2 use Python 2's names for these.
_TYPES = frozenset(
    f"{module}.{name}"
    for module in ("builtins", "__builtin__")
    for name in "bool bytes dict float int list long object set str tuple type unicode".split()
)
_KNOWN = frozenset(
    {
        NAMESPACE,
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        "_operator.getitem",  # List[int] and the like
        "pathlib.PosixPath",
        # numpy's numbers, which may be among the scores of past validations
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.dtype",
        "_codecs.encode",
        *_STORAGES,
        *_DICTIONARIES,
        *_TYPES,
    }
)
# Running averages, enumerations, configs. Only the names are used; nothing is imported.
_KNOWN_PACKAGES = ("fairseq.", "omegaconf.", "typing.")

_MAX_DIMENSIONS = 8
_MAX_NUMBERS = 2**48


@dataclass(frozen=True, slots=True)
class Storage:
    """A row of numbers that lies elsewhere in the file, under this key."""

    key: str
    dtype: torch.dtype
    length: int

    @property
    def num_bytes(self) -> int:
        return self.length * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor as a view of a storage that has not been read."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    name = "Tensor"  # in messages

    @property
    def num_bytes(self) -> int:
        """What a copy of it takes; more than its storage if numbers are repeated."""
        return prod(self.shape) * self.storage.dtype.itemsize

    def of(self, numbers: Tensor) -> Tensor:
        """The tensor, given all numbers of its storage."""
        return numbers.as_strided(self.shape, self.strides, self.offset)


class TorchUnpickler:
    """Reads the pickles of one file, and refuses those that name what no checkpoint needs."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        """All that the pickles refer to, by key."""
        self._unpickler = InertUnpickler(_build, self._storage)

    def load(self, stream: io.BytesIO) -> Any:
        """The value of the next pickle; raises ValueError for what is damaged or refused."""
        try:
            value = self._unpickler.load(stream)
        except ValueError as error:
            self._refuse_unknown_names()  # says more about the file than where reading ended
            raise ValueError(f"cut short, damaged or no file of torch: {error}") from None
        self._refuse_unknown_names()
        return value

    def _refuse_unknown_names(self) -> None:
        unknown = [
            name
            for name in sorted(self._unpickler.names - _KNOWN)
            if not name.startswith(_KNOWN_PACKAGES)
        ]
        if unknown:
            raise ValueError(
                f"refused, because it names {listed(unknown)}; zipflm reads tensors, plain values, "
                "and what fairseq and omegaconf make of them, and loads no other classes, because "
                "that could run foreign code"
            )

    def _storage(self, reference: Any) -> Storage:
        if not isinstance(reference, tuple) or len(reference) not in (5, 6):
            raise ValueError("a reference that is not a tensor's")
        what, kind, key, _, length = reference[:5]
        if what != "storage" or not isinstance(kind, Named) or kind.name not in _STORAGES:
            raise ValueError("a reference that is not a tensor's")
        if not isinstance(key, str) or len(key) > 100 or reference[5:] not in ((), (None,)):
            raise ValueError("a tensor of a kind that torch no longer writes")
        if not _is_size(length):
            raise ValueError(f"a tensor with {shown(length)} numbers")
        storage = Storage(key, _STORAGES[kind.name], length)
        if self.storages.setdefault(key, storage).num_bytes != storage.num_bytes:
            raise ValueError(f"two sizes for the numbers stored under {shown(key)}")
        return storage


def _build(name: str, arguments: tuple[Any, ...]) -> Any:
    if name in _BUILDERS:
        return _BUILDERS[name](arguments)
    return Instance(name, arguments)


def _dictionary(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    return {}  # entries follow; a default for missing ones is of no use here


def _parameter(arguments: tuple[Any, ...]) -> StoredTensor:
    if not arguments or not isinstance(arguments[0], StoredTensor):
        raise ValueError("a parameter that is not a tensor")
    return arguments[0]


def _tensor(arguments: tuple[Any, ...]) -> StoredTensor:
    if not 6 <= len(arguments) <= 7:
        raise ValueError("a tensor of a kind that fairseq does not write")
    # The last, where there is one, says that the numbers are to be negated or conjugated on use.
    if len(arguments) == 7 and arguments[6] not in (None, {}):
        raise ValueError("a tensor whose numbers are not what the file holds")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage) or not _is_size(offset):
        raise ValueError("a tensor without numbers")
    if not _is_shape(shape) or not _is_shape(strides) or len(shape) != len(strides):
        raise ValueError("a tensor without a shape")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if prod(shape) > 0 and last >= storage.length:
        raise ValueError(f"a tensor of {last + 1} numbers in a row of {storage.length}")
    return StoredTensor(storage, offset, shape, strides)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= _MAX_DIMENSIONS and all(map(_is_size, value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBERS


_BUILDERS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    **dict.fromkeys(_DICTIONARIES, _dictionary),
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}
