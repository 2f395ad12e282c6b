"""Clusters that are found by a scheduler file, speak TLS, or grow with the work."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import distributed
import pytest

from rff_dist import DaskEngine
from rff_dist.engines import dask_cluster
from rff_dist.engines.cluster import TLS_VARIABLES, Cluster, TLSFiles
from rff_dist.engines.connecting import open_engine
from tests.dask_processes import scaled
from tests.engine_contract import unit_blocks

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Write a certificate that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = distributed.Security.temporary()
    (folder / "ca.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    return TLSFiles(
        str(folder / "ca.pem"), str(folder / "ca.pem"), str(folder / "key.pem")
    )


@pytest.fixture(scope="module")
def scheduler_file(tls, tmp_path_factory):
    """Run a scheduler that speaks TLS only, with a worker whose threads are of this
    process.
    """
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        protocol="tls",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        security=dask_cluster.tls_security(tls),
    ) as cluster:
        file = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
        file.write_text(json.dumps(cluster.scheduler.identity()))
        yield file


def count(block, _):
    return block.n_samples


def test_a_cluster_is_found_by_its_scheduler_file_and_spoken_to_by_tls(
    scheduler_file, tls, monkeypatch, caplog
):
    for name, path in zip(TLS_VARIABLES, (tls.ca, tls.cert, tls.key), strict=True):
        monkeypatch.setenv(name, path)
    monkeypatch.setenv("RFF_DIST_SCHEDULER", str(scheduler_file))
    with open_engine() as engine:
        assert isinstance(engine, DaskEngine)
        assert engine.address.startswith("tls://127.0.0.1")
        assert engine.map_reduce(count, unit_blocks(5), None) == 5
    assert "no worker yet" not in caplog.text


def test_dasks_own_configuration_of_tls_is_respected(scheduler_file, tls, monkeypatch):
    import dask

    own = {"cert": tls.cert, "key": tls.key}
    with (
        dask.config.set(
            {"distributed.comm.tls.ca-file": tls.ca, "distributed.comm.tls.client": own}
        ),
        open_engine(Cluster(scheduler=str(scheduler_file))) as engine,
    ):
        assert engine.n_workers == 1


async def identity(address, security):
    """Return what part of a cluster answers at an address, whoever signed its
    certificate; None for none.
    """
    arguments = security.get_connection_args("client")
    if (context := arguments.get("ssl_context")) is not None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    remote = distributed.rpc(address, timeout=3, connection_args=arguments)
    try:
        async with asyncio.timeout(3):
            return (await remote.identity())["type"]
    except (OSError, TimeoutError):
        return None
    finally:
        await remote.close_rpc()


def test_nobody_else_connects_to_an_embedded_cluster(embedded):
    engine = scaled(embedded, 1)
    [(worker, facts)] = engine.client.scheduler_info()["workers"].items()
    strangers = distributed.Security.temporary()
    for address, part in (
        (engine.address, "Scheduler"),
        (worker, "Worker"),
        (facts["nanny"], "_QuietNanny"),
    ):
        assert address.startswith("tls://127.0.0.1:")
        assert (
            asyncio.run(identity(address.replace("tls", "tcp"), distributed.Security()))
            is None
        )
        assert asyncio.run(identity(address, strangers)) is None
        # nothing else is in the way
        assert asyncio.run(identity(address, engine.client.security)) == part
    assert engine.map_reduce(count, unit_blocks(5), None) == 5


# As another user: reads files and processes.
STRANGER = """
import json, os, sys

given = json.load(sys.stdin)


def tried(how, *arguments):
    try:
        return how(*arguments)
    except PermissionError:
        return "refused"


os.setgroups([])
os.setgid(65534)
os.setuid(65534)
readable = [os.path.join(where, name) for where, _, names in os.walk(given["folder"]) for name in names]
contents = b"".join(open(path, "rb").read() for path in readable if os.access(path, os.R_OK))
processes = [
    [tried(os.listdir, f"/proc/{pid}/fd"), tried(lambda: open(f"/proc/{pid}/environ").read())]
    for pid in given["pids"]
]
lines = b"".join(open(f"/proc/{pid}/cmdline", "rb").read() for pid in given["pids"])
print(json.dumps({
    "folders": [tried(os.listdir, folder) for folder in given["private"]],
    "processes": processes,
    "keys": (contents + lines).count(b"PRIVATE KEY"),
}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_reads_neither_certificates_nor_spilled_data(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # as /tmp: what is in it must protect itself
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        with open_engine(Cluster(n_workers=1, n_threads=1)) as engine:
            assert isinstance(engine, DaskEngine)
            [facts] = engine.client.scheduler_info()["workers"].values()
            [pid] = engine.client.run(os.getpid).values()
            given = {
                "folder": folder,
                "private": [facts["local_directory"]],
                "pids": [pid],
            }
            assert facts["local_directory"].startswith(folder)
            done = subprocess.run(
                [sys.executable, "-c", STRANGER],
                input=json.dumps(given),
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"TMPDIR": "/tmp", "HOME": "/nonexistent"},
            )
            assert done.returncode == 0, done.stderr
        monkeypatch.setattr(tempfile, "tempdir", None)
    found = json.loads(done.stdout)
    assert found["folders"] == ["refused"]
    assert found["processes"] == [["refused", "refused"]]
    assert found["keys"] == 0
