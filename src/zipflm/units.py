"""Nats, perplexities and bits: the one place that turns one into another."""

from __future__ import annotations

import math

LARGEST_LOSS = math.log(1e300)
"""In nats; what lies above has a perplexity beyond all numbers."""


def perplexity(nats: float) -> float:
    """exp(nats per word); infinite where that is beyond all numbers.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    if math.isnan(nats):
        return math.nan
    return math.exp(nats) if nats < LARGEST_LOSS else math.inf


NATS = {"logprob": 1.0, "bits": -math.log(2), "log10": math.log(10)}
"""A score of 1 as a natural log-probability, by the name of its column."""


def bits(nats: float) -> float:
    """The same amount of information in bits.

    >>> bits(math.log(8))
    3.0
    """
    return nats / math.log(2)
