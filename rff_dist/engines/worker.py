"""Code that the Dask engine runs on workers: tasks that sum up runs of blocks.

The state, the function and a run of blocks go into the task `run_blocks`; a total comes
out. State and definition, which has the function, come as `Parcel`s; that of the state
checks that a worker has the same digests as the client. A plain Dask task would lack
these checks, would hang on data of frozen workers, and would go on when no one wants
its result.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import distributed

from rff_dist import errors
from rff_dist.data.blocks import Block, BlockTask, Rows
from rff_dist.engines import fetching_totals, protocol, resuming, serial, tracing
from rff_dist.engines.partitions import Partitions
from rff_dist.numerics import machine
from rff_dist.typing import frozen

#: Seconds between two reports of a worker on finished blocks.
REPORT_S = 0.5

#: A block's position, and the seconds that it took and that it waited for its rows.
type Timing = tuple[int, float, float]

# BLAS threads and the pool of the feature map belong to the process, so only one block
# at a time may use them. Memory, too, is planned for one run or one merge at a time.
# The wait for this lock has no bound, because it waits for this process only: a run
# that no one wants ends after its block.
_one_run_at_a_time = threading.Lock()


# -- state and functions


class Parcel:
    """A value on its way to workers; each unpickles it in its first task.

    Between workers it travels pickled. Unpickling may fail, for a dataset that one
    worker cannot open. Dask would take that for an error of the network, and fetch the
    value again and again.
    """

    def __init__(self, pickled: bytes, expected_digests: dict[str, str]) -> None:
        self._pickled: bytes | None = pickled
        self._expected_digests = expected_digests
        self._unpickling = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = self._pickled
        if pickled is None:
            pickled = cloudpickle.dumps(self.value)
        return Parcel, (pickled, self._expected_digests)

    @property
    def value(self) -> Any:
        """The value; raises an error of this package, or ClusterError, if it cannot be
        unpickled.
        """
        with self._unpickling:  # once, as it takes as long as opening a dataset
            return self._value

    @cached_property
    def _value(self) -> Any:
        try:
            # Safe: the bytes come from the client, whose tasks run code here anyway.
            value = cloudpickle.loads(cast("bytes", self._pickled))
        except errors.RFFDistError as error:
            error.add_note(f"raised on worker {_worker_address()}")
            raise
        except Exception as error:
            raise errors.ClusterError(
                f"worker {_worker_address()} cannot unpickle the function or state of a"
                f" pass: {type(error).__name__}: {error}; install the same packages"
                " there as here"
            ) from error
        self._pickled = None  # frees memory; `__reduce__` can pickle the value again
        return value

    @cached_property
    def _digests(self) -> dict[str, str]:
        return protocol.state_digests(self.value)

    def check(self) -> None:
        """Raise BroadcastError if the value has other digests than the client's."""
        if self._digests == self._expected_digests:
            return
        differences = "; ".join(
            f"{_worker_address()}: {place} is {self._digests.get(place, 'missing')},"
            f" expected {digest}"
            for place, digest in self._expected_digests.items()
            if self._digests.get(place) != digest
        )
        raise errors.BroadcastError(
            f"workers hold another state than the client: {differences}; their packages"
            " or processors differ. Use the same versions and one type of machine on"
            " both sides, or give the feature map its frequencies as arrays"
        )


def pickle_value(value: object, name: str) -> bytes:
    """Pickle a value here, so that the scheduler needs none of its packages."""
    try:
        return cloudpickle.dumps(value)
    except errors.RFFDistError:
        raise  # a dataset says itself why it cannot travel
    except Exception as error:
        raise errors.InvalidParameterError(
            f"the {name} of a pass cannot be pickled: {type(error).__name__}: {error};"
            " give the Dask engine functions and state without open files, locks or"
            " threads"
        ) from error


def place_beside(_: Parcel, pickled: bytes) -> Parcel:
    """Return a parcel, made by a task that takes another parcel as its argument.

    Dask runs that task on a worker that has the argument. So both are on the same
    worker, and no worker must fetch the second one from another, which it may not
    reach.
    """
    return Parcel(pickled, {})  # no digests: only a state is checked


def check_state(state_parcel: Parcel) -> None:
    """Raise BroadcastError if a worker has a state with other digests."""
    state_parcel.check()


# -- runs


