"""Intervals cover source-dependent differences as often as documented."""

import pytest
from benchmark_scripts import load

benchmark = load("interval_coverage")


@pytest.mark.parametrize(("sources", "least"), [(4, 0.90), (6, 0.92), (10, 0.93), (15, 0.94)])
@pytest.mark.parametrize("text", ["equal sources", "unequal sources"])
def test_coverage_with_few_sources(text, sources, least):
    shown, coverage, width = benchmark.simulate(text, sources, spread=0.05, trials=200)
    assert shown >= 0.9 and coverage >= least and width < 4


@pytest.mark.parametrize("text", ["independent lines", "dependent lines", "short documents"])
def test_coverage_and_width_without_sources(text):
    shown, coverage, width = benchmark.simulate(text, sources=87, spread=0.05, trials=200)
    assert shown >= 0.99 and coverage >= 0.93 and width < 2.8
