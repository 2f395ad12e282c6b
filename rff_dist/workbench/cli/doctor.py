"""Check a machine, and a cluster and a dataset, before a job relies on them.

Each check gives a line that is ok, a warning or a failure, with what to do about it.
Without it the same faults show up hours into a job, or never: data without checksums,
keys that others can read, and workers with other versions of a package.
"""

import importlib.metadata
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import urlsplit

from rff_dist import fields
from rff_dist.engines import connecting
from rff_dist.engines.cluster import Cluster, TLSFiles, is_loopback
from rff_dist.errors import RFFDistError
from rff_dist.text import human_bytes, redact
from rff_dist.typing import frozen
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import exits, words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.engines.dask import DaskEngine

PACKAGES = ("rff_dist", "numpy", "scipy", "zarr", "dask", "distributed", "prefect")
MIN_CHUNK = 2**18  # bytes
MAX_CHUNK = 2**28  # bytes
EXPIRES_SOON_DAYS = 14
OTHERS_RIGHTS = 0o077  # any right of the group or of others, in a file's mode


@frozen
class CheckResult:
    """One line of the result: what was found, and what to do unless it is ok."""

    check: str
    found: str
    todo: str = ""
    is_failure: bool = False

    @property
    def state(self) -> str:
        """One of "ok", "warn" and "fail"."""
        if self.is_failure:
            return "fail"
        return "warn" if self.todo else "ok"


# the examples of its help; "" is the command alone
@shell.command("", "data.zarr", "data.zarr --scheduler tls://host:8786 --json")
def doctor(
    *,
    data: str | None = fields.argument(
        "A dataset whose chunks and codecs are checked.", "DATA", None
    ),
    # of its options those that lead to a running cluster
    cluster_options: Annotated[Cluster, "scheduler", "insecure"],
) -> Document:
    """Check versions, products, TLS, Prefect, and a dataset and a cluster if they are
    named.

    Each line is ok, a warning or a failure, and says what to do. The exit code is 1 if
    anything failed.
    """
    from rff_dist.flows.server import find_server

    cluster = cluster_options.in_environment()
    checks: dict[str, Iterator[CheckResult]] = {
        "versions": _check_versions(),
        "products": check_products(),
        "Prefect": check_prefect(*find_server()),
    }
    if cluster.tls is not None:
        checks["TLS"] = _check_certificate(cluster.tls)
    if cluster.scheduler:
        checks["cluster"] = _check_cluster(cluster)
    if data is not None:
        checks["data"] = check_dataset(data)
    results: list[CheckResult] = []
    for name, check in checks.items():
        try:
            results += check
        except (RFFDistError, ValueError) as error:
            results.append(CheckResult(name, str(error), is_failure=True))

    rows = []
    for result in results:
        state = result.state if result.state == "ok" else words.Alert(result.state)
        advice = f"\n→ {result.todo}" if result.todo else ""
        rows.append((state, result.check, result.found + advice))
    names = ("check", "state", "found", "todo")
    findings = [fields.values_of(result, *names) for result in results]
    states = [result.state for result in results]
    n_failures = states.count("fail")
    n_warnings = states.count("warn")
    return Document(
        f"{words.plural(n_failures, 'failure')}, {words.plural(n_warnings, 'warning')}",
        [words.Table("", ("", "", ""), rows, is_facts=True)],
        record={"ok": not n_failures, "findings": findings},
        code=exits.FAILED if n_failures else 0,
    )


def _versions() -> dict[str, str]:
    return {
        name: importlib.metadata.version(name.replace("_", "-")) for name in PACKAGES
    }


def _check_versions() -> Iterator[CheckResult]:
    versions = [f"{name} {version}" for name, version in _versions().items()]
    yield CheckResult("versions", ", ".join(versions))


def check_products() -> Iterator[CheckResult]:
    """Measure the ways to multiply features that pass their self-test."""
    from rff_dist.products.choice import measure, rate_for

    best = rate_for(2048).products.name  # as the environment says, or the fastest
    rates = measure().describe(2048)
    yield CheckResult("products", f"{best}; self-test passed by {rates}")


