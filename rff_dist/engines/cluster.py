"""Where passes run, as one option of the command line, the flows and scripts: `Cluster`.

=================  ===========================================================================
serial             in this process, without Dask
embedded           processes of this machine, which start and end with the engine; data of a single block
                   are worked on in this process, unless workers or memory are asked for
address            a scheduler that exists: tcp://127.0.0.1:8786, tls://host:8786
scheduler file     the JSON file that `dask scheduler --scheduler-file` writes, on a shared disk
requested          a cluster that a Dask Gateway or a class such as KubeCluster starts for the job, and ends
=================  ===========================================================================

An existing cluster decides itself how many workers it has: dask-operator's autoscaler, dask-jobqueue and
`Cluster.adapt` scale it by the tasks that wait at its scheduler. Workers that come during a pass get blocks.

The environment fills in what is not given: `RFF_DIST_SCHEDULER`, an address or a scheduler file, and for
TLS the files `RFF_DIST_TLS_CA`, `RFF_DIST_TLS_CERT` and `RFF_DIST_TLS_KEY`. Without these Dask's own
configuration (`distributed.comm.tls`) holds.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self
from urllib.parse import urlsplit

from rff_dist import checks, fields
from rff_dist.data import blocks
from rff_dist.errors import ClusterError, InvalidParameterError
from rff_dist.numerics import machine
from rff_dist.typing import frozen

SCHEDULER_VARIABLE = "RFF_DIST_SCHEDULER"
#: The variables of `TLSFiles`, in the order of its members.
TLS_VARIABLES = ("RFF_DIST_TLS_CA", "RFF_DIST_TLS_CERT", "RFF_DIST_TLS_KEY")
#: Threads of a worker process by default. They share one set of statistics, so few processes with some
#: threads need less memory than many with one thread, and are as fast.
THREADS_PER_WORKER = 4
#: Members of a `Cluster` that ask for processes other than this one.
_OTHER_PROCESSES = ("scheduler", "cluster", "n_workers", "memory")


@frozen
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


@frozen
class Cluster:
    """Where passes run; see the module for the kinds.

    Without numbers, `n_threads` is up to `THREADS_PER_WORKER`, and `n_workers` the CPUs over `n_threads`.

    `tls`: for "tls://", and for the own cluster instead of temporary certificates.
    Raises InvalidParameterError if members exclude each other or are out of range.

    >>> Cluster(n_workers=2, n_threads=1).size(), Cluster("tls://dask.example:8786").kind
    ((2, 1), 'address')
    """

    panel: ClassVar[str] = "Where it runs"

    scheduler: str | None = fields.optional(
        "Address of a Dask scheduler, tcp://127.0.0.1:8786 or tls://host:8786, or path of its scheduler file "
        "(*.json). By default RFF_DIST_SCHEDULER in the environment; without it the job starts a cluster on "
        "this machine, or works in its own process on up to 16,384 rows. For tls:// set RFF_DIST_TLS_CA, "
        "_CERT and _KEY in the environment to PEM files.",
        unit="ADDRESS|FILE.json",
    )
    cluster: str | None = fields.optional(
        "Cluster that is requested for the job and ends with it: gateway:ADDRESS of a Dask Gateway, or the "
        "name of a class of clusters, such as dask_kubernetes.operator.KubeCluster. `n_workers` and "
        "`min_workers` bound its workers.",
        unit="gateway:ADDRESS|CLASS",
    )
    cluster_config: str | None = fields.optional(
        "TOML file with arguments of `cluster`, such as namespace = 'models'.", unit="FILE"
    )
    n_workers: fields.Count | None = fields.optional(
        "Number of processes of a cluster on this machine, or of the one that `cluster` requests. By default "
        "the number of CPUs, or the cluster, decides."
    )
    min_workers: fields.Count | None = fields.optional(
        "Smallest number of workers of the cluster that `cluster` requests: it grows and shrinks between "
        "this and `n_workers` with the work. By default it always has `n_workers`."
    )
    n_threads: fields.Count | None = fields.optional(
        "Number of threads of each process. By default the number of CPUs decides."
    )
    memory: int | str | None = fields.optional(
        "Memory that each process may use, such as '4 GiB'. Equal shares by default.",
        unit="SIZE",
        takes=str | None,
    )
    serial: bool = fields.flag("Run in this process, without Dask.")
    insecure: bool = fields.flag(
        "Allow a scheduler on another machine without TLS. Anyone who reaches it can run code there and here."
    )
    tls: TLSFiles | None = None

    def __post_init__(self) -> None:
        for name in ("n_workers", "min_workers", "n_threads"):
            if (count := getattr(self, name)) is not None:
                checks.check_count(count, name)
        sizes = self._given("n_workers", "n_threads", "memory")
        if self.cluster is not None and (others := self._given("scheduler", "n_threads", "memory")):
            raise InvalidParameterError(
                f"`{others[0]}` is given, but `cluster` is {self.cluster!r}, whose arguments say what it is; "
                "leave one of them out, or give `cluster_config`"
            )
        if self.cluster is None and (without := self._given("cluster_config", "min_workers")):
            raise InvalidParameterError(
                f"`{without[0]}` is of a cluster that is requested, but none is; give `cluster` too"
            )
        if self.scheduler is not None and sizes:
            raise InvalidParameterError(
                f"{', '.join(f'`{name}`' for name in sizes)}: only for a cluster that is started here, but "
                f"`scheduler` is {self.scheduler!r}, which has its own workers; leave one of them out"
            )
        if self.serial and (others := self._given(*_OTHER_PROCESSES)):
            raise InvalidParameterError(
                f"`serial` runs in this process, without `{others[0]}`; leave one of them out"
            )
        if self.min_workers is not None and self.min_workers > (self.n_workers or 0):
            raise InvalidParameterError(
                f"`min_workers` is {self.min_workers}, but `n_workers` is {self.n_workers}; give a larger "
                "`n_workers`"
            )

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """One of "serial", "embedded", "address", "scheduler file" and "requested"."""
        if self.serial:
            return "serial"
        if self.cluster is not None:
            return "requested"
        if self.scheduler is not None:
            return "scheduler file" if self.scheduler.endswith(".json") else "address"
        return "embedded"

    @property
    def elsewhere(self) -> bool:
        """Whether workers may be on other machines, which do not see what this process writes on its own."""
        if self.kind != "address":
            return self.kind in ("scheduler file", "requested")
        _, _, rest = str(self.scheduler).rpartition("://")
        return not is_loopback(urlsplit(f"//{rest}").hostname or "")

    def size(self) -> tuple[int, int]:
        """Return workers and threads of each, for this process or for a cluster of its own."""
        n_cpus = machine.available_cores()
        if self.serial:
            return 1, self.n_threads or n_cpus
        workers = self.n_workers or max(1, n_cpus // (self.n_threads or min(n_cpus, THREADS_PER_WORKER)))
        return workers, self.n_threads or max(1, n_cpus // workers)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that each process may use, read as Dask does; None for equal shares."""
        from dask.utils import parse_bytes

        if self.memory is None:
            return None
        try:
            size = int(parse_bytes(self.memory))
        except ValueError:
            size = 0
        if size < 1:
            raise InvalidParameterError(f"`memory` is {self.memory!r}; expected a size such as '2 GiB'")
        return size

    def for_rows(self, n_samples: int) -> Self:
        """Return where to run passes over `n_samples` rows: in this process if others would be of no use.

        A single block, of up to 16,384 rows, is the work of one worker, however many there are.
        """
        if n_samples > blocks.MIN_BLOCK_ROWS or self._given(*_OTHER_PROCESSES):
            return self
        return replace(self, serial=True, tls=None)

    def in_environment(self, environment: Mapping[str, str] = os.environ) -> Self:
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


def is_loopback(host: str) -> bool:
    """Like `ipaddress.ip_address(host).is_loopback`, but also for names: True for "localhost" alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
