"""Prometheus metrics of a service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters and histograms in their own registry, safe to update from any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "zipflm_requests",
            "Finished requests. Status 499: the client disconnected before the response.",
            ["path", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "zipflm_request_seconds",
            "Time from a request to the end of its response.",
            ["path"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.batches = Histogram(
            "zipflm_batch_texts",
            "Texts per batch.",
            ["kind"],
            buckets=_SIZE_BUCKETS,
            registry=registry,
        )
        self.tokens = Counter(
            "zipflm_tokens", "Tokens scored and generated.", ["kind"], registry=registry
        )
        self.disconnects = Counter(
            "zipflm_client_disconnects",
            "Clients that disconnected early.",
            registry=registry,
        )
        self.waiting = Gauge(
            "zipflm_requests_waiting",
            "Jobs in the queue (one or two per request).",
            registry=registry,
        )
        self.in_progress = Gauge(
            "zipflm_requests_in_progress",
            "Unfinished jobs (one or two per request).",
            registry=registry,
        )
        self.generating = Gauge(
            "zipflm_generations_in_progress", "Texts being generated.", registry=registry
        )
