"""Rows and a model of them for several modules; a module's own fixture with that name
takes precedence.
"""

import shutil

import pytest

from rff_dist import Gaussian, SerialEngine, write_dataset
from rff_dist.ridge.models import write_model
from tests.living_data import CHUNK, draw, fit, make_small
from tests.places import in_folder as in_folder
from tests.plain import fit_ridge
from tests.ridge_problems import draw_dataset


@pytest.fixture(scope="package")
def dataset():
    return draw_dataset()


@pytest.fixture(scope="package")
def model(dataset):
    return fit_ridge(
        dataset,
        Gaussian(),
        engine=SerialEngine(1),
        n_components=32,
        alpha=0.1,
    )[0]


@pytest.fixture
def small_tiles(monkeypatch):
    """Let data of some thousand rows have many blocks and tiles."""
    make_small(monkeypatch)


@pytest.fixture(scope="package")
def versioned(tmp_path_factory):
    """A folder with versioned rows, d, and a model of them, model; and that model."""
    folder = tmp_path_factory.mktemp("versioned")
    with pytest.MonkeyPatch.context() as patched:
        make_small(patched)
        model = fit(
            write_dataset(
                folder / "d", *draw(4000, 0), chunk_rows=CHUNK, versioned=True
            )
        )
        write_model(model, folder / "model")
    return folder, model


@pytest.fixture
def url(versioned):
    """A copy of the rows, to append to and to correct."""
    return shutil.copytree(versioned[0] / "d", "d")


@pytest.fixture
def begun(versioned):
    """The model of these rows, of which the folder "model" holds a copy."""
    shutil.copytree(versioned[0] / "model", "model")
    return versioned[1]
