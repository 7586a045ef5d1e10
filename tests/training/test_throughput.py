import os
import platform

import numpy as np
import pytest
import torch

from zipflm.presets import preset
from zipflm.training import throughput
from zipflm.training.throughput import (
    flops_per_token,
    peak_memory,
    reset_peak_memory,
    slow_cpu_warning,
)


def test_flops_count_only_the_band_of_a_token():
    config = preset("tiny", "ADP-T")
    counts = np.zeros(4000, dtype=np.int64)
    counts[0] = 3  # three in four tokens in the head
    counts[500] = 1  # one in the first tail
    weights = config.params_by_part()["decoder.layers"]
    weights += 0.75 * 64 * 64 + 0.25 * 16 * 64  # input projections
    weights += 402 * 64 + 0.25 * 16 * (1200 + 64)  # head with classes, first tail
    attention = 6 * 2 * 64 * 32
    assert flops_per_token(config, counts, block=32) == pytest.approx(6 * weights + attention)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc")
def test_freed_memory_does_not_count():
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before = peak_memory(cpu)
    blocks = [bytearray(b"x" * 100_000) for _ in range(3_000)]
    last = bytearray(b"x" * 100_000)  # allocated after the others
    del blocks
    assert peak_memory(cpu) > before + 200 * 2**20
    reset_peak_memory(cpu)
    assert peak_memory(cpu) < before + 50 * 2**20
    assert last


def test_warns_about_long_runs_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(throughput, "cpu_speed", lambda: 4e9)
    warning = slow_cpu_warning(113 * 3600 * 1e9, "wikitext-2/ADP-T")
    assert warning.startswith("no GPU: wikitext-2/ADP-T needs about 110 hours here")
    assert "tiny, demo or small" in warning
    assert slow_cpu_warning(1800 * 1e9, "x") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert slow_cpu_warning(1e30, "x") is None
