"""Start or join the cluster that a `Cluster` describes; an engine comes out.

Dask's `Client` alone would wait long for a scheduler that does not answer, and would
connect to one on another machine without TLS.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rff_dist.engines import events, protocol, serial
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import ClusterError, ClusterUnavailableError
from rff_dist.typing import PathLike

if TYPE_CHECKING:
    import distributed

    from rff_dist.engines.dask import DaskEngine

logger = logging.getLogger(__name__)

#: Seconds to wait for a scheduler file that is not there yet.
FILE_S = 6.0
_MAX_FILE_BYTES = 1_000_000


def open_engine(
    cluster: Cluster | None = None, *, observers: events.Observers = ()
) -> protocol.Engine:
    """Start or join a cluster, and return its engine.

    Close the engine, or use it as a context manager.

    Parameters
    ----------
    cluster : Cluster, optional
        Where passes run; the environment supplies what it does not set.
    observers : iterable of callables
        Called with the events of `rff_dist.engines.events`, next to the log.

    Raises
    ------
    ClusterUnavailableError
        If no scheduler answers, or there is no scheduler file.
    ClusterError
        If the scheduler must not be used, or workers do not start.
    InvalidParameterError
        If the environment has invalid values.
    """
    cluster = (Cluster() if cluster is None else cluster).in_environment()
    observers = (events.log, *observers)
    if cluster.serial:
        return serial.SerialEngine(cluster.size()[1], observers=observers)
    from rff_dist.engines import dask_cluster
    from rff_dist.engines.dask import DaskEngine

    if cluster.cluster is not None:
        requested = dask_cluster.request_cluster(cluster)
        return DaskEngine(
            cluster=requested, observers=observers, patience=dask_cluster.REQUEST_S
        )
    security = None
    if cluster.tls is not None:
        cluster.tls.check()
        security = dask_cluster.tls_security(cluster.tls)
    if cluster.scheduler is None:
        workers, threads = cluster.size()
        return DaskEngine(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=cluster.memory,
            security=security,
            observers=observers,
        )
    return _join_scheduler(cluster, security, observers)


def _join_scheduler(
    cluster: Cluster, security: distributed.Security | None, observers: events.Observers
) -> DaskEngine:
    from rff_dist.engines.dask import DaskEngine

    address = str(cluster.scheduler)
    if cluster.kind == "scheduler file":
        address = read_scheduler_file(address)
    if not address.startswith(("tls://", "wss://")):
        # Such an address is without TLS; the engine refuses it on another machine.
        security = None
    engine = DaskEngine(
        address, insecure=cluster.insecure, security=security, observers=observers
    )
    try:
        if not engine.n_workers:
            logger.warning(
                "the cluster at %s has no worker yet; start one on each machine, with"
                " its number of cores: `dask worker %s --nworkers 1 --nthreads %d`",
                engine.address,
                engine.address,
                os.cpu_count() or 1,
            )
    except BaseException:
        engine.close()
        raise
    return engine


def read_scheduler_file(path: PathLike) -> str:
    """Return the address in the file that `dask scheduler --scheduler-file` writes.

    Waits for the file, since a scheduler may be about to write it. Raises
    ClusterUnavailableError without a file; ClusterError if it has no address.
    """
    deadline = time.monotonic() + FILE_S
    while True:
        is_late = time.monotonic() > deadline
        try:
            text = Path(path).read_bytes()[:_MAX_FILE_BYTES]
        except OSError as error:
            if is_late:
                raise ClusterUnavailableError(
                    f"there is no scheduler file {path}: {error.strerror or error};"
                    f" start a scheduler with `dask scheduler --scheduler-file {path}`"
                ) from error
        else:
            if text or is_late:
                break
        time.sleep(0.1)
    try:
        address: Any = json.loads(text)["address"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"{path} is no scheduler file: {type(error).__name__}: {error}; expected"
            " JSON with an `address`, as `dask scheduler --scheduler-file` writes it"
        ) from error
    if not isinstance(address, str):
        raise ClusterError(
            f"the `address` in {path} is {address!r}; expected tcp://host:port or"
            " tls://…"
        )
    return address
