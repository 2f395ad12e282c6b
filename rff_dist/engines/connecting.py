"""Start or join the cluster that a `Cluster` describes, and report problems of its workers."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rff_dist.engines import logs, progress, protocol, serial
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import ClusterError, ClusterUnavailableError
from rff_dist.text import human_bytes
from rff_dist.typing import PathLike

if TYPE_CHECKING:
    from rff_dist.engines import dask_cluster
    from rff_dist.engines.dask import DaskEngine

logger = logging.getLogger(__name__)

#: Seconds to wait for a scheduler file that is not there yet.
FILE_S = 6.0
_MAX_FILE_BYTES = 1_000_000


def open_engine(cluster: Cluster | None = None, *, observers: progress.Observers = ()) -> protocol.Engine:
    """Return the engine of a cluster, which is started or joined.

    Close the engine, or use it as a context manager.

    `cluster`: where passes are to run; the environment fills in what it leaves open.
    `observers`: called with the events of `rff_dist.engines.progress`. If the log is written as JSON lines,
      the events are logged too, see `rff_dist.engines.logs`.
    Raises ClusterUnavailableError if no scheduler answers, or there is no scheduler file; ClusterError if the
      scheduler must not be used, or workers do not start; InvalidParameterError if the environment does not
      suit.
    """
    cluster = (Cluster() if cluster is None else cluster).in_environment()
    if logs.are_json():
        observers = (*observers, progress.LogObserver())
    if cluster.serial:
        return serial.SerialEngine(cluster.size()[1], observers=observers)
    from rff_dist.engines import dask_cluster
    from rff_dist.engines.dask import DaskEngine

    if cluster.cluster is not None:
        requested = dask_cluster.request_cluster(cluster)
        return DaskEngine(cluster=requested, observers=observers, patience=dask_cluster.REQUEST_S)
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
    address = cluster.scheduler
    if cluster.kind == "scheduler file":
        address = read_scheduler_file(address)
    if not address.startswith(("tls://", "wss://")):
        security = None  # The address asks for no TLS; beyond this machine the engine refuses that.
    engine = DaskEngine(address, insecure=cluster.insecure, security=security, observers=observers)
    try:
        _advise(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def read_scheduler_file(path: PathLike) -> str:
    """Return the address in a scheduler file. It is waited for, since a scheduler may be about to write it.

    `path`: what `dask scheduler --scheduler-file PATH` was given.
    Raises ClusterUnavailableError if there is no such file in time; ClusterError if no scheduler wrote it.
    """
    deadline = time.monotonic() + FILE_S
    while True:
        is_late = time.monotonic() > deadline
        try:
            text = Path(path).read_bytes()[:_MAX_FILE_BYTES]
        except OSError as error:
            if is_late:
                raise ClusterUnavailableError(
                    f"there is no scheduler file {path}: {error.strerror or error}; start a scheduler with "
                    f"`dask scheduler --scheduler-file {path}`"
                ) from error
        else:
            if text or is_late:
                break
        time.sleep(0.1)
    try:
        address: Any = json.loads(text)["address"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"{path} is no scheduler file: {type(error).__name__}: {error}; expected JSON with an `address`, "
            "as `dask scheduler --scheduler-file` writes it"
        ) from error
    if not isinstance(address, str):
        raise ClusterError(f"the `address` in {path} is {address!r}; expected tcp://host:port or tls://…")
    return address


def _advise(engine: DaskEngine) -> None:
    workers = engine.describe_workers()
    if not workers:
        logger.warning(
            "the cluster at %s has no worker yet; start one on each machine, with its number of cores: "
            "`dask worker %s --nworkers 1 --nthreads %d`",
            engine.address,
            engine.address,
            os.cpu_count() or 1,
        )
    for hint in worker_hints(workers):
        logger.warning("%s", hint)


def worker_hints(workers: Sequence[dask_cluster.WorkerFacts]) -> list[str]:
    """Say what is wrong with how workers were started.

    A worker computes one block at a time with all its threads, each with single-threaded BLAS. So the
    workers of a machine should have as many threads together as it has cores. And each worker should know
    its share of the memory, because what a pass needs is compared with it before the pass starts.

    `workers`: what `DaskEngine.describe_workers` found.
    Returns the hints; none where nothing is wrong.
    """
    hosts: defaultdict[str, list[dask_cluster.WorkerFacts]] = defaultdict(list)
    for worker in workers:
        hosts[worker.host].append(worker)
    hints = []
    for host, here in sorted(hosts.items()):
        threads, cores = sum(worker.n_threads for worker in here), max(worker.n_cpus for worker in here)
        if threads > cores:
            hints.append(
                f"{len(here)} workers on {host} have {threads} threads together for {cores} cores, and wait "
                f"for one another; start them with --nthreads {max(1, cores // len(here))}"
            )
        limits = [worker.memory_limit for worker in here]
        total = max(worker.memory for worker in here)
        if 0 in limits:
            hints.append(
                f"{limits.count(0)} workers on {host} have no memory limit, so that a pass which needs too "
                "much is not refused before it starts; start them with --memory-limit auto"
            )
        elif sum(limits) > 1.05 * total:
            share = 0.95 * total / len(here)
            hints.append(
                f"{len(here)} workers on {host} may use {human_bytes(sum(limits))} together, but it has "
                f"{human_bytes(total)}; start them with --memory-limit '{human_bytes(share)}'"
            )
    return hints
