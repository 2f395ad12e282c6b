"""How jobs run: in named steps, for the command line, the flows and Python.

The sums of a job's passes are kept until its result is there, so a stopped job goes on when it is repeated.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any, cast

from rff_dist.engines import protocol, serial
from rff_dist.engines.cluster import Cluster
from rff_dist.fields import build
from rff_dist.storage import locations, writing
from rff_dist.storage.ledger import ledger_place, open_ledger
from rff_dist.text import human_bytes, redact
from rff_dist.typing import frozen
from rff_dist.workbench.jobs import watching
from rff_dist.workbench.jobs.limits import Limits


@frozen
class Runner:
    """What drives a job: the command line, a flow or Python.

    `open_engine`: takes the number of rows that the job passes over, and returns a context manager of the
      engine. A job enters it after all checks that need no engine.
    `call`: takes a step's name, the step and whether a second try does no harm, and returns what the step
      does: for example as a task of an orchestrator.
    `holder`: who runs the job, for the error of another run that wants to write to the same place.
    `cluster`: takes the number of rows, and returns where they are passed over; None if that is not known.
    `observer`: told how many rows of a table were read, which a job does before it opens the engine.
    `limits`: what the job may take.
    """

    open_engine: Callable[[int], AbstractContextManager[protocol.Engine]]
    call: Callable[[str, Callable[[], Any], bool], Any] = lambda _, step, __: step()
    holder: str = "a job"
    cluster: Callable[[int], Cluster | None] = lambda _: None
    observer: writing.Progress | None = None
    limits: Limits = field(default_factory=lambda: build(Limits, {}))

    def __call__[**P, R](self, name: str, step: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> R:
        """Call a step of a job under its name; a second try does no harm, so it may be retried."""
        return cast("R", self.call(name, watching.step(name, partial(step, *args, **options)), True))

    def once[**P, R](self, name: str, step: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> R:
        """Call a step that must not be retried, such as one that publishes."""
        return cast("R", self.call(name, watching.step(name, partial(step, *args, **options)), False))


def in_this_process(engine: protocol.Engine | None = None) -> Runner:
    """Return a runner for Python: on the given engine, which is left open, or without Dask."""
    return Runner(lambda _: serial.SerialEngine() if engine is None else nullcontext(engine))


@contextmanager
def resumable(engine: protocol.Engine, output: locations.Location) -> Iterator[None]:
    """Let an engine keep the sums of passes next to a job's output, and use those that a stopped job left.

    They are removed when the job is done. They stay if its process dies or it ends with an error, which then
    says so. The job must hold its output.
    """
    place = ledger_place(output)
    if place is None:
        yield
        return
    ledger = open_ledger(place)
    try:
        with engine.keeping(ledger):
            yield
    except GeneratorExit:  # the steps were dropped: an event loop may run here, and no one sees a note
        raise
    except BaseException as error:
        ledger.leave()
        if not ledger.is_empty():
            size = "" if (n := ledger.n_bytes()) is None else f" ({human_bytes(n)})"
            error.add_note(
                f"what it has done is kept in {redact(place.url)}{size}: the same job goes on from there"
            )
        raise
    # Only now is the result published: with the sums gone, a run that died before would begin from nothing.
    ledger.drop()
