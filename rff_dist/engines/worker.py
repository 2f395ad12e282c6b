"""What the Dask engine sends to workers: the tasks of a pass, the state with its digests, and plugins."""

# mypy: allow-untyped-calls

import asyncio
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
from distributed.utils import sync
from distributed.utils_comm import gather_from_workers

from rff_dist import errors
from rff_dist.data.blocks import Block, BlockTask, Rows
from rff_dist.engines import protocol, resuming, serial, tracing
from rff_dist.engines.partitions import Partitions
from rff_dist.numerics import machine
from rff_dist.typing import frozen

logger = logging.getLogger(__name__)

# BLAS threads and the pool of the feature map belong to the process, so only one block at a time may use
# them. The memory, too, is planned for the results of one run, or one merge, at a time. This wait has
# no bound, because it is for work of this process: a run that no one wants ends after its block.
_one_run_at_a_time = threading.Lock()


class Parcel:
    """A value on its way to workers, each of which unpickles it in its first task and computes digests once.

    Between workers it travels pickled. Dask takes an error of unpickling, such as that of a dataset which one
    worker cannot open, for an error of the network, and fetches the value again and again.
    """

    def __init__(self, pickled: bytes, expected: dict[str, str]) -> None:
        self._pickled: bytes | None = pickled
        self._expected = expected
        self._unpickling = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = self._pickled
        return Parcel, (cloudpickle.dumps(self.value) if pickled is None else pickled, self._expected)

    @property
    def value(self) -> Any:
        """The value. If it cannot be unpickled here: an error of this package, or ClusterError."""
        with self._unpickling:  # takes as long as opening a dataset
            return self._value

    @cached_property
    def _value(self) -> Any:
        try:
            # It comes from the client, like the tasks, which can run code here anyway.
            value = cloudpickle.loads(cast("bytes", self._pickled))
        except errors.RFFDistError as error:
            error.add_note(f"raised on worker {_worker_address()}")
            raise
        except Exception as error:
            raise errors.ClusterError(
                f"worker {_worker_address()} cannot unpickle the function or state of a pass: "
                f"{type(error).__name__}: {error}; install the same packages there as here"
            ) from error
        self._pickled = None  # one of the two is enough
        return value

    @cached_property
    def _found(self) -> dict[str, str]:
        return protocol.state_digests(self.value)

    def check(self) -> None:
        """Raise BroadcastError if the value has other digests here than where it came from."""
        if self._found == self._expected:
            return
        wrong = "; ".join(
            f"{_worker_address()}: {place} is {self._found.get(place, 'missing')}, expected {digest}"
            for place, digest in self._expected.items()
            if self._found.get(place) != digest
        )
        raise errors.BroadcastError(
            f"workers hold another state than the client: {wrong}; "
            "their packages or processors differ. Use the same versions and one type of machine on both "
            "sides, or give the feature map its frequencies as arrays"
        )


def place_beside(_: Parcel, pickled: bytes) -> Parcel:
    """Make a parcel where another one is: a worker that reaches no other then has both of them, or none."""
    return Parcel(pickled, {})


@frozen
class PassTask:
    """What all tasks of a pass share.

    `kept`: where the sums of runs are kept.
    `trace`: the span of the pass; None if it has none.
    """

    function: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    topic: str
    number: str
    label: str
    kept: resuming.KeptPass | None = None
    trace: tracing.Parent | None = None


class SayOnce(distributed.WorkerPlugin):
    """Leave out of an embedded worker's log what the client says itself.

    These are failures of a pass, which the client raises, and connections to the scheduler that are lost:
    either the client closes the cluster on purpose, or its pass ends with ClusterLostError.
    """

    name = "rff_dist-say-once"

    def setup(self, worker: distributed.Worker) -> None:
        logging.getLogger("distributed.worker").addFilter(_is_said_here_only)
        if threading.current_thread() is threading.main_thread():
            # A worker that came later was not started with `spare_children_ctrl_c`.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


# What distributed.worker logs with a traceback when its heartbeat or farewell meets a closed connection.
_OF_A_LOST_SCHEDULER = ("Failed to communicate with scheduler", "Failed to log closing event")


#: Seconds within which a worker must answer who fetches a total from it.
REACH_S = 3.0
#: A worker tells of the blocks that it has done every so many seconds at most.
TELL_S = 0.5


