"""Check a machine, and a cluster and a dataset if they are named, before a job relies on them."""

from __future__ import annotations

import importlib.metadata
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from rff_dist import fields
from rff_dist.engines import connecting
from rff_dist.engines.cluster import Cluster, is_loopback
from rff_dist.errors import RFFDistError
from rff_dist.text import human_bytes, redact
from rff_dist.typing import frozen
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import exits, words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.storage.arrays import Header

PACKAGES = ("rff_dist", "numpy", "scipy", "zarr", "dask", "distributed", "prefect")
MIN_CHUNK, MAX_CHUNK = 2**18, 2**28  # bytes
EXPIRES_SOON = 14 * 86_400  # seconds


@frozen
class Finding:
    """The result of one check.

    `check`: what was checked.
    `state`: ok; warn, if it may do harm; fail, if it will.
    `found`: in words.
    `todo`: the next step; "" if it is ok.
    """

    check: str
    state: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""

    @classmethod
    def of(cls, check: str, found: str, todo: str = "") -> Finding:
        """Return a warning if there is something to do, else a result that is ok."""
        return cls(check, "warn" if todo else "ok", found, todo)


@shell.command("", "data.zarr", "data.zarr --scheduler tls://host:8786 --json")
def doctor(
    *,
    data: str | None = fields.argument("A dataset whose chunks and codecs are checked.", "DATA", None),
    where: Annotated[Cluster, "scheduler", "insecure"],
) -> Document:
    """Check versions, products, TLS, Prefect, and a dataset and a cluster if they are named.

    Each line is ok, a warning or a failure, and says what to do. The exit code is 1 if anything failed.
    """
    from rff_dist.flows.server import find_server

    cluster = where.in_environment()
    findings = [
        Finding.of("versions", ", ".join(f"{name} {version}" for name, version in _versions().items())),
        check_products(),
        *check_tls(cluster),
        check_prefect(*find_server()),
    ]
    if cluster.scheduler:
        findings.append(check_cluster(cluster))
    if data is not None:
        findings += check_dataset(data)
    failed, warned = (sum(finding.state == state for finding in findings) for state in ("fail", "warn"))
    rows = []
    for finding in findings:
        state = finding.state if finding.state == "ok" else words.Alert(finding.state)
        rows.append((state, finding.check, "\n→ ".join(filter(None, [finding.found, finding.todo]))))
    record = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
    title = f"{words.plural(failed, 'failure')}, {words.plural(warned, 'warning')}"
    table = words.Table("", ("", "", ""), rows, is_facts=True)
    return Document(title, [table], record=record, code=exits.FAILED if failed else 0)


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name.replace("_", "-")) for name in PACKAGES}


def check_products() -> Finding:
    """Measure the ways to multiply features that pass their self-test."""
    from rff_dist.products.choice import VARIABLE, measure, rate_for

    try:
        best, measured = rate_for(2048).products.name, measure()
    except RFFDistError as error:
        return Finding("products", "fail", str(error), f"unset {VARIABLE}")
    forced = f", as {VARIABLE} says" if os.environ.get(VARIABLE) else ""
    return Finding.of("products", f"{best}{forced}; self-test passed by {measured.describe(2048)}")


def check_tls(cluster: Cluster) -> Iterator[Finding]:
    """Check the TLS files, and whether a scheduler beyond this machine is used without TLS."""
    address = cluster.scheduler or ""
    if address.startswith("tcp://") and not is_loopback(urlsplit(address).hostname or ""):
        todo = "use tls:// with RFF_DIST_TLS_CA, _CERT and _KEY: anyone who reaches the port can run code"
        yield Finding("TLS", "fail", f"{redact(address)} is beyond this machine and not encrypted", todo)
    if cluster.tls is None:
        if not address.startswith("tcp://"):
            yield Finding.of("TLS", "no certificate is named; clusters that start here make their own")
        return
    from cryptography.x509 import load_pem_x509_certificate

    try:
        cluster.tls.check()
        ends = load_pem_x509_certificate(Path(cluster.tls.cert).read_bytes()).not_valid_after_utc.timestamp()
    except (RFFDistError, ValueError) as error:
        yield Finding("TLS", "fail", str(error), "make new files")
        return
    if (left := ends - time.time()) < EXPIRES_SOON:
        expiry = "has expired" if left < 0 else f"expires in {left / 86_400:.0f} days"
        yield Finding("TLS", "fail" if left < 0 else "warn", f"{cluster.tls.cert} {expiry}", "make a new one")
    # 0o077: any right of the group or of others.
    elif os.name == "posix" and Path(cluster.tls.key).stat().st_mode & 0o077:
        yield Finding.of("TLS", f"others can read the key {cluster.tls.key}", f"chmod 600 {cluster.tls.key}")
    else:
        yield Finding.of("TLS", f"{cluster.tls.cert} is valid for {left / 86_400:.0f} days")


