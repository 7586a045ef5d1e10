"""Measure the speed of scoring a text token by token on a CPU, as in speech recognition."""

from __future__ import annotations

import time
from typing import Any

import torch
from numpy.typing import NDArray

from zipflm.model.language_model import LanguageModel

_WARM_UP_TOKENS = 10


@torch.inference_mode()
def streaming_speed(
    model: LanguageModel, ids: NDArray[Any], block: int, seconds: float = 1.0
) -> float:
    """Return the number of tokens per second if each is scored and then fed to the decoder.

    One block is read repeatedly, so a Transformer attends to half a block on average. The model is
    moved to the CPU and converted to float32.
    """
    model = model.to("cpu", torch.float32).eval()
    tokens = torch.tensor(ids[: block + 1], dtype=torch.int64)
    count, started = -_WARM_UP_TOKENS, time.perf_counter()
    while True:
        cache = model.new_cache(1, len(tokens))
        for word, target in zip(tokens[:-1], tokens[1:], strict=True):
            hidden = model(word.view(1, 1), cache)[0]
            model.output.nll(hidden, target.view(1)).item()
            count += 1
            if count == 0:
                started = time.perf_counter()
            elif count > 0 and (elapsed := time.perf_counter() - started) > seconds:
                return count / elapsed
