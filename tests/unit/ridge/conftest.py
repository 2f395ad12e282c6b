"""Rows and a model of them for several modules; a module's own fixture with that name takes precedence."""

import pytest

from rff_dist import Gaussian, SerialEngine, open_dataset, write_dataset
from rff_dist.ridge.models import write_model
from tests.living_data import CHUNK, draw, fit, make_small
from tests.plain import fit_ridge
from tests.ridge_problems import draw_dataset


@pytest.fixture(scope="package")
def dataset():
    return draw_dataset()


@pytest.fixture(scope="package")
def model(dataset):
    return fit_ridge(dataset, Gaussian(), engine=SerialEngine(n_threads=1), n_components=32, alpha=0.1)[0]


@pytest.fixture
def small_tiles(monkeypatch):
    """Let data of some thousand rows have many blocks and tiles."""
    make_small(monkeypatch)


@pytest.fixture
def url(tmp_path):
    """Versioned rows, to append to and to correct."""
    write_dataset(tmp_path / "d", *draw(4000, 0), chunk_rows=CHUNK, versioned=True)
    return tmp_path / "d"


@pytest.fixture
def begun(url, tmp_path):
    """A model of these rows, which is stored in the folder "model" too."""
    model = fit(open_dataset(url))
    write_model(model, tmp_path / "model")
    return model
