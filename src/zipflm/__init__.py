"""Language models with adaptive input and adaptive softmax layers for large vocabularies.

Public names are imported on first use. `zipflm.AdaptiveEmbedding` needs only torch, and
`zipflm --help` does not even need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipflm.api import build_memory as build_memory
    from zipflm.api import compare as compare
    from zipflm.api import evaluate as evaluate
    from zipflm.api import prepare as prepare
    from zipflm.api import report as report
    from zipflm.api import train as train
    from zipflm.api import tune_memory as tune_memory
    from zipflm.config import Blocks as Blocks
    from zipflm.config import Config as Config
    from zipflm.config import ModelConfig as ModelConfig
    from zipflm.config import Tie as Tie
    from zipflm.data.batches import Batches as Batches
    from zipflm.data.folder import DataFolder as DataFolder
    from zipflm.data.vocabulary import Vocabulary as Vocabulary
    from zipflm.language.model import TrainedModel as TrainedModel
    from zipflm.language.model import load as load
    from zipflm.model.adaptive_softmax import AdaptiveSoftmax as AdaptiveSoftmax
    from zipflm.model.bands import Bands as Bands
    from zipflm.model.inputs import AdaptiveEmbedding as AdaptiveEmbedding
    from zipflm.model.language_model import LanguageModel as LanguageModel
    from zipflm.presets import preset as preset

__version__ = "0.1.0"

_NAMES = {
    "zipflm.api": (
        *("build_memory", "compare", "evaluate", "prepare", "report", "train", "tune_memory"),
    ),
    "zipflm.config": ("Blocks", "Config", "ModelConfig", "Tie"),
    "zipflm.data.batches": ("Batches",),
    "zipflm.data.folder": ("DataFolder",),
    "zipflm.data.vocabulary": ("Vocabulary",),
    "zipflm.language.model": ("TrainedModel", "load"),
    "zipflm.model.adaptive_softmax": ("AdaptiveSoftmax",),
    "zipflm.model.bands": ("Bands",),
    "zipflm.model.inputs": ("AdaptiveEmbedding",),
    "zipflm.model.language_model": ("LanguageModel",),
    "zipflm.presets": ("preset",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'zipflm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
