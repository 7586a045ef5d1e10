"""The words of a batch, each once: for input layers that spend much on a word.

Real text repeats itself: five of six words of a batch have been seen in it before. Which ones is
found on the host, where a loader works ahead of the device.

Shapes: B sequences, T positions, U distinct words with their padding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SIZES = 16
"""Into how many sizes their number is rounded up: a compiled model has a version for each."""

_MARGIN = 1.125
"""Room for a batch with more words, so that it seldom takes another size."""


class DistinctWords(NamedTuple):
    """Words as places in a list that has each of them once."""

    ids_U: Tensor
    """Padded at the end with the id of the last word."""
    places_BT: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the text."""
        return self.places_BT.shape


def distinct_words(words_BT: Tensor, least: int = 0) -> DistinctWords:
    """The distinct words of a text on the host, padded to one of a few sizes, at least `least`."""
    ids, places_BT = torch.unique(words_BT, return_inverse=True)
    size = least
    if len(ids) > least:
        step = -(-words_BT.numel() // _SIZES)
        size = math.ceil(_MARGIN * len(ids) / step) * step
    return DistinctWords(torch.cat([ids, ids[-1:].expand(size - len(ids))]), places_BT)