@frozen
class PassDefinition:
    """The same for all tasks of a pass: its function, and where tasks report to."""

    function: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    #: Dask's topic, on which workers report to this engine.
    topic: str
    #: A unique text that names the pass in reports.
    token: str
    label: str
    #: Where the sums of runs are kept.
    pass_ledger: resuming.PassLedger | None = None
    #: In a trace; None if the pass is not traced.
    pass_span: tracing.ParentSpan | None = None


class SumsLostError(Exception):
    """The ledger's sums of a run are gone; its blocks must be summed up again."""


class _UnwantedError(Exception):
    """Ends the task of a run that no one waits for; so no one handles it."""


@frozen
class BlockRun:
    """Consecutive blocks that a task sums; the first has the position `first`."""

    first: int
    blocks: Sequence[Block]
    #: Whether the ledger has their sums.
    is_kept: bool = False


def run_blocks(
    definition_parcel: Parcel,
    state_parcel: Parcel,
    run: BlockRun,
    total_numbers: Sequence[int],
    total_before: Sequence[Any] = (),
    edges: Sequence[int] = (),
    arrays: Sequence[Any] = (),
) -> Any:
    """Sum up a run of blocks, and add totals; without blocks, only add totals.

    Parameters
    ----------
    total_numbers : sequence of int
        Totals to add, by the numbers of their tasks, on any workers. They are fetched
        here: Dask would try without end to fetch arguments from a worker that does not
        answer.
    total_before : sequence
        The total of this worker's last task, if that task was not done when this one
        was submitted; else empty. An argument, since nothing is fetched.
    edges, arrays
        The run's `Partitions`, if other tasks made the rows.

    Raises
    ------
    TotalLostError
        If a total cannot be fetched.
    SumsLostError
        If the ledger's sums are gone.
    """
    definition: PassDefinition = definition_parcel.value
    if arrays:
        task = cast("BlockTask[Any, Any]", definition.function)
        source = cast("Any", Partitions(edges, arrays))
        definition = replace(definition, function=replace(task, source=source))
    worker = distributed.get_worker()
    report = _Report(definition, worker, run.first)
    sums = list(total_before)
    for number in total_numbers:
        key = report.key[0], number
        sums.append(fetching_totals.fetch_for_task(worker, report.key, key))

    with _one_run_at_a_time, _in_trace(definition, report, run):
        # a worker that came after the broadcast has not checked yet
        state_parcel.check()
        try:
            if run.blocks:
                with machine.using_threads(worker.state.nthreads):
                    sums.append(_sum_up(definition, state_parcel.value, run, report))
                report.send()
        except serial.BlockFailed as error:
            tracing.fail(error)
            failure = serial.BlockFailed(error.block, worker.address)
            failure.__cause__ = _picklable(cast("Exception", error.__cause__))
        else:
            return reduce(definition.combine, sums)
    # Raised outside of `except`, so that it has no context: that would be pickled with
    # it, and might not be picklable.
    raise failure


def _in_trace(
    definition: PassDefinition, report: _Report, run: BlockRun
) -> contextlib.AbstractContextManager[None]:
    """Return the span of a task, if its pass is traced."""
    if definition.pass_span is None:
        return contextlib.nullcontext()
    return definition.pass_span.task(
        report.key[1],
        f"{'run' if run.blocks else 'merge'} {definition.label}",
        worker=_worker_address(),
        blocks=len(run.blocks),
        rows=sum(block.n_samples for block in run.blocks),
    )


def _sum_up(
    definition: PassDefinition, state: Any, run: BlockRun, report: _Report
) -> Any:
    """Return the sums of a run, from the ledger if they are kept there, else new."""
    reduction = serial.Reduction(
        definition.function, state, definition.combine, report.done
    )
    pass_ledger = definition.pass_ledger
    if pass_ledger is None:
        return reduction.run(run.blocks)

    first = run.first
    stop = first + len(run.blocks)
    if not run.is_kept:
        keeper = resuming.Keeper(pass_ledger, first)
        total = reduction.run(run.blocks, keeper=keeper, first=first)
        keeper.note(stop, total, is_last=True)
        return total

    sums = pass_ledger.find(range(first, stop))
    if sums is None:
        raise SumsLostError(f"the sums of blocks {first}:{stop} are gone or damaged")
    return sums[0]