def _is_said_here_only(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) and message.startswith(_OF_A_LOST_SCHEDULER):
        return False
    return not any(f" {task.__name__}(" in message for task in _TASKS)


def run_blocks(
    task: Parcel,
    state: Parcel,
    first: int,
    blocks: Sequence[Block],
    names: Sequence[int],
    before: Sequence[Any] = (),
    is_kept: bool = False,
    edges: Sequence[int] = (),
    arrays: Sequence[Any] = (),
) -> Any:
    """Return the total of a run of blocks, together with totals before it; without blocks, of these alone.

    `first`: position of the run's first block in the pass.
    `names`: totals before, by the numbers of their tasks: Dask would fetch an argument again and again from a
      worker that is out of reach.
    `before`: one of this worker that is not done when this task is given out, or none.
    `is_kept`: whether the ledger has the run's sums.
    `edges`, `arrays`: the `Partitions` of the run, if other tasks made the rows.
    Raises TotalLostError if a total is out of reach, and SumsLostError if kept sums are.
    """
    job: PassTask = task.value
    function = job.function
    if arrays:
        function = replace(
            cast("BlockTask[Any, Any]", function), source=cast("Any", Partitions(edges, arrays))
        )
    worker = distributed.get_worker()
    report = _Report(job, worker, first)
    totals = [*before, *(_fetched(worker, report.key, number) for number in names)]
    reduction = serial.Reduction(function, state.value, job.combine, report.done)
    about = {"worker": worker.address, "blocks": len(blocks), "rows": sum(b.n_samples for b in blocks)}
    what = f"{'run' if blocks else 'merge'} {job.label}"
    in_trace = contextlib.nullcontext() if job.trace is None else job.trace.task(report.key[1], what, **about)
    with _one_run_at_a_time, in_trace:
        state.check()  # a worker that came after the broadcast has not checked yet
        try:
            if blocks:
                with machine.using_threads(worker.state.nthreads):
                    totals.append(_sum_up(reduction, job.kept, first, blocks, is_kept=is_kept))
                report.tell()
        except serial.BlockFailed as error:
            tracing.fail(error)
            failure = serial.BlockFailed(error.block, worker.address)
            failure.__cause__ = _picklable(cast("Exception", error.__cause__))
        else:
            return reduce(job.combine, totals)
    # Raised out here, it has no context, which would be pickled next to the cause and might not be picklable.
    raise failure


class _Report:
    """Tell the client which blocks of a run are done, every `TELL_S` at most.

    `key`: that of the task, whose second part is its number.
    """

    def __init__(self, job: PassTask, worker: distributed.Worker, first: int) -> None:
        self._job, self._worker = job, worker
        self.key = cast("tuple[str, int]", worker.get_current_task())
        self._positions = itertools.count(first)
        self._timings: list[tuple[int, float, float]] = []
        self._told_at = time.monotonic()

    def done(self, block: Block, seconds: float, waited: float) -> None:
        """Take in a block that is done; raise _UnwantedError if no one waits for the run any more."""
        self._timings.append((next(self._positions), seconds, waited))
        if time.monotonic() - self._told_at > TELL_S:
            self.tell()
        if _is_unwanted(self._worker, self.key):
            raise _UnwantedError(f"no one waits for {self.key} any more")

    def tell(self) -> None:
        """Tell of the blocks since the last time."""
        job, timings, self._timings = self._job, self._timings, []
        # This goes out before the end of the task, on the same stream, so the client knows it by then.
        self._worker.log_event(job.topic, (job.number, self._worker.address, timings))
        self._told_at = time.monotonic()


def _sum_up(
    reduction: serial.Reduction[Any, Any],
    kept: resuming.KeptPass | None,
    first: int,
    blocks: Sequence[Block],
    *,
    is_kept: bool,
) -> Any:
    """Return the sums of a run: the kept ones, or new ones, which are kept where it pays."""
    if kept is None:
        return reduction.run(blocks)
    stop = first + len(blocks)
    if is_kept:
        sums = kept.find(range(first, stop))
        if sums is None:
            raise SumsLostError(f"the sums of blocks {first}:{stop} are gone or damaged")
        return sums[0]
    keeper = resuming.Keeper(kept, first)
    total = reduction.run(blocks, keeper=keeper, first=first)
    keeper.note(stop, total, last=True)
    return total


class _UnwantedError(Exception):
    """End a run that no one waits for."""


