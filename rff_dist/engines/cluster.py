"""`Cluster`: where passes run, as one option of the command line, flows and scripts.

Options go in; a description comes out, from which `connecting.open_engine` starts or
joins a cluster. Its kind follows from what is set:

=================  =====================================================================
serial             in this process, without Dask
embedded           processes of this machine, which start and end with the engine; in
                   this process for data of one block, unless workers or memory are set
address            a scheduler that exists: tcp://127.0.0.1:8786, tls://host:8786
scheduler file     the JSON file that `dask scheduler --scheduler-file` writes, on a
                   shared disk
requested          a cluster for the job alone, of a Dask Gateway or a class such as
                   KubeCluster
=================  =====================================================================

An existing cluster decides itself how many workers it has: dask-operator's autoscaler,
dask-jobqueue and `Cluster.adapt` of Dask scale it by the tasks that wait at its
scheduler. Workers that come during a pass get blocks.

Members that are not set come from the environment: `RFF_DIST_SCHEDULER`, an address or
a scheduler file, and for TLS the files `RFF_DIST_TLS_CA`, `RFF_DIST_TLS_CERT` and
`RFF_DIST_TLS_KEY`. Without these variables Dask's own configuration
(`distributed.comm.tls`) holds.
"""

import ipaddress
import os
from collections.abc import Mapping, Sequence
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
#: Threads of a worker process by default. They share one set of statistics, so few
#: processes with some threads need less memory than many with one thread, and are as
#: fast.
THREADS_PER_WORKER = 4
# Python with NumPy, SciPy, Zarr, scikit-learn and distributed takes 230 to 330 MiB,
# ONNX Runtime 30.
PROCESS_BYTES = 400 * 2**20
#: Members of a `Cluster` that ask for processes other than this one.
_OTHER_PROCESSES = ("scheduler", "cluster", "n_workers", "memory")


@frozen
class TLSFiles:
    """PEM files: whoever has a key signed by `ca` can run code on the cluster."""

    ca: str
    #: Certificate and key of this process.
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
                    f"the TLS file {path} cannot be read: {error.strerror or error};"
                    f" expected a PEM file. Correct `tls.{name}`, or {variable} in the"
                    " environment"
                ) from error


