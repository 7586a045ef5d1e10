"""A run in progress: everything that the loop and its helpers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder
from zipflm.training.distributed import Process
from zipflm.training.log import Log
from zipflm.training.step import Learner
from zipflm.training.stream import Stream
from zipflm.training.tally import Tally


@dataclass
class Run:
    """One process's view of a run; all processes have the same numbers in it."""

    config: Config
    data: DataFolder
    folder: RunFolder
    process: Process
    learner: Learner
    stream: Stream
    tally: Tally
    log: Log
    update: int
    """Updates done."""
    compiled_blocks: set[int] = field(default_factory=set)
    """Lengths of blocks for which the model was compiled, or is about to be."""
    seconds_per_scored_word: float = 0.0
    """Of the last pass over the valid set, 0 before it."""
