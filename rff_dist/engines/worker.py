"""What the Dask engine sends to workers: a block's task, the state with its digests, and plugins."""

# mypy: allow-untyped-calls
from __future__ import annotations

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import distributed

from rff_dist.data.blocks import Block, BlockTask, Rows
from rff_dist.engines.prometheus import PassCounters, pass_counters
from rff_dist.engines.protocol import RegionWriter
from rff_dist.engines.serial import write_rows
from rff_dist.errors import (
    BroadcastError,
    ClusterError,
    InvalidParameterError,
    MissingDependencyError,
    RFFDistError,
)
from rff_dist.numerics.threads import using_threads

logger = logging.getLogger(__name__)

# BLAS threads and the pool of the feature map belong to the process, so one block at a time may use them.
_one_block_at_a_time = threading.Lock()


def state_digests(state: object) -> dict[str, str]:
    """Find what has a method `digest()` in `state`: itself, its members, or their attributes.

    Returns `digests`: the digest by place; "state[0].feature_map", say.
    """
    return dict(_walk_digests(state, "state"))


def _walk_digests(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, type):
        return
    digest = getattr(value, "digest", None)
    if callable(digest):
        yield place, str(digest())
        return
    if isinstance(value, Mapping):
        members = [(f"{place}[{key!r}]", member) for key, member in value.items()]
    elif isinstance(value, list | tuple):
        members = [(f"{place}[{i}]", member) for i, member in enumerate(value)]
    elif is_dataclass(value):
        names = value.__dataclass_fields__
        members = [(f"{place}.{name}", getattr(value, name)) for name in names]
    else:
        members = [
            (f"{place}.{name}", member)
            for name, member in getattr(value, "__dict__", {}).items()
            if callable(getattr(member, "digest", None))
        ]
    for name, member in members:
        yield from _walk_digests(member, name)


class _Parcel:
    """A value on a worker, whose digests are computed once in every process that it reaches."""

    def __init__(self, value: Any, expected: dict[str, str]) -> None:
        self.value = value
        self.expected = expected
        self._found: dict[str, str] | None = None

    def __reduce__(self) -> tuple[type[_Parcel], tuple[Any, dict[str, str]]]:
        return _Parcel, (self.value, self.expected)

    def found(self) -> dict[str, str]:
        if self._found is None:
            self._found = state_digests(self.value)
        return self._found

    def check(self) -> None:
        if self.found() != self.expected:
            raise broadcast_error({_worker_address(): self.found()}, self.expected)


@dataclass(frozen=True, slots=True)
class PassTask:
    """What all tasks of a pass share."""

    function: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    output: RegionWriter | None
    topic: str
    number: str
    label: str
    bytes_per_row: int


class BlockFailed(Exception):  # noqa: N818  # the carrier of an error, never seen by a caller
    """Carry a block's error, its cause, from a worker to the client."""

    def __init__(self, block: Block, worker: str) -> None:
        super().__init__(block, worker)
        self.block = block
        self.worker = worker


def unpack(pickled: bytes, expected: dict[str, str]) -> _Parcel:
    """Unpickle a value on a worker."""
    try:
        # from the client, by the same way as the tasks: it runs code here anyhow
        return _Parcel(cloudpickle.loads(pickled), expected)
    except RFFDistError as error:
        error.add_note(f"raised on worker {_worker_address()}")
        raise
    except Exception as error:
        raise ClusterError(
            f"worker {_worker_address()} cannot unpickle the function or state of a pass: "
            f"{type(error).__name__}: {error}; install the same packages there as here"
        ) from error


class SayOnce(distributed.WorkerPlugin):
    """Leave out of an embedded worker's log what the client says by itself.

    These are failures of a pass, which it raises, and that the scheduler cannot be reached: either the
    client closes the cluster on purpose, or its pass ends with ClusterLostError.
    """

    name = "rff_dist-say-once"

    def setup(self, worker: distributed.Worker) -> None:
        logging.getLogger("distributed.worker").addFilter(_is_said_here_only)
        if threading.current_thread() is threading.main_thread():
            # A worker that came later was not started with `spare_children_ctrl_c`.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


# What distributed.worker logs with a traceback where a heartbeat, or its farewell, meets a closed connection.
_OF_A_LOST_SCHEDULER = ("Failed to communicate with scheduler", "Failed to log closing event")


class CountBlocks(distributed.SchedulerPlugin):
    """Count blocks for Prometheus where the scheduler runs; it needs rff_dist there."""

    name = "rff_dist-metrics"
    idempotent = True

    def __init__(self) -> None:
        self._begun: set[Any] = set()
        self._counters: PassCounters | None = None

    async def start(self, scheduler: distributed.Scheduler) -> None:
        try:
            self._counters = pass_counters()
        except MissingDependencyError as error:
            logger.warning("%s", error)

    def log_event(self, topic: str, msg: Any) -> None:
        if topic.startswith(TOPIC) and self._counters is not None:
            number, index, seconds, _, label, n_samples, n_bytes = msg
            self._counters.count_block(
                label, number, index, n_samples=n_samples, n_bytes=n_bytes, seconds=seconds
            )

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        if finish not in ("processing", "forgotten") or not _is_block(key) or self._counters is None:
            return
        if finish == "forgotten":
            self._begun.discard(key)
        elif key in self._begun:
            self._counters.count_retry(key[0].rpartition(BLOCK)[0])
        else:
            self._begun.add(key)


