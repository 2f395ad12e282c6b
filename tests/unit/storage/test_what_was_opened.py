"""A pass reads the rows that were opened, or ends with an error; and xarray opens what
is written.
"""

import os
import pickle

import icechunk
import numpy as np
import pytest
import xarray

from rff_dist.data.blocks import Block
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import ConflictError
from rff_dist.kernels.stationary import Gaussian
from rff_dist.storage.outputs import Layout, create_output
from rff_dist.storage.writing import write_dataset
from tests.plain import fit_ridge

ENGINE = SerialEngine(1)


def fit(dataset):
    return fit_ridge(
        dataset, Gaussian(), engine=ENGINE, n_components=16, alpha=1.0, length_scale=1.0
    )[0]


@pytest.fixture
def rows():
    X = np.random.default_rng(0).standard_normal((40, 3))
    return X, X[:, 0]


def overwrite(url, X, y):
    write_dataset(url, X + 1, y, chunk_rows=8, overwrite=True)


def touch_a_chunk(url, X, y):
    path = next(
        path
        for path in (url / "X").rglob("*")
        if path.is_file() and path.name != "zarr.json"
    )
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


def remove_a_chunk(url, X, y):
    next(path for path in (url / "y" / "c").iterdir()).unlink()


class TestPlainZarrThatIsChangedMeanwhile:
    @pytest.mark.parametrize("change", [overwrite, touch_a_chunk, remove_a_chunk])
    @pytest.mark.faults("F17")
    def test_is_not_read_elsewhere_and_gives_no_model(self, tmp_path, rows, change):
        url = tmp_path / "d"
        dataset = write_dataset(url, *rows, chunk_rows=8)
        sent = pickle.dumps(dataset)
        pickle.loads(sent).check_unchanged()
        change(url, *rows)
        with pytest.raises(ConflictError, match="was changed while it was read"):
            pickle.loads(sent)
        with pytest.raises(ConflictError, match="was changed while it was read"):
            fit(dataset)


def test_data_and_predictions_open_in_xarray(tmp_path, rows):
    X, y = rows
    write_dataset("plain", X, np.column_stack([y, y]), sample_weight=y**2)
    write_dataset("versioned", X, y, versioned=True)
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage("versioned")
    )
    places = {
        "plain": (tmp_path / "plain", {"sample": 40, "feature": 3, "target": 2}),
        "versioned": (
            repository.readonly_session("main").store,
            {"sample": 40, "feature": 3},
        ),
    }
    for store, sizes in places.values():
        with xarray.open_zarr(store, consolidated=False, chunks=None) as opened:
            assert dict(opened.sizes) == sizes
            np.testing.assert_array_equal(opened["X"].values, X)
    kind = np.dtype([("predictions", float, 2), ("lower", float, 2)])
    output = create_output("out", Layout(40, 40, dtype=kind))
    output.write(Block(0, 0, 40), np.zeros(40, kind))
    output.finish()
    with xarray.open_zarr("out", consolidated=False, chunks=None) as opened:
        assert dict(opened.sizes) == {"sample": 40, "target": 2}
