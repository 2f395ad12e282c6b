"""What tests of exports begin with."""

import functools

import numpy as np
import pytest

from rff_dist import write_dataset
from tests.command_line import document, fit_small_table
from tests.places import in_folder as in_folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model with folds, of a table with text, ids and a date."""
    return fit_small_table(tmp_path_factory.mktemp("small"), "--n-folds", "3")


FEATURES = {
    "pairs": ["--kernel", "gaussian", "--features", "fourier"],
    "high": [
        "--kernel",
        "matern:nu=1.5",
        "--features",
        "fourier",
        "--precision",
        "high",
    ],
    "phases": ["--kernel", "gaussian", "--features", "fourier", "--map", "phases"],
    "sum of maps": ["--kernel", "gaussian + 0.5 * linear", "--features", "fourier"],
    "linear": ["--kernel", "linear", "--features", "fourier"],
    "nystrom": ["--kernel", "matern:nu=2.5", "--features", "nystrom"],
    "sum": ["--kernel", "gaussian + 0.5 * linear", "--features", "nystrom"],
    "additive": [
        "--kernel",
        "additive:kernel=matern:nu=2.5,dense=2",
        "--features",
        "nystrom",
    ],
    "weights of columns": [
        "--kernel",
        "additive:order_1=0.5/2/0,order_2=0.3",
        "--features",
        "nystrom",
    ],
    "ranks": ["--kernel", "gaussian", "--features", "fourier", "--standardize", "rank"],
    "mapped": [
        "--length-scale",
        "evidence",
        "--alpha",
        "auto",
        "--features",
        "nystrom",
    ],
}


def fit_classes(folder, labels, *words):
    """Fit labels with features that are chosen automatically; return the rows and the
    place of the model.
    """
    X = np.random.default_rng(1).standard_normal((300, 2))
    y = np.array(labels)[np.digitize(X[:, 0], [0.0, 1.0][: len(labels) - 1])]
    write_dataset(folder / "data", X, y)
    small = ["--classify", "--n-components", "32", "--serial", *words]
    document("fit", folder / "data", folder / "model", *small)
    return X, folder / "model"


@pytest.fixture(scope="session")
def fitted(data, tmp_path_factory):
    """Return a function that fits features of a kind, once for all exports, and returns
    the model's place.
    """

    @functools.cache
    def fit(*features):
        place = tmp_path_factory.mktemp("fitted") / "model"
        words = [
            "--n-components",
            "32",
            "--alpha",
            "0.1",
            "--length-scale",
            "median",
            "--serial",
            *features,
        ]
        document("fit", data, place, *words)
        return place

    return fit


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "data"
    X = np.random.default_rng(0).standard_normal((300, 3)) * [1, 10, 100]
    y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1] / 10, X[:, 2] / 100])
    X[:, 0] = np.exp(np.clip(X[:, 0], -2, 2))
    write_dataset(path, X, y)
    return path
