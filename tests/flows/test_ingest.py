"""The flows that append rows and that score them, on Prefect's temporary server."""

import json
import sqlite3

import numpy as np
import pytest
from prefect.artifacts import Artifact
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger
from pydantic import SecretStr

from rff_dist import Gaussian, SerialEngine, open_dataset, write_dataset
from rff_dist.errors import InvalidParameterError
from rff_dist.flows.ingest import IngestParameters, ingest
from rff_dist.flows.predict import predict
from rff_dist.flows.running import lend_engine
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import write_model
from tests.plain import fit_ridge
from tests.refusals import refuses

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]


def write_table(path, n_rows, *, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n_rows, 3))
    lines = ["a,b,price", *(",".join(map(repr, row)) for row in rows.tolist())]
    path.write_text("\n".join(lines))
    return rows


# -- ingest ------------------------------------------------------------------------------------------------


def test_new_files_are_appended_once_night_after_night(tmp_path):
    rows = [write_table(tmp_path / "1.csv", 30)]
    parameters = IngestParameters(
        data=str(tmp_path / "data.zarr"), sources=[str(tmp_path / "*.csv")], targets=["price"]
    )
    nights = [ingest(**parameters.values)]
    rows.append(write_table(tmp_path / "2.csv", 20, seed=1))
    nights += [ingest(**parameters.values), ingest(**parameters.values)]
    assert [(night["n_before"], night["n_after"]) for night in nights] == [(0, 30), (30, 50), (50, 50)]
    assert [(night["n_ingested"], night["n_skipped"]) for night in nights] == [(1, 0), (1, 1), (0, 2)]
    found = open_dataset(tmp_path / "data.zarr").take(range(50))
    np.testing.assert_array_equal(np.column_stack([found.X, found.y]), np.vstack(rows))
    assert len(json.dumps(nights)) < 3_000
    summary = Artifact.get("rff-ingest-summary-data")
    assert "| skipped | 2 sources" in summary.data


@pytest.mark.slow
def test_a_query_is_run_with_a_secret_that_prefect_shows_nowhere(tmp_path, monkeypatch):
    with sqlite3.connect(tmp_path / "geheim.db") as database:
        database.execute("CREATE TABLE t (a REAL, price REAL)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2), (3, 4)])
    database.close()
    monkeypatch.delenv("RFF_DIST_SQL", raising=False)
    Secret(value=SecretStr(f"sqlite:///{tmp_path / 'geheim.db'}")).save("shop-database")
    given = {"data": str(tmp_path / "data"), "targets": ["price"]}
    (tmp_path / "nightly.sql").write_text("SELECT a, price FROM t ORDER BY a LIMIT 99 OFFSET :n_ingested")
    query = f"file:{tmp_path / 'nightly.sql'}"
    parameters = IngestParameters(**given, sql=query, connection_block="shop-database")
    state = ingest(**parameters.values, return_state=True)
    assert (state.result()["n_after"], ingest(**parameters.values)["n_new"]) == (2, 0)
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


# -- predict -----------------------------------------------------------------------------------------------


def test_all_rows_are_scored_by_the_current_version(tmp_path):
    X = np.random.default_rng(0).normal(size=(500, 2))
    dataset = write_dataset(tmp_path / "data.zarr", X, np.sin(X[:, 0]), chunk_rows=128)
    registered, digests, results = RegisteredModel(tmp_path / "models" / "m"), [], []
    for seed in (1, 2):
        model, _ = fit_ridge(dataset, Gaussian(), engine=SerialEngine(1), n_components=32, seed=seed)
        registered.publish(lambda url, model=model: write_model(model, url), lineage={})
        digests.append(model.digest())
    given = {"model": str(registered.url), "data": str(tmp_path / "data.zarr"), "std": True, "coverage": 0.9}
    for version in (2, 1):
        with lend_engine(SerialEngine(1)):
            results.append(predict(**given, output=str(tmp_path / f"p-{version}.zarr")))
        assert f", version {version} (" in Artifact.get("rff-predict-summary-m").data
        if version == 2:
            registered.rollback()
    assert [one["version"] for one in results] == [2, 1]
    assert [one["model_digest"] for one in results] == digests[::-1]
    assert results[0]["n_samples"] == 500
    assert results[0]["arrays"] == ["predictions", "standard_deviations", "lower", "upper"]
    assert len(json.dumps(results[0])) < 1_500
