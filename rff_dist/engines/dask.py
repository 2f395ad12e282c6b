"""The Dask engine: the serial engine's answer, on many processes and machines.

How a pass runs
    The client hands out runs of consecutive blocks, long ones first. Each run is a task: it adds up its
    blocks, and then adds the worker's total so far, which is the result of the worker's run before. When no
    block is left, the totals of two workers at a time are merged. The last total comes to the client
    straight from its worker or, if that is out of reach, by way of the scheduler in pieces of 32 MiB. So each
    worker's total travels once; totals of workers that do not reach each other are added by the client.
    State and functions are results of tasks too, with their bytes inside the task: when their last holder
    dies, the scheduler makes them again, which it cannot do for scattered data.
How waiting is bounded
    A task of Dask that waits for data asks for them without end. So tasks fetch totals themselves, and
    functions and states travel pickled. Every few seconds the client looks at what each worker does: silent
    ones are restarted, and those that cannot begin their tasks are left out, with a warning.
How each block counts once
    Workers keep no sums besides the results of tasks. A total is a task's result, and the client knows which
    blocks are in it. When a total dies with its worker, its blocks are handed out again, to all workers.
Who may connect
    Whoever connects to a Dask port can run code. The embedded cluster listens on the loopback interface only
    and accepts only its own temporary certificates. A scheduler elsewhere must be reached by TLS, unless the
    caller insists otherwise.
"""

# mypy: allow-untyped-calls

import contextlib
import logging
import operator
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast

import dask.config
import distributed

from rff_dist.data import dask_collections
from rff_dist.data.blocks import Block
from rff_dist.engines import (
    dask_cluster,
    dask_pass,
    dask_workers,
    progress,
    protocol,
    resuming,
    serial,
    tracing,
    worker,
)
from rff_dist.engines.cluster import Cluster
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.engines.protocol import Broadcast, Engine, WriteTask, source_of
from rff_dist.errors import InvalidParameterError, StorageError
from rff_dist.lazy import require
from rff_dist.typing import PathLike

logger = logging.getLogger(__name__)


# ------------------------------------------------------------------------------------------- the engine


@dataclass(frozen=True, eq=False)
class _Placed[S](Broadcast[S]):
    """State on the workers of one engine."""

    future: Any


