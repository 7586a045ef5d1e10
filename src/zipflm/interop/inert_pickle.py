"""The values in a pickle, found by an interpreter that can neither import nor call anything.

A pickle is a program, and Python's unpickler imports and calls whatever it names. torch's
restricted unpickler (`weights_only=True`) calls only what is on a list, but a file can make it use
any amount of time and memory (shared tuples as keys take exponential time to hash) or replace the
methods of a dictionary by attributes, and it opens the file by itself: it may see other bytes than
those that were checked. A subclass of `pickle.Unpickler` has the same weakness towards keys, and
cannot count what it does. Hence this interpreter. It is given bytes that were read once, and

- turns a name into a `Named`, and a call into an `Instance` that records what was to be called, or
  into whatever the caller's `build` makes of these;
- hashes only short strings and 64-bit integers, and compares and copies nothing, so that time and
  memory are proportional to the length of the pickle;
- limits the number of opcodes, and does not recurse, however deeply values are nested.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zipflm.interop.messages import plain_text, shown

# fairseq takes about 45 opcodes and 250 bytes for a tensor, and has a few thousand tensors, the
# optimizer's included. The limits allow for over 10,000; so many are read in two seconds.
MAX_OPCODES = 500_000
MAX_BYTES = 16 * 2**20

_MAX_NAMES = 1_000
_MAX_NAME = 200
_MAX_KEY = 1_000
_MAX_BITS = 512  # of an integer; Python refuses to print those that are far longer


@dataclass(frozen=True, slots=True)
class Named:
    """Stands for a class or function, which was not imported."""

    name: str


@dataclass(slots=True, eq=False)
class Instance:
    """Stands for an object: what was to be called, with what, and the attributes it would get."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


