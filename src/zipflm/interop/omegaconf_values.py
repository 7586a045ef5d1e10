"""The plain values in a configuration that was saved as objects of omegaconf.

Between two releases, fairseq saved its `cfg` not as plain dictionaries but in omegaconf's own
containers: a section is a DictConfig, an option a node with a value, and an option that repeats
another one has the text `${section.option}`. Neither omegaconf nor fairseq is needed to read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zipflm.interop.inert_pickle import Instance
from zipflm.interop.torch_pickle import NAMESPACE

MISSING = "???"  # omegaconf's word for an option that has no value

_CONTAINERS = ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig")
_REFERENCE = re.compile(r"\$\{(\w{1,100})\.(\w{1,100})\}", re.ASCII)
# A value in a node in a section, or a reference to a reference: more is no configuration.
_MAX_STEPS = 4


def unwrapped(value: Any) -> Any:
    """The value in an omegaconf node or container, or any other value as it is.

    The elements of a container are not unwrapped. An enumeration's member is its text.
    """
    for _ in range(_MAX_STEPS):
        if not isinstance(value, Instance):
            return value
        inner = _inner(value)
        if inner is value:
            return value
        value = inner
    return value


def _inner(instance: Instance) -> Any:
    state = instance.state
    if instance.name in _CONTAINERS and isinstance(state, dict) and "_content" in state:
        return state["_content"]
    if instance.name.startswith("omegaconf.nodes.") and isinstance(state, dict) and "_val" in state:
        return state["_val"]
    if instance.name.startswith("fairseq.") and state is None and len(instance.arguments) == 1:
        text = instance.arguments[0]
        return text if isinstance(text, str) else instance
    return instance


def named_values(value: Any) -> Mapping[Any, Any] | None:
    """The entries of a section, be it a dictionary, a DictConfig or a Namespace; else None."""
    value = unwrapped(value)
    if isinstance(value, Instance) and value.name == NAMESPACE:
        value = {} if value.state is None else value.state
    return value if isinstance(value, dict) else None


def resolved(value: Any, sections: Mapping[Any, Any]) -> Any:
    """An option's value, unwrapped, with `${section.option}` followed to where it leads.

    A reference that leads nowhere stays the text that it is.
    """
    value = unwrapped(value)
    for _ in range(_MAX_STEPS):
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            return value
        section = named_values(sections.get(reference[1])) or {}
        if reference[2] not in section:
            return value
        value = unwrapped(section[reference[2]])
    return value