@frozen
class Cluster:
    """Where passes run; see the module for the kinds.

    Without numbers, `n_threads` is up to `THREADS_PER_WORKER`, and `n_workers` the CPUs
    over `n_threads`. Raises InvalidParameterError if members exclude each other.

    >>> Cluster(n_workers=2, n_threads=1).size(), Cluster("tls://dask.example:8786").kind
    ((2, 1), 'address')
    """

    panel: ClassVar[str] = "Where it runs"

    scheduler: str | None = fields.optional(
        "Address of a Dask scheduler, tcp://127.0.0.1:8786 or tls://host:8786, or path"
        " of its scheduler file (*.json). By default RFF_DIST_SCHEDULER in the"
        " environment; without it the job starts a cluster on this machine, or works in"
        " its own process on up to 16,384 rows. For tls:// set RFF_DIST_TLS_CA, _CERT"
        " and _KEY in the environment to PEM files.",
        placeholder="ADDRESS|FILE.json",
    )
    cluster: str | None = fields.optional(
        "Cluster that is requested for the job and ends with it: gateway:ADDRESS of a"
        " Dask Gateway, or the name of a class of clusters, such as"
        " dask_kubernetes.operator.KubeCluster. `n_workers` is the number of its"
        " workers.",
        placeholder="gateway:ADDRESS|CLASS",
    )
    cluster_config: str | None = fields.optional(
        "TOML file with arguments of `cluster`, such as namespace = 'models'.",
        placeholder="FILE",
    )
    n_workers: fields.Count | None = fields.optional(
        "Number of processes of a cluster on this machine, or of the one that `cluster`"
        " requests. By default the number of CPUs, or the cluster, decides."
    )
    n_threads: fields.Count | None = fields.optional(
        "Number of threads of each process. By default the number of CPUs decides."
    )
    memory: int | str | None = fields.optional(
        "Memory that each process may use, such as '4 GiB'. Equal shares by default.",
        placeholder="SIZE",
        takes=str | None,
    )
    serial: bool = fields.flag("Run in this process, without Dask.")
    insecure: bool = fields.flag(
        "Allow a scheduler on another machine without TLS. Anyone who reaches it can"
        " run code there and here."
    )
    #: For "tls://"; in an embedded cluster instead of temporary certificates.
    tls: TLSFiles | None = None

    def __post_init__(self) -> None:
        for name in ("n_workers", "n_threads"):
            count = getattr(self, name)
            if count is not None:
                checks.check_count(count, name)
        if self.cluster is None:
            self._refuse(
                ("cluster_config",),
                "only for a cluster that is requested; give `cluster`",
            )
        else:
            self._refuse(
                ("scheduler", "n_threads", "memory"),
                f"not with `cluster`={self.cluster!r}, whose arguments are in"
                " `cluster_config`",
            )
        if self.scheduler is not None:
            self._refuse(
                ("n_workers", "n_threads", "memory"),
                "only for a cluster that is started here, but `scheduler` is"
                f" {self.scheduler!r}, which has its own workers",
            )
        if self.serial:
            self._refuse(_OTHER_PROCESSES, "not with `serial`: in this process alone")

    def _given_members(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        members = self._given_members(names)
        if members:
            quoted = ", ".join(f"`{name}`" for name in members)
            raise InvalidParameterError(f"{quoted}: {reason}; leave one of them out")

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
    def is_elsewhere(self) -> bool:
        """Whether workers may be on other machines, without this one's files."""
        if self.kind != "address":
            return self.kind in ("scheduler file", "requested")
        _, _, rest = str(self.scheduler).rpartition("://")
        return not is_loopback(urlsplit(f"//{rest}").hostname or "")

    def size(self) -> tuple[int, int]:
        """Return the workers, and the threads of each, of a cluster on this machine."""
        n_cpus = machine.available_cores()
        if self.serial:
            return 1, self.n_threads or n_cpus
        n_threads = self.n_threads or min(n_cpus, THREADS_PER_WORKER)
        n_workers = self.n_workers or max(1, n_cpus // n_threads)
        return n_workers, self.n_threads or max(1, n_cpus // n_workers)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that each process may use, read as Dask does; None for equal shares."""
        if self.memory is None:
            return None
        from dask.utils import parse_bytes

        try:
            size = int(parse_bytes(self.memory))
        except ValueError:
            size = 0
        if size < 1:
            raise InvalidParameterError(
                f"`memory` is {self.memory!r}; expected a size such as '2 GiB'"
            )
        return size

    def for_rows(self, n_samples: int) -> Self:
        """Return where to run passes over `n_samples` rows: here if they are one block.

        A block, of up to 16,384 rows, is worked on by one worker, so that a cluster
        would not be faster. A cluster that was asked for is used all the same.
        """
        if n_samples > blocks.MIN_BLOCK_ROWS or self._given_members(_OTHER_PROCESSES):
            return self
        return replace(self, serial=True, tls=None)

    def in_environment(self, environment: Mapping[str, str] = os.environ) -> Self:
        """Return this cluster with the environment's scheduler and TLS files.

        Members that are set stay. Raises InvalidParameterError if the environment names
        only some of the TLS files.
        """
        if self.serial:
            return self
        scheduler = self.scheduler
        tls = self.tls
        # Sizes mean a new cluster: an existing scheduler would refuse them, as it has
        # its own workers.
        if not self._given_members((*_OTHER_PROCESSES, "n_threads")):
            scheduler = environment.get(SCHEDULER_VARIABLE) or None
        return replace(self, scheduler=scheduler, tls=tls or _tls_files(environment))


def _tls_files(environment: Mapping[str, str]) -> TLSFiles | None:
    paths = [environment.get(name) or "" for name in TLS_VARIABLES]
    if not any(paths):
        return None
    missing_variables = [name for name in TLS_VARIABLES if not environment.get(name)]
    if missing_variables:
        raise InvalidParameterError(
            f"{', '.join(missing_variables)} not set; expected all of"
            f" {', '.join(TLS_VARIABLES)} or none. Set them to PEM files"
        )
    return TLSFiles(*paths)


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
