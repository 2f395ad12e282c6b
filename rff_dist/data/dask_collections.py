"""Compute Dask collections on the cluster that has their persisted parts.

Collections go in; NumPy arrays come out. A collection is *persisted* if a cluster has
its computed parts in memory. Dask alone would compute on its default cluster, which may
be another one. And a task that waits for other tasks of its cluster may wait for ever,
so a task computes collections that are not persisted itself.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from rff_dist.errors import InvalidParameterError


def _runs_task() -> bool:
    """Return whether this thread runs a Dask task."""
    try:
        sys.modules["distributed"].get_worker()
    except ValueError:
        return False
    return True


def is_task() -> bool:
    """Return whether this thread runs a Dask task, or was started by one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    if _runs_task():
        return True
    # A thread that a task started has no worker. But the process has a client if one of
    # its tasks made one, and only this private set shows that it is not a user's.
    try:
        return distributed.Client.current() in distributed.Worker._initialized_clients
    except ValueError:
        return False


def place_for_others() -> AbstractContextManager[Any]:
    """Let a task leave its thread of the worker to others while it waits for them."""
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
    """Refuse what is no Dask client, or cannot wait for its results."""
    if not hasattr(client, "submit"):
        raise InvalidParameterError(
            f"`client` is {client!r}; expected a Client. An address goes to"
            " `scheduler`, a cluster into distributed.Client(cluster)"
        )
    if client.asynchronous:
        raise InvalidParameterError(
            "the Dask client is asynchronous, or called in its own event loop, but"
            " passes wait for their results; expected a plain Client(address). Make one"
            " without asynchronous=True, and use it outside of the loop"
        )


def client_of(collections: Iterable[Any]) -> Any:
    """Return the Dask client with persisted parts of collections; None if there are no
    such parts.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    futures = distributed.futures_of(list(collections))
    # Futures in a task's arguments have no client; they belong to the task's cluster.
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

    In a task, collections that are not persisted are computed in its own thread, since
    it might wait for ever for other tasks of its cluster. Persisted ones are computed
    on the cluster, while the task leaves its thread to others. Outside of tasks, if no
    cluster has parts, `client` computes them, or else Dask's default.
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
    client_with_parts = client_of(collections)
    if is_task():
        return place_for_others()
    if client_with_parts is not None:
        return nullcontext(client_with_parts)
    if client is not None:
        return nullcontext(client)
    scheduler = sys.modules["dask"].base.get_scheduler()
    # a method of the default client, if there is one
    return nullcontext(getattr(scheduler, "__self__", None))
