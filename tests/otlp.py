"""An OTLP receiver over loopback, and spans of its requests as trees."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.listening import listen


@pytest.fixture
def exported(monkeypatch):
    """The spans of this process, whose program has configured OpenTelemetry."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@dataclass(frozen=True)
class Span:
    """A finished span; ids are whole numbers, and `parent` is 0 for the first of a
    trace.
    """

    name: str
    trace: int
    id: int
    parent: int
    attributes: dict[str, Any]
    events: tuple[str, ...] = ()


def _values_of(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, str(one.value.WhichOneof("value")))
        for one in attributes
    }


@contextmanager
def receive() -> Iterator[tuple[str, list[Span]]]:
    """Listen on a free port while the context lasts; yield the URL, and the spans that
    were sent so far.
    """
    spans: list[Span] = []

    def take(path: str, headers: Any, body: bytes) -> None:
        if path != "/v1/traces":  # but /v1/metrics
            return
        content = (
            gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
        )
        request = ExportTraceServiceRequest.FromString(content)
        for span in (
            s
            for r in request.resource_spans
            for scope in r.scope_spans
            for s in scope.spans
        ):
            ids = (
                int.from_bytes(i)
                for i in (span.trace_id, span.span_id, span.parent_span_id)
            )
            spans.append(Span(span.name, *ids, _values_of(span.attributes)))

    with listen(take) as url:
        yield url, spans


def spans_of(exporter: Any) -> list[Span]:
    """Return the spans in an in-memory exporter of the SDK."""
    return [
        Span(
            one.name,
            one.context.trace_id,
            one.context.span_id,
            0 if one.parent is None else one.parent.span_id,
            dict(one.attributes),
            tuple(event.name for event in one.events),
        )
        for one in exporter.get_finished_spans()
    ]
