"""The fit of the cost constants of `model.band_search`."""

import pytest
from benchmark_scripts import load


def test_fit_recovers_constants_from_artificial_times():
    benchmark = load("band_costs")
    times = {}
    for layer in benchmark.layers(256, 3000):
        work = layer.share * layer.words * (layer.width + 40)
        times[layer] = 1e-9 * 512 * (work if layer.is_head else 3 * work + 70_000)
    costs = benchmark.fit(times, 512)
    assert (costs.per_logit, costs.tail_product, costs.per_tail) == pytest.approx((40, 3, 70_000))
