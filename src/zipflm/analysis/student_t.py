"""Student's t distribution for whole degrees of freedom, exactly and without a library.

For such degrees the distribution function is a finite sum of powers of a cosine (Abramowitz and
Stegun 26.7.3 and 26.7.4).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_HALVINGS = 60


def two_sided_p(t: NDArray[np.float64], degrees: int) -> NDArray[np.float64]:
    """Probability of a value at least as far from zero as each `t`.

    >>> two_sided_p(np.array([2.228]), 10).round(3).tolist()
    [0.05]
    """
    angle = np.arctan(np.abs(t) / np.sqrt(degrees))
    cosine, sine = np.cos(angle), np.sin(angle)
    is_odd = degrees % 2
    # Terms c, 2/3 c^3, 8/15 c^5, ... for odd degrees; 1, 1/2 c^2, 3/8 c^4, ... for even ones.
    term = cosine.copy() if is_odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term = term * cosine**2 * (power + 1) / (power + 2)
    inside = 2 / np.pi * (angle + sine * total) if is_odd else sine * total
    p: NDArray[np.float64] = np.clip(1 - inside, 0.0, 1.0)
    return p


@cache
def quantile(degrees: int, level: float = 0.95) -> float:
    """How many standard errors an interval of that level reaches to either side.

    >>> round(quantile(9), 3), round(quantile(29), 3)
    (2.262, 2.045)
    """
    low, high = 0.0, 1e6
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if two_sided_p(np.array([middle]), degrees)[0] > 1 - level:
            low = middle
        else:
            high = middle
    return high
