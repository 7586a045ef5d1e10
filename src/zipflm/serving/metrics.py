"""Counts of what the service does, as the text that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """May be added to from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Labels, int] = defaultdict(int)
        self._words: dict[Labels, int] = defaultdict(int)
        self._seconds: dict[Labels, _Histogram] = defaultdict(lambda: _Histogram(_SECONDS))
        self._batches: dict[Labels, _Histogram] = defaultdict(lambda: _Histogram(_SIZES))
        self._left = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[("path", path), ("status", str(status))] += 1
            self._seconds[(("path", path),)].add(seconds)

    def batch(self, kind: str, size: int) -> None:
        """So many texts went through a model together, to be scored or written."""
        with self._lock:
            self._batches[(("kind", kind),)].add(size)

    def words(self, kind: str, number: int) -> None:
        with self._lock:
            self._words[(("kind", kind),)] += number

    def client_left(self) -> None:
        with self._lock:
            self._left += 1

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """All of it, with values of the moment: name to value and what it means."""
        with self._lock:
            return "\n".join([*self._lines(gauges), ""])

    def _lines(self, gauges: Mapping[str, tuple[float, str]]) -> Iterator[str]:
        yield from _head("zipflm_requests_total", "counter", "Requests answered.")
        for labels, number in self._requests.items():
            yield _line("zipflm_requests_total", labels, number)
        yield from _head("zipflm_request_seconds", "histogram", "From a request to its answer.")
        for labels, histogram in self._seconds.items():
            yield from histogram.lines("zipflm_request_seconds", labels)
        yield from _head("zipflm_batch_texts", "histogram", "Texts computed together.")
        for labels, histogram in self._batches.items():
            yield from histogram.lines("zipflm_batch_texts", labels)
        yield from _head("zipflm_words_total", "counter", "Words scored and generated.")
        for labels, number in self._words.items():
            yield _line("zipflm_words_total", labels, number)
        yield from _head("zipflm_clients_left_total", "counter", "Clients that did not wait.")
        yield _line("zipflm_clients_left_total", (), self._left)
        for name, (value, meaning) in gauges.items():
            yield from _head(name, "gauge", meaning)
            yield _line(name, (), value)


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", (*labels, ("le", str(bound))), total)
        yield _line(f"{name}_sum", labels, self._sum)
        yield _line(f"{name}_count", labels, total)


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
