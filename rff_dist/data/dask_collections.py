"""Compute Dask collections on the cluster that has their persisted parts.

Collections go in; NumPy arrays come out. Dask's own default may be another cluster than
the one with the parts; and a task that waits for other tasks of its cluster may wait
for ever, so it computes collections without persisted parts itself.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from rff_dist.errors import InvalidParameterError


def _runs_task() -> bool:
    """Return whether this thread is that of a task."""
    try:
        sys.modules["distributed"].get_worker()
    except ValueError:
        return False
    return True


def is_task() -> bool:
    """Return whether this thread is that of a Dask task, or was begun by one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    if _runs_task():
        return True
    # A thread that a task began has no worker, but the client of its process, if a task
    # made one there. Only this private set tells it from a user's client.
    try:
        return distributed.Client.current() in distributed.Worker._initialized_clients
    except ValueError:
        return False


def place_for_others() -> AbstractContextManager[Any]:
    """Give up a task's place on its worker while the work inside waits for others."""
    if not is_task():
        return nullcontext()
    if not _runs_task():
        raise InvalidParameterError(
            "a thread that a Dask task began would wait for other tasks of the cluster"
            " while it occupies their thread; do this in the task itself, or leave"
            " `engine` out and compute the data before"
        )
    return cast(
        "AbstractContextManager[Any]", sys.modules["distributed"].worker_client()
    )


def check_client(client: Any) -> None:
    """Refuse a Dask client that cannot wait for its results."""
    if client.asynchronous:
        raise InvalidParameterError(
            "the Dask client is asynchronous, or called in its own event loop, but"
            " passes wait for their results; expected a plain Client(address). Make one"
            " without asynchronous=True, and use it outside of the loop"
        )


def client_of(collections: Iterable[Any]) -> Any:
    """Return the Dask client that holds persisted parts of collections; None if there
    are none.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    futures = distributed.futures_of(list(collections))
    # Futures that came along with a task have no client; they belong to its cluster.
    clients = {future.client for future in futures if future.client is not None}
    for client in clients:
        if client.status == "closed":
            raise InvalidParameterError(
                "parts of the data were persisted by a Dask client that is closed now,"
                " and are lost; persist them again, with a client that stays open"
            )
        check_client(client)
    addresses = {client.scheduler.address for client in clients}
    if len(addresses) > 1:
        raise InvalidParameterError(
            "parts of the data are persisted on several clusters:"
            f" {', '.join(sorted(addresses))}; expected one. Persist X, y and weights"
            " with the same client"
        )
    return next(iter(clients), None)


def compute(*collections: Any, client: Any = None) -> tuple[Any, ...]:
    """Compute Dask collections on the cluster that has parts of them.

    In a task, data that are not persisted are computed in its own thread, since it
    might wait for ever for other tasks of its cluster; persisted data on the cluster,
    after the task has given up its place. Elsewhere, if no cluster has parts, `client`
    computes them, or else Dask's default.
    """
    dask = sys.modules["dask"]
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return tuple(dask.compute(*collections))
    is_persisted = bool(distributed.futures_of(list(collections)))
    if is_task() and not is_persisted:
        return tuple(dask.compute(*collections, scheduler="synchronous"))
    with _choose_client(collections, client) as chosen:
        if isinstance(chosen, distributed.Client):
            check_client(chosen)
            return tuple(dask.compute(*collections, scheduler=chosen))
    if is_persisted:
        raise InvalidParameterError(
            "parts of the data are persisted on a cluster, but there is no Dask client"
            " here; make one, or compute the data before"
        )
    return tuple(dask.compute(*collections))


def _choose_client(
    collections: Iterable[Any], client: Any
) -> AbstractContextManager[Any]:
    """Return a context whose value is the client that computes, or None."""
    holder = client_of(collections)
    if is_task():
        return place_for_others()
    if holder is not None:
        return nullcontext(holder)
    if client is not None:
        return nullcontext(client)
    scheduler = sys.modules["dask"].base.get_scheduler()
    return nullcontext(getattr(scheduler, "__self__", None))
