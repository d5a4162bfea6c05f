"""What /metrics tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counts of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mch_requests", "Requests by route, method and status", ["route", "method", "status"],
            registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "mch_request_seconds", "Seconds per request", ["route"], buckets=SECONDS,
            registry=self._registry,
        )  # fmt: skip
        self._batches = Histogram(
            "mch_batch_size", "Items that were worked on together", ["work"], buckets=SIZES,
            registry=self._registry,
        )  # fmt: skip
        self._routes: set[str] = set()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self._registry).set_function(value)

    def know(self, routes: set[str]) -> None:
        """Which paths are counted by their names; all others are counted together."""
        self._routes = routes

    def batch(self, work: str) -> Callable[[int], None]:
        """What counts the sizes of batches of one kind of work."""
        sizes = self._batches.labels(work)
        return lambda size: sizes.observe(size)

    def request(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        path = scope["path"]
        route = path if path in self._routes else "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


_METHODS = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}
