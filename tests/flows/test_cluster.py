"""The clustering flow on Prefect's temporary server, which starts once for all tests of
the session.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from prefect.artifacts import Artifact
from prefect.logging import disable_run_logger
from sklearn.datasets import make_blobs

from rff_dist import write_dataset
from rff_dist.errors import OutputExistsError
from rff_dist.flows.cluster import cluster
from rff_dist.models.kinds import read_any
from rff_dist.storage.columns import open_column
from tests.flows.test_train import task_runs
from tests.markdown import rows_of
from tests.refusals import refuses

pytestmark = [
    pytest.mark.flows,
    pytest.mark.distributed,
    pytest.mark.usefixtures("prefect_server"),
]


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cluster")
    X, y = make_blobs(900, 3, centers=4, cluster_std=3.5, random_state=0)
    write_dataset(folder / "data.zarr", X, y, groups=y, chunk_rows=200)
    return {
        "data": str(folder / "data.zarr"),
        "output": str(folder / "labels.zarr"),
        "model": str(folder / "model"),
        "n_clusters": 4,
        "n_components": 64,
        "n_init": 2,
        "labels": "groups",
        "distances": True,
        "seed": 0,
    }


def test_flow_publishes_what_it_finds_with_a_row_for_each_pass(parameters):
    state = cluster(**parameters, return_state=True)
    result = state.result()
    assert len(json.dumps(result)) < 8_000
    n_passes = len(result["passes"])
    names = [task.name for task in task_runs(state)]
    passes = [f"pass {i}" for i in range(1, n_passes + 1)]
    begun = ["inspect", "choose", "draw", "broadcast", "measure", "start"]
    assert names == [*begun, *passes, "compare", "assign", "publish"]
    assert n_passes > 2
    inertias = [row["inertia"] for row in result["passes"]]
    assert inertias == sorted(inertias, reverse=True)

    published = read_any(parameters["model"])
    assert published.digest() == result["digest"]
    assert published.inertia == inertias[-1]
    labels = np.asarray(
        open_column(parameters["output"], "labels").take(np.arange(900))
    )
    assert published.card["agreement"].items() <= result["agreement"].items()

    assert imread(result["picture"]).shape[2] == 4
    left = {path.name for path in Path(parameters["model"]).parent.iterdir()}
    assert left == {"data.zarr", "labels.zarr", "labels.zarr.png", "model"}
    summary = Artifact.get("rff-cluster-summary-model").data
    shown = {row["what"]: row["value"] for row in rows_of(summary)}
    assert shown["shape"] == published.card["shape"]["sentence"]
    # with four significant digits
    inertia = float(shown["inertia"].partition(", the")[0].replace(",", ""))
    assert inertia == pytest.approx(inertias[-1], rel=5e-4)
    sizes = rows_of(summary, "clusters by size")
    counts = {int(row["cluster"]): float(row["rows or weight"]) for row in sizes}
    assert counts == dict(enumerate(np.bincount(labels)))
    assert result["digest"][:16] in summary
    assert result["picture"] in summary.replace("\\", "")


def test_a_picture_is_not_put_over_another_file(parameters, tmp_path):
    (tmp_path / "labels.zarr.png").touch()
    elsewhere = {
        "output": str(tmp_path / "labels.zarr"),
        "model": str(tmp_path / "model"),
    }
    with disable_run_logger(), refuses(OutputExistsError, "exists already"):
        cluster.fn(**{**parameters, **elsewhere})
