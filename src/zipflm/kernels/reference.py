"""The mathematics of the operations in plain PyTorch: the definition of correct.

Written to be read and to be compared with; it builds whole tables of logits.

Shapes: N tokens, E width, V words (of one softmax).
"""

from __future__ import annotations

from torch import Tensor

from zipflm.kernels.precision import statistics_dtype


def linear_nll(hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor) -> Tensor:
    """Negative log-probability in nats of each target under softmax(hidden @ weight.T).

    Exactly 0, with exactly no gradient, where `active_N` is False.
    """
    hidden_NE = hidden_NE.where(active_N.unsqueeze(1), 0.0)  # 0 times infinity would be NaN
    logits_NV = (hidden_NE @ weight_VE.T).to(statistics_dtype(hidden_NE.dtype))
    logp_NV = logits_NV.log_softmax(dim=-1)
    nll_N = -logp_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    return nll_N.where(active_N, 0.0)
