"""`deploy/nightly`: from a CSV to a model that is refreshed each night, by one command
on loopback, with two workers of Dask.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.storage.datasets import open_dataset
from tests.processes import Process
from tests.system import System, answers, free_port

pytestmark = [pytest.mark.flows, pytest.mark.slow, pytest.mark.timeout(1200)]

READY_S = 480  # what is promised, on a busy machine too


def write_sales(path: Path, first: int, n_rows: int) -> None:
    rng = np.random.default_rng(first)
    ids = np.arange(first, first + n_rows)
    area = rng.uniform(30, 150, n_rows).round(1)
    rooms = rng.integers(1, 5, n_rows)
    price = (2000 + 300 * rooms) * area + rng.normal(0, 9000, n_rows)
    lines = [
        ",".join(map(str, row)) for row in zip(ids, area, rooms, price, strict=True)
    ]
    path.write_text("\n".join(["sale,area,rooms,price (EUR)", *lines]) + "\n")


def start(folder: Path, environment: dict[str, str], script: Path) -> Process:
    """Start the script, and wait until it says how to stop it."""
    words = ("sales/*.csv", "price (EUR)", "--id", "sale")
    nightly = Process.start(
        "worker", str(script), *words, folder=folder, environment=environment
    )
    nightly.wait_until(
        lambda: "Ctrl-C" in nightly.log.read_text(), "the script", READY_S
    )
    return nightly


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user with a Dask cluster of two workers."""
    folder = tmp_path_factory.mktemp("dask")
    ours = ("PREFECT_", "RFF_", "DASK_")
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(ours)}
    port = free_port()
    scheduler = f"tcp://127.0.0.1:{port}"
    kept |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_SERVER_API_PORT": str(free_port()),
    }
    dask = (sys.executable, "-m", "dask")
    where = ("--host", "127.0.0.1", "--no-dashboard")
    options = {"folder": folder, "environment": kept}
    with Process.start(
        "scheduler", *dask, "scheduler", *where, "--port", str(port), **options
    ) as first:
        first.wait_until(lambda: "Scheduler at" in first.log.read_text(), "scheduler")
        more = ("--nthreads", "1", "--local-directory", str(folder))
        with (
            Process.start("one", *dask, "worker", scheduler, *where, *more, **options),
            Process.start("two", *dask, "worker", scheduler, *where, *more, **options),
        ):
            yield kept | {"RFF_DIST_SCHEDULER": scheduler}


@pytest.fixture(scope="module")
def script(project_root: Path) -> Path:
    return project_root / "deploy/nightly"


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], script: Path
) -> Iterator[System]:
    """What the script has started, in a folder with the sales of a Monday."""
    folder = tmp_path_factory.mktemp("nights of a user")
    (folder / "sales").mkdir()
    write_sales(folder / "sales/monday.csv", 0, 600)
    with start(folder, environment, script) as nightly:
        api = f"http://127.0.0.1:{environment['PREFECT_SERVER_API_PORT']}/api"
        password = nightly.log.read_text().partition("password ")[2].splitlines()[0]
        yield System(folder, None, "", api, password, environment, [nightly])


def made(system: System, name: str) -> Path:
    return system.folder / "price--EUR--nightly" / name


MODEL = "models/price--EUR-"


def test_the_first_model_is_tested_and_nothing_else_is_deployed(system):
    text = system.process("worker").log.read_text()
    assert "Traceback" not in text
    assert f"passes on {system.environment['RFF_DIST_SCHEDULER']}" in text
    n_test = open_dataset(made(system, "data-test.zarr")).n_samples
    assert f"{n_test} test rows" in text
    version = RegisteredModel(made(system, MODEL)).current()
    assert (version.number, version.lineage["n_samples"]) == (1, 600 - n_test)
    deployed = system.call("POST", "/deployments/filter", {})
    crons = [one["schedules"][0]["schedule"]["cron"] for one in deployed]
    assert sorted(crons) == ["0 1 * * *", "0 2 * * *"]
    assert {one["name"] for one in deployed} == {"nightly"}
    automations = system.call("POST", "/automations/filter", {})
    assert {"rff_dist failed", "rff_dist model refused"} <= {
        one["name"] for one in automations
    }


def test_its_server_asks_for_the_password(system):
    answer = httpx.post(f"{system.api}/deployments/filter", json={}, trust_env=False)
    assert answer.status_code == 401
    assert made(system, "login.sh").stat().st_mode & 0o77 == 0


def test_a_new_file_becomes_rows_and_a_second_version(system):
    before = open_dataset(made(system, "data.zarr")).n_samples
    write_sales(system.folder / "sales/tuesday.csv", 600, 200)
    added = system.finish(system.start("ingest/nightly"))
    assert added["state"]["name"] == "Added: 200 rows"
    assert open_dataset(made(system, "data.zarr")).n_samples == before + 200
    run = system.finish(system.start("refresh/nightly"))
    assert run["state"]["name"].startswith("Published: RMSE ")
    assert (
        f"# {run['state']['name']}"
        in system.artifacts(run["id"])["rff-refresh-result-price-eur"]
    )
    assert RegisteredModel(made(system, MODEL)).current().number == 2


def test_it_ends_with_its_server_and_goes_on_by_the_same_command(
    system, environment, script
):
    before = read_model(made(system, MODEL))
    nightly = system.process("worker")
    os.kill(nightly.popen.pid, signal.SIGTERM)
    nightly.popen.wait(60)
    assert not answers(f"{system.api}/health")
    with start(system.folder, environment, script) as again:
        assert "Training" not in again.log.read_text()
        assert system.authentication in again.log.read_text()
    after = read_model(made(system, MODEL))
    assert after.digest() == before.digest()


def test_a_wrong_column_stops_it_with_the_words_of_ingest(
    tmp_path, environment, script
):
    write_sales(tmp_path / "sales.csv", 0, 60)
    environment = environment | {"PREFECT_SERVER_API_PORT": str(free_port())}
    done = subprocess.run(
        [script, "sales.csv", "prize (EUR)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "price (EUR)" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
