"""Grids as other programs write them: values are those that xarray shows, and marked
cells are missing.
"""

import logging

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from xarray.backends.zarr import FillValueCoder

from rff_dist import RFFClassifier, RFFRidge
from rff_dist.data.blocks import Block
from rff_dist.storage.datasets import open_dataset
from tests.tables import all_rows

rng = np.random.default_rng(0)
SHORTS = rng.integers(0, 1_000, (60, 50)).astype("i2")
SHORTS[0, :10] = -1
SHORTS[1, :10] = -2
BYTES = (SHORTS % 200).astype("u1")
FLOATS = SHORTS.astype("f4") / 7
PACKED = {"scale_factor": 0.01, "add_offset": 5.0}
#: Attributes, stored values, and options of the array.
STORED = {
    "nothing": ({}, SHORTS, {}),
    "unsigned": ({"_Unsigned": "true", "_FillValue": -1, **PACKED}, SHORTS, {}),
    "unsigned, format 2": ({"_Unsigned": "true", "scale_factor": 0.01}, SHORTS, {"fill_value": -1, "v": 2}),
    "a list of one scale": ({"scale_factor": [0.01], "add_offset": [0.0], "_FillValue": -1}, SHORTS, {}),
    "several marks": ({"_FillValue": -1, "missing_value": [-1, -2]}, SHORTS, {}),
    "a mark that no value can be": ({"_FillValue": -1, "missing_value": -99999}, SHORTS, {}),
    "a float mark of integers": ({"missing_value": 1e20}, SHORTS, {}),
    "a valid range": ({"valid_range": [0, 500]}, SHORTS, {}),
    "packed bytes": ({"_FillValue": 255, **PACKED}, BYTES, {}),
    "floats": ({}, FLOATS, {"fill_value": np.nan}),
    "half floats": ({}, FLOATS.astype("f2"), {"fill_value": np.nan}),
    "big-endian floats, format 2": ({}, FLOATS.astype(">f4"), {"fill_value": None, "v": 2}),
    "whole numbers of 64 bits": ({}, SHORTS.astype("i8"), {}),
    "booleans": ({"dtype": "bool"}, (SHORTS > 500).astype("i1"), {}),
    "a duration": ({"units": "hours"}, SHORTS, {}),
    "a sharded corner without values": ({}, np.pad(FLOATS, 8, constant_values=np.nan), {
        "fill_value": np.nan, "chunks": (19, 11), "shards": (76, 66),
    }),
}  # fmt: skip


def write(place, variables, v=3, **options):
    """Write variables, given as attributes and values, along row and col."""
    group = zarr.create_group(place, zarr_format=v)
    for name, (attributes, values) in variables.items():
        named = {"dimension_names": ("row", "col")} if v == 3 else {}
        attributes = attributes | (
            {} if named else {"_ARRAY_DIMENSIONS": ["row", "col"]}
        )
        how = {"chunks": (20, 25), **options}
        group.create_array(name, data=values, attributes=attributes, **named, **how)
    return place


@pytest.mark.parametrize(
    ("attributes", "values", "options"), STORED.values(), ids=STORED
)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_values_are_those_that_xarray_shows(attributes, values, options):
    place = write("grid", {"a": (attributes, values)}, **options)
    shown = xr.open_zarr(place, consolidated=False, decode_timedelta=False)[
        "a"
    ].values.astype(float)
    dataset = open_dataset(place, x=["a"], y=None)
    found = np.full(shown.shape, np.nan)
    for number in np.flatnonzero(dataset.piece_rows):
        piece = found[dataset.grid.region(number)]
        first, stop = dataset.edges[number : number + 2]
        rows = dataset.read(Block(0, first, stop))
        here = np.unravel_index(rows.cells, piece.shape)
        piece[here] = rows.X[:, 0]
    assert_array_equal(found, shown)


