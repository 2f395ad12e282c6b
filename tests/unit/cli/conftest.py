"""What tests of commands begin with."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from rff_dist import write_dataset
from tests.command_line import PLAIN, document
from tests.tables import ingest

# Of four clusters.
SMALL = "--n-clusters 4 --n-components 64 --n-init 3 --seed 2 --serial"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a table, a dataset of 3 columns, and a model of it; tests only add
    to it.
    """
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)).round(4)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(300)).round(4)
    lines = [
        "a,b,c,price",
        *(",".join(map(str, row)) for row in np.column_stack([X, y])),
    ]
    (path / "table.csv").write_text("\n".join(lines))
    ingest(path / "table.csv", path / "data.zarr", target="price", chunk_rows=64)
    fit = (
        "fit",
        path / "data.zarr",
        path / "model",
        *PLAIN,
        "--n-components 64 --serial",
    )
    document(*fit, "--alpha gcv")
    return path


@pytest.fixture(scope="session")
def labelled(tmp_path_factory):
    """A folder with labels of three classes in text, and a model of each loss; tests
    only add to it.
    """
    path = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", np.where(X[:, 0] > 1, "far", "other"))
    y[rng.random(400) < 0.1] = "same"
    write_dataset(path / "data", X, y, groups=np.arange(400) // 4, chunk_rows=100)
    small = (*PLAIN, "--serial --n-components 32 --alpha 0.1 --classify")
    for loss in ("squared", "logistic", "squared_hinge"):
        found = document("fit", path / "data", path / loss, *small, "--loss", loss)
        assert found["classifier"]["loss"] == loss
    return path


@pytest.fixture(scope="session")
def clustered(tmp_path_factory):
    """What is told of clustering four blobs, which have labels in text and numbers of
    groups.
    """
    path = tmp_path_factory.mktemp("cluster") / "data.zarr"
    X, y = make_blobs(
        500, 3, centers=[[0, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5]], random_state=0
    )
    names = np.array(["north", "east", "south", "west"])[y]
    write_dataset(
        path, X, names, groups=y, chunk_rows=100, feature_names=["a", "b", "c"]
    )
    options = ["--distances --model", path.parent / "model", "--labels y"]
    options += ["--plot", path.parent / "clusters.png"]
    return document("cluster", path, path.parent / "labels.zarr", SMALL, *options)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Run in a folder of its own, so that files have short names."""
    monkeypatch.delenv("RFF_DIST_SCHEDULER", raising=False)
    monkeypatch.chdir(tmp_path)
