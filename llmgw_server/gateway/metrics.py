"""What Prometheus sees of the gateway."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class GatewayMetrics:
    """Counters and histograms, per model; a client's own words never become a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "llmgw_gateway_requests",
            "Requests by how they ended",
            ["model", "outcome"],
            registry=registry,
        )
        self.tokens = Counter(
            "llmgw_gateway_tokens", "Tokens by kind", ["model", "kind"], registry=registry
        )
        self.retries = Counter(
            "llmgw_gateway_retries", "Requests sent a second time", ["model"], registry=registry
        )
        self.in_flight = Gauge(
            "llmgw_gateway_in_flight",
            "Requests that are waiting or being answered",
            ["model"],
            registry=registry,
        )
        self.duration = Histogram(
            "llmgw_gateway_request_seconds",
            "From request to last byte",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_byte = Histogram(
            "llmgw_gateway_first_byte_seconds",
            "From sending to the first byte of the engine's content",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue = Histogram(
            "llmgw_gateway_queue_seconds",
            "Time in the queue of a model without a ready replica",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
