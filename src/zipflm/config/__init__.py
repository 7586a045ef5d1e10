"""Configs of models and training as frozen dataclasses.

Alternatives are unions of classes (`FixedInput | AdaptiveInput | CharacterInput`). Invalid values
raise a ValueError that names the field and says what to do. `zipflm.settings` reads, writes and
overrides configs.
"""

from zipflm.config.checks import require as require
from zipflm.config.decoder import DecoderConfig as DecoderConfig
from zipflm.config.decoder import GatedConvolutionDecoder as GatedConvolutionDecoder
from zipflm.config.decoder import LSTMDecoder as LSTMDecoder
from zipflm.config.decoder import QRNNDecoder as QRNNDecoder
from zipflm.config.decoder import TransformerDecoder as TransformerDecoder
from zipflm.config.layers import AdaptiveInput as AdaptiveInput
from zipflm.config.layers import AdaptiveOutput as AdaptiveOutput
from zipflm.config.layers import Banded as Banded
from zipflm.config.layers import CharacterInput as CharacterInput
from zipflm.config.layers import FixedInput as FixedInput
from zipflm.config.layers import FullOutput as FullOutput
from zipflm.config.layers import InputConfig as InputConfig
from zipflm.config.layers import OutputConfig as OutputConfig
from zipflm.config.layers import Tie as Tie
from zipflm.config.model import ModelConfig as ModelConfig
from zipflm.config.text import PLAIN as PLAIN
from zipflm.config.text import Blocks as Blocks
from zipflm.config.text import BreakMode as BreakMode
from zipflm.config.text import Rule as Rule
from zipflm.config.text import Splitting as Splitting
from zipflm.config.text import Unit as Unit
from zipflm.config.training import AdamW as AdamW
from zipflm.config.training import BatchConfig as BatchConfig
from zipflm.config.training import Config as Config
from zipflm.config.training import CosineCycles as CosineCycles
from zipflm.config.training import Muon as Muon
from zipflm.config.training import Nesterov as Nesterov
from zipflm.config.training import OptimizerConfig as OptimizerConfig
from zipflm.config.training import Recompute as Recompute
from zipflm.config.training import ScheduleConfig as ScheduleConfig
from zipflm.config.training import TrainingConfig as TrainingConfig
from zipflm.config.training import WarmupDecay as WarmupDecay