class InertUnpickler:
    """Reads the pickles of one file; all of them share the limit on opcodes."""

    def __init__(
        self,
        build: Callable[[str, tuple[Any, ...]], Any] = Instance,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        """`build(name, arguments)` makes the value of a call, `persistent(id)` of a reference.

        Both must take constant time, and raise ValueError for what they do not understand.
        """
        self.names: set[str] = set()
        """Every name in the pickles, also in one that could be read only in part."""
        self._build = build
        self._persistent = persistent
        self._num_opcodes = 0
        self._reset()

    def _reset(self) -> None:
        self._stack: list[Any] = []
        self._outer_stacks: list[list[Any]] = []  # below each mark
        self._memo: dict[int, Any] = {}

    def load(self, stream: io.BytesIO) -> Any:
        """The value of the next pickle in the stream, which is left right behind it."""
        self._reset()
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                self._num_opcodes += 1
                if self._num_opcodes > MAX_OPCODES:
                    raise ValueError(f"more than {MAX_OPCODES:,} opcodes")
                self._do(opcode.name, argument)
            return self._stack.pop()
        except KeyError as error:
            raise ValueError(f"its pickle uses a value {error} that it did not store") from None
        except IndexError:
            raise ValueError("its pickle uses a value that it did not make") from None
        except (ValueError, OverflowError) as error:
            raise ValueError(f"its pickle cannot be read: {plain_text(str(error))}") from None

    def _do(self, opcode: str, argument: Any) -> None:
        if opcode in _PUSH_ARGUMENT:
            if isinstance(argument, int) and argument.bit_length() > _MAX_BITS:
                raise ValueError(f"an integer of {argument.bit_length():,} bits")
            self._stack.append(argument)
        elif opcode in _PUSH_CONSTANT:
            self._stack.append(_PUSH_CONSTANT[opcode]())
        elif opcode in _TUPLES:
            self._stack.append(self._pop_tuple(_TUPLES[opcode]))
        elif opcode in _METHODS:
            _METHODS[opcode](self, argument)
        elif opcode not in _NO_EFFECT:
            raise ValueError(f"the opcode {opcode}, which torch does not write")

    # Stack and memo

    def _mark(self, _: Any) -> None:
        self._outer_stacks.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer_stacks.pop()
        return items

    def _pop_tuple(self, length: int) -> tuple[Any, ...]:
        items = [self._stack.pop() for _ in range(length)]
        return tuple(reversed(items))

    def _pop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_to_mark()

    def _pop_mark(self, _: Any) -> None:
        self._pop_to_mark()

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _memoize(self, _: Any) -> None:
        self._put(len(self._memo))

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    # Containers

    def _tuple(self, _: Any) -> None:
        items = tuple(self._pop_to_mark())
        self._stack.append(items)

    def _list(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._stack.append(items)

    def _dict(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._stack.append({})
        self._set_items(items)

    def _append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Instance):  # an object's items are of no interest
            raise ValueError("items for what is no list")

    def _setitem(self, _: Any) -> None:
        self._set_items(list(self._pop_tuple(2)))

    def _setitems(self, _: Any) -> None:
        self._set_items(self._pop_to_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if len(items) % 2:
            raise ValueError("a key without a value")
        if isinstance(target, Instance):
            return
        if not isinstance(target, dict):
            raise ValueError("entries for what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not _is_key(key):
                raise ValueError(f"the key {shown(key)}; only short texts and numbers are read")
            target[key] = value

    # Names and objects

    def _global(self, argument: str) -> None:
        self._push_name(argument.replace(" ", "."))

    def _stack_global(self, _: Any) -> None:
        parts = self._pop_tuple(2)
        if not all(isinstance(part, str) and len(part) <= _MAX_NAME for part in parts):
            raise ValueError("a name that is not a short text")
        self._push_name(".".join(parts))

    def _push_name(self, name: str) -> None:
        self.names.add(name)
        if len(self.names) > _MAX_NAMES:
            raise ValueError(f"more than {_MAX_NAMES:,} names of classes")
        self._stack.append(Named(name))

    def _inst(self, argument: str) -> None:
        self._global(argument)
        named = self._stack.pop()
        self._call(named, tuple(self._pop_to_mark()))

    def _obj(self, _: Any) -> None:
        named, *arguments = self._pop_to_mark()
        self._call(named, tuple(arguments))

    def _reduce(self, _: Any) -> None:
        self._call(*self._pop_tuple(2))

    def _newobj_ex(self, _: Any) -> None:
        self._call(*self._pop_tuple(3)[:2])  # the third are arguments by name

    def _call(self, named: Any, arguments: Any) -> None:
        if not isinstance(named, Named) or not isinstance(arguments, tuple):
            raise ValueError("a call of what has no name")
        self._stack.append(self._build(named.name, arguments))

    def _set_state(self, _: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, Instance):
            if target.state is not None:
                raise ValueError("attributes set twice")
            target.state = state
        elif not isinstance(target, dict):  # attributes of a dictionary are of no interest
            raise ValueError("attributes for what is no object")

    def _persid(self, _: Any) -> None:
        if self._persistent is None:
            raise ValueError("a reference to something outside")
        self._stack.append(self._persistent(self._stack.pop()))


def _is_key(key: Any) -> bool:
    if isinstance(key, str):
        return len(key) <= _MAX_KEY
    return isinstance(key, int) and key.bit_length() < 64


_PUSH_ARGUMENT = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 "
    "BYTEARRAY8".split()
)
_PUSH_CONSTANT: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_METHODS: dict[str, Callable[[InertUnpickler, Any], None]] = {
    "MARK": InertUnpickler._mark,
    "POP": InertUnpickler._pop,
    "POP_MARK": InertUnpickler._pop_mark,
    "PUT": InertUnpickler._put,
    "BINPUT": InertUnpickler._put,
    "LONG_BINPUT": InertUnpickler._put,
    "MEMOIZE": InertUnpickler._memoize,
    "GET": InertUnpickler._get,
    "BINGET": InertUnpickler._get,
    "LONG_BINGET": InertUnpickler._get,
    "TUPLE": InertUnpickler._tuple,
    "LIST": InertUnpickler._list,
    "DICT": InertUnpickler._dict,
    "APPEND": InertUnpickler._append,
    "APPENDS": InertUnpickler._appends,
    "SETITEM": InertUnpickler._setitem,
    "SETITEMS": InertUnpickler._setitems,
    "GLOBAL": InertUnpickler._global,
    "STACK_GLOBAL": InertUnpickler._stack_global,
    "INST": InertUnpickler._inst,
    "OBJ": InertUnpickler._obj,
    "REDUCE": InertUnpickler._reduce,
    "NEWOBJ": InertUnpickler._reduce,
    "NEWOBJ_EX": InertUnpickler._newobj_ex,
    "BUILD": InertUnpickler._set_state,
    "BINPERSID": InertUnpickler._persid,
}
_NO_EFFECT = frozenset({"PROTO", "FRAME", "STOP"})
