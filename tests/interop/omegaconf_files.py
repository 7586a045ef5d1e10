"""Pickle configurations like omegaconf 2.0.6 and 2.3.0, without omegaconf."""

import collections
import contextlib
import enum
import sys
import types
import typing
import unittest.mock

_PACKAGES = ["omegaconf", "fairseq", "fairseq.dataclass", "fairseq.models"]
_CLASSES = {
    "fairseq.dataclass.constants": [],
    "omegaconf.dictconfig": ["DictConfig"],
    "omegaconf.listconfig": ["ListConfig"],
    "omegaconf.base": ["ContainerMetadata", "Metadata"],
    "omegaconf.nodes": ["AnyNode", "StringNode", "IntegerNode", "FloatNode", "BooleanNode"],
    "fairseq.models.transformer_lm": ["TransformerLanguageModelConfig"],
}
_NODES = {str: "StringNode", int: "IntegerNode", float: "FloatNode", bool: "BooleanNode"}


class Activation(enum.Enum):
    RELU = "relu"

    def __reduce_ex__(self, protocol):  # Python 3.11.0 to 3.11.3 would pickle a call of getattr
        return self.__class__, (self.value,)


Activation.__module__ = "fairseq.dataclass.constants"


@contextlib.contextmanager
def omegaconf_classes():
    """Context in which these classes can be pickled."""
    modules = {name: types.ModuleType(name) for name in [*_PACKAGES, *_CLASSES]}
    for name, classes in _CLASSES.items():
        for class_ in classes:
            setattr(modules[name], class_, type(class_, (), {"__module__": name}))
    modules["fairseq.dataclass.constants"].Activation = Activation
    with unittest.mock.patch.dict(sys.modules, modules):
        yield


def as_omegaconf(value, *, typed=False, parent=None, key=None):
    """Wrap a value in omegaconf containers and nodes; needs `omegaconf_classes`."""
    if isinstance(value, dict):
        found = _made("omegaconf.dictconfig", "DictConfig", parent, key, container=True)
        found._content = {
            name: as_omegaconf(inner, typed=typed, parent=found, key=name)
            for name, inner in value.items()
        }
    elif isinstance(value, list):
        found = _made("omegaconf.listconfig", "ListConfig", parent, key, container=True)
        found._content = [
            as_omegaconf(inner, typed=typed, parent=found, key=place)
            for place, inner in enumerate(value)
        ]
    else:
        kind = _NODES.get(type(value), "AnyNode") if typed else "AnyNode"
        found = _made("omegaconf.nodes", kind, parent, key, container=False)
        found._val = value
    return found


def _made(module, name, parent, key, *, container):
    metadata_name = "ContainerMetadata" if container else "Metadata"
    metadata = getattr(sys.modules["omegaconf.base"], metadata_name)()
    config = sys.modules["fairseq.models.transformer_lm"].TransformerLanguageModelConfig
    metadata.ref_type = typing.List[int] if key == "model" else typing.Any  # noqa: UP006
    metadata.object_type = config if key == "model" else dict
    metadata.optional, metadata.key, metadata.flags = True, key, {}
    metadata.resolver_cache = collections.defaultdict(dict)
    made = getattr(sys.modules[module], name)()
    made._metadata, made._parent = metadata, parent
    return made
