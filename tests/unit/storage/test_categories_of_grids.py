"""Variables with CF's flags are categories: a grid and the table with the same texts
give the same model.
"""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from rff_dist import Gaussian, RFFRidge, SerialEngine, open_dataset
from rff_dist.errors import DataError
from rff_dist.recipes.recipes import levels_of, recipe_of
from rff_dist.ridge.predict import predict_in_memory
from tests.plain import fit_ridge
from tests.refusals import refuses
from tests.tables import ingest, save

ENGINE = SerialEngine()
INPUTS = ["rain", "cover"]
LEGEND = {11: "water", 41: "evergreen_forest", 23: "town", 0: "bare"}
EFFECTS = {"water": -2.0, "evergreen_forest": 0.0, "town": 1.0, "bare": 3.0}
OPTIONS = {"length_scale": (1.0, 0.7), "alpha": 0.1, "n_components": 32}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_cube(legend=None, n_times=4, dtype="i2"):
    """Return a grid of a map of classes with missing cells, and its rows as a table."""
    rng = np.random.default_rng(0)
    legend = LEGEND if legend is None else legend
    texts = rng.choice(list(LEGEND.values()), (12, 15))
    value_of = {text: value for value, text in legend.items()}
    cover = np.vectorize(value_of.get)(texts).astype(dtype)
    is_missing = rng.random(cover.shape) < 0.1
    cover[is_missing] = 99
    rain = rng.normal(size=(n_times, 12, 15)).astype("f4")
    growth = np.sin(rain) + np.vectorize(EFFECTS.get)(texts)
    flags = {
        "flag_values": np.array([*legend], dtype),
        "flag_meanings": " ".join(legend.values()),
    }
    dims = ("time", "lat", "lon")
    variables = {
        "rain": (dims, rain),
        "cover": (dims[1:], cover, flags),
        "growth": (dims, growth),
    }
    cube = xr.Dataset(variables, {"lat": np.arange(12), "lon": np.arange(15)})
    kept = np.broadcast_to(~is_missing, rain.shape)
    columns = [rain, np.broadcast_to(texts, rain.shape), growth]
    rows = zip(cube.data_vars, columns, strict=True)
    return cube, pd.DataFrame({name: values[kept] for name, values in rows})


def store(cube, url="grid", fill=99, **how):
    encoding = {} if fill is None else {"cover": {"_FillValue": fill}}
    cube.to_zarr(url, consolidated=False, encoding=encoding, **how)
    return open_dataset(url, x=INPUTS, y="growth")


def stored_table(frame, kind="parquet"):
    ingest(save(frame, f"table.{kind}"), f"of-{kind}", target="growth")
    return open_dataset(f"of-{kind}")


def fit(dataset, features="fourier"):
    return fit_ridge(dataset, Gaussian(), engine=ENGINE, features=features, **OPTIONS)[
        0
    ]


def predictions(model, dataset):
    return predict_in_memory(dataset.without_targets(), model, engine=ENGINE)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_a_grid_has_the_model_of_the_table_with_the_same_texts(kind, features):
    cube, frame = make_cube()
    grid = store(cube)
    table = stored_table(frame, kind)
    models = [fit(dataset, features) for dataset in (grid, table)]
    if kind == "parquet":  # a CSV file's numbers are read as float64
        assert models[0].digest() == models[1].digest()
        assert models[0].statistics == models[1].statistics
    found = [
        predictions(model, rows)["predictions"]
        for model in models
        for rows in (grid, table)
    ]
    for other in found[1:]:
        # features of float64 may round to the next of 16,256 steps
        np.testing.assert_allclose(other, found[0], atol=1e-3)
    assert recipe_of(models[0].card).digest() == recipe_of(table.attributes).digest()


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4"])
def test_features_follow_texts_whatever_stands_for_them(dtype):
    digests = set()
    for i, legend in enumerate((LEGEND, dict(enumerate(reversed(LEGEND.values()))))):
        cube, _ = make_cube(legend, dtype=dtype)
        digests.add(fit(store(cube, f"grid{i}")).digest())
    assert len(digests) == 1


def test_grids_of_xarray_and_frames_give_the_same_predictions():
    cube, frame = make_cube()
    cube["cover"] = cube.cover.where(cube.cover != 99)
    how = {"length_scale": [1.0, 0.7], "random_state": 0, "features": "fourier"}
    model = RFFRidge("gaussian", n_components=32, alpha=0.1, **how)
    by_frame = model.fit(frame[INPUTS], frame.growth).predict(frame[INPUTS])
    by_grid = model.fit(cube[INPUTS], cube.growth).predict(cube[INPUTS])
    kept = cube.cover.notnull().broadcast_like(cube.rain).values
    np.testing.assert_allclose(by_grid.values[kept], by_frame, atol=1e-6)
    np.testing.assert_allclose(model.predict(frame[INPUTS]), by_frame, atol=1e-6)


def test_a_value_without_a_meaning_is_like_a_missing_text():
    cube, _ = make_cube()
    grid = store(cube, fill=None)
    values = np.broadcast_to(cube.cover, cube.rain.shape).ravel().tolist()
    columns = {
        "rain": cube.rain.values.ravel(),
        "cover": [LEGEND.get(value) for value in values],
        "growth": cube.growth.values.ravel(),
    }
    frame = pd.DataFrame(columns)
    table = stored_table(frame)
    assert fit(grid).digest() == fit(table).digest()
    assert set(levels_of(grid.attributes)[1]) == {*LEGEND.values(), "(missing)"}


def test_what_is_neither_a_number_nor_one_category_is_refused():
    cube, _ = make_cube()
    masked = cube.copy()
    masked["cover"] = cube.cover.assign_attrs(flag_masks=[1, 2, 4, 8])
    with refuses(DataError, "cover", "flag_masks"):
        store(masked, "masked")
    words = cube.cover.assign_attrs(flag_meanings="water town")
    with refuses(DataError, "cover", 4, 2):
        store(cube.assign(cover=words), "words")


def test_numbers_and_categories_are_no_columns_of_one_model():
    cube, _ = make_cube()
    plain = store(cube.assign(cover=cube.cover.drop_attrs()), "plain")
    flagged = store(cube, "flagged")
    for trained, other in ((plain, flagged), (flagged, plain)):
        with refuses(DataError, "cover"):
            predictions(fit(trained), other)
