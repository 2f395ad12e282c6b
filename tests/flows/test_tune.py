"""The tuning flow on Prefect's temporary server, which starts once for all tests of the session."""

import json
from pathlib import Path

import numpy as np
import pytest
from prefect.artifacts import Artifact
from prefect.logging import disable_run_logger

from rff_dist import SerialEngine, open_dataset, write_dataset
from rff_dist.errors import OutputExistsError
from rff_dist.flows.running import lend_engine
from rff_dist.flows.tune import TuneParameters, tune
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.models import read_model
from tests.flows.test_train import task_runs
from tests.markdown import rows_of

pytestmark = [pytest.mark.flows, pytest.mark.distributed, pytest.mark.usefixtures("prefect_server")]

KERNELS, LENGTH_SCALES = ["gaussian", "laplacian"], ["0.5x", 0.1]


def write_problem(folder: Path, name: str, n_samples: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n_samples)
    write_dataset(folder / name, X, y, groups=np.arange(n_samples) % 31, chunk_rows=200)
    return str(folder / name)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> TuneParameters:
    folder = tmp_path_factory.mktemp("tune")
    return TuneParameters(
        data=write_problem(folder, "data.zarr", 900, 0),
        test=write_problem(folder, "test.zarr", 200, 1),
        model=str(folder / "model"),
        kernels=KERNELS,
        length_scales=LENGTH_SCALES,
        n_components=[32, 64],
        groups="groups",
        n_folds=3,
        seed=7,
    )


def test_flow_publishes_the_best_of_the_search_from_one_reading(problem):
    with lend_engine(SerialEngine(1)):
        state = tune(**problem.values, return_state=True)
    result = state.result()
    assert len(json.dumps(result)) < 8_000
    names = [task.name for task in task_runs(state)]
    fitted = ["measure", "choose", "draw", "broadcast", "accumulate", *["solve"] * 4]
    assert names == ["inspect", *fitted, "keep", "evaluate", "publish", "compare"]

    published = read_model(problem.values["model"])
    assert published.digest() == result["digest"]
    assert published.card["candidates"] == result["candidates"]
    assert (published.card["folds"]["kind"], published.card["folds"]["n_folds"]) == ("GroupFolds", 3)
    errors = prediction.evaluate(open_dataset(problem.values["test"]), published, engine=SerialEngine(1))
    np.testing.assert_allclose(result["metrics"]["mse"], errors.mean_squared_error, rtol=1e-12)
    assert {path.name for path in Path(problem.values["model"]).parent.iterdir()} == {
        "data.zarr",
        "model",
        "test.zarr",
    }

    summary = Artifact.get("rff-tune-summary-model").data
    rows = rows_of(summary, "candidates, by cross-validation")
    assert sorted(row["kernel"].split()[0] for row in rows) == ["gaussian"] * 2 + ["laplacian"] * 2
    assert rows[0]["kernel"].split() == [published.feature_map.spec.kernel.name, "←"]
    assert "data:image/png;base64," in Artifact.get("rff-tune-page-model").data
    assert result["digest"][:16] in summary
    assert "200 rows" in summary
    with disable_run_logger(), pytest.raises(OutputExistsError, match="exists already"):
        tune.fn(**problem.values)
