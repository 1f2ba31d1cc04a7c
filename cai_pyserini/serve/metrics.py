"""Counters and latencies for Prometheus."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cai_pyserini.serve.service import Service

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The metrics of a service."""

    MEDIA_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, service: Service):
        self._registry = CollectorRegistry()
        self._requests = Counter("cai_requests", "Requests", ["route", "status"], registry=self._registry)
        self._seconds = Histogram(
            "cai_request_seconds", "Time to answer", ["route"], registry=self._registry, buckets=SECONDS
        )
        unanswered = Gauge("cai_unanswered_requests", "Requests that wait for an answer", registry=self._registry)
        unanswered.set_function(lambda: service.unanswered)
        service.batches = Histogram(
            "cai_batch_queries", "Queries answered together", registry=self._registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        ).observe

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