class TotalLostError(Exception):
    """A worker does not have, or cannot fetch, the total that it was to go on with."""


class SumsLostError(Exception):
    """A ledger does not have the sums of a run any more, so that all workers may share its blocks."""


def _is_unwanted(worker: distributed.Worker, key: tuple[str, int]) -> bool:
    """Return whether no one waits any more for a task that runs on this worker."""
    task = worker.state.tasks.get(key)
    return task is None or task.state == "cancelled"


def _fetched(worker: distributed.Worker, here: tuple[str, int], number: int) -> Any:
    """Return the result of another task of a pass; raise TotalLostError if it is out of reach.

    `here`: the task that asks for it.
    """
    key = (here[0], number)

    async def fetch() -> Any:  # in the loop's thread, where nothing else changes `worker.data`
        if key in worker.data:
            return worker.data[key]
        fetching = asyncio.ensure_future(fetch_total(worker, key))
        while not fetching.done():
            await asyncio.wait([fetching], timeout=1.0)
            if _is_unwanted(worker, here):  # so that a holder that is frozen does not keep this worker
                fetching.cancel()
        return await fetching

    return sync(worker.loop, fetch)


async def fetch_total(here: distributed.Worker | distributed.Client, key: tuple[str, int]) -> Any:
    """Return the result of a task from a worker that has it; raise TotalLostError if none can be reached."""
    with contextlib.suppress(OSError):
        who_has = await cast("Any", here.scheduler).who_has(keys=[key])
        for holder in who_has[key]:
            here.rpc.reuse(holder, await here.rpc.connect(holder, timeout=REACH_S))
        totals, *_ = await gather_from_workers(who_has, rpc=here.rpc)
        if key in totals:
            return totals[key]
    raise TotalLostError(f"the result of {key} is out of reach")


def pack(total: Any) -> bytes:
    """Pickle a result, to be sent in pieces."""
    return cast("bytes", cloudpickle.dumps(total))


def check_state(state: Parcel) -> None:
    """Raise BroadcastError if a state has other digests on this worker than on the client."""
    state.check()


_TASKS = (place_beside, run_blocks, pack, check_state)


def _picklable(error: Exception) -> Exception:
    """Return `error`, or a description of it if it or one of its causes cannot be pickled."""
    link: BaseException | None = error
    while link is not None:
        try:
            cloudpickle.loads(cloudpickle.dumps(link))  # some errors pickle but do not unpickle
        except Exception:
            described = RuntimeError(f"{type(error).__name__}: {error} (the error itself cannot be pickled)")
            described.add_note("".join(traceback.format_exception(error)))
            return described
        link = link.__cause__ or link.__context__
    return error


def _worker_address() -> str:
    return str(distributed.get_worker().address)


def take_apart(function: Callable[[Block, Any], Any]) -> tuple[Any, Any]:
    """Split a task into a source whose rows are Dask collections, and a `BlockTask` that lacks its source.

    Returns None and the task itself where the source has no such rows.
    """
    if isinstance(function, protocol.WriteTask):
        source, task = take_apart(function.function)
        if source is None:
            return None, function
        return source, replace(task, compute=partial(_write, function.output, task.compute), adds=False)
    if not isinstance(function, BlockTask) or not function.source.is_lazy:
        return None, function
    source, compute = cast("Any", function.source), function.compute
    while source.extends is not None:  # rows of another source, and something next to them
        source, addition = source.extends
        compute = partial(_complete, addition, compute)
    return source, replace(function, source=cast("Any", None), compute=compute)


def _write[S](output: protocol.RegionWriter, compute: Callable[[Rows, S], Any], rows: Rows, state: S) -> int:
    return protocol.write_rows(output, rows.block, compute(rows, state))


def _complete(
    addition: Callable[[Rows], Rows], compute: Callable[..., Any], rows: Rows, state: Any, *total: Any
) -> Any:
    return compute(addition(rows), state, *total)


def pickle_value(value: object, name: str) -> bytes:
    """Pickle a value to bytes, which the scheduler does not unpickle: only workers need the packages."""
    try:
        return cast("bytes", cloudpickle.dumps(value))
    except errors.RFFDistError:
        raise  # a dataset says itself why it cannot travel
    except Exception as error:
        raise errors.InvalidParameterError(
            f"the {name} of a pass cannot be pickled: {type(error).__name__}: {error}; "
            "give the Dask engine functions and state without open files, locks or threads"
        ) from error
