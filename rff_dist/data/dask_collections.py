"""Dask collections are computed where their persisted parts are, and in a task without waiting for others."""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
    """Return whether this thread is that of a task of a Dask worker, or was begun by a task."""
    distributed = sys.modules.get("distributed")
    if distributed is None or _runs_task():
        return distributed is not None
    try:
        return distributed.Client.current() in distributed.Worker._initialized_clients
    except ValueError:
        return False


def place_for_others() -> AbstractContextManager[Any]:
    """Let other tasks have a task's place on its worker meanwhile, since the work inside waits for some."""
    if not is_task():
        return nullcontext()
    if not _runs_task():
        raise InvalidParameterError(
            "a thread that a Dask task began would wait for other tasks of the cluster, and keep the place "
            "that they need; do this in the task itself, or leave `engine` out and compute the data before"
        )
    return cast("AbstractContextManager[Any]", sys.modules["distributed"].worker_client())


def check_client(client: Any) -> None:
    """Refuse a Dask client that cannot wait for its results."""
    if client.asynchronous:
        raise InvalidParameterError(
            "the Dask client is asynchronous, or called in its own event loop, but passes wait for their "
            "results; expected a plain Client(address). Make one without asynchronous=True, and use it "
            "outside of the loop"
        )


def client_of(collections: Iterable[Any]) -> Any:
    """Return the Dask client that holds persisted parts of collections; None if there are none."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    futures = distributed.futures_of(list(collections))
    # Futures that came along with a task have no client; they belong to its cluster.
    clients = {future.client for future in futures if future.client is not None}
    for client in clients:
        if client.status == "closed":
            raise InvalidParameterError(
                "parts of the data were persisted by a Dask client that is closed now, and are lost; persist "
                "them again, with a client that stays open"
            )
        check_client(client)
    addresses = {client.scheduler.address for client in clients}
    if len(addresses) > 1:
        raise InvalidParameterError(
            f"parts of the data are persisted on several clusters: {', '.join(sorted(addresses))}; expected "
            "one. Persist X, y and weights with the same client"
        )
    return next(iter(clients), None)


def compute(*collections: Any, client: Any = None) -> tuple[Any, ...]:
    """Compute Dask collections on the cluster that holds parts of them, else where Dask does by default.

    A task computes them itself, since it might wait for ever for tasks of its own cluster. It lets others
    have its place if it needs what the cluster holds.

    `client`: what computes collections of which no cluster holds parts, in place of Dask's default.
    """
    dask, distributed = sys.modules["dask"], sys.modules.get("distributed")
    if distributed is None:
        return tuple(dask.compute(*collections))
    is_persisted = bool(distributed.futures_of(list(collections)))
    if is_task() and not is_persisted:
        return tuple(dask.compute(*collections, scheduler="synchronous"))
    holder = client_of(collections)
    with ExitStack() as stack:
        if holder is not None:
            client = holder
        if is_task():
            client = stack.enter_context(place_for_others())
        if client is None:
            client = getattr(dask.base.get_scheduler(), "__self__", None)
        if isinstance(client, distributed.Client):
            check_client(client)
            return tuple(dask.compute(*collections, scheduler=client))
    if is_persisted:
        raise InvalidParameterError(
            "parts of the data are persisted on a cluster, but there is no Dask client here; make one, or "
            "compute the data before"
        )
    return tuple(dask.compute(*collections))
