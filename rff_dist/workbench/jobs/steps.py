"""Run jobs as named steps.

A job gets a `Runner`, by the name `do`, and calls `do("solve", solve, …)`. The command
line, a flow and Python each have their own runner, which opens the engine and may show,
time or repeat a step. With direct calls of the functions a flow could not make tasks of
them, and no step could be tried again.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from typing import Any, cast

from rff_dist.engines import events, protocol, serial, tracing
from rff_dist.engines.cluster import Cluster
from rff_dist.fields import build
from rff_dist.storage import locations, writing
from rff_dist.storage.ledger import LEDGER, open_ledger
from rff_dist.text import human_bytes, redact
from rff_dist.typing import frozen
from rff_dist.workbench.jobs import limits
from rff_dist.workbench.jobs.limits import JobLimits

logger = logging.getLogger(__name__)


@frozen(eq=False)
class Step:
    """A call of a function under a name, and when it is tried again."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    #: seconds before each retry; empty if a retry would do harm, as in publishing twice
    delays: Sequence[float] = ()

    def __call__(self) -> Any:
        """Call the function, again after transient errors.

        Each try has its own span in a trace.
        """
        delays = list(self.delays)
        while True:
            events.tell(events.StepStarted(self.name))
            try:
                with tracing.span(f"step {self.name}"):
                    return self.function(*self.arguments, **self.options)
            except Exception as error:
                if not delays or not limits.is_transient(error):
                    raise
                delay = delays.pop(0)
                logger.warning(
                    "%s is tried again in %g s, after %s", self.name, delay, error
                )
                time.sleep(delay)


@frozen
class Runner:
    """What drives a job: the command line, a flow or Python."""

    #: opens an engine for passes over this number of rows, after the job's checks
    open_engine: Callable[[int], AbstractContextManager[protocol.Engine]]
    #: calls a step, for example as a task of an orchestrator
    call: Callable[[Step], Any] = Step.__call__
    #: who runs the job; named in the error of another run that writes to the same place
    holder: str = "a job"
    #: the cluster for passes over this number of rows; None if that is not known
    cluster: Callable[[int], Cluster | None] = lambda _: None
    #: hears how many rows of a table have been read; a table is read before the engine
    #: is opened
    observer: writing.Progress | None = None
    limits: JobLimits = field(default_factory=lambda: build(JobLimits, {}))

    def __call__[**P, R](
        self, name: str, function: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a step whose second try does no harm."""
        step = Step(name, function, args, options, self.limits.delays)
        return cast("R", self.call(step))

    def once[**P, R](
        self, name: str, function: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a step that must not be tried again, such as one that publishes."""
        return cast("R", self.call(Step(name, function, args, options)))


def in_this_process(engine: protocol.Engine | None = None) -> Runner:
    """Return a runner for Python: on the given engine, which stays open, or without
    Dask.
    """
    return Runner(
        lambda _: serial.SerialEngine() if engine is None else nullcontext(engine)
    )


@contextmanager
def resumable(engine: protocol.Engine, output: locations.Location) -> Iterator[None]:
    """Keep the sums of an engine's passes next to a job's output until the job is done.

    If the job's process dies or an error ends it, the sums stay, and the repeated job
    goes on from them. The caller has locked the output.
    """
    ledger = open_ledger(output.hidden(LEDGER))
    try:
        with engine.keeping(ledger):
            yield
    except GeneratorExit:
        # The job was abandoned: no one would see the note, and this may run inside of
        # an event loop, where the ledger cannot be read.
        raise
    except BaseException as error:
        # The next job may use the ledger now; kept sums stay, an empty folder is
        # removed.
        ledger.leave()
        if not ledger.is_empty():
            n_bytes = ledger.n_bytes()
            size = "" if n_bytes is None else f" ({human_bytes(n_bytes)})"
            place = redact(ledger.location.url)
            error.add_note(
                f"partial results are kept in {place}{size}: the same job continues"
                " from there"
            )
            error.can_go_on = True  # type: ignore[attr-defined]
        raise
    # Sums are dropped only now, after the result is published: if a run died before
    # that, a repeated one would have to start from nothing.
    ledger.drop()


@contextmanager
def after_publication(model: str) -> Iterator[None]:
    """Note on errors that the model is there all the same."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the model is published at {model}, but compared with no other")
        raise
