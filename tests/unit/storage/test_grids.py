"""A grid is read as rows, and what is predicted for these is a grid again."""

import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from rff_dist import RFFClassifier, RFFKMeans, RFFRidge
from rff_dist.classify.predict import predict as predict_classes
from rff_dist.data import blocks as data_blocks
from rff_dist.data.blocks import Block
from rff_dist.data.folding import DatedFolds, GroupFolds, TimeFolds
from rff_dist.data.grids import MAX_CELLS, cut_grid
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.fitting import predicting
from rff_dist.ridge.predict import predict
from rff_dist.statistics import row_passes
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.grids import GridOutput, fold_by_time
from rff_dist.storage.locations import parse_location
from rff_dist.workbench.jobs import steps
from tests.grids import CHUNKS, make_cube, stacked, write_cube
from tests.refusals import for_each_refusal, once, refuses
from tests.tables import all_rows

INPUTS = ["rain", "elevation", "lat"]
PLAIN = {
    "kernel": "gaussian", "length_scale": 2.0, "features": "fourier", "n_components": 64, "alpha": 1e-3,
    "random_state": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("grids") / "cube.zarr"


@pytest.fixture(scope="module")
def cube(place):
    write_cube(place)
    return xr.open_zarr(place, consolidated=False, chunks=None).load()


@pytest.fixture(scope="module")
def dataset(cube, place):
    return open_dataset(place, x=INPUTS, y="temperature")


def sorted_rows(X):
    return X[np.lexsort(X.T)]


def as_grid(dataset, values):
    """Return a value of each row on the grid, by the positions that the rows say they
    have.
    """
    cells = np.full(dataset.grid.shape, np.nan)
    for number in np.flatnonzero(dataset.piece_rows):
        first, stop = dataset.edges[number : number + 2]
        region = dataset.grid.region(number)
        piece = cells[region].copy().ravel()
        piece[dataset.read(Block(0, first, stop)).cells] = values[first:stop]
        cells[region] = piece.reshape(cells[region].shape)
    return cells


class TestRows:
    def test_rows_are_the_cells_that_xarray_shows_whole(self, cube, dataset):
        columns = stacked(cube, *INPUTS, "temperature")
        whole = columns[~np.isnan(columns).any(axis=1)]
        rows = all_rows(dataset)
        assert dataset.n_samples == len(whole) < len(columns)
        # the packed target is decoded in float64 here, in float32 by xarray
        assert_allclose(
            sorted_rows(np.column_stack([rows.X, rows.y])),
            sorted_rows(whole),
            rtol=1e-6,
        )

    def test_each_row_is_at_its_cell(self, cube, dataset):
        y = all_rows(dataset).y[:, 0]
        shown = cube.temperature.where(cube.rain.notnull()).values
        assert_allclose(as_grid(dataset, y), shown, rtol=1e-6)

    def test_any_rows_are_those_of_one_read(self, dataset):
        whole = all_rows(dataset)
        rng = np.random.default_rng(0)
        for start, stop in np.sort(
            rng.integers(0, dataset.n_samples + 1, (20, 2)), axis=1
        ):
            if start < stop:
                part = dataset.read(Block(0, start, stop))
                assert_array_equal(part.X, whole.X[start:stop])
                assert_array_equal(part.y, whole.y[start:stop])
        indices = rng.integers(0, dataset.n_samples, 50)
        sample = dataset.take(indices)
        assert_array_equal(sample.X, whole.X[indices])
        assert_array_equal(sample.y, whole.y[indices])

    def test_a_time_is_days_and_a_turn_of_the_year(self, cube, place):
        dataset = open_dataset(place, x=["time", "rain"], y=None)
        assert dataset.feature_names == ("time.days", "time.sin", "time.cos", "rain")
        days, sine, cosine = all_rows(dataset).X[:, :3].T
        moments = cube.time.to_index()
        length = np.where(moments.is_leap_year, 366, 365)
        turn = 2 * np.pi * (moments.day_of_year - 1) / length
        known = (moments - np.datetime64("1970-01-01")).days
        places = np.searchsorted(known, days)
        assert_array_equal(np.asarray(known)[places], days)
        assert_allclose(sine, np.sin(turn)[places], atol=1e-9)
        assert_allclose(cosine, np.cos(turn)[places], atol=1e-9)

    def test_a_chunk_that_is_not_stored_is_missing_only_if_its_fill_value_says_so(self):
        group = zarr.create_group("holes.zarr")
        for name, fill in (("a", np.nan), ("b", 0.0)):
            array = group.create_array(
                name,
                shape=(4, 4),
                chunks=(2, 4),
                dtype="f4",
                fill_value=fill,
                dimension_names=["y", "x"],
            )
            array[:2] = 1.0
        assert open_dataset("holes.zarr", x=["a"], y=None).n_samples == 8
        lost = open_dataset("holes.zarr", x=["b"], y=None, missing_chunks="fill")
        assert lost.n_samples == 16
        with refuses(StorageError, "b", "missing_chunks"):
            open_dataset("holes.zarr", x=["b"], y=None)

    def test_variables_of_other_chunks_are_read_by_the_coarser_with_a_warning(
        self, caplog
    ):
        y = {"chunks": (6, 20, 25)}
        write_cube("cube.zarr", rain={"chunks": (4, 5, 25)}, temperature=y)
        dataset = open_dataset("cube.zarr", x=["rain"], y="temperature")
        assert dataset.grid.chunks == (6, 20, 25)
        whole = make_cube()
        assert dataset.n_samples == int(
            (whole.rain + whole.temperature).notnull().sum()
        )


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((3000, 721, 1440), (1, 721, 1440)),
        ((4500, 4100), (4500, 4100)),
        ((10**6,), (10,)),
        ((7, 3), (2, 3)),
    ],
)
def test_pieces_cover_each_cell_once(shape, chunks):
    grid = cut_grid(tuple("abc"[: len(shape)]), shape, chunks, 8)
    ends = [range(0, n, length) for n, length in zip(shape, grid.piece, strict=True)]
    assert np.prod(grid.pieces_per_dim) == np.prod([len(e) for e in ends])
    assert np.prod(grid.piece) <= MAX_CELLS
    last = grid.region(int(np.prod(grid.pieces_per_dim)) - 1)
    assert [part.stop for part in last] == list(shape)


