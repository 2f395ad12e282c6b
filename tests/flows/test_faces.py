"""Each job by command, by flow and by Python: the same bits, records and errors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from prefect.artifacts import Artifact
from prefect.logging import disable_run_logger

from rff_dist import SerialEngine, append_dataset, open_dataset, write_dataset
from rff_dist.errors import NotFiniteError, OutputExistsError, StorageError
from rff_dist.fields import build
from rff_dist.flows import cluster as cluster_flow
from rff_dist.flows import ingest as ingest_flow
from rff_dist.flows import predict as predict_flow
from rff_dist.flows import refresh as refresh_flow
from rff_dist.flows import train as train_flow
from rff_dist.flows import tune as tune_flow
from rff_dist.flows.running import lend_engine
from rff_dist.ridge.models import read_model
from rff_dist.workbench.jobs import publishing
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.ingest import append
from rff_dist.workbench.jobs.predict import predict
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.jobs.specs import Clustering, Ingest, Predict, Train, Tune, Update
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.jobs.train import train
from tests import command_line
from tests.grids import write_cube
from tests.markdown import rows_of

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]


@dataclass(frozen=True)
class Job:
    """A job: its spec, its command, its flow and its function."""

    spec: type
    command: str
    flow: Any
    run: Any


JOBS = {
    one.spec: one
    for one in (
        Job(Train, "fit", train_flow.train, train),
        Job(Tune, "tune", tune_flow.tune, train),
        Job(Clustering, "cluster", cluster_flow.cluster, cluster),
        Job(Predict, "predict", predict_flow.predict, predict),
        Job(Update, "update", refresh_flow.refresh, update),
        Job(Ingest, "ingest", ingest_flow.ingest, append),
    )
}


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400)
    write_dataset(path / "data.zarr", X, y, chunk_rows=100)
    np.savetxt(path / "table.csv", np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    return path


def by_command(job, arguments, flags):
    result = command_line.run(job.command, *arguments, *flags, "--json")
    return json.loads(result.stdout)


def by_flow(job, given):
    with lend_engine(SerialEngine(1)):
        return job.flow(**given)


def by_python(job, given):
    more = {"append": True} if job.spec is Ingest else {}
    return job.run(build(job.spec, {**given, **more}), in_this_process(SerialEngine(1)))


SMALL = {"kernel": "gaussian", "length_scale": 1.0, "features": "fourier", "n_components": 16, "seed": 3}
SMALL_FLAGS = ["--kernel", "gaussian", "--length-scale", "1", "--features", "fourier", "--n-components", "16"]
SMALL_FLAGS += ["--seed", "3", "--serial"]


@pytest.fixture(scope="module")
def trained(folder):
    """Train by each face, and return the places of the models."""
    data, job = str(folder / "data.zarr"), JOBS[Train]
    places = {face: str(folder / f"model-{face}") for face in ("command", "flow", "python")}
    document = by_command(job, [data, places["command"]], [*SMALL_FLAGS, "--alpha", "gcv"])
    result = by_flow(job, {"data": data, "model": places["flow"], **SMALL, "alpha": "gcv"})
    found = by_python(job, {"data": data, "model": places["python"], **SMALL, "alpha": "gcv"})
    return places, (document, result, found)


def test_a_model_has_the_same_bits_and_records_by_every_face(trained):
    places, (document, result, found) = trained
    models = [read_model(place) for place in places.values()]
    assert len({model.digest() for model in models}) == 1
    assert len({model.statistics.digest() for model in models}) == 1
    told = found.describe()
    assert document["digest"] == result["digest"] == told["digest"]
    assert told["metrics"] is None
    volatile = {"fit_seconds", "model", "metrics", "comparison"}
    assert {k: v for k, v in told.items() if k not in volatile} == {
        k: v for k, v in result.items() if k not in volatile
    }
    for name in ("n_samples", "n_components", "alpha", "alpha_chosen_by", "estimate", "status"):
        assert document[name] == result[name]
    assert document["comparison"] == result["comparison"] == told["comparison"]
    assert result["comparison"]["verdict"].startswith("On ")


def test_a_search_has_the_same_bits_by_every_face(folder, tmp_path):
    data, job = str(folder / "data.zarr"), JOBS[Tune]
    given = {"kernels": ["gaussian"], "length_scales": ["0.5x", 2.0], "n_components": [16, 32], "n_folds": 3}
    flags = ["--kernels", "gaussian", "--length-scales", "0.5x,2", "--n-components", "16,32"]
    document = by_command(job, [data, tmp_path / "a"], [*flags, "--n-folds", "3", "--serial"])
    result = by_flow(job, {"data": data, "model": str(tmp_path / "b"), **given})
    told = by_python(job, {"data": data, "model": str(tmp_path / "c"), **given}).describe()
    assert document["digest"] == result["digest"] == told["digest"]
    assert document["candidates"] == result["candidates"] == told["candidates"]
    rows = rows_of(Artifact.get("rff-tune-summary-b").data, "candidates, by cross-validation")
    assert len(rows) == len(result["candidates"])
    assert "data:image/png;base64," in Artifact.get("rff-tune-page-b").data


def test_clusters_have_the_same_bits_by_every_face(folder, tmp_path):
    data, job = str(folder / "data.zarr"), JOBS[Clustering]
    given = {"data": data, "n_clusters": [2, 3], **SMALL, "length_scale": "auto", "features": "nystrom"}
    given |= {"n_principal": 2, "normalize": "degree"}
    flags = ["--n-clusters", "2,3", "--n-components", "16", "--seed", "3", "--serial"]
    flags += ["--features", "nystrom", "--n-principal", "2", "--normalize", "degree"]
    document = by_command(job, [data, tmp_path / "a"], [*flags, "--model", str(tmp_path / "a-model")])
    result = by_flow(job, {**given, "output": str(tmp_path / "b"), "model": str(tmp_path / "b-model")})
    places = {"output": str(tmp_path / "c"), "model": str(tmp_path / "c-model")}
    record = by_python(job, {**given, **places}).record
    assert document["digest"] == result["digest"] == record["digest"]
    assert document["candidates"] == result["candidates"] == record["candidates"]
    assert (record["n_components"], record["n_principal"]) == (16, 2)
    assert written(tmp_path, "a", "labels") == written(tmp_path, "b", "labels")
    assert written(tmp_path, "a", "labels") == written(tmp_path, "c", "labels")


def written(folder, name, array):
    return zarr.open_group(folder / name, mode="r")[array][:].tolist()


def test_predictions_have_the_same_bits_by_every_face(trained, folder, tmp_path):
    places, _ = trained
    model, data, job = places["python"], str(folder / "data.zarr"), JOBS[Predict]
    document = by_command(job, [model, data, tmp_path / "a"], ["--std", "--serial"])
    given = {"model": model, "data": data, "std": True}
    result = by_flow(job, {**given, "output": str(tmp_path / "b")})
    record = by_python(job, {**given, "output": str(tmp_path / "c")}).record
    assert "400" in Artifact.get("rff-predict-summary-model-python").data
    assert document["model_digest"] == result["model_digest"] == record["model_digest"]
    for array in ("predictions", "standard_deviations"):
        assert written(tmp_path, "a", array) == written(tmp_path, "b", array)
        assert written(tmp_path, "a", array) == written(tmp_path, "c", array)


def test_a_map_has_the_same_bits_by_every_face(tmp_path):
    data, maps = str(tmp_path / "cube.zarr"), [tmp_path / name for name in ("a", "b", "c")]
    write_cube(data)
    models = [str(tmp_path / f"{place.name}-model") for place in maps]
    grid = {"target": "temperature", "inputs": ["rain", "elevation", "time"], "alpha": 0.01}
    flags = ["--target", "temperature", "--inputs", "rain,elevation,time", "--alpha", "0.01", *SMALL_FLAGS]
    by_command(JOBS[Train], [data, models[0]], flags)
    by_command(JOBS[Predict], [models[0], data, maps[0]], ["--std", "--serial"])
    for run, model, place in zip((by_flow, by_python), models[1:], maps[1:], strict=True):
        run(JOBS[Train], {"data": data, "model": model, **grid, **SMALL})
        run(JOBS[Predict], {"model": model, "data": data, "output": str(place), "std": True})
    first, *others = (xr.open_zarr(place, consolidated=False, chunks=None) for place in maps)
    assert set(first.data_vars) == {"prediction", "std"}
    for other in others:
        xr.testing.assert_equal(first, other)


def test_an_update_has_the_same_bits_by_every_face(trained, folder, tmp_path):
    places, _ = trained
    data, job = str(tmp_path / "data.zarr"), JOBS[Update]
    rows = open_dataset(folder / "data.zarr").take(np.arange(400))
    write_dataset(data, rows.X, rows.y[:, 0], chunk_rows=100, versioned=True)
    X = np.random.default_rng(1).standard_normal((200, 2))
    append_dataset(data, X, np.sin(X[:, 0]))
    document = by_command(job, [places["command"], data], ["--serial"])
    result = by_flow(job, {"model": places["flow"], "data": data})
    found = json.loads(json.dumps(by_python(job, {"model": places["python"], "data": data}).record))
    result = json.loads(json.dumps(result))
    assert document["decision"] == result["decision"] == found["decision"] == "published"
    for name in ("digest", "statistics_digest", "n_new", "progressive", "drift", "gate", "solution"):
        assert document[name] == result[name] == found[name], name


def test_rows_are_ingested_alike_by_every_face(folder, tmp_path):
    job, table = JOBS[Ingest], str(folder / "table.csv")
    document = by_command(job, [table, tmp_path / "a"], ["--append", "--targets", "y"])
    result = by_flow(job, {"sources": [table], "data": str(tmp_path / "b"), "targets": ["y"]})
    record = by_python(job, {"sources": [table], "data": str(tmp_path / "c"), "targets": ["y"]})
    assert document["n_after"] == result["n_after"] == record["n_after"] == 400
    again = by_flow(job, {"sources": [str(folder / "*.csv")], "data": str(tmp_path / "b"), "targets": ["y"]})
    assert (again["n_after"], again["n_skipped"]) == (400, 1)
    assert "| skipped | 1 source" in Artifact.get("rff-ingest-summary-b").data
    assert len({open_dataset(tmp_path / name).fingerprint() for name in "abc"}) == 1


def test_an_error_is_the_same_by_every_face(folder, tmp_path):
    job = JOBS[Train]
    X = np.zeros((40, 2))
    X[17, 1] = np.nan
    write_dataset(tmp_path / "nan.zarr", X, np.zeros(40))
    for data, place, error in (
        (tmp_path / "nan.zarr", tmp_path / "model", NotFiniteError),
        (folder / "data.zarr", tmp_path / "nan.zarr", OutputExistsError),
    ):
        given = {"data": str(data), "model": str(place), **SMALL}
        told = by_command(job, [data, place], SMALL_FLAGS)["error"]
        with pytest.raises(error) as direct:
            by_python(job, given)
        with disable_run_logger(), lend_engine(SerialEngine(1)), pytest.raises(error) as in_flow:
            job.flow.fn(**given)
        assert (told["type"], told["kind"]) == (error.__name__, direct.value.kind)
        assert str(direct.value) == str(in_flow.value)
        assert str(direct.value) in told["message"]
        assert not list(Path(tmp_path).glob("model*"))


def test_a_command_keeps_what_it_trained_where_it_cannot_be_published(folder, tmp_path, monkeypatch):
    def fail(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(publishing, "store", fail)
    told = by_command(JOBS[Train], [folder / "data.zarr", tmp_path / "model"], SMALL_FLAGS)["error"]
    [kept] = tmp_path.glob(".model.run-*/trained-model")
    assert f"the trained model is kept at {kept}" in told["message"]
    assert read_model(kept).n_targets == 1
