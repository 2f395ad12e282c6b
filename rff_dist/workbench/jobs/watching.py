"""What a job tells while it runs: the one place that knows when it starts, and how it ends.

From here the log, traces and lineage are told.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, cast

from rff_dist import contexts, errors, fields
from rff_dist.engines import tracing
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import lineage, places

logger = logging.getLogger(__name__)

_parent: ContextVar[lineage.Parent | None] = ContextVar("parent", default=None)
_events: ContextVar[lineage.Events | None] = ContextVar("events", default=None)

# Members of a result that a trace has, where the result has them.
_IN_TRACES = ("data", "n_samples", "model", "version", "digest", "statistics_digest", "decision")


def watched[S, **P, R](job: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a job, a function of its spec, tell of its start and its end."""
    name = job.__name__

    @wraps(job)
    def run(spec: S, *args: P.args, **options: P.kwargs) -> R:
        with tracing.span(f"job {name}"), _telling(name, spec):
            places.check(fields.values(spec))
            result = job(spec, *args, **options)
            if tracing.is_on():
                record = _record_of(result)
                tracing.note(**{member: record.get(member) for member in _IN_TRACES})
            return result

    return cast("Callable[Concatenate[S, P], R]", run)


def part_of(parent: lineage.Parent) -> AbstractContextManager[None]:
    """Tell lineage that the jobs of the context belong to a run of an orchestrator."""
    return contexts.setting(_parent, parent)


@contextmanager
def _telling(name: str, spec: Any) -> Iterator[None]:
    """Tell the log and lineage of a job's start and its end."""
    start, events = time.perf_counter(), lineage.events_of(name, spec, _parent.get())
    with contexts.setting(_events, events):
        _log("job started", name)
        try:
            yield
        except BaseException as error:
            _log("job failed", name, kind=errors.kind_of(error), seconds=time.perf_counter() - start)
            if events is not None:
                events.end(error)
            raise
        _log("job finished", name, seconds=time.perf_counter() - start)
        if events is not None:
            events.end()


def _log(event: str, name: str, **members: Any) -> None:
    seconds = f" after {members['seconds']:.1f} s" if "seconds" in members else ""
    facts = {"event": event, "job": name, **members}
    logger.info("%s: %s%s", name, event.removeprefix("job "), seconds, extra={"event": facts})


def step[R](name: str, work: Callable[[], R]) -> Callable[[], R]:
    """Return a step of a job that is traced under its name, each time it is tried."""

    def run() -> R:
        if (events := _events.get()) is not None:
            events.running()
        with tracing.span(f"step {name}"):
            return work()

    return run


def _record_of(result: Any) -> Summary:
    """Return the JSON values of what a job returned; none if it has no record."""
    if isinstance(result, dict):
        return result
    record = getattr(result, "record", None)
    if record is None and hasattr(result, "describe"):
        record = result.describe()
    return record if isinstance(record, dict) else {}