def check_prefect(url: str | None, known: bool) -> Finding:
    """Check whether a Prefect server beyond this machine is used without TLS or authentication."""
    if url is None:
        return Finding.of("Prefect", "no server is named; flows start one of their own")
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        todo = "use https: others can read passwords and parameters on the way"
        return Finding("Prefect", "fail" if known else "warn", f"{redact(url)} is not encrypted", todo)
    if not known:
        todo = "set PREFECT_SERVER_API_AUTH_STRING there and PREFECT_API_AUTH_STRING here"
        return Finding.of("Prefect", f"{redact(url)} is used without authentication", todo)
    return Finding.of("Prefect", f"{redact(url)}, with authentication")


def check_cluster(cluster: Cluster) -> Finding:
    """Compare the versions of the workers with those here."""
    try:
        with connecting.open_engine(cluster) as engine:
            ask: Any = getattr(engine, "ask_workers")  # noqa: B009  # of an engine with a cluster
            workers = ask(_versions)
            n_threads = engine.n_threads
    except RFFDistError as error:
        return Finding("cluster", "fail", str(error), "start it, or correct `scheduler`")
    here = _versions()
    skew = {
        f"{name} {versions[name]} there, {here[name]} here"
        for versions in workers.values()
        for name in here
        if versions[name] != here[name]
    }
    size = f"{words.plural(len(workers), 'worker')} × {words.plural(n_threads, 'thread')}"
    if skew:
        differ = f"{size}: {'; '.join(sorted(skew))}"
        return Finding("cluster", "fail", differ, "install the same versions everywhere")
    return Finding.of("cluster", f"{size}, the same versions", "" if workers else "start workers")


def check_dataset(data: str) -> Iterator[Finding]:
    """Check a dataset's checksums and the size of its chunks."""
    from rff_dist.storage.datasets import list_arrays

    try:
        _, arrays = list_arrays(data)
    except RFFDistError as error:
        yield Finding("data", "fail", str(error), "name a dataset")
        return
    if unchecked := [name for name, header in arrays.items() if not header.checksum]:
        todo = "write it again, for example with `rff-dist ingest`: damage to these arrays is not noticed"
        yield Finding.of("codecs", f"no checksums for {words.listed(unchecked)}", todo)
    else:
        yield Finding.of("codecs", "every array has checksums")
    if "X" in arrays:
        yield _check_chunks(arrays["X"])


def _check_chunks(header: Header) -> Finding:
    shape, chunks = header.shape, header.chunks
    row = header.dtype.itemsize * math.prod(shape[1:])
    size = row * min(chunks[0], shape[0])
    write = f"write with chunk_rows={max(1, round(8 * 2**20 / max(1, row)))}"
    harm, todo = "", ""
    # A row then lies in several chunks, each of which takes a read of its own.
    if chunks[1:] != shape[1:]:
        harm, todo = "; rows are split over chunks", f"{write}, all columns in one"
    elif size < MIN_CHUNK and row * shape[0] > MAX_CHUNK:
        harm, todo = ": many small reads", write
    elif size > MAX_CHUNK:
        harm, todo = ": few, large tasks", write
    return Finding.of("chunks", f"{chunks[0]:,} rows, {human_bytes(size)} a chunk{harm}", todo)
