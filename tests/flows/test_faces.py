"""Each job by command, by flow and by Python: the same options, bits, records and errors."""

import json
import typing
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from prefect.logging import disable_run_logger
from typer.main import get_command
from typer.testing import CliRunner

from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, OutputExistsError, StorageError
from rff_dist.flows import cluster as cluster_flow
from rff_dist.flows import ingest as ingest_flow
from rff_dist.flows import predict as predict_flow
from rff_dist.flows import refresh as refresh_flow
from rff_dist.flows import train as train_flow
from rff_dist.flows import tune as tune_flow
from rff_dist.flows.running import Form, lend_engine
from rff_dist.ridge.models import read_model
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.cli.options import SpecOptions, flags_of
from rff_dist.workbench.cli.program import app
from rff_dist.workbench.jobs import steps
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.fields import build, options_of
from rff_dist.workbench.jobs.ingest import append
from rff_dist.workbench.jobs.options import Where
from rff_dist.workbench.jobs.predict import predict
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.jobs.specs import Clustering, Ingest, Predict, Train, Tune, Update
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.jobs.train import train
from tests.prefect_server import prefect_server  # noqa: F401  # a fixture

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]


@dataclass(frozen=True)
class Job:
    """A job: its spec, its command, its flow with the form, and its function."""

    spec: type
    command: str
    flow: Any
    form: type[Form]
    run: Any


JOBS = {
    one.spec: one
    for one in (
        Job(Train, "fit", train_flow.train, train_flow.TrainParameters, train),
        Job(Tune, "tune", tune_flow.tune, tune_flow.TuneParameters, train),
        Job(Clustering, "cluster", cluster_flow.cluster, cluster_flow.ClusterParameters, cluster),
        Job(Predict, "predict", predict_flow.predict, predict_flow.PredictParameters, predict),
        Job(Update, "update", refresh_flow.refresh, refresh_flow.RefreshParameters, update),
        Job(Ingest, "ingest", ingest_flow.ingest, ingest_flow.IngestParameters, append),
    )
}


# -- options -------------------------------------------------------------------------------------------------


def required(spec):
    given = {one.name: f"the {one.name}" for one in options_of(spec) if one.required}
    return {**given, "sources": ["table.csv"]} if spec is Ingest else given


def parsed(job, *arguments):
    """Return the spec that a command makes of words."""
    own = SpecOptions.of(job.spec)
    command = get_command(app).get_command(None, job.command)
    names = [name for one in own.options for name in (one.name, *map(_parameter, flags_of(one)[1:]))]
    found = command.make_context(job.command, list(arguments)).params
    return own.read({name: found[name] for name in names})


def _parameter(flag):
    return flag.removeprefix("--").replace("-", "_")


def words(job):
    """Return what a command must be given, in its order."""
    given = required(job.spec)
    return [
        word
        for one in options_of(job.spec)
        if one.shown.argument
        for word in (given[one.name] if isinstance(given[one.name], list) else [given[one.name]])
    ]


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.command)
def test_the_faces_have_the_options_of_the_spec_with_its_help(job):
    command = get_command(app).get_command(None, job.command)
    flags = {flag: parameter for parameter in command.params for flag in parameter.opts}
    flag_names = SpecOptions.of(job.spec).flags()
    fields = {field.alias or name: field for name, field in job.form.model_fields.items()}
    for one in [*options_of(job.spec), *(options_of(Where) if job.spec is not Ingest else [])]:
        assert (one.name in fields) == (one.shown.face != "command"), one.name
        shown = [one.name] if one.shown.argument else flags_of(one)
        assert all((flag in flags) == (one.shown.face != "form") for flag in shown), one.name
        if one.name in fields:
            assert fields[one.name].description == one.shown.help
        for flag in shown if one.shown.face != "form" else []:
            told = one.shown.help
            for name, stands in flag_names.items():
                told = told.replace(f"`{name}`", stands)
            if "`" not in told:
                assert flags[flag].help.startswith(told)


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.command)
def test_what_is_left_out_is_the_same_by_every_face(job):
    expected = build(job.spec, required(job.spec))
    assert parsed(job, *words(job)) == expected
    assert job.form(**required(job.spec)).to(job.spec) == expected