class TestResults:
    def test_predictions_are_a_grid_like_the_inputs(self, cube, place, dataset):
        model = RFFRidge(**PLAIN, cv=3).fit(dataset)
        rows = open_dataset(place, x=INPUTS, y=None)
        names = list(dataset.target_names)
        how = {"std": True, "coverage": 0.9, "column_names": names}
        predict(rows, model.model_, "out.zarr", engine=SerialEngine(), **how)
        out = xr.open_zarr(
            "out.zarr", consolidated=False, chunks=None, decode_coords="all"
        )
        assert set(out.data_vars) == {"prediction", "std", "lower", "upper"}
        assert out.attrs["title"] == "a made cube"
        assert out.prediction.attrs["units"] == out["std"].attrs["units"] == "K"
        assert out.prediction.encoding["chunks"] == CHUNKS
        assert out.prediction.encoding["grid_mapping"] == "crs"
        # one that GDAL knows, and that notices damage
        [codec] = out.prediction.encoding["compressors"]
        assert codec.to_dict() == {
            "name": "zstd",
            "configuration": {"level": 1, "checksum": True},
        }
        assert out.crs.attrs["grid_mapping_name"] == "latitude_longitude"
        assert out.lat.attrs["units"] == "degrees_north"
        xr.testing.assert_equal(
            out.prediction.isnull().drop_vars("crs"),
            cube.rain.isnull().drop_vars("crs"),
        )
        for name in ("time", "lat", "lon"):
            assert_array_equal(out[name], cube[name])
        assert_array_equal(out.prediction, as_grid(rows, model.predict(rows)))
        lower, upper = model.predict_interval(rows, coverage=0.9)
        assert_array_equal(out.lower, as_grid(rows, lower))
        assert_array_equal(out.upper, as_grid(rows, upper))

    def test_predictions_are_those_of_the_stacked_array(self, cube):
        columns = stacked(cube, *INPUTS, "temperature")
        whole = columns[~np.isnan(columns).any(axis=1)]
        inputs = cube[["rain", "elevation"]].assign(latitude=cube.lat)
        on_grid = RFFRidge(**PLAIN).fit(inputs, cube.temperature)
        features = on_grid.feature_map_.transform
        on_rows = Ridge(alpha=PLAIN["alpha"]).fit(features(whole[:, :3]), whole[:, 3])
        found = on_grid.predict(inputs)
        here = ~np.isnan(columns[:, 0])
        assert found.dims == cube.temperature.dims
        assert_allclose(
            found.values.ravel()[here],
            on_rows.predict(features(columns[here, :3])),
            rtol=1e-5,
        )
        assert int(found.isnull().sum()) == int((~here).sum())
        mean, std = on_grid.predict(inputs, return_std=True)
        assert_array_equal(
            mean.values[std.notnull().values], found.values[std.notnull().values]
        )

    def test_shards_stay(self, cube):
        shards = {"shards": (12, 16, 20)}
        write_cube("c.zarr", cube.drop_encoding(), rain={"chunks": CHUNKS, **shards})
        rows = open_dataset("c.zarr", x=["rain"], y="temperature")
        model = RFFRidge(**PLAIN).fit(rows).model_
        predict(rows.without_targets(), model, "out.zarr", engine=SerialEngine())
        array = zarr.open_array("out.zarr/prediction")
        assert (array.shards, array.chunks) == ((12, 16, 20), CHUNKS)


