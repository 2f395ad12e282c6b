"""Start, request and reach Dask clusters, and compare the workers' versions.

A `Cluster` or an address goes in; a cluster or a client of Dask comes out. Dask's own
classes do most of the work. They lack what a job of hours needs: an embedded cluster
that restarts its workers every time, listens on loopback with TLS only, and does not
die of Ctrl-C before its client; and an error within seconds if a host is silent.
"""

# mypy: allow-untyped-calls

import asyncio
import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import Any, cast

import dask.config
import distributed
from distributed import rpc
from distributed.comm.addressing import parse_host_port
from distributed.utils import asciitable

from rff_dist import checks, fields
from rff_dist.engines.cluster import PROCESS_BYTES, Cluster, TLSFiles, is_loopback
from rff_dist.errors import (
    ClusterError,
    ClusterUnavailableError,
    InvalidParameterError,
    MissingDependencyError,
    PlanError,
    RFFDistError,
)
from rff_dist.text import human_bytes
from rff_dist.typing import Summary

#: Seconds to wait for a scheduler's answer.
CONNECT_S = 6.0
#: Seconds to wait for the first worker of a requested cluster: machines may have to
#: start for it.
REQUEST_S = 900.0
#: Seconds within which the scheduler of an embedded cluster starts.
START_S = 2.0
#: How many times a worker that dies while it starts is started again, and the seconds
#: between.
RESTARTS = 20
RESTART_S = 0.5
#: Packages, besides Python itself, whose versions decide the bits of results.
SAME_PACKAGES = ["rff_dist", "numpy", "scipy"]
_SCHEMES = ("tcp", "tls", "ws", "wss")


class _QuietNanny(distributed.Nanny):
    """A nanny that does not change this environment, and does not give up its worker.

    Dask's own nanny sets OMP_NUM_THREADS=1 and more in the *client's* environment
    whenever a worker starts, and later child processes inherit them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # `env` still has these variables, and the worker sets them before it imports
        # NumPy.
        self.pre_spawn_env: dict[str, str] = {}

    async def instantiate(self) -> distributed.Status:
        """Start the worker, again and again if it dies while it starts.

        Dask's own nanny closes then, and its worker is lost for good.
        """
        if self.process is None:
            return await super().instantiate()
        for _ in range(RESTARTS):
            if self.status is not distributed.Status.running:
                return self.process.status
            # the nanny has logged the worker's error
            with contextlib.suppress(Exception):
                if await self.process.start() is distributed.Status.running:
                    return distributed.Status.running
            await asyncio.sleep(RESTART_S)
        return await super().instantiate()


def check_parameters(
    scheduler: str | None,
    client: distributed.Client | None,
    *,
    size: Mapping[str, int | str | None],
    security: distributed.Security | None,
) -> None:
    """Raise InvalidParameterError if parameters of an engine exclude each other."""
    if scheduler is not None and client is not None:
        raise InvalidParameterError(
            "`scheduler` and `client` were both given; give one of them"
        )
    sizes = [name for name, value in size.items() if value is not None]
    if sizes and (scheduler is not None or client is not None):
        raise InvalidParameterError(
            f"{', '.join(f'`{name}`' for name in sizes)} size an embedded cluster, "
            "but an existing one was given; leave them out"
        )
    if security is not None and client is not None:
        raise InvalidParameterError(
            "`security` belongs to the `client` given; leave it out"
        )
    for name in set(sizes) - {"memory_limit"}:
        checks.check_count(size[name], name)


def checked_address(address: Any, *, insecure: bool) -> str:
    """Return the address as scheme://host:port, with port 8786 by default.

    Raises InvalidParameterError if it is no address. Raises ClusterError if it is on
    another machine and without TLS, unless `insecure`: anyone in between could take
    over this process.
    """
    if not isinstance(address, str):
        kind = type(address).__name__
        raise InvalidParameterError(
            f"`scheduler` is an address, not a {kind}; expected text, or a Client as"
            " `client`: DaskEngine(client=distributed.Client(…))"
        )
    if "://" not in address:
        address = f"tcp://{address}"
    scheme, _, rest = address.partition("://")
    try:
        host, port = parse_host_port(rest, 8786)
        if not host or not 0 < port < 65_536 or scheme not in _SCHEMES:
            raise ValueError(f"scheme {scheme!r}, host {host!r} and port {port}")
    except ValueError as error:
        raise InvalidParameterError(
            f"`scheduler`={address!r} is no address: {error}; expected tcp://host:port"
            " or tls://host:port, with a port in [1, 65535]"
        ) from error
    if scheme in ("tcp", "ws") and not is_loopback(host) and not insecure:
        raise ClusterError(
            f"the scheduler {address} is reached over the network without TLS, and"
            " anyone who reaches it can run code there and here; use tls:// with"
            " RFF_DIST_TLS_CA, RFF_DIST_TLS_CERT and RFF_DIST_TLS_KEY, or"
            " `insecure=True` on a network that you trust"
        )
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def connect(address: str, security: distributed.Security | None) -> distributed.Client:
    """Connect to a scheduler, or raise ClusterError."""
    # Checked here, because a client without certificates needs 12 s more to close.
    arguments = (security or distributed.Security()).get_connection_args("client")
    if arguments["ssl_context"] is None and address.startswith(("tls://", "wss://")):
        raise ClusterError(
            f"{address} needs certificates, but there are none; set RFF_DIST_TLS_CA, "
            "RFF_DIST_TLS_CERT and RFF_DIST_TLS_KEY to PEM files"
        )
    try:
        # `Client` itself would wait for ever for a listener that is frozen or no
        # scheduler. Asked in another thread, since this one may have an event loop.
        greeting = identify(address, arguments, seconds=CONNECT_S)
        with ThreadPoolExecutor(1) as other_thread:
            identity = other_thread.submit(asyncio.run, greeting).result()
        if identity["type"] != "Scheduler":
            raise ConnectionError(f"it is a Dask {identity['type'].lower()}")
        return distributed.Client(
            address, security=security, timeout=CONNECT_S, set_as_default=False
        )
    except OSError as error:
        raise ClusterUnavailableError(
            f"no scheduler answers at {address} within {CONNECT_S:g} s:"
            f" {str(error) or type(error).__name__}; check the address, or start one"
            f" by `dask scheduler --host 127.0.0.1 --port {address.rpartition(':')[2]}`"
            f" and a worker by `dask worker {address} --nworkers 1`"
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"cannot connect to {address}: {error}; check its certificates"
        ) from error


async def identify(
    address: str, arguments: dict[str, Any], *, seconds: float
) -> dict[str, Any]:
    """Return the type and facts of the Dask process at an address; OSError if it does
    not answer in time.
    """
    remote = rpc(address, timeout=seconds, connection_args=arguments)
    try:
        async with asyncio.timeout(seconds):
            return cast("dict[str, Any]", await remote.identity())
    finally:
        await remote.close_rpc()


# Whoever connects to a Dask port runs code, and all users of a machine reach loopback.
# TLS adds 0.08 s to a start, and 1.3 % to a pass.
def tls_security(files: TLSFiles) -> distributed.Security:
    """Return certificates in Dask's form, for clients, schedulers and workers."""
    certificates = {}
    for role in ("client", "scheduler", "worker"):
        certificates[f"tls_{role}_cert"] = files.cert
        certificates[f"tls_{role}_key"] = files.key
    return distributed.Security(
        tls_ca_file=files.ca, require_encryption=True, **certificates
    )


