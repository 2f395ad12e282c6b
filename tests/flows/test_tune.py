"""The tuning flow on Prefect's temporary server, which starts once for all tests of the session."""

import json

import numpy as np
import pytest
from prefect.artifacts import Artifact

from rff_dist import SerialEngine, write_dataset
from rff_dist.flows.running import lend_engine
from rff_dist.flows.tune import TuneParameters, tune
from rff_dist.ridge.models import read_model
from tests.flows.test_train import task_runs
from tests.markdown import rows_of

pytestmark = [pytest.mark.flows, pytest.mark.distributed, pytest.mark.usefixtures("prefect_server")]


def test_flow_publishes_the_best_of_the_search_from_one_reading(tmp_path):
    for seed, (name, n_samples) in enumerate({"data": 900, "test": 200}.items()):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n_samples, 3))
        y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n_samples)
        write_dataset(tmp_path / name, X, y, groups=np.arange(n_samples) % 31, chunk_rows=200)
    tried = {"kernels": ["gaussian", "laplacian"], "length_scales": ["0.5x", 0.1], "n_components": [32, 64]}
    places = {name: str(tmp_path / name) for name in ("data", "test", "model")}
    problem = TuneParameters(**places, **tried, groups="groups", n_folds=3, seed=7)
    with lend_engine(SerialEngine(1)):
        state = tune(**problem.values, return_state=True)
    result = state.result()
    assert len(json.dumps(result)) < 12_000
    names = [task.name for task in task_runs(state)]
    fitted = ["measure", "choose", "draw", "broadcast", "accumulate", *["solve"] * 4]
    assert names == ["inspect", *fitted, "keep", "evaluate", "publish", "compare", "baselines"]

    published = read_model(problem.values["model"])
    assert published.digest() == result["digest"]
    assert (published.card["folds"]["kind"], published.card["folds"]["n_folds"]) == ("GroupFolds", 3)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "model", "test"}

    summary = Artifact.get("rff-tune-summary-model").data
    rows = rows_of(summary, "candidates, by cross-validation")
    assert sorted(row["kernel"].split()[0] for row in rows) == ["gaussian"] * 2 + ["laplacian"] * 2
    assert rows[0]["kernel"].split() == [published.feature_map.spec.kernel.name, "←"]
    assert "data:image/png;base64," in Artifact.get("rff-tune-page-model").data
    assert result["digest"][:16] in summary
    assert "200 rows" in summary
