"""Send spans and rates of jobs, steps, passes and runs of blocks by OpenTelemetry.

Names and attributes go in. A process sends them if its environment has
OTEL_EXPORTER_OTLP_ENDPOINT, or if its program has configured OpenTelemetry's SDK.
Otherwise nothing of OpenTelemetry is imported. A worker's spans belong to the trace of
the pass that it works on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from rff_dist.errors import RFFDistError, kind_of
from rff_dist.text import without_secrets
from rff_dist.typing import Facts, frozen

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

logger = logging.getLogger(__name__)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: About how many tasks of a pass have a span: each `n_blocks / MOST_SPANS`-th.
MOST_SPANS = 100
_UNITS = {"rows_per_second": "{row}/s", "bytes_per_second": "By/s", "storage_wait": "1"}


# The tracer for spans, and a gauge for each rate by name.
type _Sinks = tuple[Tracer, Mapping[str, Any]]


def is_on() -> bool:
    """Return whether this process sends spans."""
    return _sinks() is not None


def _sinks() -> _Sinks | None:
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is not None:
        from opentelemetry import metrics, trace

        program_tracers = trace.get_tracer_provider()
        if isinstance(program_tracers, sdk.TracerProvider):
            return _sinks_of(program_tracers, metrics.get_meter_provider())
    if not os.environ.get(ENDPOINT):
        return None
    return _endpoint_sinks()


@cache
def _endpoint_sinks() -> _Sinks | None:
    """Return sinks that send to the endpoint in the environment.

    They are not set as OpenTelemetry's global ones, which a program may still set.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter,
        )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk import metrics, resources, trace
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning(
            "%s is set, but nothing is traced: %s; pip install rff_dist[otel]",
            ENDPOINT,
            error,
        )
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "rff_dist")
    resource = resources.Resource.create({"service.name": name})
    tracers = trace.TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return _sinks_of(tracers, metrics.MeterProvider([reader], resource))


@lru_cache(2)
def _sinks_of(tracers: TracerProvider, meters: MeterProvider) -> _Sinks:
    meter = meters.get_meter("rff_dist")
    gauges = {
        name: meter.create_gauge(f"rff_dist.{name}", unit)
        for name, unit in _UNITS.items()
    }
    return tracers.get_tracer("rff_dist"), gauges


@contextmanager
def span(name: str, /, **attributes: Any) -> Iterator[None]:
    """Trace the work in the context, and the kind of an error that leaves it."""
    sinks = _sinks()
    if sinks is None:
        yield
        return
    tracer, _ = sinks
    with tracer.start_as_current_span(
        name,
        attributes=_named(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ):
        try:
            yield
        except BaseException as error:
            fail(error)
            raise


def _named(attributes: Facts) -> dict[str, Any]:
    return {
        f"rff_dist.{name}": value
        for name, value in attributes.items()
        if value is not None
    }


def note(**attributes: Any) -> None:
    """Add attributes to the current span."""
    if is_on():
        from opentelemetry import trace

        trace.get_current_span().set_attributes(_named(attributes))


def tell(event: str, **attributes: Any) -> None:
    """Add an event to the current span."""
    if is_on():
        from opentelemetry import trace

        trace.get_current_span().add_event(event, _named(attributes))


def fail(error: BaseException) -> None:
    """Mark the current span as failed."""
    if is_on():
        from opentelemetry import trace

        cause = error if isinstance(error, RFFDistError) else error.__cause__ or error
        current = trace.get_current_span()
        current.set_attribute("error.type", kind_of(cause))
        message = without_secrets(f"{type(cause).__name__}: {cause}")
        current.set_status(trace.Status(trace.StatusCode.ERROR, message))


def measure(label: str, **rates: float) -> None:
    """Send the latest rates of the pass `label`; their names are in `_UNITS`."""
    sinks = _sinks()
    if sinks is not None:
        _, gauges = sinks
        for name, value in rates.items():
            gauges[name].set(value, {"rff_dist.pass": label})


def ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the current span; empty if there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
    }


# -- on workers


@frozen
class ParentSpan:
    """The span of a pass, for its tasks on workers."""

    #: W3C's headers, `traceparent` among them.
    carrier: Mapping[str, str]
    #: Each `every`-th task has a span.
    every: int

    @contextmanager
    def task(self, number: int, name: str, **attributes: Any) -> Iterator[None]:
        """Continue the pass's trace in a task, with a span for each `every`-th one."""
        if not is_on():
            yield
            return
        from opentelemetry import context, propagate

        token = context.attach(propagate.extract(self.carrier))
        try:
            if number % self.every:
                yield
            else:
                with span(name, **attributes):
                    yield
        finally:
            context.detach(token)


def parent(n_blocks: int) -> ParentSpan | None:
    """Return the current span, for the tasks of a pass over so many blocks."""
    if not ids():
        return None
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return ParentSpan(carrier, max(1, n_blocks // MOST_SPANS))
