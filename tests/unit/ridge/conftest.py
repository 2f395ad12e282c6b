"""Rows and a model of them that several modules look at; a module's own fixture of the name goes first."""

import pytest

from rff_dist import Gaussian, SerialEngine
from tests.plain import fit_ridge
from tests.ridge_problems import draw_dataset


@pytest.fixture(scope="package")
def dataset():
    return draw_dataset()


@pytest.fixture(scope="package")
def model(dataset):
    return fit_ridge(dataset, Gaussian(), engine=SerialEngine(n_threads=1), n_components=32, alpha=0.1)[0]
