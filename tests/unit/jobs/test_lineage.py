"""Lineage events say what each job read and wrote, fit the published schemas, and never
stop a job.
"""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openlineage.client", reason="needs the extra openlineage")

from rff_dist import SerialEngine, contexts, open_dataset, write_dataset
from rff_dist.errors import NotFiniteError
from rff_dist.fields import build
from rff_dist.models.versions import RegisteredModel
from rff_dist.workbench.integrations import observers, runs
from rff_dist.workbench.integrations import openlineage as lineage
from rff_dist.workbench.jobs import ingest, predict, refresh, specs, steps, train
from tests import openlineage

PLAIN = {
    "kernel": "gaussian",
    "length_scale": "median",
    "features": "fourier",
    "n_components": 16,
}


@pytest.fixture
def sent():
    with openlineage.receive() as events:
        yield events


def write_table(path, first, n):
    drawn = np.random.default_rng(first).normal(size=(n, 2))
    lines = [
        f"{'' if i == 3 else area},{['Bonn', 'Kiel'][i % 2]},{area + 0.1 * noise}"
        for i, (area, noise) in enumerate(drawn)
    ]
    Path(path).write_text("\n".join(["area,town,price", *lines]))


def ends_of(sent, job):
    """Return the last event of a job's only run, whose states were in order."""
    mine = [event for event in sent if event["job"]["name"] == job]
    states = [event["eventType"] for event in mine]
    assert states in (["START", "COMPLETE"], ["START", "RUNNING", "COMPLETE"]), states
    assert len({event["run"]["runId"] for event in mine}) == 1
    for event in mine:  # those that are left are checked in the end
        openlineage.check(event)
        sent.remove(event)
    return mine[-1]


def tags_of(dataset):
    return {tag["key"]: tag["value"] for tag in dataset["facets"]["tags"]["tags"]}


def test_events_say_what_jobs_read_and_wrote(tmp_path, sent):
    do = steps.in_this_process(SerialEngine(1))
    write_table("monday.csv", 0, 200)
    options = {
        "sources": ["monday.csv"],
        "data": "data.zarr",
        "targets": ["price"],
        "impute": "median",
    }
    ingest.ingest(build(specs.Ingest, options))
    event = ends_of(sent, "ingest")
    [read] = event["inputs"]
    [written] = event["outputs"]
    assert (read["namespace"], read["name"]) == ("file", str(tmp_path / "monday.csv"))
    assert (written["namespace"], written["name"]) == (
        "file",
        str(tmp_path / "data.zarr"),
    )
    dataset = open_dataset("data.zarr")
    assert written["facets"]["version"]["datasetVersion"] == dataset.version
    columns = {
        one["name"]: one["type"] for one in written["facets"]["schema"]["fields"]
    }
    assert list(columns) == [*dataset.feature_names, "price"]
    made_of = written["facets"]["columnLineage"]["fields"]
    assert {name: one["inputFields"][0]["field"] for name, one in made_of.items()} == {
        name: "area" if name.startswith("area") else "town"
        for name in dataset.feature_names
    }
    places = {
        (one["namespace"], one["name"])
        for column in made_of.values()
        for one in column["inputFields"]
    }
    assert places == {(read["namespace"], read["name"])}
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 200

    model = {"model": "models/main", "register": True, "test": "data.zarr", **PLAIN}
    train.train(build(specs.Train, {"data": "data.zarr", **model}), do)
    event = ends_of(sent, "train")
    # it is tested on the same rows
    [read] = event["inputs"]
    [written] = event["outputs"]
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 200
    assert read["facets"]["version"]["datasetVersion"] == dataset.version
    first = RegisteredModel("models/main").current()
    assert written["facets"]["datasetType"]["datasetType"] == "MODEL"
    assert written["facets"]["version"]["datasetVersion"] == "1"
    tags = tags_of(written)
    assert (tags["digest"], tags["data_version"], tags["n_samples"]) == (
        first.digest,
        dataset.version,
        "200",
    )
    assert any(name.startswith("metrics.") and float(tags[name]) > 0 for name in tags)

    write_table("tuesday.csv", 1, 100)
    ingest.ingest(
        build(specs.Ingest, options | {"sources": ["tuesday.csv"], "append": True})
    )
    ends_of(sent, "ingest")
    refresh.update(
        build(
            specs.Update, {"model": "models/main", "data": "data.zarr", "force": True}
        ),
        do,
    )
    event = ends_of(sent, "update")
    [before] = [one for one in event["inputs"] if one["name"].endswith("main")]
    [after] = event["outputs"]
    assert before["facets"]["version"]["datasetVersion"] == "1"
    assert after["facets"]["version"]["datasetVersion"] == "2"
    assert (tags_of(before)["digest"], tags_of(after)["parent_version"]) == (
        first.digest,
        "1",
    )

    predict.predict(
        build(
            specs.Predict,
            {"model": "models/main", "data": "data.zarr", "output": "p.zarr"},
        ),
        do,
    )
    event = ends_of(sent, "predict")
    assert {one["name"].rpartition("/")[2] for one in event["inputs"]} == {
        "data.zarr",
        "main",
    }
    cut = {"sources": ["data.zarr"], "data": "e.zarr", "holdout": 0.5}
    ingest.ingest(build(specs.Ingest, cut))
    event = ends_of(sent, "ingest")
    written = {
        one["name"].rpartition("/")[2]: one["outputFacets"] for one in event["outputs"]
    }
    assert written.keys() == {"e.zarr", "e-test.zarr"}
    assert sum(one["outputStatistics"]["rowCount"] for one in written.values()) == 300
    assert sent == []