class _PatientCluster(distributed.LocalCluster):
    """A local cluster that waits for workers which start again, however slowly."""

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Dask's own cluster drops a nanny if its worker is not back in 15 s, and so
        # perhaps the last worker.
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}):
            super()._update_worker_status(op, msg)


@contextlib.contextmanager
def spare_children_ctrl_c() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: each would print a traceback.

    The signal is blocked meanwhile, and threads and processes that start here inherit
    that. This thread gets the signal afterwards. An ignored signal would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Otherwise the tracker starts with the first child, and unblocks the signal in the
    # thread that starts it.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# By default each process of a cluster checks and profiles itself 50 and 100 times per
# second, which takes 2 % of a core.
_WATCH_LESS = {
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.interval": "100ms",
    "distributed.worker.profile.cycle": "10s",
}


def start_cluster(
    size: Cluster, *, security: distributed.Security | None
) -> distributed.LocalCluster:
    """Start an embedded cluster, or raise ClusterError; PlanError if its processes
    could not even start within their memory.
    """
    n_workers, threads_per_worker = size.size()
    # Dask would kill each worker, and start it again and again
    if size.memory_bytes is not None and size.memory_bytes < PROCESS_BYTES:
        raise PlanError(
            f"`memory` is {human_bytes(size.memory_bytes)}; expected at least"
            f" {human_bytes(PROCESS_BYTES)} for each process, before it has rows"
        )
    # Made in two steps: if `__init__` is interrupted, there is an object to close.
    cluster = _PatientCluster.__new__(_PatientCluster)
    try:
        with spare_children_ctrl_c(), dask.config.set(_WATCH_LESS):
            cluster.__init__(  # type: ignore[misc]
                n_workers=n_workers,
                threads_per_worker=threads_per_worker,
                processes=True,
                worker_class=_QuietNanny,
                memory_limit="auto" if size.memory is None else size.memory,
                host="127.0.0.1",
                # None would mean port 8787, and a warning if that is taken.
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address=None,
                # Bokeh's pages take a second and 20 MiB; Dask's /metrics stays.
                scheduler_kwargs={"dashboard": False},
                # Whoever connects can run code, and loopback is open to all users of a
                # machine. The temporary certificates are in memory only, and cost 0.08
                # s at the start and 1.3 % of a pass.
                security=security or distributed.Security.temporary(),
                # Warnings are about restarts and full memory, which a pass survives.
                silence_logs=logging.ERROR,
            )
        return cluster
    except BaseException as error:
        began = (distributed.Status.starting, distributed.Status.running)
        if getattr(cluster, "status", None) in began:
            cluster.sync(_close_begun, cluster)
            cluster.close()
        if not isinstance(error, Exception):
            raise
        raise ClusterError(
            f"an embedded cluster of {n_workers} workers with {threads_per_worker}"
            f" threads did not start: {type(error).__name__}: {error};"
            f" {_start_advice()}"
        ) from error


