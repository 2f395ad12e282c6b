"""The whole system with real processes: scheduled flows on Prefect, passes on Dask with TLS, all data in S3.

The fixtures are a story, each one a chapter that goes on where the one before ended.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rff_dist import load_model
from rff_dist.model import read_model
from rff_dist.storage import open_column, open_dataset, write_dataset
from rff_dist.storage.registry import RegisteredModel
from tests.s3_server import SECRET_KEY
from tests.system import System, deploy, missing_programs, run_system

pytestmark = [
    pytest.mark.flows,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_programs()), reason=f"not here: {', '.join(missing_programs())}"),
]

N_SAMPLES, N_NEW = 20_000, 3_000
TRAINING = {"n_components": 256, "seed": 3, "register": True}


def draw_rows(n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 4))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n_samples)


@dataclass(frozen=True)
class Place:
    """Where data and models are."""

    root: str

    def __getattr__(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def data(self) -> str:
        return f"{self.root}/data.zarr"

    @property
    def model(self) -> str:
        return f"{self.root}/models/main"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(run_system(tmp_path_factory.mktemp("system")))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in running.s3.environment.items():
            patch.setenv(name, value)
        store = running.s3.url("rff_dist")
        write_dataset(f"{store}/data.zarr", *draw_rows(N_SAMPLES, 0), chunk_rows=2048)
        write_dataset(f"{store}/test.zarr", *draw_rows(2000, 1), chunk_rows=2048)
        deploy(running, store, stack)
        yield running


@pytest.fixture(scope="module")
def place(system: System) -> Place:
    return Place(system.s3.url("rff_dist"))


# -- training ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(system: System) -> dict[str, Any]:
    """The monthly training, from scratch, as version 1."""
    return system.finish(system.start("train/monthly", **TRAINING))


def test_training_completes_and_publishes_the_first_version(trained, place):
    version = RegisteredModel(place.model).current()
    assert version.number == 1
    assert version.lineage["n_samples"] == N_SAMPLES
    X, y = draw_rows(500, 2)
    error = np.sqrt(np.mean((load_model(place.model).predict(X) - y) ** 2))
    assert error < 0.15  # the noise is 0.1


def test_passes_ran_on_the_cluster_with_tls(trained, system):
    scheduler = system.process("dask-scheduler")
    assert system.scheduler.startswith("tls://127.0.0.1:")
    assert "Receive client connection" in scheduler.log.read_text()


# -- a run that is killed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(system: System, trained: dict[str, Any], place: Place) -> dict[str, Any]:
    """The same training for another model, killed in the middle of its pass, and once more."""
    parameters = {**TRAINING, "model": f"{place.root}/models/killed"}
    run = system.start("train/monthly", **parameters)

    def has_inspected() -> bool:
        return any("killed.run-" in name and "moments/model.json" in name for name in system.s3.names())

    with system.stopped_workers(has_inspected, "the first record of the run that is killed"):
        system.kill_flow(run)
        crashed = system.finish(run, "CRASHED")
    published = RegisteredModel(parameters["model"]).versions()
    after = system.finish(system.start("train/monthly", **parameters))
    return {"crashed": crashed, "published": published, "next": after}


def test_killed_run_crashes_and_publishes_nothing(killed):
    assert killed["published"] == []


def test_next_run_after_a_kill_has_the_digest_of_an_undisturbed_one(killed, place):
    undisturbed = read_model(RegisteredModel(place.model).version(1).url)
    after = read_model(f"{place.root}/models/killed")
    assert after.digest() == undisturbed.digest()
    assert after.statistics.digest() == undisturbed.statistics.digest()


# -- clusters ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustered(system: System, place: Place) -> dict[str, Any]:
    return system.finish(system.start("cluster/weekly", n_clusters=3, n_components=64, max_iter=5))


def test_clustering_completes_and_labels_every_row(clustered, place):
    labels = open_column(f"{place.root}/labels.zarr", "labels").array[:]
    assert len(labels) == open_dataset(place.data).n_samples
    assert set(np.unique(labels)) == {0, 1, 2}


# -- what nobody may see -----------------------------------------------------------------------------------


def test_secret_key_is_nowhere_but_in_the_environment(system, trained, killed, clustered):
    api = [
        system.call("POST", f"/{kind}/filter", {})
        for kind in ("flow_runs", "task_runs", "logs", "artifacts", "deployments", "work_pools")
    ]
    logs = [process.log.read_text(errors="replace") for process in system.processes]
    stored = [system.s3.read(name) for name in system.s3.names()]
    assert SECRET_KEY not in str(api)
    assert not any(SECRET_KEY in log for log in logs)
    assert not any(SECRET_KEY.encode() in content for content in stored)


def test_api_refuses_who_does_not_authenticate(system):
    import httpx

    answer = httpx.post(f"{system.api}/flow_runs/filter", json={}, trust_env=False)
    assert answer.status_code == 401