@pytest.mark.parametrize(
    "labels", [["rain", "other"], [1, 2], None], ids=["words", "numbers", "none"]
)
def test_inputs_along_a_dimension_are_those_of_a_dataset(cube, labels, caplog):
    target = cube.temperature
    how = {**PLAIN, "length_scale": 1.0}
    caplog.set_level("INFO", "rff_dist")
    names = [
        label if isinstance(label, str) else f"band_{label}"
        for label in labels or [0, 1]
    ]
    rain = cube.rain.assign_attrs(nodata=float(cube.rain[5, 5, 5]))
    inputs = xr.Dataset(dict(zip(names, (rain, cube.rain**2), strict=True)))
    stacked = xr.concat([*inputs.values()], "band", combine_attrs="override").drop_vars(
        "band", errors="ignore"
    )
    if labels is not None:
        stacked = stacked.assign_coords(band=labels, wavelength=("band", [0.4, 0.5]))
    on_bands, on_inputs = (RFFRidge(**how).fit(X, target) for X in (stacked, inputs))
    assert on_bands.feature_names_in_.tolist() == names
    found = on_bands.predict(stacked)
    # one cell holds `nodata`
    n_missing = 1 + int((cube.rain.isnull() | target.isnull()).sum())
    left_out = f"{n_missing} of {target.size} cells are left out"
    told = [message for message in caplog.messages if left_out in message]
    assert len(told) == 2
    assert repr(names[0]) in told[0]
    xr.testing.assert_equal(found, on_inputs.predict(inputs))
    assert bool(found[5, 5, 5].isnull())
    if labels is not None:
        xr.testing.assert_equal(on_inputs.predict(stacked.isel(band=[1, 0])), found)
    assert (
        RFFKMeans(n_clusters=2, n_components=32, random_state=0)
        .fit(stacked)
        .n_features_in_
        == 2
    )


def test_classes_in_words_are_numbers_with_their_meanings(tmp_path, cube, place):
    inputs = open_dataset(place, x=["rain", "elevation"], y=None)
    X = all_rows(inputs).X
    words = np.where(
        X[:, 0] > 1, "old forest", np.where(X[:, 1] > 0, "bare_soil", "bare soil")
    )
    frame = pd.DataFrame(X, columns=["rain", "elevation"])
    model = RFFClassifier(**{**PLAIN, "length_scale": 1.0}).fit(frame, words)
    found = model.predict(cube[["rain", "elevation"]])
    assert_array_equal(found.isnull(), cube.rain.isnull())
    assert len(set(found.flag_meanings.split())) == len(found.flag_values) == 3
    known = model.predict(frame)
    codes = np.searchsorted(model.classes_, known)
    assert_array_equal(found, as_grid(inputs, codes.astype(float)))
    predict_classes(
        inputs,
        model.model_,
        tmp_path / "map",
        engine=SerialEngine(),
        probabilities=True,
    )
    stored = xr.open_zarr("map", consolidated=False)
    assert_array_equal(stored.labels, found)
    assert stored.labels.flag_meanings == found.flag_meanings
    assert "probabilities_old forest" in stored


@pytest.fixture(scope="module")
def mapped(dataset, place):
    """Return a model and the place of its map in small pieces, which nothing
    stopped.
    """
    whole = place.parent / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_blocks, "MIN_BLOCK_ROWS", 1)
        model = RFFRidge(**PLAIN).fit(dataset).model_
        predict(
            open_dataset(place, x=INPUTS, y=None), model, whole, engine=SerialEngine()
        )
    return model, whole


