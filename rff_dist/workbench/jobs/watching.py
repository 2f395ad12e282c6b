"""Report a job while it runs: to the log, to traces and to the observers of its events.

The decorator `watched` makes a job report its start, its end and its error, in the same
way whether the command line, a flow or Python runs it.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, cast

from rff_dist import fields
from rff_dist.engines import events, tracing
from rff_dist.typing import Summary
from rff_dist.workbench.integrations import observers
from rff_dist.workbench.jobs import places

# Members of a result that go into a trace, if the result has them.
_IN_TRACES = (
    "data",
    "n_samples",
    "model",
    "version",
    "digest",
    "statistics_digest",
    "decision",
)


def watched[S, **P, R](
    job: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Make a job, a function of its spec, report its start and its end."""
    name = job.__name__

    @wraps(job)
    def run(spec: S, *args: P.args, **options: P.kwargs) -> R:
        find_places = partial(places.reads_and_writes, spec)
        started = events.JobStarted(name)
        with (
            tracing.span(f"job {name}"),
            events.listening(*observers.observers_of(name, find_places)),
            events.announced(
                events.tell, started, events.JobFinished, events.JobFailed
            ),
        ):
            # inside, so that a refused place is reported as the job's failure
            places.check(fields.values(spec))
            result = job(spec, *args, **options)
            if tracing.is_on():
                record = _record_of(result)
                tracing.note(**{member: record.get(member) for member in _IN_TRACES})
            return result

    return cast("Callable[Concatenate[S, P], R]", run)


def _record_of(result: Any) -> Summary:
    """Return the JSON values of what a job returned; none if it has no record."""
    if isinstance(result, dict):
        return result
    record = getattr(result, "record", None)
    if record is None and hasattr(result, "describe"):
        record = result.describe()
    return record if isinstance(record, dict) else {}
