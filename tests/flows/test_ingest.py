"""The flow that appends rows, with a secret of Prefect's."""

import json
import sqlite3

import pytest
from prefect.artifacts import Artifact
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger
from pydantic import SecretStr

from rff_dist.errors import (
    ClusterUnavailableError,
    DataError,
    InvalidParameterError,
    StorageError,
)
from rff_dist.flows.ingest import ingest
from rff_dist.flows.outcomes import fail
from tests.refusals import refuses

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]


def test_states_say_how_many_rows_came_or_which_were_refused(tmp_path):
    def night(name, *rows):
        (tmp_path / name).write_text("\n".join(["a,y", *rows]) + "\n")
        return ingest(sources=[str(tmp_path / "*.csv")], **given, return_state=True)

    given = {"data": str(tmp_path / "data"), "targets": ["y"], "on_nan": "drop"}
    assert night("one.csv", "1,2", "3,4").name == "Added: 2 rows"
    (tmp_path / "one.csv").unlink()
    assert night("two.csv", ",2").name == "Nothing new; 1 row was left out"
    (tmp_path / "two.csv").unlink()
    given["on_nan"] = "error"
    (tmp_path / "four.csv").write_text("a,y\n5,6\n")
    refused = night("three.csv", "1,2", ",4")
    assert refused.is_failed()
    where = "three.csv: line 3, column 'a' is missing or not finite, as in 1 of 2 rows"
    assert refused.name == f"Refused: {where}"
    with refuses(DataError, where, "moved out of the folder, 1 other new file waits."):
        refused.result()
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(refused.state_details.flow_run_id)
    assert "error:data" in run.tags
    told = Artifact.get("rff-ingest-result-data").data
    assert told.startswith("# Refused: ingest")
    assert "after Retry, run refresh too" in told
    (tmp_path / "three.csv").write_text("a,z\n1,2\n")
    refused = ingest(sources=[str(tmp_path / "*.csv")], **given, return_state=True)
    assert refused.name == "Refused: `target`: three.csv has no column 'y'"


SCHEDULER = "no scheduler answers at tcp://127.0.0.1:8786 within 6 s"


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (
            DataError("the id 'a/b' is in s3://bucket/x/data.zarr and /y/z.csv; why"),
            "Refused: the id 'a/b' is in data.zarr and z.csv",
            None,
        ),
        (ClusterUnavailableError(f"{SCHEDULER}; start"), f"Failed: {SCHEDULER}", None),
        (StorageError("/a/model is full. Free space"), "Failed: model is full", None),
        (KeyError("y"), "Failed: KeyError: 'y'", "KeyError: 'y'"),
    ],
)
def test_a_state_says_why_its_run_ended_with_the_last_names_of_paths_and_urls(
    error, name, message
):
    last = fail(error)
    assert (last.name, last.message) == (name, message or str(error))


@pytest.mark.slow
def test_a_query_is_run_with_a_secret_that_prefect_shows_nowhere(tmp_path, monkeypatch):
    with sqlite3.connect(tmp_path / "geheim.db") as database:
        database.execute("CREATE TABLE t (a REAL, price REAL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2), (3, 4)])
    database.close()
    monkeypatch.delenv("RFF_DIST_SQL", raising=False)
    Secret(value=SecretStr(f"sqlite:///{tmp_path / 'geheim.db'}")).save("shop-database")
    given = {"data": str(tmp_path / "data"), "targets": ["price"]}
    (tmp_path / "nightly.sql").write_text(
        "SELECT a, price FROM t ORDER BY a LIMIT 99 OFFSET :n_ingested"
    )
    query = f"file:{tmp_path / 'nightly.sql'}"
    parameters = dict(**given, sql=query, connection_block="shop-database")
    state = ingest(**parameters, return_state=True)
    assert (state.result()["n_after"], ingest(**parameters)["n_new"]) == (2, 0)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
        said = [log.message for log in client.read_logs()]
        summary = Artifact.get("rff-ingest-summary-data")
    stored = json.dumps([run.parameters, state.result(), said, summary.data])
    assert not any(word in stored for word in ("geheim.db", "SELECT"))
    with disable_run_logger(), refuses(InvalidParameterError, "'no-such-block'"):
        ingest.fn(**given, sql=query, connection_block="no-such-block")
    with disable_run_logger(), refuses(InvalidParameterError, "RFF_DIST_SQL"):
        ingest.fn(**given, sql=query)