@pytest.mark.parametrize(
    "damage", ["killed", "half a chunk", "no variables", "an older map"]
)
def test_a_map_that_was_stopped_goes_on_where_it_was(
    tmp_path, place, mapped, damage, monkeypatch
):
    monkeypatch.setattr(data_blocks, "MIN_BLOCK_ROWS", 1)  # for more pieces
    (model, whole) = mapped
    rows = open_dataset(place, x=INPUTS, y=None)
    monkeypatch.setattr(predicting, "WORTH_KEEPING_S", 0.0)
    written = []
    write = GridOutput.write

    def stops(output, block, values):
        if len(written) == 3:
            raise KeyboardInterrupt
        write(output, block, values)
        written.append(block)

    def score():
        engine = SerialEngine()
        with steps.resumable(engine, parse_location("map")):
            predict(
                rows,
                model,
                "map",
                engine=engine,
                overwrite=damage == "an older map",
            )

    if damage == "an older map":
        write_cube("map")
    monkeypatch.setattr(GridOutput, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        score()
    older = tmp_path / "map/temperature"
    assert (tmp_path / "map").exists() == older.exists() == (damage == "an older map")
    [staged] = tmp_path.glob(".*map*/output-*/prediction")
    if damage == "half a chunk":
        chunk = min(path for path in (staged / "c").rglob("*") if path.is_file())
        chunk.write_bytes(chunk.read_bytes()[:-9])
    elif damage == "no variables":
        shutil.rmtree(staged)
    written.clear()
    monkeypatch.setattr(
        GridOutput, "write", lambda *given: (write(*given), written.append(given[1]))
    )
    score()
    again = {"half a chunk": 1, "no variables": 3}.get(damage, 0)
    assert len(written) == len(row_passes.blocks_of(rows)) - 3 + again
    found, expected = (
        xr.open_zarr(n, consolidated=False) for n in (tmp_path / "map", whole)
    )
    xr.testing.assert_identical(found, expected)


def test_a_map_and_a_time_give_the_grid_of_the_target(place, cube):
    inputs = ["elevation", "lon", "time"]  # none of which has all dimensions
    model = RFFRidge(**PLAIN).fit(open_dataset(place, x=inputs, y="temperature"))
    rows = open_dataset(place, x=inputs, y=None)
    predict(rows, model.model_, "out.zarr", engine=SerialEngine())
    out = xr.open_zarr("out.zarr", consolidated=False)
    assert (out.prediction.dims, out.prediction.encoding["chunks"]) == (
        cube.temperature.dims,
        CHUNKS,
    )
    for name in ("time", "lat", "lon"):
        assert_array_equal(out[name], cube[name])


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("days since 1999-12-31", "standard"),
        ("hours since 2000-01-01 06:30", "gregorian"),
        ("seconds since 1970-1-1T00:00:00Z", "proleptic_gregorian"),
        ("minutes since 1950-05-05 01:02:03.5", "standard"),
    ],
)
def test_times_are_those_of_xarray(units, calendar):
    group = zarr.create_group("t.zarr")
    attributes = {"units": units, "calendar": calendar}
    values = np.array([0.0, 1.5, 400.0])
    group.create_array("t", data=values, dimension_names=["t"], attributes=attributes)
    decoded = xr.coding.times.decode_cf_datetime(values, units, calendar)
    expected = (decoded - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    found = all_rows(open_dataset("t.zarr", x=["t.days"], y=None)).X[:, 0]
    assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_groups_of_an_xarray_are_those_of_the_cells(cube):
    inputs = cube[["rain"]]
    where = (cube.lat > 0) * 2 + (cube.lon > 50)
    found = GroupFolds(4)
    on_grid = RFFRidge(**PLAIN | {"alpha": "cv"}, cv=found).fit(
        inputs, cube.temperature, groups=where
    )
    columns = stacked(cube.assign(where=where), "rain", "temperature", "where")
    X, y, groups = columns[~np.isnan(columns).any(axis=1)].T
    on_rows = RFFRidge(**PLAIN | {"alpha": "cv"}, cv=found).fit(
        X[:, None], y, groups=groups.astype(int)
    )
    assert on_grid.estimate_["rmse"] == pytest.approx(
        on_rows.estimate_["rmse"], rel=1e-6
    )


def test_folds_of_a_time_are_of_equally_many_moments(cube, dataset, place):
    grouped = fold_by_time(dataset, 4)
    days = all_rows(open_dataset(place, x=["time.days", *INPUTS], y="temperature")).X[
        :, 0
    ]
    folds = grouped.read_groups(Block(0, 0, grouped.n_samples))
    moments = np.unique(days)
    assert_array_equal(folds, np.searchsorted(moments, days) * 4 // len(moments))
    with refuses(DataError, "time", 24, "n_folds", 25):
        fold_by_time(dataset, 25)
    assert DatedFolds(4).splits == TimeFolds(4).splits


# -- what is refused
# -------------------------------------------------------------------------------


SMALL = make_cube(4)
RAIN = SMALL[["rain"]]
WARMTH = SMALL.temperature
ELSEWHERE = SMALL.crs.assign_attrs(grid_mapping_name="transverse_mercator")
NORTH = SMALL.lat > 0
SYSTEMS = ("latitude_longitude", "transverse_mercator")
RIDGE = RFFRidge(**PLAIN)
BY_GROUPS = RFFRidge(**PLAIN | {"alpha": "cv"}, cv=GroupFolds(2))


def predict_elsewhere(estimator):
    return estimator.fit(RAIN, (WARMTH > 1).astype(int)).predict(
        RAIN.assign_coords(crs=ELSEWHERE)
    )


refused = partial(once, error=DataError)


@for_each_refusal(
    refused(
        lambda: RIDGE.fit(RAIN, WARMTH.assign_coords(lat=SMALL.lat + 0.5)),
        "y",
        "lat",
        "-59.5",
    ),
    refused(
        lambda: RIDGE.fit(
            RAIN.drop_vars("lat"), WARMTH.drop_vars("lat").isel(lat=slice(3))
        ),
        *("rain", "temperature", "lat", 20, 3),
    ),
    refused(lambda: RIDGE.fit(RAIN, WARMTH.mean("time")), "rain", "time"),
    refused(lambda: RIDGE.fit(RAIN, WARMTH.assign_coords(crs=ELSEWHERE)), *SYSTEMS),
    refused(partial(predict_elsewhere, RIDGE), *SYSTEMS),
    refused(partial(predict_elsewhere, RFFClassifier(**PLAIN)), *SYSTEMS),
    refused(
        lambda: BY_GROUPS.fit(
            RAIN, WARMTH, groups=NORTH.assign_coords(lat=NORTH.lat + 1)
        ),
        "groups",
        "lat",
    ),
    refused(
        lambda: BY_GROUPS.fit(RAIN, WARMTH, groups=NORTH.drop_vars("lat")[:3]),
        "groups",
        "lat",
        3,
        20,
    ),
    refused(lambda: RIDGE.fit(RAIN * np.nan, WARMTH), "rain", "temperature"),
)
def test_grids_that_do_not_fit_are_refused(call, error, names):
    with refuses(error, *names):
        call()


@pytest.mark.parametrize(
    ("units", "calendar"),
    [("days since 2000-01-01", "noleap"), ("fortnights since 2000-01-01", "standard")],
)
def test_a_stored_time_of_another_calendar_or_unit_is_refused(units, calendar):
    group = zarr.create_group("c.zarr")
    attributes = {"units": units, "calendar": calendar}
    group.create_array(
        "time", data=np.arange(4.0), dimension_names=["time"], attributes=attributes
    )
    with refuses(DataError, "time", units, calendar):
        open_dataset("c.zarr", x=["time"], y=None)


def test_inputs_that_are_not_there_are_refused(place, dataset):
    with refuses(InvalidParameterError, "inputs", "humidity"):
        open_dataset(place, x=["humidity"], y=None)
    with refuses(InvalidParameterError, "inputs", "lat"):
        open_dataset(place, x=["lat", "rain", "lat"], y=None)


def test_stored_variables_of_two_reference_systems_are_refused():
    group = zarr.create_group("c.zarr")
    for name, system in (("a", "EPSG:4326"), ("b", "EPSG:32633")):
        group.create_array(
            f"crs_{name}", data=np.zeros(()), attributes={"crs_wkt": system}
        )
        attributes = {"grid_mapping": f"crs_{name}"}
        group.create_array(
            name, data=np.eye(4), dimension_names=["y", "x"], attributes=attributes
        )
    with refuses(DataError, "EPSG:4326", "EPSG:32633"):
        open_dataset("c.zarr", x=["a"], y="b")
