"""A run in progress: everything that the loop and its helpers share."""

from __future__ import annotations

import math
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
    best_loss: float | None = None
    """Lowest loss on the part of the valid set that is always scored."""
    since_best: int = 0
    """Validations since then."""

    def see_valid(self, loss: float | None) -> None:
        """Note whether a validation improves on the best one."""
        best = math.inf if self.best_loss is None else self.best_loss
        if loss is not None and loss < best:
            self.best_loss, self.since_best = loss, 0
        else:
            self.since_best += 1

    @property
    def stops_early(self) -> bool:
        """The valid loss has not improved for too long."""
        return 0 < self.config.training.patience <= self.since_best

    @property
    def saves_now(self) -> bool:
        """The last validation is a reason to save a checkpoint."""
        return self.stops_early or (self.config.training.patience > 0 and self.since_best == 0)
