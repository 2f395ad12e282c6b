"""The Dask engine: the serial engine's answer, on many processes and machines.

How a pass runs
    The client submits one fused task per block, in block order and at most `SLOTS` at a time per
    worker, and one small task per merge. Partials stay on the workers; only the whole result travels.
    State and functions are results of tasks too, with their bytes inside the task: when their last
    holder dies the scheduler makes them again, which it cannot do for scattered data.
What is counted once
    A killed worker's tasks are run again, but a partial enters the tree as a task's result, which
    exists once, however often it was computed. Workers keep no sums of their own.
Who may connect
    Whoever reaches a Dask port runs code. The embedded cluster listens on the loopback interface
    only, and a scheduler elsewhere must be reached by TLS unless the caller insists otherwise.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import math
import operator
import os
import queue
import signal
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import cloudpickle  # type: ignore[import-untyped]
import dask.config
import distributed
import numpy as np
from distributed.client import ClosedClientError
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError
from distributed.deploy.utils import nprocesses_nthreads
from distributed.scheduler import KilledWorker

from rff_dist import block_memory
from rff_dist.blocks import Block, BlockFunction, BlockTask, Rows, using_threads
from rff_dist.engines import Broadcast, Engine, RegionWriter
from rff_dist.engines.serial import (
    PairwiseTree,
    block_error,
    check_blocks,
    check_count,
    name_block,
    write_rows,
)
from rff_dist.errors import (
    BlockError,
    BroadcastError,
    ClusterError,
    ClusterLostError,
    ClusterUnavailableError,
    InvalidParameterError,
    MissingDependencyError,
    RFFDistError,
    StorageError,
)
from rff_dist.metrics import PassCounters, pass_counters
from rff_dist.progress import BlockDone, Observer, announce_pass

if TYPE_CHECKING:
    from rff_dist.engines.connection import TLSFiles

__all__ = ["DaskEngine", "WorkerFacts", "state_digests", "tls_security"]

logger = logging.getLogger(__name__)

type _Future = distributed.Future[Any]

#: Blocks in flight per worker process: one that accumulates and one that is ready to follow.
SLOTS = 2
#: Seconds between two looks at the cluster while a pass waits.
POLL_S = 1.0
#: Seconds to wait for a scheduler's answer.
CONNECT_S = 6.0

#: Seconds without blocks after which an adaptive cluster stops workers.
IDLE_S = 30.0

#: Packages, beside Python, whose versions decide the bits.
_SAME_PACKAGES = ["rff_dist", "numpy", "scipy"]

# BLAS threads and the pool of the feature map belong to the process, so one block at a time may use them.
_one_block_at_a_time = threading.Lock()


def state_digests(state: object) -> dict[str, str]:
    """Find what has a method `digest()` in `state`: itself, its members, or their attributes.

    Returns
    -------
    digests : dict of str to str
        The digest by place; "state[0].feature_map", say.
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


# ------------------------------------------------------------------------------------ what runs on workers


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
            raise _broadcast_error({_worker_address(): self.found()}, self.expected)


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tasks of a pass share."""

    function: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    output: RegionWriter | None
    topic: str
    number: str
    label: str
    bytes_per_row: int


class _BlockFailed(Exception):  # noqa: N818  # the carrier of an error, never seen by a caller
    """Carry a block's error, its cause, from a worker to the client."""

    def __init__(self, block: Block, worker: str) -> None:
        super().__init__(block, worker)
        self.block = block
        self.worker = worker


def _unpack(pickled: bytes, expected: dict[str, str]) -> _Parcel:
    try:
        return _Parcel(cloudpickle.loads(pickled), expected)
    except RFFDistError as error:
        error.add_note(f"raised on worker {_worker_address()}")
        raise
    except Exception as error:
        raise ClusterError(
            f"worker {_worker_address()} cannot unpickle the function or state of a pass: "
            f"{type(error).__name__}: {error}; install the same packages there as here"
        ) from error


class _SayOnce(distributed.WorkerPlugin):
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


class _CountBlocks(distributed.SchedulerPlugin):
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
        if topic.startswith(_TOPIC) and self._counters is not None:
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
            self._counters.count_retry(key[0].rpartition(_BLOCK)[0])
        else:
            self._begun.add(key)


# The keys of blocks' tasks are (LABEL + _BLOCK + NUMBER, position), their events' topics _TOPIC + a name.
_BLOCK, _TOPIC = "-rffblock-", "rff_dist-"


