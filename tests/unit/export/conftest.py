"""What tests of exports begin with."""

import numpy as np
import pytest

from rff_dist.storage.writing import write_dataset
from tests.command_line import fit_small_table


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model with folds, of a table with text, ids and a date."""
    return fit_small_table(tmp_path_factory.mktemp("small"), "--n-folds", "3")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "data"
    X = np.random.default_rng(0).standard_normal((300, 3)) * [1, 10, 100]
    y = np.column_stack([np.sin(X[:, 0]) + X[:, 1] / 10, X[:, 2] / 100])
    write_dataset(path, X, y)
    return path