async def _close_begun(cluster: distributed.LocalCluster) -> None:
    """Close the workers of a cluster whose start was interrupted.

    The cluster's own `close` does not know them yet.
    """
    try:
        async with asyncio.timeout(START_S):
            await cluster._start()
    except TimeoutError:
        # The interrupt has cancelled the start, and `close` would wait for it for ever.
        cluster.status = distributed.Status.failed
    for nanny in cluster._created:
        await nanny.close()


def _start_advice() -> str:
    if multiprocessing.current_process().daemon:
        return (
            "this process is daemonic (a worker of Dask or of a pool), and cannot start"
            " others. Work in it (`serial`, or SerialEngine), or give the"
            " scheduler of a cluster"
        )
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not os.path.exists(script):
        return (
            f"each worker imports the script, but {script} is no file. Save the script"
            " to a file, or work in this process (`serial`, or SerialEngine)"
        )
    return (
        'in a script, put the work under `if __name__ == "__main__":`, because each'
        " worker imports the script"
    )


def request_cluster(wanted: Cluster) -> Any:
    """Return a new cluster of a Dask Gateway or of a class, once it has a worker.

    Close it after use.

    Raises
    ------
    InvalidParameterError
        If there is no such class of clusters, or its file of arguments is invalid.
    MissingDependencyError
        If its package is not installed.
    ClusterUnavailableError
        If the cluster or its first worker does not start.
    ClusterError
        If its scheduler must not be used.
    """
    arguments: Summary = {}
    if wanted.cluster_config is not None:
        arguments = fields.read_toml("cluster_config", wanted.cluster_config)
    name = str(wanted.cluster)
    if name.startswith("gateway:"):
        arguments = {"address": name.removeprefix("gateway:"), **arguments}
        name = "dask_gateway.GatewayCluster"
    kind = _class_of_clusters(name)
    cluster: Any = None
    try:
        cluster = kind(**arguments)
        if wanted.n_workers is not None:
            cluster.scale(wanted.n_workers)
        if cluster.scheduler_address.startswith("tcp://"):
            checked_address(cluster.scheduler_address, insecure=wanted.insecure)
        with distributed.Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=REQUEST_S)
        return cluster
    except BaseException as error:
        if cluster is not None:
            cluster.close()
        if not isinstance(error, Exception) or isinstance(error, RFFDistError):
            raise
        raise ClusterUnavailableError(
            f"the cluster {wanted.cluster} did not start: {type(error).__name__}:"
            f" {error}; check its address and the arguments in `cluster_config`"
        ) from error


def _class_of_clusters(name: str) -> Any:
    package, _, attribute = name.rpartition(".")
    kind = None
    if package:
        try:
            kind = getattr(importlib.import_module(package), attribute, None)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"`cluster` is {name!r}, but there is no module {error.name}; install"
                " its package, such as rff_dist[gateway]"
            ) from error
    # Only such classes are called: options may come from a form that others fill in.
    if not (
        isinstance(kind, type) and hasattr(kind, "adapt") and hasattr(kind, "scale")
    ):
        raise InvalidParameterError(
            f"`cluster` is {name!r}; expected gateway:ADDRESS or the name of a class of"
            " Dask's clusters, such as dask_kubernetes.operator.KubeCluster"
        )
    return kind


def compare_versions(
    client: Mapping[str, Any], workers: Mapping[str, Mapping[str, Any]]
) -> tuple[set[str], str]:
    """Return the workers with other versions than the client, and a message."""
    names = ("python", *SAME_PACKAGES)

    def versions_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(facts["packages"].get(name) or "none" for name in names)

    here = versions_of(client)
    rows = [("client", *here)]
    for worker, facts in workers.items():
        versions = versions_of(facts)
        if versions != here:
            rows.append((worker, *versions))
    table = asciitable(("where", *names), rows)
    message = (
        f"{len(rows) - 1} workers run other versions than the client, so their bits may"
        " differ: they are left out. Install the same versions on both"
        f" sides:\n{table}"
    )
    return {worker for worker, *_ in rows[1:]}, message
