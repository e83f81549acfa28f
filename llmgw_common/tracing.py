"""Tracing set-up: OpenTelemetry when it is on, nothing at all when it is off.

Rule: off is the default, and off means no SDK import, no exporter thread, no-op spans, and None in
place of a carrier, so that no message has a `trace` field.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from opentelemetry import context, propagate, trace
from pydantic import BaseModel, ConfigDict, Field

_FLUSH_MS: Final = 3000


class TracingSettings(BaseModel):
    """The `tracing:` block, the same in server.yaml and agent.yaml.

    Attributes:
        endpoint: base URL of an OTLP/HTTP receiver.
        sample: share of traces that are kept, 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    endpoint: str = "http://127.0.0.1:4318"
    protocol: Literal["http/protobuf"] = "http/protobuf"
    sample: float = Field(default=1.0, ge=0, le=1)
    service_name: str = ""
    resource: dict[str, str] = Field(default_factory=dict)


def setup_tracing(settings: TracingSettings, service: str) -> Callable[[], None]:
    """Switch tracing on if it is asked for; return what ends it (flushes for 3 s at most)."""
    if not settings.enabled:
        return lambda: None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    name = settings.service_name or service
    provider = TracerProvider(
        resource=Resource.create({"service.name": name, **settings.resource}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample)),
    )
    exporter = OTLPSpanExporter(endpoint=settings.endpoint.rstrip("/") + "/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def end() -> None:
        provider.force_flush(_FLUSH_MS)
        provider.shutdown()

    return end


def current_carrier() -> dict[str, str] | None:
    """Return the W3C fields of the current span, or None when there is none to continue."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


def context_from(carrier: Mapping[str, str] | None) -> context.Context | None:
    """Return the context that `carrier` continues, None for none."""
    return propagate.extract(carrier) if carrier else None
