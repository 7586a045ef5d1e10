"""The constants of `model.band_search`, measured at toy size and recovered from made-up times."""

import pytest
from benchmark_scripts import load


def test_it_runs_at_toy_size(capsys):
    benchmark = load("band_costs")
    small = ["--tokens", "16", "--dim", "32", "--words", "20", "--repeats", "1"]
    benchmark.main(["--device", "cpu", *small])
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("per_logit ") and "tail_product" in last and "per_tail" in last


def test_times_made_of_constants_give_the_constants_back():
    benchmark = load("band_costs")
    made = {}
    for layer in benchmark.layers(256, 3000):
        work = layer.share * layer.words * (layer.width + 40)
        made[layer] = 1e-9 * 512 * (work if layer.is_head else 3 * work + 70_000)
    costs = benchmark.fit(made, 512)
    assert (costs.per_logit, costs.tail_product, costs.per_tail) == pytest.approx((40, 3, 70_000))
