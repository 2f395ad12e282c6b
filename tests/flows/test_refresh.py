"""The nightly flow on Prefect's temporary server, by the serial engine: what it
publishes and keeps out.
"""

import contextvars
import json
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger

from rff_dist import append_dataset, open_dataset, write_dataset
from rff_dist.errors import (
    FingerprintMismatchError,
    InvalidParameterError,
    OutputBusyError,
)
from rff_dist.flows.refresh import refresh
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.storage.output_places import hold
from rff_dist.text import score_words
from rff_dist.workbench.jobs.publishing import publish
from tests.flows.test_train import task_runs
from tests.lake_tables import IcebergTable
from tests.living_data import batch, fit, sum_like
from tests.markdown import rows_of
from tests.refusals import refuses
from tests.tables import ingest_more

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]

STEPS = [
    "find new rows",
    "score",
    "hold out",
    "sum",
    "drift",
    "solve",
    "gate",
    "hold out",
    "publish",
]


@pytest.fixture
def parameters(tmp_path: Path) -> dict[str, Any]:
    """Return the parameters of a refresh of a registered model of 900 rows."""
    data = str(tmp_path / "data.zarr")
    model = str(tmp_path / "models" / "main")
    write_dataset(data, *batch(0, 900), chunk_rows=200, versioned=True)
    publish_first(model, data)
    return {"data": data, "model": model}


def publish_first(model, data):
    trained = fit(open_dataset(data), length_scale=2.0, n_components=32)
    publish(trained, model, data=data, reason="trained")


def run(parameters):
    return refresh(**parameters, return_state=True)


def at_once(parameters):
    """Return the digest of one pass over all rows with the first version's features and
    grids.
    """
    first = read_model(RegisteredModel(parameters["model"]).version(1).url)
    return sum_like(first, open_dataset(parameters["data"])).digest()


def assert_says_what_it_came_to(state, parameters):
    """By its message, its tags and events."""
    gate = state.result()["gate"]
    rmse = score_words("rmse", gate["challenger"][0])
    assert state.name.startswith(f"Published: RMSE {rmse}, ")
    shown = Artifact.get("rff-refresh-result-main").data
    assert shown.startswith(f"# {state.name}\n\n{state.message}\n\nTo go back: ")
    assert "The new rows are unlike the rows before, in column " in shown
    for part in ("refresh-report", "refresh-page", "model-versions"):
        number = Artifact.get(f"rff-{part}-main").id
        assert f"[rff-{part}-main](" in shown
        assert f"/artifacts/artifact/{number})" in shown
    assert state.message.startswith("Published as version 2: RMSE is ")
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
        assert {"model:main", "dataset:data", "published"} <= {*flow_run.tags}
        made = "prefect.asset.materialization.succeeded"
        wanted = {"rff_dist.model.published", "rff_dist.model.drifted", made}
        names = ("rff_dist.model.main", f"file://{parameters['model']}")
        deadline = time.monotonic() + 60
        while True:  # events travel apart from what the run waits for
            found = client._client.post("/events/filter", json={"limit": 50}).json()[
                "events"
            ]
            mine = [
                one for one in found if one["resource"]["prefect.resource.id"] in names
            ]
            events = {one["event"]: one for one in mine if one["event"] in wanted}
            if events.keys() == wanted:
                break
            assert time.monotonic() < deadline, events
            time.sleep(0.2)
    assert events["rff_dist.model.published"]["payload"]["version"] == 2
    asset = events[made]
    result = state.result()
    told = {name: asset["payload"][name] for name in ("rows", "digest", "rmse")}
    assert told == {
        "rows": result["n_samples"],
        "digest": result["digest"],
        "rmse": list(result["gate"]["challenger"]),
    }
    related = {one["prefect.resource.id"] for one in asset["related"]}
    assert f"file://{parameters['data']}" in related


