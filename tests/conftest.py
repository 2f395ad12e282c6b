"""What every test starts from: no telemetry, a private Prefect home, repeatable
examples.
"""

import gc
import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

WITH_PREFECT = ("tests/flows/", "tests/integration/test_demo.py")

# Set before anything imports Prefect, and inherited by every process that a test
# starts.
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
# Tests import Prefect before `rff_dist.flows`, which says the same: 20 s are too few on
# a busy machine.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "240")

# What the temporary server looks for all the time, and no test asks for.
for _name in (
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "FOREMAN",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
):
    os.environ[f"PREFECT_SERVER_SERVICES_{_name}_ENABLED"] = "false"
for _name in ("REPOSSESSOR", "SCHEDULER", "TRIGGERS"):
    os.environ[f"PREFECT_SERVER_SERVICES_{_name}_ENABLED"] = "false"

# A pass or a failure must not depend on the day or on the machine's load. To look for
# new examples: make test ARGS="--hypothesis-profile=explore"
settings.register_profile(
    "repeatable", max_examples=25, derandomize=True, deadline=None, print_blob=True
)
settings.register_profile("explore", max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's own Prefect server, profiles and database out of reach of the
    tests.
    """
    os.fsync = lambda _: None  # no test loses power; a tenth of the time of small jobs
    # what collection makes stays; looking through it took a quarter of its time
    gc.disable()
    prefect_home = tempfile.TemporaryDirectory(
        prefix="rff_dist-prefect-", ignore_cleanup_errors=True
    )
    config.add_cleanup(prefect_home.cleanup)
    os.environ["PREFECT_HOME"] = prefect_home.name
    for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
        os.environ.pop(name, None)
    if config.getoption("numprocesses", None):
        # A core each: BLAS threads that wait for one another would take the other
        # process's.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _same_seeds_on_each_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw seeds that a test does not give from its name, so that failures repeat."""
    seeds = random.Random(request.node.nodeid)
    monkeypatch.setattr(
        "rff_dist.features.draw.seed_of_the_system", lambda: seeds.getrandbits(63)
    )


def pytest_collection_finish() -> None:
    """Look for garbage from now on, among what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return what `-n auto` means: three processes; none beside this one on one core or
    for a single file.

    One more than two cores: a third of the time tests wait, for processes, servers and
    timeouts."""
    files = {Path(argument.partition("::")[0]) for argument in config.args}
    single_file = len(files) == 1 and files.pop().is_file()
    return 0 if single_file or len(os.sched_getaffinity(0)) == 1 else 3


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file's tests in one process, for its fixtures, and all flows in one, for
    Prefect's server.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "flows" if file.startswith(WITH_PREFECT) else file

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Return the folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def exact_bytes() -> Iterator[None]:
    """Multiply bytes exactly: in float64 on processors that do not, so that all else is
    tested there.
    """
    from rff_dist.products import bytes as byte_products
    from rff_dist.products.choice import find_wrong_sums

    def multiply(left: Any, right: Any) -> Any:
        return ((left.astype(float) - 128) @ right.astype(float)).astype("int32")

    with pytest.MonkeyPatch.context() as patch:
        if find_wrong_sums(byte_products.ByteProducts()) is not None:
            patch.setattr(byte_products, "multiply", multiply)
        yield


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Any]:
    """Lend one embedded cluster to all tests of a process, which scale it: each start
    takes seconds.
    """
    from rff_dist.engines.dask import DaskEngine
    from tests.dask_processes import forked_workers

    with forked_workers():
        engine = DaskEngine(n_workers=1, threads_per_worker=1)
    with engine:
        yield engine


@pytest.fixture
def embedded(shared_cluster: Any) -> Iterator[Any]:
    """Return the shared cluster, whose workers start in a moment, also in the place of
    dead ones.
    """
    from tests.dask_processes import forked_workers

    with forked_workers():
        yield shared_cluster


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Any]:
    """Start an S3 server, which takes seconds."""
    pytest.importorskip("obstore", reason="needs the extra s3")
    pytest.importorskip("moto", reason="needs moto, of the extra dev")
    from tests.s3_server import serve_s3

    with serve_s3() as running:
        yield running


@pytest.fixture(scope="module")
def server(s3_server: Any) -> Iterator[Any]:
    """Empty the S3 server, and let the environment name it, for the tests of a
    module.
    """
    s3_server.empty()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        patch.delenv("RFF_DIST_SCHEDULER", raising=False)
        yield s3_server


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a catalog, on SQLite, that PyIceberg's configuration names."""
    pytest.importorskip("pyiceberg", reason="needs the extra iceberg")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__TYPE", "sql")
    monkeypatch.setenv(
        "PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{tmp_path}/lake/catalog.db"
    )
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__WAREHOUSE", f"file://{tmp_path}/lake")
    # it reads them once for each process
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    catalog = load_catalog("shop")
    catalog.create_namespace("main")
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Let Prefect's temporary server, which the first flow starts, end without a
    farewell.
    """
    yield
    logging.getLogger("prefect").setLevel(logging.WARNING)