@pytest.mark.parametrize(
    ("error", "state"), [(NotFiniteError, "FAIL"), (KeyboardInterrupt, "ABORT")]
)
def test_a_job_that_ends_early_says_why(sent, error, state):
    X = np.zeros((40, 2))
    X[17, 1] = np.nan
    write_dataset("data", X, np.zeros(40))

    def call(step):
        if step.name == "choose" or error is KeyboardInterrupt:
            raise error
        return step()

    do = steps.Runner(steps.in_this_process(SerialEngine(1)).open_engine, call)
    run = runs.ParentRun("prefect", "nightly", "6b3c2f0e-0d52-4f6c-9a11-111111111111")
    with pytest.raises(error), contexts.setting(runs.parent, run):
        train.train(build(specs.Train, {"data": "data", "model": "model"}), do)
    event = sent[-1]
    assert event["eventType"] == state
    assert event["run"]["facets"]["parent"]["run"]["runId"] == run.id
    kind = {"FAIL": "data.nan", "ABORT": "stopped"}[state]
    assert event["run"]["facets"]["errorMessage"]["message"].startswith(
        f"{kind}: {error.__name__}"
    )
    assert not event["outputs"][0].get("facets")


def test_a_server_that_is_out_of_reach_stops_no_job(monkeypatch, caplog):
    monkeypatch.setattr(lineage, "SENT_S", 0.5)
    X = np.random.default_rng(0).normal(size=(60, 2))
    write_dataset("data", X, X[:, 0])
    options = {"data": "data", "model": "model", "alpha": 0.1, **PLAIN}
    with (
        openlineage.sent_to("http://127.0.0.1:9"),
        caplog.at_level(logging.WARNING, "rff_dist"),
    ):
        trained = train.train(
            build(specs.Train, options), steps.in_this_process(SerialEngine(1))
        )
    assert trained.publication["digest"] == trained.model.digest()
    assert [
        record
        for record in caplog.records
        if "lineage events of train" in record.getMessage()
    ]


def test_nothing_is_sent_unless_the_environment_asks_for_it(monkeypatch):
    with openlineage.sent_to(""):
        assert lineage.is_on()
        monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
        assert not lineage.is_on()
        monkeypatch.undo()
        del os.environ["OPENLINEAGE_URL"]
        assert observers.observers_of("train", dict) == []