GIVEN: list[tuple[type, list[str], dict[str, Any]]] = [
    (
        Train,
        [
            "--components",
            "64,1e2",
            "--length-scale",
            "1,2",
            "--alpha",
            "0.1,1",
            "--no-intercept",
            "--one-alpha",
        ],
        {
            "n_components": [64, 100],
            "length_scale": [1.0, 2.0],
            "alpha": [0.1, 1.0],
            "fit_intercept": False,
            "alpha_per_target": False,
        },
    ),
    (
        Train,
        [
            "--standardize",
            "no",
            "--conformal",
            "--normalized",
            "--folds",
            "4",
            "--weights",
            "w",
            "--no-statistics",
        ],
        {
            "standardize": False,
            "conformal": "normalized",
            "folds": 4,
            "sample_weight": "w",
            "statistics": False,
        },
    ),
    (
        Tune,
        ["--kernels", "gaussian,matern:nu=2.5", "--length-scales", "0.5x,2", "--register", "--group-by", "g"],
        {
            "kernels": ["gaussian", "matern:nu=2.5"],
            "length_scales": ["0.5x", 2.0],
            "register": True,
            "group_by": "g",
        },
    ),
    (
        Clustering,
        ["--clusters", "2,4", "--starts", "3", "--tol", "0", "--features", "nystrom"],
        {"n_clusters": [2, 4], "n_init": 3, "tol": 0.0, "features": "nystrom"},
    ),
    (Predict, ["--interval", "0.9", "--std"], {"interval": 0.9, "std": True}),
    (Update, ["--drift-level", "0.01", "--backfill", "7"], {"drift_level": 0.01, "backfill": 7}),
    (
        Ingest,
        ["--target", "a", "--target", "b", "--columns", "c, d"],
        {"targets": ["a", "b"], "columns": ["c", "d"]},
    ),
]


@pytest.mark.parametrize(("spec", "flags", "given"), GIVEN)
def test_what_is_given_is_the_same_by_every_face(spec, flags, given):
    job = JOBS[spec]
    expected = build(spec, {**required(spec), **given})
    assert parsed(job, *words(job), *flags) == expected
    assert job.form(**required(spec), **given).to(spec) == expected


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.command)
def test_a_form_begins_with_data_and_ends_with_where_it_runs(job):
    names = list(job.form.model_fields)
    assert names[0] == "data"
    places = [names.index(name) for name in ("data", "model", "output", "n_components") if name in names]
    assert places == list(range(len(places)))
    if "scheduler" in names:
        assert set(names[names.index("scheduler") :]).isdisjoint(one.name for one in options_of(job.spec))


def test_docstrings_tell_each_option():
    for spec in JOBS:
        for group in (spec, *filter(is_dataclass, typing.get_type_hints(spec).values())):
            own = {name for name, field in group.__dataclass_fields__.items() if field.metadata}
            for one in options_of(group):
                assert one.name not in own or one.shown.help in group.__doc__


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
    result = CliRunner().invoke(
        app, [job.command, *map(str, arguments), *flags, "--json"], prog_name="rff-dist"
    )
    return json.loads(result.stdout)


def by_flow(job, given):
    with lend_engine(SerialEngine(1)):
        return job.flow(**given)


def by_python(job, given):
    more = {"append": True} if job.spec is Ingest else {}
    return job.run(build(job.spec, {**given, **more}), in_this_process(SerialEngine(1)))


SMALL = {"kernel": "gaussian", "length_scale": 1.0, "features": "fourier", "n_components": 16, "seed": 3}
SMALL_FLAGS = ["--kernel", "gaussian", "--length-scale", "1", "--features", "fourier", "--components", "16"]
SMALL_FLAGS += ["--seed", "3", "--serial"]


