"""Coverage of the 95% intervals of a difference, on simulated texts of 60,000 words.

    python benchmarks/interval_coverage.py [--trials 2000]

Two models share the difficulty of every line. One is worse by 0.1 nats on average, with a standard
deviation between sources of `spread` nats. Sources are consecutive lines without headings, of equal
length or with lengths that differ up to threefold. Other texts consist of independent lines, of
autocorrelated lines (half of the effect is left after seven lines), or of short documents of 10 to
59 lines. `shown` is the share of texts for which an interval is given, `coverage` the share of
these intervals that contain the true difference, and `width` their median half-width in true
standard errors (ideally 1.96).
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import Vocabulary
from zipflm.studies.statistics import Interval, Sample

FloatArray = NDArray[np.float64]
LINES, WORDS_PER_LINE = 3000, 20
TRUTH = 0.1
"""True difference in nats per word."""
VOCABULARY = Vocabulary.from_counts({"word": 1})


def source_lengths(text: str, sources: int, random: np.random.Generator) -> FloatArray:
    """Return the relative lengths of the sources."""
    if text == "short documents":
        return random.integers(10, 60, size=sources).astype(float)
    return random.uniform(0.5, 1.5, size=sources) if "unequal" in text else np.ones(sources)


def line_effects(text: str, sources: int, spread: float, random: np.random.Generator) -> FloatArray:
    """Return the deviation of each line's difference from the true mean."""
    if text == "independent lines":
        return spread * random.normal(size=LINES)
    if text == "dependent lines":
        noise = random.normal(size=LINES)
        for i in range(1, LINES):
            noise[i] = 0.9 * noise[i - 1] + (1 - 0.9**2) ** 0.5 * noise[i]
        return spread * noise
    ends = np.cumsum(source_lengths(text, sources, random))
    source = np.searchsorted(ends, (np.arange(LINES) + 0.5) / LINES * ends[-1])
    return (spread * random.normal(size=sources))[source]


def difference(effect: FloatArray, random: np.random.Generator) -> tuple[float, Interval | None]:
    """Return the difference of two models and its interval. Each line is one sample."""
    noise = random.normal(size=(2, LINES)) / WORDS_PER_LINE**0.5
    first = 5 + 2 * noise[0]
    nll = {"SM": first[None], "ADP": (first + TRUTH + effect + noise[1])[None]}
    sample = Sample(np.full(LINES, 4), np.arange(LINES), VOCABULARY, nll, "SM")
    estimates = sample.estimates(np.ones(LINES, dtype=bool))
    adp_minus_sm = estimates["ADP"] - estimates["SM"]
    return adp_minus_sm.value, adp_minus_sm.interval


def simulate(text: str, sources: int, spread: float, trials: int) -> tuple[float, float, float]:
    """Return the share of intervals shown, their coverage, and median width in standard errors."""
    random = np.random.default_rng([sources, round(1000 * spread), len(text)])
    results = [
        difference(line_effects(text, sources, spread, random), random) for _ in range(trials)
    ]
    shown = [interval for _, interval in results if interval is not None]
    covered = [interval.low <= TRUTH <= interval.high for interval in shown]
    error = float(np.std([value for value, _ in results]))
    width = float(np.median([interval.high - interval.low for interval in shown])) / 2 / error
    return len(shown) / trials, float(np.mean(covered)), width


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    cases = [(text, 0) for text in ("independent lines", "dependent lines")]
    cases += [("short documents", 87)]
    cases += [
        (f"{kind} sources", number)
        for kind in ("equal", "unequal")
        for number in (2, 3, 4, 6, 10, 15)
    ]
    print("| text | sources | spread | shown | coverage | width |")
    print("| --- | --- | --- | --- | --- | --- |")
    for text, sources in cases:
        for spread in (0.02, 0.05, 0.2):
            shown, coverage, width = simulate(text, sources, spread, trials)
            numbers = f"{shown:.2f} | {coverage:.3f} | {width:.2f}"
            print(f"| {text} | {sources or ''} | {spread} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
