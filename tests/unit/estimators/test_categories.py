"""Frames with text, categories, booleans and dates: as an ingested table has them."""

import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rff_dist import (
    RFFPCA,
    KernelKMeans,
    RFFClassifier,
    RFFKMeans,
    RFFRidge,
    RFFSampler,
    load_model,
    save_model,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, NotFiniteError
from rff_dist.recipes.recipes import recipe_of
from tests.covering import covering
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refusals import for_each_refusal, once, refuses
from tests.tables import ingest, ingest_frame

N = 240
TOWNS = ["Bonn", "Köln", "Rom", "Ulm"]
RNG = np.random.default_rng(0)
COLUMNS = {
    "town": RNG.choice(TOWNS, N),
    "width": RNG.normal(size=N),
    "size": RNG.choice(["S", "M", "L"], N),
    "is_new": RNG.random(N) < 0.5,
    "day": np.datetime64("2024-01-01", "us") + np.arange(N).astype("timedelta64[D]"),
}
Y = np.array([3.0, -1.0, 0.5, 2.0])[[TOWNS.index(t) for t in COLUMNS["town"]]]
Y = Y * COLUMNS["width"] + (COLUMNS["size"] == "M") + 0.1 * RNG.normal(size=N)
LABELS = np.where(np.median(Y) < Y, "high", "low")


def pandas(columns, rows=slice(None)):
    return pd.DataFrame({name: values[rows] for name, values in columns.items()})


def pandas_categories(columns, rows=slice(None)):
    """Return categories in another order than that of their texts, one of them unused."""
    frame = pandas(columns, rows)
    for name, levels in (("town", [*TOWNS[::-1], "Wien"]), ("size", ["S", "M", "L"])):
        if name in frame:
            frame[name] = pd.Categorical(frame[name], levels)
    return frame


def polars_categories(columns, rows=slice(None)):
    frame = pl.from_pandas(pandas(columns, rows))
    return frame.with_columns(
        pl.col("town").cast(pl.Enum(TOWNS[::-1])), pl.col("size").cast(pl.Categorical)
    )


def arrow_dictionaries(columns, rows=slice(None)):
    table = pa.Table.from_pandas(pandas(columns, rows))
    for name in ("town", "size"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table


FRAMES = {
    "pandas": pandas,
    "pandas categories": pandas_categories,
    "pandas objects": lambda *given: pandas(*given).astype(
        {"town": object, "size": object}
    ),
    "polars": lambda *given: pl.from_pandas(pandas(*given)),
    "lazy polars": lambda *given: pl.from_pandas(pandas(*given)).lazy(),
    "polars categories": polars_categories,
    "Arrow": lambda *given: pa.Table.from_pandas(pandas(*given)),
    "Arrow dictionaries": arrow_dictionaries,
    "Arrow batch": lambda *given: pa.RecordBatch.from_pandas(pandas(*given)),
}
FEW = {"length_scale": 1.5, "random_state": 0}
ONE = {"kernel": "gaussian", "alpha": 0.1, "n_components": 64, "standardize": True}
ESTIMATORS = {
    "ridge": RFFRidge(features="fourier", **ONE, **FEW),
    "Nyström ridge": RFFRidge(features="nystrom", **ONE, **FEW),
    "linear ridge": RFFRidge("linear", alpha=0.1, random_state=0),
    "classifier": RFFClassifier(features="fourier", **ONE, **FEW),
    "k-means": RFFKMeans(3, n_components=64, **FEW),
    "PCA": RFFPCA(2, n_random_features=64, **FEW),
    "sampler": RFFSampler(n_components=64, **FEW),
    "exact k-means": KernelKMeans(3, standardize=True, **FEW),
}


def fit(name, X, **parameters):
    y = {"classifier": LABELS}.get(name, Y if "ridge" in name else None)
    return clone(ESTIMATORS[name]).set_params(**parameters).fit(X, y)


def outputs(model, X):
    methods = {"predict", "transform", "predict_proba"} & set(dir(model))
    return {method: getattr(model, method)(X) for method in sorted(methods)}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for method, values in found.items():
        assert_array_equal(values, expected[method], err_msg=method)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The same rows, ingested from a table."""
    folder = tmp_path_factory.mktemp("rows")
    pandas(COLUMNS).assign(y=Y).to_parquet(folder / "t.parquet")
    return ingest(folder / "t.parquet", folder / "rows", target="y")


@pytest.mark.parametrize(
    ("container", "name"), covering(list(FRAMES), list(ESTIMATORS), meet=1)
)
def test_a_frame_gives_the_bits_of_the_same_table_ingested(dataset, container, name):
    frame = FRAMES[container](COLUMNS)
    model = fit(name, frame)
    expected = clone(ESTIMATORS[name])
    if name == "classifier":
        expected.fit(dataset.without_targets(), LABELS)
    else:
        expected.fit(dataset)
    assert_same_bits(outputs(model, frame), outputs(expected, frame))
    whole = outputs(model, pandas(COLUMNS))
    assert_same_bits(outputs(model, frame), whole)
    rows = np.arange(0, N, 7)
    for method, found in outputs(model, FRAMES[container](COLUMNS, rows)).items():
        if found.dtype.kind != "f":
            assert_array_equal(found, whole[method][rows])
            continue
        # matrix products round by the number of rows worked on together
        assert_allclose(found, whole[method][rows], rtol=1e-9, atol=1e-7)
    assert model.feature_names_in_.tolist() == list(COLUMNS)
    assert model.n_features_in_ == len(COLUMNS)
    if hasattr(model, "feature_map_"):
        names = recipe_of(dataset.attributes).names
        assert model.feature_map_.n_features == len(names) > len(COLUMNS)


# -- what categories are for
# --------------------------------------------------------------------------------------


def test_a_level_that_was_never_seen_is_told_once_and_less_certain():
    model = fit("ridge", pandas(COLUMNS))
    later = pandas(COLUMNS, slice(0, 12))
    _, known = model.predict(later, return_std=True)
    later.loc[:4, "town"] = "Graz"
    for call in (
        lambda: model.predict(later, return_std=True)[1],
        lambda: np.ptp(model.predict_interval(later), axis=0),
    ):
        with pytest.warns(UserWarning, match=r"5 of 12 .*'town'.*'Graz'") as told:
            width = call()
        assert len(told) == 1
        assert (width[:5] > width[5:].max()).all()
        # where a town changes little, an unknown one is little less certain
        assert width[:5].mean() > 1.1 * width[5:].max()
    assert_allclose(
        model.predict(pandas(COLUMNS, slice(0, 12)), return_std=True)[1], known
    )


# -- which columns
# --------------------------------------------------------------------------------------


def test_numbers_in_a_frame_need_no_recipe():
    frame = pandas({name: COLUMNS[name] for name in ("width", "is_new")})
    model = fit("ridge", frame)
    assert "recipe" not in model.model_.card
    array = frame.to_numpy(np.float64)
    assert_same_bits(outputs(model, frame), outputs(fit("ridge", array), array))


CODES = RNG.integers(1, 5, N)
GIVEN = {
    "names": ["code"],
    "positions": [1],
    "a mask": [False, True],
    "an array": np.array([1]),
    "an array mask": np.array([False, True]),
}


@pytest.mark.parametrize("given", GIVEN)
def test_codes_are_categories_by_name_position_or_mask(given):
    numbers = pd.DataFrame({"width": COLUMNS["width"], "code": CODES})
    texts = numbers.astype({"code": str})
    expected = outputs(fit("ridge", texts), texts)
    model = fit("ridge", numbers, categorical_features=GIVEN[given])
    assert_same_bits(outputs(model, numbers), expected)
    assert not np.array_equal(
        fit("ridge", numbers).predict(numbers), expected["predict"]
    )
    if given != "names":
        array = numbers.to_numpy()
        model = fit("ridge", array, categorical_features=GIVEN[given])
        assert_same_bits(outputs(model, array.tolist()), expected)
        assert not hasattr(model, "feature_names_in_")
        save_model(model, scratch("codes"), overwrite=True)
        assert_same_bits(outputs(load_model(scratch("codes")), array), expected)


def test_numbers_of_a_type_of_categories_are_numbers_if_others_are_named():
    frame = pandas({"town": COLUMNS["town"], "width": COLUMNS["width"]})
    frame["code"] = pd.Categorical(CODES)
    model = fit("ridge", frame, categorical_features=["town"])
    assert list(recipe_of(model.model_.card).levels) == [0]
    assert list(recipe_of(fit("ridge", frame).model_.card).levels) == [0, 2]


def refit(X, given="from_dtype"):
    return lambda: fit("ridge", X, categorical_features=given)


def asked(X, method="predict"):
    return lambda: getattr(fit("ridge", pandas(COLUMNS)), method)(X)


TWO = pd.DataFrame({"width": COLUMNS["width"], "code": CODES})
HEAVY = TWO.assign(width=[1.5] * 7 + ["heavy"] + [2.5] * (N - 8))
GAP = TWO.assign(width=np.where(np.arange(N) == 7, np.nan, TWO["width"]))
MISSING = {**COLUMNS, "width": np.where(np.arange(N) == 7, np.nan, COLUMNS["width"])}
NO_DAY = {
    **COLUMNS,
    "day": np.where(np.arange(N) == 9, np.datetime64("NaT", "us"), COLUMNS["day"]),
}


@for_each_refusal(
    once(refit(TWO, ["colour"]), "categorical_features", "'colour'", "'code'"),
    once(refit(TWO, [1, 2]), "categorical_features", 2),
    once(refit(TWO, [-1]), "categorical_features", -1),
    once(refit(TWO, [True]), "categorical_features", 1, 2),
    once(refit(TWO, [1, "code"]), "categorical_features", "'code'"),
    once(refit(TWO, "code"), "categorical_features", "'code'", "from_dtype"),
    once(refit(TWO, 1), "categorical_features", 1),
    once(refit(TWO.to_numpy(), ["code"]), "categorical_features", "'code'"),
    once(
        refit(ArrayDataset(TWO.to_numpy(), Y), [1]),
        "categorical_features",
        "ArrayDataset",
    ),
    once(refit(dd.from_pandas(pandas(COLUMNS))), "town", "ingest", error=DataError),
    once(refit(pandas(COLUMNS), ["town"]), "'size'", error=DataError),
    once(refit(pandas(COLUMNS), None), "'town'", "'size'", "none", error=DataError),
    once(refit(pandas(COLUMNS), []), "'town'", "'size'", "none", error=DataError),
    once(refit(pandas(MISSING)), "row 7", "'width'", error=NotFiniteError),
    once(refit(pandas(NO_DAY)), "row 9", "'day'", error=NotFiniteError),
    once(asked(pandas(MISSING)), "row 7", "'width'", error=NotFiniteError),
    once(refit(HEAVY), "'width'", "1.5", "'heavy'", "[0, 7]", error=DataError),
    once(refit(dd.from_pandas(TWO.assign(t="x"))), "dates: 't", error=DataError),
    once(refit(dd.from_pandas(GAP)), "row 7", "'width'", error=NotFiniteError),
    once(
        lambda: fit("ridge", TWO).predict(TWO[["code", "width"]]),
        "X.select(['width', 'code'])",
        error=DataError,
    ),
    once(asked(TWO), "'town'", error=DataError),
    once(asked(pandas(COLUMNS).to_numpy()), "'town'", error=DataError),
    once(asked(np.zeros((3, len(COLUMNS)))), "'town'", error=DataError),
)
def test_what_is_wrong_is_named(call, error, names):
    with refuses(error, *names):
        call()


@pytest.mark.parametrize(("start", "n_levels"), [("id ", N), ("10", N), ("one", 1)])
def test_a_column_that_is_named_as_a_category_is_kept_with_any_levels(
    start, n_levels, tmp_path
):
    keys = [start] * N if n_levels == 1 else [f"{start}{i:03}" for i in range(N)]
    frame = pandas({"width": COLUMNS["width"], "key": keys})
    if start == "10":
        frame["key"] = frame["key"].astype(int)
    model = fit("ridge", frame, categorical_features=["key"])
    assert recipe_of(model.model_.card).levels == {
        1: tuple(sorted(set(map(str, keys))))
    }
    table = frame.assign(y=Y)
    stored = ingest_frame(table, tmp_path, "csv", target="y", categories=["key"])
    assert stored.feature_names == ("width", "key")
    # the type of a column names it in no list
    typed = frame.astype({"key": "category"})
    with pytest.warns(UserWarning, match="key: it"):
        assert not recipe_of(fit("ridge", typed).model_.card).levels


# -- around it
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ridge", "classifier", "k-means"])
def test_copies_and_stored_models_encode_the_same_frames(name):
    frame = pandas(COLUMNS)
    model = fit(name, frame)
    expected = outputs(model, frame)
    assert_same_bits(outputs(pickle.loads(pickle.dumps(model)), frame), expected)
    save_model(model, scratch(f"frames-{name}"))
    loaded = load_model(scratch(f"frames-{name}"))
    assert_same_bits(outputs(loaded, frame), expected)
    assert loaded.get_params() == model.get_params() | {"random_state": 0}


def test_a_fit_to_numbers_after_one_to_texts_takes_arrays():
    for name in ("ridge", "k-means"):
        model = fit(name, pandas(COLUMNS))
        array = TWO.to_numpy()
        model.fit(array, LABELS if name == "classifier" else Y)
        assert_same_bits(outputs(model, array), outputs(fit(name, array), array))


def test_searches_and_pipelines_take_frames_as_they_are():
    frame = pandas(COLUMNS)
    search = GridSearchCV(
        ESTIMATORS["ridge"], {"categorical_features": ["from_dtype", ["town", "size"]]}
    )
    scores = search.fit(frame, Y).cv_results_["mean_test_score"]
    assert scores[0] == scores[1]
    encoder = make_column_transformer(
        (OneHotEncoder(), ["town", "size"]), ("passthrough", ["width"])
    )
    piped = make_pipeline(encoder, clone(ESTIMATORS["ridge"])).fit(frame, Y)
    array = encoder.fit_transform(frame)
    assert_array_equal(
        piped.predict(frame), clone(ESTIMATORS["ridge"]).fit(array, Y).predict(array)
    )
    assert "recipe" not in piped[-1].model_.card


def test_a_pipeline_whose_model_encodes_texts_itself_is_not_stored_as_one():
    keeps = make_column_transformer(
        ("passthrough", ["town", "width"]), verbose_feature_names_out=False
    ).set_output(transform="pandas")
    piped = make_pipeline(keeps, clone(ESTIMATORS["ridge"])).fit(pandas(COLUMNS), Y)
    with refuses(InvalidParameterError, "town"):
        save_model(piped, scratch("twice"))


def test_a_model_of_a_frame_reports_on_a_frame(tmp_path):
    model = fit("ridge", pandas(COLUMNS))
    page = model.report(tmp_path / "page.html", pandas(COLUMNS), Y)
    assert "Köln" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("length_scale", "features"),
    [([0.1, 1.0], "fourier"), ([2.0, 30.0], "nystrom")],
    ids=str,
)
def test_a_level_never_seen_is_one_more_like_the_others(length_scale, features):
    """Wide length scales leave the intercept to the levels that were seen."""
    rng = np.random.default_rng(0)
    shop = np.arange(800) % 20
    x = rng.uniform(0, 3, 800)
    height = rng.normal(20, 5, 20)
    y = height[shop] + x + 0.2 * x**2 + 0.1 * rng.standard_normal(800)
    model = RFFRidge(
        "gaussian",
        length_scale=length_scale,
        features=features,
        n_components=256,
        random_state=0,
    )
    model.fit(pd.DataFrame({"shop": shop.astype(str), "x": x}), y)
    new = pd.DataFrame({"shop": ["new"] * 3, "x": [0.5, 1.5, 2.5]})
    with pytest.warns(UserWarning, match="new"):
        found, deviation = model.predict(new, return_std=True)
    assert_allclose(found, height.mean() + new.x + 0.2 * new.x**2, atol=0.2)
    assert_allclose(deviation, height.std(ddof=1), rtol=0.1)
    # by errors of rows held out, whose shops other folds knew
    assert model.model_.held_out is not None
    with pytest.warns(UserWarning, match="new"):
        lower, upper = model.predict_interval(new, coverage=0.9)
    assert_allclose((lower + upper) / 2, found)
    assert_allclose((upper - lower) / 2, 1.645 * height.std(ddof=1), rtol=0.1)


# -- columns of other kinds, and gaps


@pytest.mark.parametrize(
    ("values", "is_category"),
    [
        (pd.arrays.IntervalArray.from_breaks([0.5, 1.0, 2.0, 4.0]), False),
        (pd.period_range("2024-01", periods=3, freq="M"), True),
    ],
    ids=["intervals", "periods"],
)
def test_values_that_pandas_alone_knows_are_levels_by_their_texts(values, is_category):
    column = pd.Series(np.resize(values, N))
    if is_category:
        column = column.astype("category")
    column[5] = None
    frame = pandas({"width": COLUMNS["width"]})
    by_value = fit("ridge", frame.assign(part=column))
    texts = column.astype(object).map(str, na_action="ignore")
    by_text = fit("ridge", frame.assign(part=texts))
    kept = frame.assign(part=column)
    fit("ridge", kept)
    assert kept["part"].equals(column)
    assert by_value.model_.digest() == by_text.model_.digest()
    assert_array_equal(
        by_value.predict(frame.assign(part=column)),
        by_text.predict(frame.assign(part=texts)),
    )


@pytest.mark.parametrize(
    ("cell", "container"),
    covering(
        [[1.5, 2.0], ["a", "b"], {"a": 1}, b"a"],
        ["pandas", "polars", "pyarrow"],
        meet=1,
    ),
    ids=repr,
)
def test_cells_that_are_no_single_values_are_refused_by_column(cell, container):
    columns = {"width": COLUMNS["width"], "odd": [cell] * N}
    if container == "pandas":
        X = pd.DataFrame(columns)
    else:
        X = pa.table(columns)
        X = pl.from_arrow(X) if container == "polars" else X
    with refuses(DataError, "odd"):
        fit("ridge", X)


DAYS = pd.Series(COLUMNS["day"])
ZONED = DAYS.dt.tz_localize("America/Los_Angeles")
SPANS = DAYS - DAYS[0]


@pytest.mark.parametrize(
    ("fitted", "given", "advice"),
    [
        (ZONED, DAYS, "X['day'].dt.tz_localize("),
        (DAYS, ZONED, "X['day'].dt.tz_localize(None)"),
        (SPANS, SPANS.dt.total_seconds(), "pd.to_timedelta(X['day'], unit='s')"),
        (SPANS.dt.total_seconds(), SPANS, "X['day'].dt.total_seconds()"),
        (pd.Series([DAYS[0], *ZONED[1:]], dtype=object), None, "with and without zone"),
    ],
)
@pytest.mark.parametrize(
    "convert", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"]
)
def test_times_and_durations_that_mean_something_else_are_refused(
    fitted, given, advice, convert
):
    frame = pandas(COLUMNS)
    with refuses(DataError, "'day'", advice):
        model = fit("ridge", frame.assign(day=fitted))
        assert len(model.predict(frame.assign(day=fitted))) == N
        model.predict(convert(frame.assign(day=given)))


@pytest.mark.parametrize("name", ["width", "town"])
def test_columns_of_one_name_are_refused(name):
    frame = pandas(COLUMNS)
    with refuses(DataError, repr(name)):
        fit("ridge", pd.concat([frame[["width", "town"]], frame[[name]]], axis=1))


def test_dates_that_are_text_are_left_out_with_a_hint():
    frame = pandas(COLUMNS)
    frame["day"] = frame.day.dt.strftime("%Y-%m-%d")
    with pytest.warns(UserWarning, match="day.*dates.*to_datetime"):
        fit("ridge", frame)


def test_texts_that_are_numbers_but_for_one_are_left_out_with_a_hint():
    frame = pandas(COLUMNS)
    frame["day"] = [*np.arange(len(frame) - 1).astype(str), "n/a"]
    with pytest.warns(UserWarning, match="day.*but for 'n/a'.*to_numeric") as seen:
        fit("ridge", frame)
    _, advice, _ = str(seen[0].message).split("`")
    exec(advice, {"df": frame, "pd": pd})
    assert frame["day"].sum() == (N - 1) * (N - 2) / 2


def test_warnings_are_about_the_line_that_called_the_package():
    frame = pandas(COLUMNS)
    with pytest.warns(UserWarning, match="ticket") as seen:
        model = fit("ridge", frame.assign(ticket=np.arange(N).astype(str)))
    new = frame.assign(ticket="", town="Wien")
    with pytest.warns(UserWarning, match="Wien") as seen_later:
        model.predict(new)
    places = [warning.filename for warning in [*seen, *seen_later]]
    assert places == [__file__] * 2


# -- rows that are added


def shops(names, n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"shop": rng.choice(list(names), n), "x": rng.uniform(0, 30, n)}
    )
    effects = {"A": 0.0, "B": 10.0, "C": 20.0, "M": 500.0}
    return frame, 3 * frame.x + frame["shop"].map(effects) + rng.standard_normal(n)


def test_levels_that_partial_fit_sees_first_are_learned(tmp_path):
    model = plain_ridge(n_components=256)
    model.fit(*shops("ABC", 1000, 0))
    known = model.predict(pd.DataFrame({"shop": list("ABC"), "x": 10.0}))
    model.partial_fit(*shops("M", 300, 1))
    rows = pd.DataFrame({"shop": list("ABCM"), "x": 10.0})
    assert_allclose(model.predict(rows), [30, 40, 50, 530], atol=3)
    assert_allclose(model.predict(rows)[:3], known, atol=3)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.predict(rows), model.predict(rows))


@pytest.mark.parametrize("options", [{"features": "nystrom"}, {"kernel": "linear"}])
def test_features_that_cannot_learn_levels_say_so(tmp_path, options, caplog):
    model = plain_ridge(**{"n_components": 64, **options})
    model.fit(*shops("ABC", 500, 0))
    with pytest.warns(UserWarning, match="fourier"):
        model.partial_fit(*shops("M", 200, 1))
    save_model(model, tmp_path / "model")
    load_model(tmp_path / "model")
    # the same machine draws the same features again
    assert "stored features" not in caplog.text
