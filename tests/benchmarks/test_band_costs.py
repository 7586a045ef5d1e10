"""The constants of `model.band_search`, measured at toy size and recovered from made-up times."""

import pytest
from benchmark_scripts import load


def test_times_made_of_constants_give_the_constants_back():
    benchmark = load("band_costs")
    made = {}
    for layer in benchmark.layers(256, 3000):
        work = layer.share * layer.words * (layer.width + 40)
        made[layer] = 1e-9 * 512 * (work if layer.is_head else 3 * work + 70_000)
    costs = benchmark.fit(made, 512)
    assert (costs.per_logit, costs.tail_product, costs.per_tail) == pytest.approx((40, 3, 70_000))
