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

_HOME = {
    "AdaptiveEmbedding": "zipflm.model.inputs",
    "AdaptiveSoftmax": "zipflm.model.adaptive_softmax",
    "Bands": "zipflm.model.bands",
    "Batches": "zipflm.data.batches",
    "Blocks": "zipflm.config",
    "Config": "zipflm.config",
    "DataFolder": "zipflm.data.folder",
    "LanguageModel": "zipflm.model.language_model",
    "ModelConfig": "zipflm.config",
    "Tie": "zipflm.config",
    "TrainedModel": "zipflm.language.model",
    "Vocabulary": "zipflm.data.vocabulary",
    "build_memory": "zipflm.api",
    "compare": "zipflm.api",
    "evaluate": "zipflm.api",
    "load": "zipflm.language.model",
    "prepare": "zipflm.api",
    "preset": "zipflm.presets",
    "report": "zipflm.api",
    "train": "zipflm.api",
    "tune_memory": "zipflm.api",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'zipflm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
