"""Where passes run, in one place for the command line, the flows and scripts: `Cluster` and `open_engine`.

=================  ===========================================================================
serial             in this process, without Dask
embedded           processes of this machine, which start and end with the engine; data of a single block
                   are worked on in this process, unless workers or memory are asked for
adaptive           the same; there are as many as there are blocks to work on, between two numbers
address            a scheduler that exists: tcp://127.0.0.1:8786, tls://host:8786
scheduler file     the JSON file that `dask scheduler --scheduler-file` writes, on a shared disk
=================  ===========================================================================

An existing cluster decides itself how many workers it has: dask-operator's autoscaler, dask-jobqueue and
`Cluster.adapt` scale it by the tasks that wait at its scheduler. Workers that come during a pass get blocks.

The environment fills in what is not given: `RFF_DIST_SCHEDULER`, an address or a scheduler file, and for
TLS the files `RFF_DIST_TLS_CA`, `RFF_DIST_TLS_CERT` and `RFF_DIST_TLS_KEY`. Without these Dask's own
configuration (`distributed.comm.tls`) holds.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rff_dist.data.cut import MIN_BLOCK_ROWS
from rff_dist.engines.logs import are_json
from rff_dist.engines.progress import LogObserver, Observer
from rff_dist.engines.protocol import Engine
from rff_dist.engines.serial import SerialEngine, check_optional_count
from rff_dist.errors import ClusterError, ClusterUnavailableError, InvalidParameterError
from rff_dist.numerics.machine import available_cores
from rff_dist.text import human_bytes

if TYPE_CHECKING:
    from rff_dist.engines.dask import DaskEngine
    from rff_dist.engines.dask_cluster import WorkerFacts

logger = logging.getLogger(__name__)

SCHEDULER_VARIABLE = "RFF_DIST_SCHEDULER"
#: The variables of `TLSFiles`, in the order of its members.
TLS_VARIABLES = ("RFF_DIST_TLS_CA", "RFF_DIST_TLS_CERT", "RFF_DIST_TLS_KEY")
#: Threads of a worker process by default. They share one set of statistics, so few processes with some
#: threads need less memory than many with one thread, and are as fast.
THREADS_PER_WORKER = 4
#: Seconds to wait for a scheduler file that is not there yet.
FILE_S = 6.0
_MAX_FILE_BYTES = 1_000_000
#: Members of a `Cluster` that ask for processes other than this one.
_OTHER_PROCESSES = ("scheduler", "n_workers", "min_workers", "memory")


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files of one trust: who has a key that the authority signed can run code on the cluster.

    `cert`, `key`: this side's certificate and key.
    """

    ca: str
    cert: str
    key: str

    def check(self) -> None:
        """Raise ClusterError unless all three are files that can be read."""
        for name, variable in zip(("ca", "cert", "key"), TLS_VARIABLES, strict=True):
            path = getattr(self, name)
            try:
                open(path, "rb").close()
            except OSError as error:
                raise ClusterError(
                    f"the TLS file {path} cannot be read: {error.strerror or error}; expected a PEM file. "
                    f"Correct `tls.{name}`, or {variable} in the environment"
                ) from error


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where passes are to run; see the module for the kinds.

    `scheduler`: address of a scheduler, or path of a scheduler file (*.json); None is a cluster of its own.
    `n_workers`: processes of that one, at most; as many as the CPUs give with `n_threads` each where None.
    `min_workers`: makes it adaptive: so many processes where there is nothing to do.
    `n_threads`: threads of each process; up to `THREADS_PER_WORKER` where None.
    `memory`: bytes ("4 GiB") that each of its processes may use; equal shares where None.
    `serial`: whether to do without Dask.
    `insecure`: allow a scheduler beyond this machine without TLS. Anyone who reaches it can run code on it.
    `tls`: for "tls://", and for a cluster of its own in the place of temporary certificates.
    Raises InvalidParameterError if members exclude each other or are out of range.
    """

    scheduler: str | None = None
    n_workers: int | None = None
    min_workers: int | None = None
    n_threads: int | None = None
    memory: int | str | None = None
    serial: bool = False
    insecure: bool = False
    tls: TLSFiles | None = None

    def __post_init__(self) -> None:
        for name in ("n_workers", "min_workers", "n_threads"):
            check_optional_count(name, getattr(self, name))
        own = self._given("n_workers", "min_workers", "n_threads", "memory")
        if self.scheduler is not None and own:
            raise InvalidParameterError(
                f"{', '.join(f'`{name}`' for name in own)} size a cluster of its own, but `scheduler` is "
                f"{self.scheduler!r}, which has its own workers; leave one of them out"
            )
        if self.serial and (others := self._given(*_OTHER_PROCESSES)):
            raise InvalidParameterError(
                f"`serial` runs in this process, without `{others[0]}`; leave one of them out"
            )
        if self.min_workers is not None and self.min_workers > self.size()[0]:
            raise InvalidParameterError(
                f"`min_workers` is {self.min_workers}, but there are at most {self.size()[0]}; "
                "give a larger `n_workers`"
            )

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """One of "serial", "embedded", "adaptive", "address" and "scheduler file"."""
        if self.serial:
            return "serial"
        if self.scheduler is not None:
            return "scheduler file" if self.scheduler.endswith(".json") else "address"
        return "embedded" if self.min_workers is None else "adaptive"

    @property
    def elsewhere(self) -> bool:
        """Whether workers may be on other machines, which do not see what this process writes on its own."""
        if self.kind != "address":
            return self.kind == "scheduler file"
        _, _, rest = str(self.scheduler).rpartition("://")
        return not is_loopback(urlsplit(f"//{rest}").hostname or "")

    def size(self) -> tuple[int, int]:
        """Return workers and threads of each, for this process or for a cluster of its own."""
        n_cpus = available_cores()
        if self.serial:
            return 1, self.n_threads or n_cpus
        workers = self.n_workers or max(1, n_cpus // (self.n_threads or min(n_cpus, THREADS_PER_WORKER)))
        return workers, self.n_threads or max(1, n_cpus // workers)

    def for_rows(self, n_samples: int) -> Cluster:
        """Return where to run passes over `n_samples` rows: in this process if others would be of no use.

        A single block, of up to 16,384 rows, is the work of one worker, however many there are.
        """
        if n_samples > MIN_BLOCK_ROWS or self._given(*_OTHER_PROCESSES):
            return self
        return replace(self, serial=True, tls=None)

    def in_environment(self, environment: Mapping[str, str] = os.environ) -> Cluster:
        """Return this cluster with the environment's scheduler and TLS files, where it gives none itself.

        Raises InvalidParameterError if the environment names only some of the TLS files.
        """
        if self.serial:
            return self
        scheduler, tls = self.scheduler, self.tls
        if not self._given(*_OTHER_PROCESSES, "n_threads"):
            scheduler = environment.get(SCHEDULER_VARIABLE) or None
        return replace(self, scheduler=scheduler, tls=tls or _tls_files(environment))


def _tls_files(environment: Mapping[str, str]) -> TLSFiles | None:
    paths = {name: path for name in TLS_VARIABLES if (path := environment.get(name))}
    missing = [name for name in TLS_VARIABLES if name not in paths]
    if not paths:
        return None
    if missing:
        raise InvalidParameterError(
            f"{', '.join(missing)} not set, but {', '.join(sorted(paths))}; expected "
            "all three or none. Set them to PEM files"
        )
    return TLSFiles(*paths.values())


def open_engine(cluster: Cluster | None = None, *, observers: Iterable[Observer] = ()) -> Engine:
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
    if are_json():
        observers = (*observers, LogObserver())
    if cluster.serial:
        return SerialEngine(cluster.size()[1], observers=observers)
    from rff_dist.engines.dask import DaskEngine
    from rff_dist.engines.dask_cluster import tls_security

    security = None
    if cluster.tls is not None:
        cluster.tls.check()
        security = tls_security(cluster.tls)
    if cluster.scheduler is None:
        workers, threads = cluster.size()
        return DaskEngine(
            n_workers=workers,
            min_workers=cluster.min_workers,
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
    _advise(engine)
    return engine


def read_scheduler_file(path: str | os.PathLike[str]) -> str:
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


def is_loopback(host: str) -> bool:
    """Say whether a host name or address means this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ------------------------------------------------------------------------------------------------ advice


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


def worker_hints(workers: Sequence[WorkerFacts]) -> list[str]:
    """Say what is wrong with how workers were started.

    A worker computes one block at a time with all its threads, each with single-threaded BLAS. So the
    workers of a machine should have as many threads together as it has cores. And each worker should know
    its share of the memory, because what a pass needs is compared with it before the pass starts.

    `workers`: what `DaskEngine.describe_workers` found.
    Returns the hints; none where nothing is wrong.
    """
    hosts: defaultdict[str, list[WorkerFacts]] = defaultdict(list)
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