def _is_block(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and _BLOCK in key[0]


def _is_said_here_only(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) and message.startswith(_OF_A_LOST_SCHEDULER):
        return False
    return not any(f" {task.__name__}(" in message for task in _TASKS)


def _run_block(job: _Parcel, state: _Parcel, block: Block) -> Any:
    return _run(job.value, state, block, block)


def _run_lazy_block(job: _Parcel, state: _Parcel, block: Block, X: Any, y: Any, sample_weight: Any) -> Any:
    return _run(job.value, state, block, Rows(block, X, y, sample_weight))


def _run(job: _Job, state: _Parcel, block: Block, rows: Block | Rows) -> Any:
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
            failure = _BlockFailed(block, worker.address)
            failure.__cause__ = _picklable(error)
        seconds = time.perf_counter() - start
    if failure is not None:
        # Out here it has no context, which would be pickled beside the cause and might not be picklable.
        raise failure
    # Sent before the task's own end on the same stream, so the client knows it when the block is done.
    size = (block.n_samples, block.n_samples * job.bytes_per_row)
    worker.log_event(job.topic, (job.number, block.index, seconds, worker.address, job.label, *size))
    return result


def _merge(job: _Parcel, left: Any, right: Any) -> Any:
    return job.value.combine(left, right)


def _digests_found(state: _Parcel) -> dict[str, str]:
    return state.found()


_TASKS = (_unpack, _run_block, _run_lazy_block, _merge, _digests_found)


def _picklable(error: Exception) -> Exception:
    """Return `error`, or a description of it if it or what caused it cannot be pickled."""
    link: BaseException | None = error
    while link is not None:
        try:
            cloudpickle.loads(cloudpickle.dumps(link))
        except Exception:
            described = RuntimeError(f"{type(error).__name__}: {error} (the error itself cannot be pickled)")
            described.add_note("".join(traceback.format_exception(error)))
            return described
        link = link.__cause__ or link.__context__
    return error


def _worker_address() -> str:
    return str(distributed.get_worker().address)


def _broadcast_error(found: dict[str, dict[str, str]], expected: dict[str, str]) -> BroadcastError:
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


# ------------------------------------------------------------------------------------------- the engine


@dataclass(frozen=True, eq=False)
class _Placed[S](Broadcast[S]):
    """State on the workers of one engine."""

    future: Any
    engine: DaskEngine


class _QuietNanny(distributed.Nanny):
    """A nanny that leaves this process's environment as it is.

    Dask's own sets OMP_NUM_THREADS=1 and more in the *client's* environment at every start of a
    worker, where later child processes inherit them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # `env` has them still, and is set inside the worker before NumPy is imported.
        self.pre_spawn_env: dict[str, str] = {}


class DaskEngine(Engine):
    """Run blocks on a Dask cluster: an embedded local one, or one that exists.

    Costs about 5 ms of scheduler per block, so blocks should take a second or more. Close the engine,
    or use it as a context manager; an embedded cluster ends with it.

    Parameters
    ----------
    scheduler : str, optional
        Address of an existing scheduler, "tcp://127.0.0.1:8786" or "tls://host:8786". Without it, and
        without `client`, a local cluster starts, on the loopback interface only.
        Scripts that start one need the `if __name__ == "__main__":` guard of multiprocessing.
    client : distributed.Client, optional
        A client to use; it stays open when the engine is closed.
    n_workers, threads_per_worker : int, optional
        Size of the embedded cluster; all CPUs are used by default.
    min_workers : int, optional
        Lets the embedded cluster have as many workers as there are blocks to work on, from `min_workers` to
        `n_workers`; those without work for 30 s stop.
    memory_limit : int or str, optional
        Bytes ("4 GiB") per worker of the embedded cluster; equal shares of the memory by default.
    observers : iterable of callables
        Called with the events of `rff_dist.progress`.
    insecure : bool
        Allow a scheduler beyond this machine without TLS. Anyone who reaches it can run code on it.
    security : distributed.Security, optional
        Certificates for "tls://", or for an embedded cluster; see `distributed.Security.temporary`.
    patience : float
        Seconds that a pass waits while the cluster has no worker at all.

    Raises
    ------
    InvalidParameterError
        If parameters exclude each other, or a size is no integer of at least 1.
    ClusterUnavailableError
        If no scheduler answers within 6 seconds.
    ClusterError
        If the scheduler must not be used, or an embedded cluster does not start.

    Examples
    --------
    >>> engine = DaskEngine("tcp://127.0.0.1:8786")                             # doctest: +SKIP
    >>> engine.map_reduce(count_rows, blocks, None, combine=operator.add)       # doctest: +SKIP
    """

    def __init__(
        self,
        scheduler: str | None = None,
        *,
        client: distributed.Client | None = None,
        n_workers: int | None = None,
        min_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | str | None = None,
        observers: Iterable[Observer] = (),
        insecure: bool = False,
        security: distributed.Security | None = None,
        patience: float = 60.0,
    ) -> None:
        size = {
            "n_workers": n_workers,
            "min_workers": min_workers,
            "threads_per_worker": threads_per_worker,
            "memory_limit": memory_limit,
        }
        _check_parameters(scheduler, client, size=size, security=security)
        self.observers = tuple(observers)
        self._patience = patience
        self._topic = f"{_TOPIC}{uuid.uuid4().hex}"
        self._timings: dict[str, dict[int, tuple[float, str]]] = {}
        # which worker remembers a block, by the runs that let workers remember
        self._homes: dict[str, dict[int, str]] = {}
        self._cluster: distributed.LocalCluster | None = None
        self._workers: dict[str, int] = {}
        self._looked_at = self._seen_workers_at = time.monotonic()
        self._same_versions: set[str] = set()
        self._passes: set[_Pass] = set()
        self._owns_client = client is None
        if client is not None:
            self._client = client
        elif scheduler is not None:
            self._client = _connect(_checked_address(scheduler, insecure=insecure), security)
        else:
            self._cluster = _start_cluster(
                n_workers,
                threads_per_worker,
                memory_limit,
                security=security,
                min_workers=min_workers,
                n_wanted=self._n_blocks_left,
            )
            self._client = distributed.Client(self._cluster, set_as_default=False, timeout=CONNECT_S)
            self._client.register_plugin(_SayOnce())
        self._client.subscribe_topic(self._topic, self._note_timing)
        self._export_metrics()

    def _export_metrics(self) -> None:
        try:
            with self._cluster_errors():
                self._client.register_plugin(_CountBlocks())
        except ClusterLostError:
            raise
        except Exception as error:
            # The passes do not need them: a scheduler may lack the packages, or refuse what is pickled.
            logger.info(
                "the scheduler at %s exports no metrics of rff_dist: %s: %s",
                self.address,
                type(error).__name__,
                error,
            )

    @property
    def n_workers(self) -> int:
        return len(self._look_at_workers())

    @property
    def n_threads(self) -> int:
        return min(self._look_at_workers().values(), default=1)

    @property
    def worker_memory(self) -> int | None:
        """Bytes that the smallest worker may use; None without a limit or a worker."""
        with self._cluster_errors():
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return min((int(w["memory_limit"]) for w in workers if w.get("memory_limit")), default=None)

    @property
    def in_process(self) -> bool:
        return False

    @property
    def client(self) -> distributed.Client:
        """The Dask client in use."""
        return self._client

    @property
    def address(self) -> str:
        """The scheduler's."""
        scheduler = self._client.scheduler
        return str(scheduler.address) if scheduler is not None else "(closed)"

    def describe_workers(self) -> list[WorkerFacts]:
        """Ask every worker how it was started, and compare its versions with those here.

        Raises
        ------
        ClusterError
            With a table, if a worker has other versions.
        """
        if not self._look_at_workers():
            return []
        with self._cluster_errors():
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            found = self._client.run(_make_fact_reader(), on_error="return")
        answered = {address: facts for address, facts in found.items() if isinstance(facts, dict)}
        return [
            WorkerFacts(address, memory_limit=int(workers[address]["memory_limit"] or 0), **facts)
            for address, facts in answered.items()
            if address in workers
        ]

    @contextmanager
    def performance_report(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write Dask's performance report of what runs inside to a local HTML file, also of what fails.

        Raises
        ------
        MissingDependencyError
            Before anything runs, if bokeh is not installed here.
        """
        if importlib.util.find_spec("bokeh") is None:
            raise MissingDependencyError(
                "Dask's performance report needs the package bokeh, which is not installed: pip install "
                "rff_dist[report], here and where the scheduler runs"
            )
        with self._client.as_current():
            report = distributed.performance_report(filename=os.fspath(path))
            report.__enter__()
            try:
                yield
            finally:
                try:
                    report.__exit__(None, None, None)
                except Exception as error:
                    # The work is done, or failed by itself.
                    logger.warning("there is no performance report: %s: %s", type(error).__name__, error)

    def broadcast[S](self, state: S) -> Broadcast[S]:
        """Give `state` to every worker and compare its digests on each of them.

        See `rff_dist.engines.Engine.broadcast` for the contract.
        """
        placed = self._place(state)
        expected = state_digests(placed.state)
        if expected:
            try:
                with self._cluster_errors():
                    self._check_everywhere(placed.future, expected)
            except BaseException:
                placed.future.release()
                raise
        return placed

    def _check_everywhere(self, state: _Future, expected: dict[str, str]) -> None:
        # Tasks bound to their worker, so that large state goes from worker to worker and stays there.
        checks = {
            address: self._client.submit(_digests_found, state, workers=[address], pure=False)
            for address in self._look_at_workers()
        }
        try:
            while checks:
                present = self._current_workers()
                for address, check in list(checks.items()):
                    if check.done():
                        found = _result_or_raise(check)
                        if found != expected:
                            raise _broadcast_error({address: found}, expected)
                    if check.done() or address not in present:
                        # A worker that left has nothing to check; one that comes checks in its first task.
                        del checks[address]
                if checks:
                    time.sleep(0.01)
        finally:
            for check in checks.values():
                check.release()

    def map_reduce[S, T](
        self,
        function: Callable[[Block, S], T],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        *,
        combine: Callable[[T, T], T],
        label: str = "pass",
    ) -> T:
        """Reduce `function(block, state)` over all blocks, pairwise in block order, on the workers.

        See `rff_dist.engines.Engine.map_reduce` for the contract. Where `function` is a `BlockTask`
        whose source `is_lazy`, the cluster computes the source's collections and the rows never
        pass through the client.
        """
        return cast("T", self._run(function, blocks, state, combine=combine, output=None, label=label))

    def map_write[S](
        self,
        function: Callable[[Block, S], np.ndarray],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        output: RegionWriter,
        *,
        label: str = "pass",
    ) -> int:
        """Write `function(block, state)` to `output` from the workers; return the rows written.

        See `rff_dist.engines.Engine.map_write` for the contract.
        """
        return cast(
            "int", self._run(function, blocks, state, combine=operator.add, output=output, label=label)
        )

    def forget(self, run: str) -> None:
        """Drop what every worker remembers of a run's blocks.

        See `rff_dist.engines.Engine.forget` for the contract.
        """
        if self._homes.pop(run, None) is None or self._client.status != "running":
            return
        try:
            self._client.run(block_memory.forget, run, on_error="ignore")
        except Exception as error:  # at the end of a pass that failed too; what is left makes room for others
            logger.warning("workers were not told to forget a run: %s: %s", type(error).__name__, error)

    def close(self) -> None:
        """Close what the engine started: its client, and its embedded cluster with all processes."""
        if self._client.status == "closed":
            return
        if self._client.status == "running":
            self._client.unsubscribe_topic(self._topic)
        if self._owns_client:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    # -- state and functions ---------------------------------------------------------------------------

    def _place[S](self, state: S | Broadcast[S]) -> _Placed[S]:
        if isinstance(state, _Placed) and state.engine is self and state.future.status != "cancelled":
            return state  # a scheduler that came back knows nothing of it
        value: S = state.state if isinstance(state, Broadcast) else state
        return _Placed(value, self._send(_pickle(value, "state"), state_digests(value), "state"), self)

    def _send(self, pickled: bytes, expected: dict[str, str], name: str) -> _Future:
        """Make a value the result of a task that the scheduler can run again, unlike a scatter."""
        with (
            self._cluster_errors(),
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}),
        ):
            return self._client.submit(_unpack, pickled, expected, key=f"{name}-{uuid.uuid4().hex}")

    # -- the cluster -----------------------------------------------------------------------------------

    def _current_workers(self) -> dict[str, int]:
        """Return threads by worker address, at most `POLL_S` old."""
        age = time.monotonic() - self._looked_at
        return self._workers if self._workers and age < POLL_S else self._look_at_workers()

    def _look_at_workers(self) -> dict[str, int]:
        with self._cluster_errors():
            self._workers = dict(self._client.nthreads())
            self._looked_at = time.monotonic()
            if self._workers:
                self._seen_workers_at = self._looked_at
            self._compare_versions(self._workers.keys() - self._same_versions)
        return self._workers

    def _compare_versions(self, addresses: set[str]) -> None:
        if not addresses:
            return
        found: Any = self._client.get_versions(packages=_SAME_PACKAGES)
        _check_versions(found["client"], found["workers"])
        self._same_versions |= found["workers"].keys()

    def _check_patience(self) -> None:
        waited = time.monotonic() - self._seen_workers_at
        if not self._workers and waited > self._patience:
            raise ClusterLostError(
                f"the cluster at {self.address} has had no worker for {waited:.0f} s "
                f"(`patience`={self._patience:g}); the pass has no result. Start workers "
                f"(`dask worker {self.address}`) and repeat it"
            )

    def _n_blocks_left(self) -> int:
        return sum(running.n_left for running in tuple(self._passes))

    @contextmanager
    def _cluster_errors(self) -> Iterator[None]:
        """Translate what distributed raises when it has lost its scheduler."""
        if self._client.status == "closed":
            raise ClusterLostError("the engine's Dask client is closed; make a new engine")
        try:
            yield
        except RFFDistError:
            raise
        except (CancelledError, CommClosedError, ClosedClientError) as error:
            raise self._lost(error) from error
        except OSError as error:
            if self._client.status == "running":
                raise
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> ClusterLostError:
        return ClusterLostError(
            f"the scheduler at {self.address} went away: {type(error).__name__}: {error}; "
            "the pass has no result. Start the cluster again and repeat it"
        )

    def _note_timing(self, event: tuple[float, tuple[Any, ...]]) -> None:
        number, index, seconds, worker, *_ = event[1]
        if number in self._timings:
            self._timings[number][index] = (seconds, worker)

    # -- a pass ----------------------------------------------------------------------------------------

    def _run(
        self,
        function: Callable[[Block, Any], Any],
        blocks: Sequence[Block],
        state: object,
        *,
        combine: Callable[[Any, Any], Any],
        output: RegionWriter | None,
        label: str,
    ) -> Any:
        check_blocks(blocks, label)
        self._check_reach(function, output)
        number = uuid.uuid4().hex
        run = function.run if isinstance(function, BlockFunction) else None
        homes = None if run is None else self._homes.setdefault(run, {})
        source, compute = _take_apart(function)
        pickled = _pickle(
            _Job(compute, combine, output, self._topic, number, label, _bytes_per_row(function)), "function"
        )
        with announce_pass(self.observers, label, blocks) as announce, self._cluster_errors():
            placed = self._place(state)
            job = self._send(pickled, {}, "function")
            timings = self._timings[number] = {}
            running = _Pass(
                self,
                label=label,
                number=number,
                job=job,
                state=placed.future,
                source=source,
                blocks=blocks,
                homes=homes or {},
            )
            self._passes.add(running)
            try:
                for block in running.finished_blocks():
                    seconds, worker = timings.pop(block.index, (math.nan, "unknown"))
                    if homes is not None:
                        homes[block.index] = worker
                    announce(BlockDone(label, block, seconds, worker))
                return running.result()
            finally:
                self._passes.discard(running)
                # By hand, because the frames of an exception in flight would keep them.
                running.release()
                job.release()
                if placed is not state:
                    placed.future.release()
                del self._timings[number]

    def _check_reach(self, function: object, output: RegionWriter | None) -> None:
        """Raise StorageError if data or output are in the memory of this process and workers are others."""
        if self.address.startswith("inproc://"):
            return
        source = function.source if isinstance(function, BlockFunction) else None
        for place in (source, output):
            if place is not None and (place.url or "").startswith("memory://"):
                raise StorageError(
                    f"{place.url} is in the memory of this process, which the workers of the cluster at "
                    f"{self.address} cannot reach; expected a folder or an object store. "
                    "Write it there, or use the serial engine"
                )


class _Pass:
    """What the client knows of a pass: the blocks in flight, and the roots of the merged subtrees."""

    def __init__(
        self,
        engine: DaskEngine,
        *,
        label: str,
        number: str,
        job: _Future,
        state: _Future,
        source: Any,
        blocks: Sequence[Block],
        homes: Mapping[int, str],
    ) -> None:
        self._engine = engine
        self._homes = homes
        self._client = engine.client
        self._name = f"{label}{_BLOCK}{number}"
        self._job = job
        self._state = state
        self._source = source
        self._blocks = blocks
        self._in_flight: dict[Any, tuple[_Future, Block, str]] = {}
        self._load: Counter[str] = Counter()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client = self._client

        # No method of this object: a cycle of references would keep the futures until the next collection.
        def merge(left: _Future, right: _Future) -> _Future:
            # Before any block that waits: a merge frees memory.
            return client.submit(_merge, job, left, right, pure=False, priority=1)

        self._tree = PairwiseTree(merge)
        self._root: _Future | None = None
        #: Blocks that are not done.
        self.n_left = len(blocks)

    def finished_blocks(self) -> Iterator[Block]:
        """Submit all blocks, a few at a time, and yield each when it is done."""
        n_submitted = 0
        while n_submitted < len(self._blocks) or self._in_flight:
            while n_submitted < len(self._blocks) and (worker := self._free_worker(n_submitted)) is not None:
                self._tree.push(self._submit(n_submitted, worker))
                n_submitted += 1
                if n_submitted == len(self._blocks):
                    self._root = self._tree.finish()
            key = self._next_done()
            if key is not None:
                future, block, worker = self._in_flight[key]
                self._check(future, block)
                self._load[worker] -= 1
                self.n_left -= 1
                # The partial stays on its worker only while a merge still needs it.
                del future, self._in_flight[key]
                yield block

    def result(self) -> Any:
        """Wait for the root of the tree and fetch it."""
        root = self._root
        assert root is not None  # finished_blocks() has run to its end
        self._watch(root)
        while not root.done():
            self._next_done()
        self._check(root, None)
        # By way of the scheduler, Dask's default, the fetch takes six times as long (0.74 s for 67 MB); but
        # only an embedded cluster's workers are sure to be in reach.
        direct = True if self._engine._cluster is not None else None
        fetching = asyncio.run_coroutine_threadsafe(
            self._client.gather(root, asynchronous=True, direct=direct),
            cast("Any", self._client.loop).asyncio_loop,
        )
        # A worker may die before its result is fetched, so the fetch is watched like the pass.
        while True:
            try:
                return fetching.result(timeout=POLL_S)
            except TimeoutError:
                if fetching.done():
                    raise
                self._poll()

    def release(self) -> None:
        """Tell the scheduler that nobody wants this pass's tasks, so that what has not run never will."""
        # Not `Client.cancel`: where a merge was forgotten already, the scheduler (2026.8) fails an
        # assertion in it and drops the client.
        for future in [future for future, _, _ in self._in_flight.values()] + self._tree.partials():
            future.release()
        if self._root is not None:
            self._root.release()

    def _free_worker(self, position: int) -> str | None:
        workers = self._engine._current_workers()
        home = self._homes.get(self._blocks[position].index)
        if home in workers and self._load[home] < SLOTS:
            return home
        worker = min(workers, key=self._load.__getitem__, default=None)
        return worker if worker is not None and self._load[worker] < SLOTS else None

    def _submit(self, position: int, worker: str) -> _Future:
        block = self._blocks[position]
        key = (self._name, position)
        if self._source is None:
            # Without a place Dask would send them where the state already is, until idle workers steal them.
            future = self._client.submit(
                _run_block, self._job, self._state, block, key=key, workers=[worker], allow_other_workers=True
            )
        else:
            rows = self._client.compute(self._source.lazy(block))
            future = self._client.submit(_run_lazy_block, self._job, self._state, block, *rows, key=key)
        self._in_flight[key] = (future, block, worker)
        self._load[worker] += 1
        self._watch(future)
        return future

    def _watch(self, future: _Future) -> None:
        done, key = self._done, future.key
        future.add_done_callback(lambda _: done.put(key))

    def _next_done(self) -> Any:
        try:
            key = self._done.get(timeout=POLL_S)
        except queue.Empty:
            key = None
        self._poll()
        return key if key in self._in_flight else None

    def _poll(self) -> None:
        self._engine._current_workers()
        self._engine._check_patience()

    def _check(self, future: _Future, block: Block | None) -> None:
        if future.status == "error":
            self._fail(future.exception(), block)
        if future.status == "cancelled":
            raise CancelledError(f"the task {future.key} was cancelled")

    def _fail(self, error: BaseException, block: Block | None) -> NoReturn:
        if isinstance(error, _BlockFailed):
            cause = error.__cause__ or error
            if isinstance(cause, RFFDistError):
                cause.add_note(f"raised in {name_block(error.block)} on worker {error.worker}")
                raise cause
            raise block_error(error.block, cause) from cause
        if isinstance(error, KilledWorker):
            killer = self._block_of(error.task) or block
            what = "a merge of partials" if killer is None else name_block(killer)
            kind = ClusterError if killer is None else BlockError
            raise kind(
                f"{what} was running on {error.allowed_failures + 1} workers when they died; "
                "the pass has no result. Give the workers more memory, "
                "or look at these rows of the data and at the workers' logs"
            ) from error
        if block is None or isinstance(error, RFFDistError):
            raise error
        raise block_error(block, error) from error

    def _block_of(self, key: Any) -> Block | None:
        match key:
            case (self._name, int(position)):
                return self._blocks[position]
        return None


def _take_apart(function: Callable[[Block, Any], Any]) -> tuple[Any, Callable[[Any, Any], Any]]:
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


def _bytes_per_row(function: object) -> int:
    """Return what a row of the data takes in memory; 0 where the blocks read none."""
    if not isinstance(function, BlockTask):
        return 0
    source = function.source
    return int(source.n_features * source.dtype.itemsize + 8 * (source.n_targets + source.weighted))


def _complete[S, T](
    addition: Callable[[Rows], Rows], compute: Callable[[Rows, S], T], rows: Rows, state: S
) -> T:
    return compute(addition(rows), state)


def _pickle(value: object, name: str) -> bytes:
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


def _result_or_raise(future: _Future) -> Any:
    if future.status == "error":
        raise future.exception()
    return future.result()


# -------------------------------------------------------------------------------------- finding a cluster


def _check_parameters(
    scheduler: str | None,
    client: distributed.Client | None,
    *,
    size: Mapping[str, int | str | None],
    security: distributed.Security | None,
) -> None:
    if scheduler is not None and client is not None:
        raise InvalidParameterError("`scheduler` and `client` were both given; give one of them")
    given = [name for name, value in size.items() if value is not None]
    if given and (scheduler is not None or client is not None):
        raise InvalidParameterError(
            f"{', '.join(f'`{name}`' for name in given)} size an embedded cluster, "
            "but an existing one was given; leave them out"
        )
    if security is not None and client is not None:
        raise InvalidParameterError("`security` belongs to the `client` given; leave it out")
    for name in ("n_workers", "min_workers", "threads_per_worker"):
        check_count(name, size[name])


def _checked_address(address: str, *, insecure: bool) -> str:
    """Return scheme://host:port, by default port 8786, unless anyone in between could take this process."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "tcp", address
    if scheme not in ("tcp", "tls", "ws", "wss"):
        raise InvalidParameterError(
            f"`scheduler`={address!r} is no address; expected tcp://host:port or tls://host:port"
        )
    try:
        host, port = parse_host_port(rest, 8786)
    except ValueError as error:
        raise InvalidParameterError(f"`scheduler`={address!r} is no address: {error}") from error
    if not host or not 0 < port < 65_536:
        raise InvalidParameterError(
            f"`scheduler`={address!r} is no address: host {host!r} and port {port}; "
            "expected a host and a port in [1, 65535]"
        )
    if scheme in ("tcp", "ws") and not _is_loopback(host) and not insecure:
        raise ClusterError(
            f"the scheduler {address} is reached over the network without TLS, and anyone who reaches it "
            "can run code there and here; use tls:// with `security`, "
            "or `insecure=True` on a network that you trust"
        )
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _connect(address: str, security: distributed.Security | None) -> distributed.Client:
    # A client without certificates would try for 12 s more to close what it never opened.
    certificates = (security or distributed.Security()).get_connection_args("client")["ssl_context"]
    if certificates is None and address.startswith(("tls://", "wss://")):
        raise ClusterError(
            f"{address} is spoken to with certificates, and there are none; set RFF_DIST_TLS_CA, "
            "RFF_DIST_TLS_CERT and RFF_DIST_TLS_KEY to PEM files, or give `security`"
        )
    try:
        return distributed.Client(address, security=security, timeout=CONNECT_S, set_as_default=False)
    except OSError as error:
        raise ClusterUnavailableError(
            f"no scheduler answers at {address} within {CONNECT_S:g} s: {error}; "
            "check the address, or start one with `dask scheduler --host 127.0.0.1`"
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise ClusterError(f"cannot connect to {address}: {error}; check `security`") from error


def tls_security(files: TLSFiles) -> distributed.Security:
    """Return Dask's form of certificates: for a client, and for all parts of an embedded cluster."""
    pair = {
        f"tls_{role}_{name}": getattr(files, name)
        for role in ("client", "scheduler", "worker")
        for name in ("cert", "key")
    }
    return distributed.Security(tls_ca_file=files.ca, require_encryption=True, **pair)


class _AsManyAsBlocks(distributed.Adaptive):
    """Ask for a worker per block that is left.

    Dask's own rule divides the tasks that wait by the workers' threads, but a block takes all of a worker's,
    and few blocks wait at the scheduler.
    """

    def __init__(self, cluster: Any, *, n_wanted: Callable[[], int], **options: Any) -> None:
        self._n_wanted = n_wanted
        super().__init__(cluster, **options)

    async def target(self) -> int:
        return self._n_wanted()


@contextlib.contextmanager
def spare_children_ctrl_c() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all: each would die with a traceback.

    Processes inherit that a signal is ignored. Here it is blocked meanwhile, so that it is not lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# Every process of a cluster looks at itself 50 and 100 times a second, which takes 2 % of a core each.
_WATCH_LESS = {
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.interval": "100ms",
    "distributed.worker.profile.cycle": "10s",
}


def _start_cluster(
    n_workers: int | None,
    threads_per_worker: int | None,
    memory_limit: int | str | None,
    *,
    security: distributed.Security | None,
    min_workers: int | None,
    n_wanted: Callable[[], int],
) -> distributed.LocalCluster:
    n_cpus = len(os.sched_getaffinity(0))
    if n_workers is None and threads_per_worker is None:
        n_workers, threads_per_worker = nprocesses_nthreads(n_cpus)
    n_workers = n_workers or max(1, n_cpus // (threads_per_worker or 1))
    threads_per_worker = threads_per_worker or max(1, n_cpus // n_workers)
    if min_workers is not None and min_workers > n_workers:
        raise InvalidParameterError(
            f"`min_workers` is {min_workers} and `n_workers` {n_workers}; expected at most as many"
        )
    try:
        with spare_children_ctrl_c(), dask.config.set(_WATCH_LESS):
            cluster = distributed.LocalCluster(
                n_workers=min_workers or n_workers,
                threads_per_worker=threads_per_worker,
                processes=True,
                worker_class=_QuietNanny,
                memory_limit="auto" if memory_limit is None else memory_limit,
                host="127.0.0.1",
                # None would mean port 8787, and a warning where that is taken.
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address=None,
                # Pictures of bokeh's, where it is installed, take a second and 20 MiB; /metrics stays.
                scheduler_kwargs={"dashboard": False},
                security=security,
                # Warnings tell of restarts and full memory, which a pass survives; errors stay.
                silence_logs=logging.ERROR,
            )
            if min_workers is not None:
                cluster.adapt(
                    Adaptive=_AsManyAsBlocks,
                    n_wanted=n_wanted,
                    minimum=min_workers,
                    maximum=n_workers,
                    interval="1s",
                    wait_count=round(IDLE_S),
                )
            return cluster
    except Exception as error:
        raise ClusterError(
            f"an embedded cluster of {n_workers} workers with {threads_per_worker} threads did not start: "
            f'{type(error).__name__}: {error}; in a script, put the work under `if __name__ == "__main__":`, '
            "because each worker imports the script"
        ) from error


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """How a worker was started.

    Attributes
    ----------
    address : str
        The worker's.
    host : str
        Its machine's name.
    n_threads : int
        Threads that a block may use.
    n_cpus : int
        Cores that its process may use.
    memory : int
        Bytes of its machine, or of its container.
    memory_limit : int
        Bytes that it may use; 0 without a limit.
    """

    address: str
    host: str
    n_threads: int
    n_cpus: int
    memory: int
    memory_limit: int


def _make_fact_reader() -> Callable[..., dict[str, Any]]:
    def facts(dask_worker: Any) -> dict[str, Any]:
        # Nested, so that it is pickled by value and runs where rff_dist cannot be imported.
        import socket

        from dask.system import CPU_COUNT
        from distributed.system import MEMORY_LIMIT

        threads = dask_worker.state.nthreads
        return {
            "host": socket.gethostname(),
            "n_threads": threads,
            "n_cpus": CPU_COUNT,
            "memory": MEMORY_LIMIT,
        }

    return facts


def _check_versions(client: Mapping[str, Any], workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ClusterError with a table if any worker runs other versions than the client."""
    names = ("python", *_SAME_PACKAGES)
    here, *there = (
        tuple(one["packages"].get(name) or "none" for name in names) for one in (client, *workers.values())
    )
    wrong = [(worker, *versions) for worker, versions in zip(workers, there, strict=True) if versions != here]
    if not wrong:
        return
    lines = [("where", *names), ("client", *here), *wrong]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )
    raise ClusterError(
        f"{len(wrong)} workers run other versions than the client, so their bits may differ; "
        f"install the same versions on both sides:\n{table}"
    )
