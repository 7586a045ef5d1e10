"""Conversions between nats, bits and perplexity."""

from __future__ import annotations

import math

LARGEST_LOSS = math.log(1e300)
"""In nats. The perplexity of a larger loss is reported as infinity; exp() would soon overflow."""


def perplexity(nats: float) -> float:
    """Return exp(nats), or infinity above 1e300.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    if math.isnan(nats):
        return math.nan
    return math.exp(nats) if nats < LARGEST_LOSS else math.inf


NATS = {"logprob": 1.0, "bits": -math.log(2), "log10": math.log(10)}
"""Factors that convert each score column to natural log-probabilities."""


def bits(nats: float) -> float:
    """Convert nats to bits.

    >>> bits(math.log(8))
    3.0
    """
    return nats / math.log(2)
