"""Check a machine, and a cluster and a dataset, before a job relies on them.

In go the environment and, if they are named, a scheduler and a dataset; out comes a
line for each check that is ok, a warning or a failure, with what to do about it.
Without it the same faults show up hours into a job, or never: data without checksums,
keys that others can read, and workers with other versions of a package.
"""

import importlib.metadata
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast
from urllib.parse import urlsplit

from rff_dist import fields
from rff_dist.engines import connecting
from rff_dist.engines.cluster import Cluster, TLSFiles, is_loopback
from rff_dist.errors import RFFDistError
from rff_dist.text import redact
from rff_dist.typing import frozen
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import exits, words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.engines.dask import DaskEngine

PACKAGES = ("rff_dist", "numpy", "scipy", "zarr", "dask", "distributed", "prefect")
EXPIRES_SOON_DAYS = 14
OTHERS_RIGHTS = 0o077  # any right of the group or of others, in a file's mode


@frozen
class CheckResult:
    """What a check found, and what to do unless it is ok."""

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
        "A dataset whose checksums are checked.", "DATA", None
    ),
    # its options of a running cluster; the command starts none
    cluster_options: Annotated[Cluster, "scheduler", "insecure"],
) -> Document:
    """Check versions, products, TLS, Prefect, and a dataset and a cluster if they are
    named.

    Each line is ok, a warning or a failure, and says what to do. The exit code is 1 if
    anything failed.
    """
    from rff_dist.flows.server import find_server

    cluster = cluster_options.in_environment()
    checks: dict[str, Callable[[], CheckResult]] = {
        "versions": lambda: CheckResult(", ".join(map(" ".join, _versions().items()))),
        "products": check_products,
        "Prefect": lambda: check_prefect(*find_server()),
    }
    if cluster.tls is not None:
        checks["TLS"] = partial(_check_certificate, cluster.tls)
    if cluster.scheduler:
        checks["cluster"] = partial(_check_cluster, cluster)
    if data is not None:
        checks["checksums"] = partial(check_checksums, data)

    findings = []
    rows = []
    for name, check in checks.items():
        try:
            result = check()
        except (RFFDistError, ValueError) as error:
            result = CheckResult(str(error), is_failure=True)
        findings.append(
            {"check": name, **fields.values_of(result, "state", "found", "todo")}
        )
        state = result.state if result.state == "ok" else words.Alert(result.state)
        advice = f"\n→ {result.todo}" if result.todo else ""
        rows.append((state, name, result.found + advice))
    states = [finding["state"] for finding in findings]
    n_failures = states.count("fail")
    n_warnings = states.count("warn")
    return Document(
        f"{words.plural(n_failures, 'failure')}, {words.plural(n_warnings, 'warning')}",
        [words.Table("", ("", "", ""), rows, is_text=True)],
        record={"ok": not n_failures, "findings": findings},
        code=exits.FAILED if n_failures else 0,
    )


def _versions() -> dict[str, str]:
    return {
        name: importlib.metadata.version(name.replace("_", "-")) for name in PACKAGES
    }


def check_products() -> CheckResult:
    """Measure the ways to multiply features that pass their self-test."""
    from rff_dist.products.choice import measure, rate_for

    best = rate_for(2048).products.name  # as the environment says, or the fastest
    rates = measure().describe(2048)
    return CheckResult(f"{best}; self-test passed by {rates}")


def _check_certificate(tls: TLSFiles) -> CheckResult:
    from cryptography.x509 import load_pem_x509_certificate

    tls.check()
    certificate = load_pem_x509_certificate(Path(tls.cert).read_bytes())
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / 86_400
    finding = f"{tls.cert} is valid for {days:.0f} days"
    # said first, since a new certificate comes with a new key
    if days < EXPIRES_SOON_DAYS:
        return CheckResult(finding, "make new ones", is_failure=days < 0)
    if os.name == "posix" and Path(tls.key).stat().st_mode & OTHERS_RIGHTS:
        return CheckResult(f"others can read the key {tls.key}", f"chmod 600 {tls.key}")
    return CheckResult(finding)


def check_prefect(url: str | None, has_password: bool) -> CheckResult:
    """Check that the Prefect server has authentication, and TLS if it is remote."""
    if url is None:
        return CheckResult("no server is named; flows start their own")
    parts = urlsplit(url)
    server = redact(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        todo = "use https: others can read passwords and parameters on the way"
        return CheckResult(f"{server} is not encrypted", todo, is_failure=True)
    if not has_password:
        todo = (
            "set PREFECT_SERVER_API_AUTH_STRING there and PREFECT_API_AUTH_STRING here"
        )
        return CheckResult(f"{server} is used without authentication", todo)
    return CheckResult(f"{server}, with authentication")


def _check_cluster(cluster: Cluster) -> CheckResult:
    """Compare the versions of the workers with those here."""
    with connecting.open_engine(cluster) as opened:
        engine = cast("DaskEngine", opened)  # since the cluster has a scheduler
        versions_there = engine.ask_workers(_versions)
        threads = words.plural(engine.n_threads, "thread")
    size = f"{words.plural(len(versions_there), 'worker')} × {threads}"
    here = _versions()
    differences = {
        f"{name} {versions[name]} there, {here[name]} here"
        for versions in versions_there.values()
        for name in PACKAGES
        if versions[name] != here[name]
    }
    if differences:
        finding = f"{size}: {'; '.join(sorted(differences))}"
        todo = "install the same versions everywhere"
        return CheckResult(finding, todo, is_failure=True)
    todo = "" if versions_there else "start workers"
    return CheckResult(f"{size}, the same versions", todo)


def check_checksums(data: str) -> CheckResult:
    """Check that all arrays of a dataset have checksums, which show damage."""
    from rff_dist.storage.datasets import list_arrays

    _, arrays = list_arrays(data)
    unchecked = [name for name, header in arrays.items() if not header.checksum]
    if unchecked:
        finding = f"no checksums for {words.listed(unchecked)}: damage is not noticed"
        todo = "write it again, for example with `rff-dist ingest`"
        return CheckResult(finding, todo)
    return CheckResult("every array has checksums")