@pytest.fixture(scope="module")
def trained(folder):
    """Train by each face, and return the places of the models."""
    data, job = str(folder / "data.zarr"), JOBS[Train]
    places = {face: str(folder / f"model-{face}") for face in ("command", "flow", "python")}
    document = by_command(job, [data, places["command"]], [*SMALL_FLAGS, "--select", "gcv"])
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
    given = {"kernels": ["gaussian"], "length_scales": ["0.5x", 2.0], "n_components": [16, 32], "folds": 3}
    flags = ["--kernels", "gaussian", "--length-scales", "0.5x,2", "--components", "16,32", "--folds", "3"]
    document = by_command(job, [data, tmp_path / "a"], [*flags, "--serial"])
    result = by_flow(job, {"data": data, "model": str(tmp_path / "b"), **given})
    told = by_python(job, {"data": data, "model": str(tmp_path / "c"), **given}).describe()
    assert document["digest"] == result["digest"] == told["digest"]
    assert document["candidates"] == result["candidates"] == told["candidates"]


def test_clusters_have_the_same_bits_by_every_face(folder, tmp_path):
    data, job = str(folder / "data.zarr"), JOBS[Clustering]
    given = {"data": data, "n_clusters": [2, 3], **SMALL, "length_scale": "auto"}
    flags = ["--clusters", "2,3", "--components", "16", "--seed", "3", "--serial"]
    document = by_command(job, [data, tmp_path / "a"], [*flags, "--model", str(tmp_path / "a-model")])
    result = by_flow(job, {**given, "output": str(tmp_path / "b"), "model": str(tmp_path / "b-model")})
    places = {"output": str(tmp_path / "c"), "model": str(tmp_path / "c-model")}
    record = by_python(job, {**given, **places}).record
    assert document["digest"] == result["digest"] == record["digest"]
    assert document["candidates"] == result["candidates"] == record["candidates"]
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
    assert document["model_digest"] == result["model_digest"] == record["model_digest"]
    for array in ("predictions", "standard_deviations"):
        assert written(tmp_path, "a", array) == written(tmp_path, "b", array)
        assert written(tmp_path, "a", array) == written(tmp_path, "c", array)


def test_an_update_has_the_same_bits_by_every_face(trained, folder, tmp_path):
    places, _ = trained
    data, job = str(tmp_path / "data.zarr"), JOBS[Update]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    write_dataset(data, X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400), chunk_rows=100, versioned=True)
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
    document = by_command(job, [table, tmp_path / "a"], ["--append", "--target", "y"])
    result = by_flow(job, {"sources": [table], "data": str(tmp_path / "b"), "targets": ["y"]})
    record = by_python(job, {"sources": [table], "data": str(tmp_path / "c"), "targets": ["y"]})
    assert document["n_after"] == result["n_after"] == record["n_after"] == 400
    assert len({open_dataset(tmp_path / name).fingerprint() for name in "abc"}) == 1


def test_an_error_is_the_same_by_every_face(folder, tmp_path):
    job = JOBS[Train]
    X = np.zeros((40, 2))
    X[17, 1] = np.nan
    write_dataset(tmp_path / "nan.zarr", X, np.zeros(40))
    for data, place, error in (
        (tmp_path / "nan.zarr", tmp_path / "model", DataError),
        (folder / "data.zarr", tmp_path / "nan.zarr", OutputExistsError),
    ):
        given = {"data": str(data), "model": str(place), **SMALL}
        told = by_command(job, [data, place], SMALL_FLAGS)["error"]
        with pytest.raises(error) as direct:
            by_python(job, given)
        with disable_run_logger(), lend_engine(SerialEngine(1)), pytest.raises(error) as in_flow:
            job.flow.fn(**given)
        assert told["type"] == error.__name__
        assert str(direct.value) == str(in_flow.value)
        assert told["message"].split(";")[0].split("--")[0] in str(direct.value).replace("overwrite=True", "")
        assert not list(Path(tmp_path).glob("model*"))


def test_a_command_keeps_what_it_trained_where_it_cannot_be_published(folder, tmp_path, monkeypatch):
    write = steps.write

    def fail(model, url, **options):
        if str(url).endswith("/model"):
            raise StorageError("the disk is full")
        write(model, url, **options)

    monkeypatch.setattr(steps, "write", fail)
    told = by_command(JOBS[Train], [folder / "data.zarr", tmp_path / "model"], SMALL_FLAGS)["error"]
    [kept] = tmp_path.glob(".model.run-*/trained-model")
    assert f"the trained model is kept at {kept}" in told["message"]
    assert read_model(kept).n_targets == 1