def _check_certificate(tls: TLSFiles) -> Iterator[CheckResult]:
    from cryptography.x509 import load_pem_x509_certificate

    tls.check()
    certificate = load_pem_x509_certificate(Path(tls.cert).read_bytes())
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / 86_400
    found = f"{tls.cert} is valid for {days:.0f} days"
    if days < EXPIRES_SOON_DAYS:
        yield CheckResult("TLS", found, "make new ones", is_failure=days < 0)
    elif os.name == "posix" and Path(tls.key).stat().st_mode & OTHERS_RIGHTS:
        found = f"others can read the key {tls.key}"
        yield CheckResult("TLS", found, f"chmod 600 {tls.key}")
    else:
        yield CheckResult("TLS", found)


def check_prefect(url: str | None, has_password: bool) -> Iterator[CheckResult]:
    """Check that a Prefect server is used with authentication, a far one by TLS."""
    if url is None:
        yield CheckResult("Prefect", "no server is named; flows start their own")
        return
    parts = urlsplit(url)
    server = redact(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        todo = "use https: others can read passwords and parameters on the way"
        found = f"{server} is not encrypted"
        yield CheckResult("Prefect", found, todo, is_failure=True)
    elif not has_password:
        todo = (
            "set PREFECT_SERVER_API_AUTH_STRING there and PREFECT_API_AUTH_STRING here"
        )
        yield CheckResult("Prefect", f"{server} is used without authentication", todo)
    else:
        yield CheckResult("Prefect", f"{server}, with authentication")


def _check_cluster(cluster: Cluster) -> Iterator[CheckResult]:
    """Compare the versions of the workers with those here."""
    with connecting.open_engine(cluster) as opened:
        engine = cast("DaskEngine", opened)  # since the cluster has a scheduler
        workers = engine.ask_workers(_versions)
        threads = words.plural(engine.n_threads, "thread")
    here = _versions()
    differences = {
        f"{name} {versions[name]} there, {here[name]} here"
        for versions in workers.values()
        for name in PACKAGES
        if versions[name] != here[name]
    }
    size = f"{words.plural(len(workers), 'worker')} × {threads}"
    if differences:
        found = f"{size}: {'; '.join(sorted(differences))}"
        todo = "install the same versions everywhere"
        yield CheckResult("cluster", found, todo, is_failure=True)
    else:
        todo = "" if workers else "start workers"
        yield CheckResult("cluster", f"{size}, the same versions", todo)


def check_dataset(data: str) -> Iterator[CheckResult]:
    """Check a dataset's checksums and the size of its chunks."""
    from rff_dist.storage.datasets import list_arrays

    _, arrays = list_arrays(data)
    unchecked = [name for name, header in arrays.items() if not header.checksum]
    if unchecked:
        found = f"no checksums for {words.listed(unchecked)}: damage is not noticed"
        todo = "write it again, for example with `rff-dist ingest`"
        yield CheckResult("codecs", found, todo)
    else:
        yield CheckResult("codecs", "every array has checksums")

    if "X" not in arrays:
        return
    header = arrays["X"]
    n_rows, *row_shape = header.shape
    chunk_rows, *chunk_shape = header.chunks
    row_bytes = header.dtype.itemsize * math.prod(row_shape)
    chunk_bytes = row_bytes * min(chunk_rows, n_rows)
    is_small = chunk_bytes < MIN_CHUNK and row_bytes * n_rows > MAX_CHUNK
    todo = ""
    # A row in several chunks takes a read of each.
    if chunk_shape != row_shape or is_small or chunk_bytes > MAX_CHUNK:
        better_rows = max(1, round(8 * 2**20 / max(1, row_bytes)))
        todo = f"write whole rows, with chunk_rows={better_rows}"
    found = f"{chunk_rows:,} rows, {human_bytes(chunk_bytes)} a chunk"
    yield CheckResult("chunks", found, todo)
