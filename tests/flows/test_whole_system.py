"""The whole system with real processes: scheduled flows on Prefect, passes on Dask with
TLS, all data in S3.

The fixtures are a story, each one a chapter that goes on where the one before ended.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import parquet

from rff_dist import SerialEngine, load_model, open_dataset, write_dataset
from rff_dist.data.folding import folds_from_dict
from rff_dist.fitting.options import Penalty
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.ridge.solve import solve
from rff_dist.statistics import passes
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.storage.columns import open_column
from tests.s3_server import SECRET_KEY
from tests.system import RUN_S, System, deploy, missing_programs, run_system

pytestmark = [
    pytest.mark.flows,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"not here: {', '.join(missing_programs())}"
    ),
]

COLUMNS = ["a", "b", "c", "d"]
N_SAMPLES = 20_000
N_NEW = 3_000
# Seeds of rows.
OLD = 0
TEST = 1
NEW = 11
UNSEEN = 13
TRAINING = {"n_components": 256, "seed": 3, "register": True}


def draw_rows(n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 4))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n_samples)


def has_inspected(system: System, model: str) -> bool:
    """Return whether a run that trains a model has written its first record."""
    return any(
        f"{model}.run-" in name and "plan/zarr.json" in name
        for name in system.s3.names()
    )


@dataclass(frozen=True)
class Place:
    """Where data and models are."""

    root: str

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
        for name, value in running.s3.environment().items():
            patch.setenv(name, value)
        store = running.s3.url("rff_dist")
        names = {"feature_names": COLUMNS, "target_names": ["y"], "chunk_rows": 2048}
        write_dataset(
            f"{store}/data.zarr", *draw_rows(N_SAMPLES, OLD), **names, versioned=True
        )
        write_dataset(f"{store}/data-test.zarr", *draw_rows(2000, TEST), **names)
        deploy(running, store, stack)
        yield running


@pytest.fixture(scope="module")
def place(system: System) -> Place:
    return Place(system.s3.url("rff_dist"))


# -- training
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustering(system: System) -> str:
    """The weekly clustering, which runs beside the training."""
    return system.start("cluster/weekly", n_clusters=3, n_components=64, max_iter=5)


@pytest.fixture(scope="module")
def trained(system: System, clustering: str) -> dict[str, Any]:
    """The monthly training, from scratch, as version 1."""
    return system.finish(system.start("train/monthly", **TRAINING))


def test_training_completes_and_publishes_the_first_version(trained, place):
    version = RegisteredModel(place.model).current()
    assert version.number == 1
    assert version.lineage["n_samples"] == N_SAMPLES
    X, y = draw_rows(500, UNSEEN)
    predicted = load_model(place.model).predict(pandas.DataFrame(X, columns=COLUMNS))
    error = np.sqrt(np.mean((predicted - y) ** 2))
    assert error < 0.15  # the noise is 0.1


def test_passes_ran_on_the_cluster_with_tls(trained, system):
    scheduler = system.process("dask-scheduler")
    assert system.scheduler.startswith("tls://127.0.0.1:")
    assert "Receive client connection" in scheduler.log.read_text()


# -- a run that is killed
# ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(system: System, trained: dict[str, Any], place: Place) -> dict[str, Any]:
    """The same training for another model, killed in the middle of its pass, and once
    more.
    """
    parameters = {**TRAINING, "model": f"{place.root}/models/killed"}
    run = system.start("train/monthly", **parameters)

    with system.stopped_workers(
        lambda: has_inspected(system, "killed"), "its first record"
    ):
        system.kill_flow(run)
        crashed = system.finish(run, "CRASHED")
    published = RegisteredModel(parameters["model"]).versions()
    told = system.told_of_stop(run)
    after = system.finish(system.start("train/monthly", **parameters))
    return {"crashed": crashed, "published": published, "told": told, "next": after}


def test_killed_run_crashes_and_publishes_nothing(killed):
    assert killed["published"] == []


def test_worker_tells_what_a_killed_run_left(killed):
    assert killed["told"].startswith("# Crashed: train of ")
    assert ".killed.run-" in killed["told"]


def test_next_run_after_a_kill_has_the_digest_of_an_undisturbed_one(killed, place):
    undisturbed = read_model(RegisteredModel(place.model).version(1).url)
    after = read_model(f"{place.root}/models/killed")
    assert after.digest() == undisturbed.digest()
    assert after.statistics.digest() == undisturbed.statistics.digest()


def test_single_parameter_is_overridden_and_worker_tells_what_the_cancelled_run_left(
    killed, system, place
):
    model = f"{place.root}/models/cancelled"
    changed = ("--param", "n_components=64", "--param", f"model={model}")
    system.run("prefect", "deployment", "run", "train/monthly", *changed)
    [found] = system.flow_runs(
        "train/monthly", scheduled=False, state="SCHEDULED|PENDING|RUNNING"
    )
    assert found["parameters"]["n_components"] == 64
    assert found["parameters"]["data"] == place.data  # as the deployment says
    run = found["id"]

    with system.stopped_workers(
        lambda: has_inspected(system, "cancelled"), "its first record"
    ):
        system.cancel(run)
        system.finish(run, "CANCELLED")
    # when the hook is called
    assert system.told_of_stop(run).startswith("# Cancelling: train of ")
    assert RegisteredModel(model).versions() == []


# -- new rows, and refreshes that fire by themselves
# -------------------------------------------------------


@pytest.fixture(scope="module")
def ingested(
    system: System, killed: dict[str, Any], place: Place, tmp_path_factory: Any
) -> dict[str, Any]:
    """New rows arrive as a Parquet file in the object store, and the nightly flow
    appends them.
    """
    X, y = draw_rows(N_NEW, NEW)
    columns = {name: X[:, i] for i, name in enumerate(COLUMNS)}
    file = tmp_path_factory.mktemp("new") / "new.parquet"
    parquet.write_table(pyarrow.table({**columns, "y": y}), file)
    system.s3.write("rff_dist/incoming/new.parquet", file.read_bytes())
    return system.finish(system.start("ingest/nightly"))


def test_new_file_is_appended(ingested, place):
    dataset = open_dataset(place.data)
    assert dataset.n_samples == N_SAMPLES + N_NEW
    assert_array_equal(
        dataset.take(range(N_SAMPLES, N_SAMPLES + N_NEW)).X, draw_rows(N_NEW, NEW)[0]
    )


@pytest.fixture(scope="module")
def refreshed(system: System, ingested: dict[str, Any]) -> list[dict[str, Any]]:
    """Two runs of the nightly refresh that nobody starts, the schedule being one of
    seconds.
    """
    with system.schedule_every("refresh/nightly", seconds=15):
        system.process("worker").wait_until(
            lambda: (
                len(
                    system.flow_runs(
                        "refresh/nightly", scheduled=True, state="COMPLETED"
                    )
                )
                >= 2
            ),
            "two scheduled refreshes",
            RUN_S,
        )
    return system.flow_runs("refresh/nightly", scheduled=True, state="COMPLETED")


def test_scheduled_refresh_adds_the_new_rows_and_the_next_one_finds_nothing_to_do(
    refreshed, place, system
):
    versions = RegisteredModel(place.model).versions()
    assert [version.number for version in versions] == [1, 2]
    assert versions[1].lineage["added"] == [[N_SAMPLES, N_SAMPLES + N_NEW]]
    first, second = (
        system.artifacts(run["id"])["rff-refresh-report-main"] for run in refreshed[:2]
    )
    assert "# published: " in first
    assert "# nothing new: " in second


def test_refreshed_model_has_the_bits_of_one_trained_on_all_rows_at_once(
    refreshed, place
):
    first, second = (
        read_model(version.url)
        for version in RegisteredModel(place.model).versions()[:2]
    )
    member = Accumulation(first.feature_map, first.statistics.spec)
    folds = folds_from_dict(first.card["folds"])
    [parts] = passes.accumulate_folds(
        open_dataset(place.data), [member], folds=folds, engine=SerialEngine(1)
    )
    at_once = parts.total()
    assert at_once.n_samples == N_SAMPLES + N_NEW
    assert second.feature_map.digest() == first.feature_map.digest()
    assert second.statistics.digest() == at_once.digest()
    solved = solve(at_once, Penalty(alpha=first.plain_alpha, fit_intercept=True))
    assert_array_equal(second.coefficients, solved.solution.coefficients)


@pytest.fixture(scope="module")
def predicted(system: System, refreshed: Any, place: Place) -> dict[str, Any]:
    """The nightly predictions, and the quarterly tuning beside them."""
    X, _ = draw_rows(500, UNSEEN)
    write_dataset(f"{place.root}/score.zarr", X, feature_names=COLUMNS)
    few = {
        "kernels": ["gaussian"],
        "length_scales": ["1x", "2x"],
        "n_components": 64,
        "n_folds": 2,
    }
    predict = system.start("predict/nightly")
    tune = system.start("train/quarterly", **few)
    return {"predict": system.finish(predict), "tune": system.finish(tune)}


def test_predictions_are_those_of_the_current_version(predicted, place):
    found = open_column(f"{place.root}/predictions.zarr", "predictions").array[:]
    expected = load_model(place.model).predict(
        pandas.DataFrame(draw_rows(500, UNSEEN)[0], columns=COLUMNS)
    )
    # sums of other shapes round otherwise
    assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_tuning_completes_and_publishes_a_model_of_its_own(predicted, place):
    tuned = RegisteredModel(f"{place.root}/models/tuned").current()
    assert tuned.number == 1
    assert tuned.lineage["n_samples"] == open_dataset(place.data).n_samples


# -- clusters
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustered(system: System, clustering: str) -> dict[str, Any]:
    return system.finish(clustering)


def test_clustering_completes_and_labels_every_row(clustered, place):
    labels = open_column(f"{place.root}/labels.zarr", "labels").array[:]
    assert len(labels) == N_SAMPLES
    assert set(np.unique(labels)) == {0, 1, 2}


# -- what nobody may see
# -----------------------------------------------------------------------------------


def test_secret_key_is_nowhere_but_in_the_environment(system, predicted, clustered):
    api = [
        system.call("POST", f"/{kind}/filter", {})
        for kind in (
            "flow_runs",
            "task_runs",
            "logs",
            "artifacts",
            "deployments",
            "work_pools",
        )
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