SEA = np.zeros((60, 50), bool)
SEA[:, :12] = True
A, B = rng.uniform(0, 255, (2, 60, 50))
Y = np.sin(A / 40) + B / 100
NODATA = -9999.0
#: Attributes, and options of the arrays.
MARKED = {
    "_FillValue": ({"_FillValue": FillValueCoder.encode(NODATA, np.dtype("f4"))}, {}),
    "missing_value": ({"missing_value": [NODATA, -1e30]}, {}),
    "nodata": ({"nodata": NODATA}, {}),
    "nodata as text": ({"nodata": "-9999"}, {}),
    "nodatavals": ({"nodatavals": [NODATA, None]}, {}),
    "NoData_Value": ({"NoData_Value": NODATA}, {}),
    "nodata and _FillValue": (
        {"nodata": NODATA, "_FillValue": FillValueCoder.encode(np.nan, np.dtype("f4"))},
        {},
    ),
    "fill value": ({}, {"fill_value": NODATA}),
    "fill value, format 2": ({}, {"fill_value": NODATA, "v": 2}),
    "nodata, format 2": ({"nodata": NODATA}, {"fill_value": None, "v": 2}),
}


HOW = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "n_components": 32,
    "alpha": 0.1,
}
HOW |= {"random_state": 0}
LAND = pd.DataFrame({"a": A[~SEA], "b": B[~SEA]}, dtype="f4")


@pytest.fixture(scope="module")
def expected():
    return RFFRidge(**HOW).fit(LAND, Y[~SEA].astype("f4")).predict(LAND)


@pytest.mark.parametrize(("attributes", "options"), MARKED.values(), ids=MARKED)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_marked_cells_are_neither_trained_on_nor_predicted(
    caplog, expected, attributes, options
):
    names = {"a": A, "b": B, "y": Y, "kind": Y > 1}
    marked = {
        name: (attributes, np.where(SEA, NODATA, of).astype("f4"))
        for name, of in names.items()
    }
    caplog.set_level("INFO", "rff_dist")
    place = write("grid", marked, **options)
    stored = open_dataset(place, x=["a", "b"], y="y")
    shown = xr.open_zarr(place, consolidated=False)
    inputs = shown[["a", "b"]]
    for model in (RFFRidge(**HOW).fit(stored), RFFRidge(**HOW).fit(inputs, shown["y"])):
        assert model.score(stored) > 0.9
        found = model.predict(inputs).values
        assert_array_equal(np.isnan(found), SEA)
        assert_allclose(found[~SEA], expected, atol=1e-5)
    classes = RFFClassifier(**HOW).fit(inputs, shown["kind"])
    assert classes.classes_.tolist() == [0, 1]
    assert_array_equal(classes.predict(inputs).isnull(), SEA)
    left_out = f"{SEA.sum()} of {SEA.size} cells are left out"
    assert sum(left_out in message for message in caplog.messages) == 2
    warned = [
        record.args
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name.endswith("data.grids")
    ]
    assert bool(warned) == ("fill_value" in options and "v" not in options)
    assert all(NODATA in arguments for arguments in warned)


def test_zeros_are_values_unless_something_marks_them():
    counts = {"missing": 0, "missing_values": 0, "fill": 0}
    zeros = {
        "a": (counts, np.where(SEA, 0, A)),
        "marked": ({"nodata": 0}, np.where(SEA, 0, A)),
    }
    place = write("grid", zeros)
    assert open_dataset(place, x=["a"], y=None).n_samples == SEA.size
    assert open_dataset(place, x=["marked"], y=None).n_samples == (~SEA).sum()


def test_packed_values_that_xarray_shows_are_compared_with_their_marks():
    values = np.where(SEA, -9999, SHORTS).astype("i2")
    place = write("grid", {"a": ({"nodata": -9999, **PACKED}, values)})
    stored = open_dataset(place, x=["a"], y=None)
    shown = xr.open_zarr(place, consolidated=False)
    in_memory = open_dataset(shown, x=["a"], y=None)
    assert_array_equal(all_rows(stored).X, values[~SEA][:, None] * 0.01 + 5.0)
    assert in_memory.n_samples == stored.n_samples