# The keys of blocks' tasks are (LABEL + BLOCK + NUMBER, position), their events' topics TOPIC + a name.
BLOCK, TOPIC = "-rffblock-", "rff_dist-"


def _is_block(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and BLOCK in key[0]


def _is_said_here_only(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) and message.startswith(_OF_A_LOST_SCHEDULER):
        return False
    return not any(f" {task.__name__}(" in message for task in _TASKS)


def run_block(job: _Parcel, state: _Parcel, block: Block) -> Any:
    """Run a block that the function reads itself."""
    return _run(job.value, state, block, block)


def run_lazy_block(job: _Parcel, state: _Parcel, block: Block, X: Any, y: Any, sample_weight: Any) -> Any:
    """Run a block whose rows other tasks made."""
    return _run(job.value, state, block, Rows(block, X, y, sample_weight))


def _run(job: PassTask, state: _Parcel, block: Block, rows: Block | Rows) -> Any:
    worker = distributed.get_worker()
    failure = None
    with _one_block_at_a_time:
        state.check()
        start = time.perf_counter()
        try:
            with using_threads(worker.state.nthreads):
                result = job.function(rows, state.value)
                if job.output is not None:
                    result = write_rows(job.output, block, result)
        except Exception as error:
            failure = BlockFailed(block, worker.address)
            failure.__cause__ = _picklable(error)
        seconds = time.perf_counter() - start
    if failure is not None:
        # Out here it has no context, which would be pickled beside the cause and might not be picklable.
        raise failure
    # Sent before the task's own end on the same stream, so the client knows it when the block is done.
    size = (block.n_samples, block.n_samples * job.bytes_per_row)
    worker.log_event(job.topic, (job.number, block.index, seconds, worker.address, job.label, *size))
    return result


def merge_partials(job: _Parcel, left: Any, right: Any) -> Any:
    """Merge two partials."""
    return job.value.combine(left, right)


def digests_found(state: _Parcel) -> dict[str, str]:
    """Return the digests of a state on this worker."""
    return state.found()


_TASKS = (unpack, run_block, run_lazy_block, merge_partials, digests_found)


def _picklable(error: Exception) -> Exception:
    """Return `error`, or a description of it if it or what caused it cannot be pickled."""
    link: BaseException | None = error
    while link is not None:
        try:
            cloudpickle.loads(cloudpickle.dumps(link))  # our own bytes: do they come back?
        except Exception:
            described = RuntimeError(f"{type(error).__name__}: {error} (the error itself cannot be pickled)")
            described.add_note("".join(traceback.format_exception(error)))
            return described
        link = link.__cause__ or link.__context__
    return error


def _worker_address() -> str:
    return str(distributed.get_worker().address)


def broadcast_error(found: dict[str, dict[str, str]], expected: dict[str, str]) -> BroadcastError:
    """Describe workers that hold another state than the client."""
    wrong = "; ".join(
        f"{worker}: {place} is {digests.get(place, 'missing')}, expected {digest}"
        for worker, digests in found.items()
        for place, digest in expected.items()
        if digests.get(place) != digest
    )
    return BroadcastError(
        f"workers hold another state than the client: {wrong}; "
        "their packages or processors differ. Use the same versions and one type of machine on both sides, "
        "or give the feature map its frequencies as arrays"
    )


def take_apart(function: Callable[[Block, Any], Any]) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Split a task whose source can hand its rows to the cluster as Dask collections."""
    if not isinstance(function, BlockTask):
        return None, function
    source, compute = function.source, function.compute
    if not source.is_lazy:
        return None, function
    while source.extends is not None:  # rows of another source, and something beside them
        source, addition = source.extends
        compute = partial(_complete, addition, compute)
    return source, compute


def bytes_per_row(function: object) -> int:
    """Return what a row of the data takes in memory; 0 where the blocks read none."""
    if not isinstance(function, BlockTask):
        return 0
    source = function.source
    return int(source.n_features * source.dtype.itemsize + 8 * (source.n_targets + source.weighted))


def _complete[S, T](
    addition: Callable[[Rows], Rows], compute: Callable[[Rows, S], T], rows: Rows, state: S
) -> T:
    return compute(addition(rows), state)


def pickle_value(value: object, name: str) -> bytes:
    """Pickle a value to bytes, which the scheduler does not look into."""
    # As bytes, so that the scheduler does not unpickle it: only workers need the packages.
    try:
        return cast("bytes", cloudpickle.dumps(value))
    except RFFDistError:
        raise  # a dataset that knows why it cannot travel
    except Exception as error:
        raise InvalidParameterError(
            f"the {name} of a pass cannot be pickled: {type(error).__name__}: {error}; "
            "give the Dask engine functions and state without open files, locks or threads"
        ) from error
