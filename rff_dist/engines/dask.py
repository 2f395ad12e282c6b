"""The Dask engine: the serial engine's answer, on many processes and machines.

Functions, states and blocks go in; the sum over all blocks comes out, with the same
bits as by `serial.py`. `Client.map` and a reduction would lack four things:

How waiting is bounded
    A task of Dask that waits for data asks for them without end. So tasks fetch totals
    themselves, and functions and states travel pickled. Every few seconds the client
    looks at each worker's state: silent ones are restarted, and those that cannot begin
    their tasks are left out, with a warning.
How each block counts once
    Workers keep no sums besides the results of tasks. A total is a task's result, and
    the client knows which blocks are in it. When a total dies with its worker, its
    blocks are handed out again, to all workers (`dask_pass.py`).
How state survives workers
    State and functions are results of tasks too, with their bytes inside the task: when
    the last worker that has them dies, the scheduler makes them again, which it cannot
    do for scattered data. Each worker compares its state's digests with the client's.
Who may connect
    Whoever connects to a Dask port can run code. The embedded cluster listens on the
    loopback interface only and accepts only its own temporary certificates. A scheduler
    elsewhere must be reached by TLS, unless the caller insists otherwise.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

import contextlib
import operator
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import dask.config
import distributed

from rff_dist.data import dask_collections
from rff_dist.data.blocks import Block
from rff_dist.engines import (
    dask_cluster,
    dask_pass,
    dask_workers,
    events,
    protocol,
    resuming,
    serial,
    tracing,
    worker,
)
from rff_dist.engines.cluster import Cluster
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.errors import InvalidParameterError


@dataclass(frozen=True, eq=False)
class _PlacedState[S](Broadcast[S]):
    """State on the workers of one engine, as the result of a task."""

    future: Any


class DaskEngine(Engine):
    """Run blocks on a Dask cluster: an embedded local one, or one that exists.

    Close the engine, or use it as a context manager; an embedded cluster ends with it.

    Parameters
    ----------
    scheduler : str, optional
        Address of an existing scheduler, "tcp://127.0.0.1:8786" or "tls://host:8786".
        Without it, and without `client`, a local cluster starts, on the loopback
        interface only. Scripts that start one need the `if __name__ == "__main__":`
        guard of multiprocessing.
    client : distributed.Client, optional
        A client to use; it stays open when the engine is closed.
    cluster : a cluster of Dask, optional
        With a scheduler and workers, such as a KubeCluster; it ends with the engine.
    n_workers, threads_per_worker : int, optional
        Size of the embedded cluster; all CPUs are used by default.
    memory_limit : int or str, optional
        Bytes ("4 GiB") per worker of the embedded cluster; equal shares of the memory
        by default.
    observers : iterable of callables
        Called with the events of `rff_dist.engines.events`.
    insecure : bool
        Allow a scheduler beyond this machine without TLS. Anyone who reaches it can run
        code on it.
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
    >>> engine = DaskEngine("tcp://127.0.0.1:8786")  # doctest: +SKIP
    >>> total = operator.add
    >>> engine.map_reduce(count_rows, blocks, None, combine=total)  # doctest: +SKIP
    """

    is_in_process = False

    def __init__(
        self,
        scheduler: str | None = None,
        *,
        client: distributed.Client | None = None,
        cluster: Any | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | str | None = None,
        observers: events.Observers = (),
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
        self.observers = tuple(observers)
        self._topic = f"rff_dist-{uuid.uuid4().hex}"
        self._passes: dict[str, dask_pass.Pass] = {}
        self._owns_client = client is None
        self._patience = patience
        #: The cluster that ends with this engine, if there is one.
        self._cluster: Any | None = None
        #: Connects again to a scheduler given by address.
        self._dial: Callable[[], distributed.Client] | None = None
        # If a later line fails or is interrupted, all that was started ends again.
        with contextlib.ExitStack() as started:
            if client is not None:
                dask_collections.check_client(client)
            elif scheduler is not None:
                address = dask_cluster.checked_address(scheduler, insecure=insecure)
                self._dial = partial(dask_cluster.connect, address, security)
                client = started.enter_context(self._dial())
            else:
                if cluster is None:
                    sizes = Cluster(
                        n_workers=n_workers,
                        n_threads=threads_per_worker,
                        memory=memory_limit,
                    )
                    cluster = dask_cluster.start_cluster(sizes, security=security)
                self._cluster = cluster
                started.callback(cluster.close)
                client = started.enter_context(
                    distributed.Client(
                        cluster,
                        set_as_default=False,
                        timeout=dask_cluster.CONNECT_S,
                    )
                )
            self._join(client)
            if self._cluster is not None:
                self._reach_workers().ask(
                    partial(client.register_plugin, worker.SayOnce())
                )
            started.pop_all()

    def _join(self, client: distributed.Client) -> None:
        self._client = client
        self._joined = dask_workers.Workers(client, patience=self._patience)
        client.subscribe_topic(self._topic, self._note)

    def _reach_workers(self) -> dask_workers.Workers:
        """Return the workers, by a new client if the old scheduler is gone."""
        if self._dial is not None and self._client.status != "running":
            with contextlib.suppress(OSError):
                self._client.close()
            self._join(self._dial())
        return self._joined

    def __reduce__(self) -> NoReturn:
        raise InvalidParameterError(
            "a DaskEngine cannot be sent to another process; leave `engine` out of what"
            " goes there. A task then works on its own, or makes"
            " DaskEngine(client=distributed.get_client())"
        )

    @property
    def n_workers(self) -> int:
        return len(self._reach_workers().look())

    @property
    def n_threads(self) -> int:
        return min(self._reach_workers().look().values(), default=1)

    @property
    def worker_memory(self) -> int | None:
        limits = [
            int(facts["memory_limit"])
            for facts in self._reach_workers().facts().values()
            if facts.get("memory_limit")
        ]
        return min(limits, default=None)

    @property
    def client(self) -> distributed.Client:
        """The Dask client in use."""
        return self._client

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return self._joined.address

    def ask_workers(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Run a function on each worker; return what it returns or raises, by address.

        Workers that do not answer are left out.

        Raises
        ------
        ClusterError
            With a table, if all workers have other versions.
        """
        return self._reach_workers().run(function)

    # Not by `client.scatter`: scattered data are lost with their workers, but a task
    # runs again.
    def broadcast[S](self, state: S) -> Broadcast[S]:
        placed_state = self._place(state)
        if protocol.state_digests(placed_state.state):
            try:
                with (
                    dask_collections.place_for_others(),
                    self._reach_workers().lost_cluster_errors(),
                ):
                    self._check_everywhere(placed_state.future)
            except BaseException:
                placed_state.future.release()
                raise
        return placed_state

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

        See `rff_dist.engines.protocol.Engine.map_reduce` for the contract. Where
        `function` is a `BlockTask` whose source `is_lazy`, the cluster computes the
        source's collections and the rows never pass through the client.
        """
        serial.check_blocks(blocks, label)
        source, compute = worker.take_apart(function)
        self._check_persisted(source)
        shared = state.state if isinstance(state, Broadcast) else state
        pass_ledger = resuming.ledger_of_pass(
            self.ledger, function, blocks, shared, combine
        )
        token = uuid.uuid4().hex
        definition = worker.PassDefinition(
            compute, combine, self._topic, token, label, pass_ledger
        )
        # Pickled here, so that a function that cannot travel is refused before the pass
        # is announced.
        pickled = worker.pickle_value(definition, "function")
        about = partial(protocol.describe_pass, function, shared)
        with (
            dask_collections.place_for_others(),
            events.announce_pass(self.observers, label, blocks, about) as announce,
            self._reach_workers().lost_cluster_errors(),
        ):
            trace = tracing.parent(len(blocks))
            if trace is not None:
                definition = replace(definition, pass_span=trace)
                pickled = worker.pickle_value(definition, "function")
            placed_state = self._place(state)
            placed_definition = self._send(
                "function", worker.place_beside, placed_state.future, pickled
            )
            partitions = None
            if source is not None:
                partitions = PartitionTasks(self._client, source, blocks)
            running = dask_pass.Pass(
                self._reach_workers(),
                blocks,
                client=self._client,
                definition=definition,
                placed_definition=placed_definition,
                placed_state=placed_state.future,
                partitions=partitions,
            )
            self._passes[token] = running
            serial.announce_resumed(announce, label, blocks, running.first_runs)
            try:
                return self._finish(running, announce, len(blocks), pass_ledger)
            finally:
                del self._passes[token]
                # Release futures by hand: the frames of an exception in flight would
                # keep them alive.
                running.release()
                placed_definition.release()
                if placed_state is not state:
                    placed_state.future.release()

    def _finish(
        self,
        running: dask_pass.Pass,
        announce: events.Announcer,
        n_blocks: int,
        pass_ledger: resuming.PassLedger | None,
    ) -> Any:
        """Run a pass to its end, and keep its total in place of the sums of runs.

        So each pass of a job leaves one file.
        """
        keeper = None
        if pass_ledger is not None:
            # The runs' keepers take `SHARE` of the time, this one at most a third more.
            keeper = resuming.Keeper(pass_ledger, 0, share=resuming.SHARE / 3)
        for event in running.sum_up():
            announce(event)
        total = running.result()
        if keeper is not None:
            keeper.note(n_blocks, total, is_last=True)
        return total

    def close(self) -> None:
        self._dial = None
        if self._client.status == "running" and self._cluster is None:
            self._joined.forget(self._topic)
        if self._owns_client:
            # A frozen scheduler does not answer the farewell.
            with contextlib.suppress(OSError):
                self._client.close()
        if self._cluster is not None:
            # its nannies kill workers that do not end: 4 s with frozen ones
            self._cluster.close()

    # -- state and functions

    def _place[S](self, state: S | Broadcast[S]) -> _PlacedState[S]:
        """Send state to the workers, unless they have it."""
        if isinstance(state, _PlacedState):
            # After the scheduler went away there is another client, or the future is
            # cancelled, and the state is sent again.
            has_client = state.future.client is self._client
            if has_client and state.future.status != "cancelled":
                return state
        value: S = state.state if isinstance(state, Broadcast) else state
        pickled = worker.pickle_value(value, "state")
        digests = protocol.state_digests(value)
        return _PlacedState(value, self._send("state", worker.Parcel, pickled, digests))

    def _send(
        self, name: str, make: Callable[..., worker.Parcel], *parts: Any
    ) -> dask_pass.Future:
        """Make a value the result of a task, which the scheduler can run again."""
        with (
            self._reach_workers().lost_cluster_errors(),
            # Dask would warn of a large value inside a task, which is on purpose.
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}),
        ):
            return self._client.submit(
                make,
                *parts,
                key=f"{name}-{uuid.uuid4().hex}",
                **self._reach_workers().where(),
            )

    def _check_everywhere(self, state: dask_pass.Future) -> None:
        """Raise BroadcastError if a worker has a state with other digests."""
        # Each task is bound to its worker, so that every worker gets the state, from
        # another worker, and keeps it. Results are not gathered, since that would wait
        # without end for a worker that died.
        checks = {
            address: self._client.submit(
                worker.check_state, state, workers=[address], pure=False
            )
            for address in self._reach_workers().look()
        }
        try:
            while checks:
                present = self._reach_workers().current()
                for address, check in list(checks.items()):
                    error = check.exception() if check.status == "error" else None
                    if error is not None:
                        raise error
                    if check.done() or address not in present:
                        # A worker that left needs no check, and one that comes later
                        # checks in its first task.
                        del checks[address]
                if checks:
                    time.sleep(0.01)
        finally:
            for check in checks.values():
                check.release()

    def _note(self, event: tuple[float, tuple[Any, ...]]) -> None:
        """Hand a worker's report to its pass."""
        token, address, timings = event[1]
        running = self._passes.get(token)
        if running is not None:
            running.note(address, timings)

    def _check_persisted(self, source: Any) -> None:
        """Refuse Dask collections if another cluster has parts of them in memory."""
        client = None if source is None else source.client
        if client is None:
            return
        address = client.scheduler.address
        if address != self.address:
            raise InvalidParameterError(
                f"parts of the data are persisted on the cluster at {address}, but the"
                f" engine works on the one at {self.address}; leave `engine` out, or"
                " give DaskEngine(client=…) with the client of the data"
            )
