"""Each job by command, by flow and by Python: the same bits, records and errors."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
from rff_dist.models.kinds import read_any
from rff_dist.ridge.models import RidgeModel, read_model
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import holds_model
from rff_dist.workbench.jobs import publishing
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.ingest import append
from rff_dist.workbench.jobs.predict import predict
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.jobs.specs import (
    Clustering,
    Ingest,
    Predict,
    Train,
    Update,
)
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.jobs.train import train
from tests import command_line
from tests.flows.test_ways import words_of

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]


@dataclass(frozen=True)
class Job:
    """A job: its spec, its command, its flow and its function; and one of it.

    `given`: its options, with the places IN/… of what is there, and OUT…, of which each
    face has its own. `same`: what its record says by every face. `shown`: texts in
    artifacts of its flow, by their keys."""

    spec: type
    command: str
    flow: Any
    run: Any
    given: dict[str, Any]
    same: tuple[str, ...]
    shown: dict[str, str] = field(default_factory=dict)
    name: str = ""


SMALL = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "n_components": 16,
    "seed": 3,
}
MODEL = {"data": "IN/data.zarr", "model": "OUT-model"}
CLUSTERS = {
    "n_clusters": [2, 3],
    "features": "nystrom",
    "n_principal": 2,
    "normalize": "degree",
}
JOBS = {
    one.name or one.command: one
    for one in (
        Job(
            Train, "fit", train_flow.train, train, {**MODEL, **SMALL, "alpha": "gcv"},
            ("digest", "n_samples", "n_components", "alpha", "estimate", "status", "comparison"),
        ),
        Job(
            Train, "fit", train_flow.train, train,
            {**MODEL, "kernels": ["gaussian"], "length_scales": ["0.5x", 2.0], "features": "fourier"}
            | {"n_components": [8, 16], "n_folds": 2},
            ("digest", "candidates"),
            {f"rff-train-{one}-flow-model": "candidates, by cross-validation" for one in ("summary", "page")},
            name="candidates",
        ),
        Job(
            Clustering, "cluster", cluster_flow.cluster, cluster,
            {**MODEL, "output": "OUT", "n_components": 16, "seed": 3, **CLUSTERS},
            ("digest", "shape", "n_components", "n_principal"),
        ),
        Job(
            Predict, "predict", predict_flow.predict, predict,
            {"model": "IN/model", "data": "IN/data.zarr", "output": "OUT", "std": True},
            ("model_digest", "n_samples", "arrays"),
            {"rff-predict-summary-model": "400"},
        ),
        Job(
            Update, "update", refresh_flow.refresh, update, {"model": "OUT-model", "data": "IN/grown.zarr"},
            ("decision", "digest", "statistics_digest", "n_new", "progressive", "drift", "gate", "solution"),
        ),
        Job(
            Ingest, "ingest", ingest_flow.ingest, append,
            {"sources": ["IN/table.csv"], "data": "OUT", "targets": ["y"]},
            ("n_before", "n_after", "n_skipped"),
            {"rff-ingest-summary-flow": "400"},
        ),
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400)
    write_dataset(path / "data.zarr", X, y, chunk_rows=100)
    np.savetxt(
        path / "table.csv",
        np.column_stack([X, y]),
        delimiter=",",
        header="a,b,y",
        comments="",
    )
    by_python(
        JOBS["fit"],
        {
            **SMALL,
            "data": str(path / "data.zarr"),
            "model": str(path / "model"),
            "alpha": "gcv",
        },
    )
    write_dataset(path / "grown.zarr", X, y, chunk_rows=100, versioned=True)
    new = rng.standard_normal((200, 2))
    append_dataset(path / "grown.zarr", new, np.sin(new[:, 0]))
    return path


def by_command(job, given):
    more = {Ingest: ["--append"]}.get(job.spec, ["--serial"])
    return json.loads(
        command_line.run(
            job.command, *words_of(job.spec, given), *more, "--json"
        ).stdout
    )


def by_flow(job, given):
    return job.flow(**given)


def by_python(job, given):
    more = {"append": True} if job.spec is Ingest else {}
    found = job.run(
        build(job.spec, {**given, **more}), in_this_process(SerialEngine(1))
    )
    return (
        found
        if isinstance(found, dict)
        else getattr(found, "record", None) or found.describe()
    )


def put(value, folder, out):
    """Return an option's value with places in it."""
    if isinstance(value, list):
        return [put(one, folder, out) for one in value]
    return (
        value.replace("IN/", f"{folder}/").replace("OUT", str(out))
        if isinstance(value, str)
        else value
    )


def digest_of(place):
    """Return what tells apart what lies at a place: a model, predictions and labels, or
    a dataset.
    """
    if (place / "zarr.json").exists() and holds_model(parse_location(place)):
        model = read_any(place)
        return model.digest(), (
            model.statistics.digest() if isinstance(model, RidgeModel) else None
        )
    if (place / "zarr.json").exists():
        group = zarr.open_group(place, mode="r")
        return {name: group[name][:].tolist() for name in group.array_keys()}
    return open_dataset(place).fingerprint()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_finds_and_writes_the_same_by_every_face(name, folder, tmp_path):
    job = JOBS[name]
    seen = []
    for face in (by_command, by_flow, by_python):
        out = tmp_path / face.__name__.removeprefix("by_")
        places = [out, Path(f"{out}-model")]
        if job.spec is Update:
            shutil.copytree(folder / "model", places[1])
        told = face(
            job,
            {option: put(value, folder, out) for option, value in job.given.items()},
        )
        written = [digest_of(place) for place in places if place.exists()]
        assert written
        seen.append(
            json.loads(json.dumps([{key: told[key] for key in job.same}, written]))
        )
    assert seen == 3 * seen[:1]
    for key, text in job.shown.items():
        assert text in Artifact.get(key).data


def test_an_error_is_the_same_by_every_face(folder, tmp_path):
    job = JOBS["fit"]
    X = np.zeros((40, 2))
    X[17, 1] = np.nan
    write_dataset(tmp_path / "nan.zarr", X, np.zeros(40))
    for data, place, error in (
        (tmp_path / "nan.zarr", tmp_path / "model", NotFiniteError),
        (folder / "data.zarr", tmp_path / "nan.zarr", OutputExistsError),
    ):
        given = {"data": str(data), "model": str(place), **SMALL}
        told = by_command(job, given)["error"]
        with pytest.raises(error) as direct:
            by_python(job, given)
        with disable_run_logger(), pytest.raises(error) as in_flow:
            job.flow.fn(**given)
        assert (told["type"], told["kind"]) == (error.__name__, direct.value.kind)
        assert str(direct.value) == str(in_flow.value)
        # a command names options by its flags
        assert (
            str(direct.value).replace("overwrite=True", "--overwrite")
            in told["message"]
        )
        assert not list(Path(tmp_path).glob("model*"))


def test_a_command_keeps_what_it_trained_where_it_cannot_be_published(
    folder, tmp_path, monkeypatch
):
    def fail(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(publishing, "store", fail)
    places = {"data": str(folder / "data.zarr"), "model": str(tmp_path / "model")}
    told = by_command(JOBS["fit"], {**places, **SMALL})["error"]
    [kept] = tmp_path.glob(".model.run-*/trained-model")
    assert f"the trained model is kept at {kept}" in told["message"]
    assert read_model(kept).n_targets == 1
