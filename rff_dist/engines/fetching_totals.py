"""Bring a worker's total to another worker or to the client.

The key of a task goes in; its result, a total, comes out. A task of Dask that takes a
total as an argument waits for it without end if the two workers do not reach each
other. Here a worker that does not answer within seconds ends the attempt with
`TotalLostError`; the client has a second way, through the scheduler.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

import asyncio
import contextlib
import operator
from functools import partial
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import distributed
from distributed.utils import sync
from distributed.utils_comm import gather_from_workers

from rff_dist.engines.dask_workers import STUCK_S
from rff_dist.errors import ClusterLostError

#: Seconds within which a worker must answer.
REACH_S = 3.0
#: Bytes of a piece of a total that comes through the scheduler.
PIECE_BYTES = 2**25

#: A task: the name of its pass, and its number in the pass.
type TaskKey = tuple[str, int]


class TotalLostError(Exception):
    """A total is on a worker that does not answer, or on none any more."""


async def fetch_total(
    here: distributed.Worker | distributed.Client, key: TaskKey
) -> Any:
    """Return a task's result from a worker that has it, or raise TotalLostError."""
    with contextlib.suppress(OSError):
        who_has = await cast("Any", here.scheduler).who_has(keys=[key])
        for holder in who_has[key]:
            here.rpc.reuse(holder, await here.rpc.connect(holder, timeout=REACH_S))
        totals, *_ = await gather_from_workers(who_has, rpc=here.rpc)
        if key in totals:
            return totals[key]
    raise TotalLostError(f"the result of {key} is out of reach")


def fetch_for_task(worker: distributed.Worker, asking: TaskKey, key: TaskKey) -> Any:
    """Return the result of the task `key` for the task `asking`; stop if no one waits
    for `asking` any more.
    """

    # Runs in the thread of the event loop, where nothing else changes `worker.data`.
    async def fetch() -> Any:
        if key in worker.data:
            return worker.data[key]
        fetching = asyncio.ensure_future(fetch_total(worker, key))
        while not fetching.done():
            await asyncio.wait([fetching], timeout=1.0)
            # so that a frozen worker that has the total does not block this one
            if is_unwanted(worker, asking):
                fetching.cancel()
        return await fetching

    return sync(worker.loop, fetch)


def is_unwanted(worker: distributed.Worker, key: TaskKey) -> bool:
    """Return whether no one waits any more for a task that runs on this worker."""
    task = worker.state.tasks.get(key)
    return task is None or task.state == "cancelled"


async def fetch_for_client(
    client: distributed.Client, total: distributed.Future[Any]
) -> Any:
    """Return a task's result from its worker, or else through the scheduler."""
    key = cast("TaskKey", total.key)
    with contextlib.suppress(TotalLostError):
        return await fetch_total(client, key)

    # Through the scheduler a total takes six times as long (0.74 s for 67 MB), and
    # memory there. All tasks run on the worker that has the total, since others may not
    # reach it.
    holders = (await cast("Any", client.scheduler).who_has(keys=[key]))[key]
    if not holders:
        raise TotalLostError(f"no worker has the result of {key}")
    submit = partial(client.submit, workers=holders, pure=False)
    packed = submit(cloudpickle.dumps, total)
    received = bytearray()
    try:
        async with asyncio.timeout(STUCK_S) as deadline:
            n_bytes = await client.gather(submit(len, packed), asynchronous=True)
            while len(received) < n_bytes:
                deadline.reschedule(asyncio.get_running_loop().time() + STUCK_S)
                piece = slice(len(received), len(received) + PIECE_BYTES)
                future = submit(operator.getitem, packed, piece)
                received += await client.gather(future, asynchronous=True, direct=False)
    except TimeoutError:
        raise ClusterLostError(
            f"the sums of worker {holders[0]} cannot be fetched, neither from there nor"
            f" by way of the scheduler: nothing came for {STUCK_S:g} s; the pass has no"
            " result. Look at that worker's log, and open its ports (`dask worker"
            " --worker-port`)"
        ) from None
    return cloudpickle.loads(received)  # from a worker, as all results are