class _Report:
    """Tells the client now and then which blocks of a run are done."""

    def __init__(
        self, definition: PassDefinition, worker: distributed.Worker, first: int
    ) -> None:
        self._definition = definition
        self._worker = worker
        self.key = cast("fetching_totals.TaskKey", worker.get_current_task())
        self._positions = itertools.count(first)
        self._timings: list[Timing] = []
        self._sent_at = time.monotonic()

    def done(self, block: Block, seconds: float, waited: float) -> None:
        """Note that a block is done; end the run if no one waits for it any more."""
        self._timings.append((next(self._positions), seconds, waited))
        if time.monotonic() - self._sent_at > REPORT_S:
            self.send()
        if fetching_totals.is_unwanted(self._worker, self.key):
            raise _UnwantedError(f"no one waits for {self.key} any more")

    def send(self) -> None:
        timings = self._timings
        self._timings = []
        # This message goes on the same stream as the end of the task, and before it. So
        # the client has it when the task is done.
        self._worker.log_event(
            self._definition.topic,
            (self._definition.token, self._worker.address, timings),
        )
        self._sent_at = time.monotonic()


def _picklable(error: Exception) -> Exception:
    """Return the error, or a description if it or one of its causes cannot travel."""
    link: BaseException | None = error
    while link is not None:
        try:
            # some errors pickle but do not unpickle
            cloudpickle.loads(cloudpickle.dumps(link))
        except Exception:
            description = RuntimeError(
                f"{type(error).__name__}: {error} (the error itself cannot be pickled)"
            )
            description.add_note("".join(traceback.format_exception(error)))
            return description
        link = link.__cause__ or link.__context__
    return error


def _worker_address() -> str:
    return str(distributed.get_worker().address)


# -- functions whose rows come from tasks of Dask collections


def take_apart(function: Callable[[Block, Any], Any]) -> tuple[Any, Any]:
    """Split a pass's function into the Dask collection that its rows come from, and the
    function of these rows.

    If its rows come from elsewhere, return None and the whole function.
    """
    if isinstance(function, protocol.WriteTask):
        source, task = take_apart(function.function)
        if source is None:
            return None, function
        write = partial(_write, function.output, task.compute)
        # `_write` returns a count of its block only, so it adds to no earlier sums
        return source, replace(task, compute=write, adds=False)
    if not isinstance(function, BlockTask) or not function.source.is_lazy:
        return None, function
    source = cast("Any", function.source)
    compute = function.compute
    # A dataset may extend another one, by targets for example: the function that
    # completes the rows becomes a part of the computation.
    while source.extends is not None:
        source, complete_rows = source.extends
        compute = partial(_complete, complete_rows, compute)
    return source, replace(function, source=cast("Any", None), compute=compute)


def _write[S](
    output: protocol.RegionWriter,
    compute: Callable[[Rows, S], Any],
    rows: Rows,
    state: S,
) -> int:
    return protocol.write_rows(output, rows.block, compute(rows, state))


def _complete(
    complete_rows: Callable[[Rows], Rows],
    compute: Callable[..., Any],
    rows: Rows,
    state: Any,
    *total: Any,
) -> Any:
    return compute(complete_rows(rows), state, *total)


# -- the log of workers

_TASKS = (place_beside, run_blocks, cloudpickle.dumps, check_state)
# Messages of distributed.worker, logged with a traceback if the connection is closed
# when it sends a heartbeat or says goodbye.
_SCHEDULER_LOST = (
    "Failed to communicate with scheduler",
    "Failed to log closing event",
)


class SayOnce(distributed.WorkerPlugin):
    """Keeps errors out of an embedded worker's log that the client raises itself.

    These are failures of a pass, and lost connections to the scheduler: either the
    client closes the cluster on purpose, or its pass ends with ClusterLostError.
    """

    name = "rff_dist-say-once"

    def setup(self, worker: distributed.Worker) -> None:
        logging.getLogger("distributed.worker").addFilter(_belongs_in_log)
        if threading.current_thread() is threading.main_thread():
            # A worker that came later was not started with `spare_children_ctrl_c`.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _belongs_in_log(record: logging.LogRecord) -> bool:
    """Return whether a message is none of an error that the client raises itself."""
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) and message.startswith(_SCHEDULER_LOST):
        return False
    # Dask writes a failed task as its call: "… Function: run_blocks(…"
    return not any(f" {task.__name__}(" in message for task in _TASKS)