class DaskEngine(Engine):
    """Run blocks on a Dask cluster: an embedded local one, or one that exists.

    Close the engine, or use it as a context manager; an embedded cluster ends with it.

    Parameters
    ----------
    scheduler : str, optional
        Address of an existing scheduler, "tcp://127.0.0.1:8786" or "tls://host:8786". Without it, and
        without `client`, a local cluster starts, on the loopback interface only.
        Scripts that start one need the `if __name__ == "__main__":` guard of multiprocessing.
    client : distributed.Client, optional
        A client to use; it stays open when the engine is closed.
    cluster : a cluster of Dask, optional
        With a scheduler and workers, such as a KubeCluster; it ends with the engine.
    n_workers, threads_per_worker : int, optional
        Size of the embedded cluster; all CPUs are used by default.
    memory_limit : int or str, optional
        Bytes ("4 GiB") per worker of the embedded cluster; equal shares of the memory by default.
    observers : iterable of callables
        Called with the events of `rff_dist.engines.progress`.
    insecure : bool
        Allow a scheduler beyond this machine without TLS. Anyone who reaches it can run code on it.
    security : distributed.Security, optional
        Certificates for "tls://". An embedded cluster makes temporary ones by default.
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

    in_process = False

    def __init__(
        self,
        scheduler: str | None = None,
        *,
        client: distributed.Client | None = None,
        cluster: Any | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | str | None = None,
        observers: progress.Observers = (),
        insecure: bool = False,
        security: distributed.Security | None = None,
        patience: float = 60.0,
    ) -> None:
        size = {
            "n_workers": n_workers,
            "threads_per_worker": threads_per_worker,
            "memory_limit": memory_limit,
        }
        dask_cluster.check_parameters(scheduler, client, size=size, security=security)
        own = Cluster(n_workers=n_workers, n_threads=threads_per_worker, memory=memory_limit)
        self.observers = tuple(observers)
        self._topic = f"rff_dist-{uuid.uuid4().hex}"
        self._cluster: Any | None = None
        self._passes: dict[str, dask_pass.Pass] = {}
        self._owns_client = client is None
        self._patience = patience
        #: Connects again to a scheduler given by address; None for other clusters.
        self._dial: Callable[[], distributed.Client] | None = None
        # What was begun ends again if the rest of the start fails or is interrupted.
        with contextlib.ExitStack() as begun:
            if client is not None:
                dask_collections.check_client(client)
            elif scheduler is not None:
                address = dask_cluster.checked_address(scheduler, insecure=insecure)
                self._dial = partial(dask_cluster.connect, address, security)
                client = begun.enter_context(self._dial())
            else:
                if cluster is None:
                    cluster = dask_cluster.start_cluster(own, security=security)
                self._cluster = cluster
                begun.callback(self._cluster.close)
                options = {"set_as_default": False, "timeout": dask_cluster.CONNECT_S}
                client = begun.enter_context(distributed.Client(self._cluster, **options))
            self._join(client)
            if self._cluster is not None:
                self._workers.ask(lambda: self._client.register_plugin(worker.SayOnce()))
            begun.pop_all()

    def _join(self, client: distributed.Client) -> None:
        self._client = client
        self._joined = dask_workers.Workers(client, patience=self._patience)
        client.subscribe_topic(self._topic, self._note)

    @property
    def _workers(self) -> dask_workers.Workers:
        """The cluster's workers, by a new client if the scheduler went away: it may be back by now."""
        if self._dial is not None and self._client.status != "running":
            with contextlib.suppress(OSError):
                self._client.close()
            self._join(self._dial())
        return self._joined

    def __reduce__(self) -> NoReturn:
        raise InvalidParameterError(
            "a DaskEngine cannot be sent to another process; leave `engine` out of what goes there. A task "
            "then works on its own, or makes DaskEngine(client=distributed.get_client())"
        )

    @property
    def n_workers(self) -> int:
        return len(self._workers.look())

    @property
    def n_threads(self) -> int:
        return min(self._workers.look().values(), default=1)

    @property
    def worker_memory(self) -> int | None:
        workers = self._workers.facts().values()
        return min((int(w["memory_limit"]) for w in workers if w.get("memory_limit")), default=None)

    @property
    def client(self) -> distributed.Client:
        """The Dask client in use."""
        return self._client

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return self._joined.address

    def ask_workers(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return what a function returns, or raises, on each worker, by address; only of those that answer.

        Raises
        ------
        ClusterError
            With a table, if all workers have other versions.
        """
        return self._workers.run(function)

    def describe_workers(self) -> list[dask_cluster.WorkerFacts]:
        """Ask every worker how it was started, and compare its versions with those here.

        Raises
        ------
        ClusterError
            With a table, if all workers have other versions.
        """
        answers = self.ask_workers(dask_cluster.make_fact_reader())
        facts = self._workers.facts()
        answered = [address for address in facts if isinstance(answers.get(address), dict)]
        limits = [int(facts[address]["memory_limit"] or 0) for address in answered]
        pairs = zip(answered, limits, strict=True)
        return [dask_cluster.WorkerFacts(at, memory_limit=limit, **answers[at]) for at, limit in pairs]

    @contextlib.contextmanager
    def performance_report(self, path: PathLike) -> Iterator[None]:
        """Write Dask's performance report of the work inside, even if it fails, to a local HTML file.

        Raises
        ------
        MissingDependencyError
            Before anything runs, if bokeh is not installed here.
        """
        why = "Dask's performance report needs the package bokeh"
        require("bokeh", why, "report", ", here and where the scheduler runs")
        with self._client.as_current():
            report = distributed.performance_report(filename=os.fspath(path))
            self._workers.ask(report.__aenter__)
            try:
                yield
            finally:
                try:
                    self._workers.ask(partial(report.__aexit__, None, None, None))
                except Exception as error:
                    # The report must not hide the result of the work, or its error.
                    logger.warning("there is no performance report: %s: %s", type(error).__name__, error)

    # Not `client.scatter`: what it places is lost with the workers that hold it, and a task runs again.
    def broadcast[S](self, state: S) -> Broadcast[S]:
        placed = self._place(state)
        if protocol.state_digests(placed.state):
            try:
                with dask_collections.place_for_others(), self._workers.errors():
                    _check_everywhere(self._client, self._workers, placed.future)
            except BaseException:
                placed.future.release()
                raise
        return placed

    def map_reduce[S, T](
        self,
        function: Callable[[Block, S], T],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        *,
        combine: Callable[[T, T], T] = operator.add,
        label: str = "pass",
    ) -> T:
        """Reduce `function(block, state)` over all blocks on the workers.

        See `rff_dist.engines.protocol.Engine.map_reduce` for the contract. Where `function` is a `BlockTask`
        whose source `is_lazy`, the cluster computes the source's collections and the rows never
        pass through the client.
        """
        serial.check_blocks(blocks, label)
        self._check_reach(function)
        number = uuid.uuid4().hex
        source, compute = worker.take_apart(function)
        self._check_persisted(source)
        shared = state.state if isinstance(state, Broadcast) else state
        kept = resuming.keep_pass(self.ledger, function, blocks, shared, combine)
        about = partial(protocol.describe_pass, function, shared)
        task = worker.PassTask(compute, combine, self._topic, number, label, kept)
        # Here, so that what cannot travel is refused before the pass is announced.
        pickled = worker.pickle_value(task, "function")
        with (
            dask_collections.place_for_others(),
            progress.announce_pass(self.observers, label, blocks, about) as announce,
            self._workers.errors(),
        ):
            if (trace := tracing.parent(len(blocks))) is not None:
                task = replace(task, trace=trace)
                pickled = worker.pickle_value(task, "function")
            placed = self._place(state)
            job = self._send("function", worker.place_beside, placed.future, pickled)
            partitions = None if source is None else PartitionTasks(self._client, source, blocks)
            tasks = dask_pass.Tasks(self._client, task, job, placed.future, partitions)
            running = self._passes[number] = dask_pass.Pass(self._workers, blocks, tasks=tasks)
            serial.announce_resumed(announce, label, blocks, running.parts)
            # It keeps the total in place of the sums of runs, so that each pass of a job leaves one file.
            keeper = None if kept is None else resuming.Keeper(kept, 0, share=resuming.SHARE / 3)
            try:
                for event in running.events():
                    announce(event)
                total = cast("T", running.result())
                if keeper is not None:
                    keeper.note(len(blocks), total, last=True)
                return total
            finally:
                del self._passes[number]
                # Release futures by hand: the frames of an exception in flight would keep them alive.
                running.release()
                job.release()
                if placed is not state:
                    placed.future.release()

    def close(self) -> None:
        self._dial = None
        if self._client.status == "running" and self._cluster is None:
            self._joined.forget(self._topic)
        if self._owns_client:
            # A frozen scheduler does not answer the farewell.
            with contextlib.suppress(OSError):
                self._client.close()
        if self._cluster is not None:
            self._cluster.close()  # its nannies kill what does not end: 4 s with frozen workers

    # -- state and functions ---------------------------------------------------------------------------

    def _place[S](self, state: S | Broadcast[S]) -> _Placed[S]:
        if (
            isinstance(state, _Placed)
            and state.future.client is self._client  # another client's scheduler has gone away
            and state.future.status != "cancelled"
        ):
            return state
        value: S = state.state if isinstance(state, Broadcast) else state
        pickled, digests = worker.pickle_value(value, "state"), protocol.state_digests(value)
        return _Placed(value, self._send("state", worker.Parcel, pickled, digests))

    def _send(self, name: str, make: Callable[..., worker.Parcel], *parts: Any) -> dask_pass.Future:
        """Make a value the result of a task, which the scheduler can run again, unlike a scatter."""
        with (
            self._workers.errors(),
            # The value is inside the task on purpose.
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}),
        ):
            return self._client.submit(
                make, *parts, key=f"{name}-{uuid.uuid4().hex}", **self._workers.where()
            )

    def _note(self, event: tuple[float, tuple[Any, ...]]) -> None:
        number, address, timings = event[1]
        if (running := self._passes.get(number)) is not None:
            running.note(address, timings)

    def _check_reach(self, function: object) -> None:
        """Raise StorageError if data or output are in this process's memory, out of the workers' reach."""
        if self.address.startswith("inproc://"):
            return
        output = function.output if isinstance(function, WriteTask) else None
        for place in (source_of(function), output):
            if place is not None and (place.url or "").startswith("memory://"):
                raise StorageError(
                    f"{place.url} is in the memory of this process, which the workers of the cluster at "
                    f"{self.address} cannot reach; expected a folder or an object store. "
                    "Write it there, or use the serial engine"
                )

    def _check_persisted(self, source: Any) -> None:
        """Refuse Dask collections of which another cluster holds parts."""
        client = None if source is None else source.client
        if client is not None and (address := client.scheduler.address) != self.address:
            raise InvalidParameterError(
                f"parts of the data are persisted on the cluster at {address}, but the engine works on the "
                f"one at {self.address}; leave `engine` out, or give DaskEngine(client=…) with the client of "
                "the data"
            )


def _check_everywhere(
    client: distributed.Client, workers: dask_workers.Workers, state: dask_pass.Future
) -> None:
    """Raise BroadcastError if a worker holds a state with other digests than the client."""
    # Tasks are bound to their worker, so that large state goes from worker to worker and stays there. Their
    # results are not gathered, because that would wait without end for a worker that died.
    check_on = partial(client.submit, worker.check_state, state, pure=False)
    checks = {address: check_on(workers=[address]) for address in workers.look()}
    try:
        while checks:
            present = workers.current()
            for address, check in list(checks.items()):
                if check.status == "error":
                    raise cast("BaseException", check.exception())
                if check.done() or address not in present:
                    # A worker that left has nothing to check; one that comes checks in its first task.
                    del checks[address]
            if checks:
                time.sleep(0.01)
    finally:
        for check in checks.values():
            check.release()