def test_nights_with_drifted_rows_with_none_and_with_bad_ones(parameters):
    append_dataset(parameters["data"], *batch(1, 300, shift=0.5))
    state = run(parameters)
    assert_says_what_it_came_to(state, parameters)
    first = state.result()
    assert [one.name for one in task_runs(state)] == STEPS
    assert (first["decision"], first["version"], first["n_new"]) == (
        "published",
        2,
        300,
    )
    assert first["statistics_digest"] == at_once(parameters)
    assert read_model(parameters["model"]).digest() == first["digest"]
    assert len(json.dumps(first, allow_nan=False)) < 5_000
    assert RegisteredModel(parameters["model"]).current().lineage["drifted"]
    report = Artifact.get("rff-refresh-report-main").data
    assert first["digest"][:16] in report
    told = Artifact.get("rff-refresh-result-main").data
    assert "models rollback" in told
    again = "rff-dist update {model} {data} --backfill 900".format(**parameters)
    assert f"After going back, its new rows wait for `{again}`" in told
    assert "**in column " in report
    assert " sd), the inputs together (p = " in report
    assert len(rows_of(report, "columns that moved most")) == 3
    page = Artifact.get("rff-refresh-page-main").data
    assert first["digest"] in page
    assert "the model before" in page
    versions = rows_of(Artifact.get("rff-model-versions-main").data)
    assert [(row["version"], row["rows"]) for row in versions] == [
        ("2 ←", "1,200"),
        ("1", "900"),
    ]

    state = run(parameters)
    assert state.is_completed()
    assert [one.name for one in task_runs(state)] == STEPS[:1]
    assert state.name == "Nothing new"
    assert state.result()["decision"] == "nothing new"
    assert "holds all 1,200 rows" in Artifact.get("rff-refresh-report-main").data

    append_dataset(parameters["data"], *batch(3, 300, bad=True))
    state = run(parameters)
    assert state.is_completed()
    assert state.name.startswith("Refused: RMSE ")
    assert task_runs(state)[-1].name == "record refusal"
    accepting = "rff-dist update {model} {data} --backfill 1200 --force"
    accepting = f"To accept the rows anyway: `{accepting.format(**parameters)}`"
    told = Artifact.get("rff-refresh-result-main").data
    check = "To check: rows 1,200 to 1,499."
    assert -1 < told.index(check) < told.index(accepting)
    assert state.result()["decision"] == "kept"
    assert (
        state.result()["digest"]
        == read_model(parameters["model"]).digest()
        == first["digest"]
    )
    report = Artifact.get("rff-refresh-report-main").data
    assert report.startswith("# kept: ")
    assert state.result()["reason"] in report

    state = run(parameters)
    assert state.name == "Nothing new; 300 rows were left out"
    artifact = Artifact.get("rff-model-versions-main")
    assert artifact.flow_run_id == state.state_details.flow_run_id
    shown = artifact.data.replace("\\", "")
    assert f"Version 2 of {parameters['model']} is served" in shown
    assert accepting in Artifact.get("rff-refresh-result-main").data

    append_dataset(parameters["data"], *batch(4, 300))
    state = run(parameters)
    assert state.name.startswith("Published: RMSE ")
    assert state.name.endswith("; 300 rows were left out")
    told = Artifact.get("rff-refresh-result-main").data
    assert "Left out: rows 1,200 to 1,499: RMSE is " in told
    assert " --backfill 1200`" in told


def test_a_failed_night_replaces_the_result_of_the_night_before(parameters):
    append_dataset(parameters["data"], *batch(1, 300))
    published = run(parameters)
    path = Path(parameters["data"])
    path.rename(path.with_name("away"))
    failed = run(parameters)
    assert failed.is_failed()
    artifact = Artifact.get("rff-refresh-result-main")
    assert artifact.flow_run_id == failed.state_details.flow_run_id
    assert artifact.description.startswith("Failed: refresh of main, ")
    shown = artifact.data.replace("\\", "")
    assert shown.startswith("# Failed: refresh of main, ")
    assert f"no dataset at {path}" in shown
    assert f"Version 2 of {parameters['model']} is served, since 20" in shown
    assert "the same run fails again" in shown
    assert published.name not in shown


def test_a_run_takes_what_changed_in_a_table_first_and_names_its_version(
    tmp_path, catalog
):
    table = IcebergTable(catalog, 900)
    data = str(tmp_path / "data.zarr")
    model = str(tmp_path / "models/main")
    first = table.version
    ingest_more(table.url, data, target="price", id="key", chunk_rows=200)
    publish_first(model, data)
    table.commit_a_night()
    night = {"table": table.url, "data": data, "model": model}
    state = run(night)
    assert [one.name for one in task_runs(state)] == ["append", *STEPS]
    result = state.result()
    assert (result["decision"], result["table"]["version"]) == (
        "published",
        table.version,
    )
    assert result["statistics_digest"] == at_once(night)
    table.assert_held(data)
    versions = RegisteredModel(model).versions()
    assert [one.lineage["data_table"]["version"] for one in versions] == [
        first,
        table.version,
    ]
    for report in ("rff-refresh-report-main", "rff-ingest-summary-main"):
        assert (
            f"version {table.version} of the Iceberg table" in Artifact.get(report).data
        )
    again = run(night)
    assert [one.name for one in task_runs(again)] == ["append", *STEPS[:1]]
    assert again.result()["decision"] == "nothing new"
    with refuses(InvalidParameterError, "`table`", "`dry_run`"), disable_run_logger():
        refresh.fn(**night, dry_run=True)


def test_what_is_refused_fails_before_a_cluster_starts(
    parameters, tmp_path, monkeypatch
):
    monkeypatch.setattr("rff_dist.engines.connecting.open_engine", None)
    write_dataset(tmp_path / "other.zarr", *batch(5, 1000))
    others = type(parameters)(**{**parameters, "data": str(tmp_path / "other.zarr")})
    with disable_run_logger(), refuses(FingerprintMismatchError, "begins with others"):
        refresh.fn(**others)
    busy = refuses(OutputBusyError, "another run")
    with (
        disable_run_logger(),
        hold(parameters["model"], holder="another run"),
        busy,
    ):
        contextvars.Context().run(refresh.fn, **parameters)
