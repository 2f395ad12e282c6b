"""What tests of exports begin with."""

import numpy as np
import pytest

from rff_dist.storage.writing import write_dataset
from tests.command_line import PLAIN, document


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model of a table with text, ids and a date."""
    folder = tmp_path_factory.mktemp("small")
    lines = [f"{'ab'[i % 2]},{i},k{i},2024-01-{i % 28 + 1:02},{i % 7 + 3 * (i % 2)}" for i in range(200)]
    (folder / "t.csv").write_text("\n".join(["kind,size,id,day,y", *lines]))
    document("ingest", folder / "t.csv", folder / "data", "--target", "y", "--id", "id")
    fit = ["fit", folder / "data", folder / "model", *PLAIN, "--components", "32", "--folds", "3", "--serial"]
    document(*fit)
    return folder / "model"


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "data"
    X = np.random.default_rng(0).standard_normal((300, 3)) * [1, 10, 100]
    y = np.column_stack([np.sin(X[:, 0]) + X[:, 1] / 10, X[:, 2] / 100])
    write_dataset(path, X, y)
    return path
