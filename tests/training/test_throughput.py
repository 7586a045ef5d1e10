"""Operations per token, counted by hand for a small model; memory that was used."""

import platform

import numpy as np
import pytest
import torch

from zipflm.presets import preset
from zipflm.training.metrics import (
    flops_per_token,
    peak_flops,
    peak_memory,
    reset_peak_memory,
)


def test_a_token_meets_its_own_band_only():
    config = preset("tiny", "ADP-T")
    counts = np.zeros(4000, dtype=np.int64)
    counts[0] = 3  # three in four tokens in the head
    counts[500] = 1  # one in the first tail
    weights = config.params_by_part()["decoder.layers"]
    weights += 0.75 * 64 * 64 + 0.25 * 16 * 64  # input projections
    weights += 402 * 64 + 0.25 * 16 * (1200 + 64)  # head with classes, first tail
    attention = 6 * 2 * 64 * 32
    assert flops_per_token(config, counts, block=32) == pytest.approx(6 * weights + attention)


@pytest.mark.parametrize("name", ["SM", "SM-T", "BPE", "CNN", "ASM"])
def test_every_factorization_can_be_counted(name):
    config = preset("wikitext-103", name)
    counts = np.ones(config.vocab_size, dtype=np.int64)
    assert flops_per_token(config, counts, 512) > 6 * config.params_by_part()["decoder.layers"]


def test_a_tied_table_costs_as_much_as_an_untied_one():
    flops = [
        flops_per_token(preset("tiny", name), np.ones(4000, dtype=np.int64), 64)
        for name in ("SM", "SM-T")
    ]
    assert flops[0] == flops[1]


def test_a_cpu_has_no_known_peak_but_memory():
    assert peak_flops(torch.device("cpu")) is None
    assert peak_memory(torch.device("cpu")) > 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back")
def test_memory_that_was_freed_does_not_count_for_what_comes_next():
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before = peak_memory(cpu)
    blocks = [bytearray(b"x" * 100_000) for _ in range(3_000)]
    last = bytearray(b"x" * 100_000)  # above the others, so that these stay where they are
    del blocks
    assert peak_memory(cpu) > before + 250 * 2**20
    reset_peak_memory(cpu)
    assert peak_memory(cpu) < before + 50 * 2**20
    assert last
