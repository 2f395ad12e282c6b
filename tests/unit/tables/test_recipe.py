"""What text, dates and missing values become; scikit-learn's encoders are the oracle."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, TargetEncoder

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.recipes import Recipe, recipe_of
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import open_dataset
from rff_dist.workbench.tables.learn import fold_of_rows
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_frame, ingest_more, ingest_parts, save


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    n = 3000
    frame = pd.DataFrame(
        {
            "town": rng.choice([f"town {i}" for i in range(300)], n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**6, n), "min"),
            "area": rng.standard_normal(n),
            "sold": rng.integers(0, 2, n).astype(bool),
            "order": [f"o{i}" for i in range(n)],
        }
    )
    frame["price"] = frame["town"].str[5:].astype(float) + rng.standard_normal(n)
    return frame


def values_in(url, name):
    return set(open_column(url, name).array[:].tolist())


class TestLevels:
    def test_become_what_one_hot_encoders_make_of_them(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, columns=["colour"])
        expected = OneHotEncoder(sparse_output=False).fit_transform(frame[["colour"]])
        np.testing.assert_array_equal(all_rows(dataset).X, expected)
        assert dataset.dtype == np.float32

    def test_above_a_hundred_without_targets_share_a_column(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, columns=["town"])
        counts = frame["town"].value_counts()
        assert all_rows(dataset).X.shape == (3000, 101)
        kept = [name.removeprefix("town=") for name in dataset.feature_names[:-1]]
        assert counts[kept].min() >= counts.drop(kept).max()
        np.testing.assert_array_equal(all_rows(dataset).X[:, -1], ~frame["town"].isin(kept))

    @pytest.mark.parametrize("target", ["price", "sold", "colour"])
    def test_become_the_means_of_target_encoders(self, tmp_path, frame, target):
        """scikit-learn's formula in another order of sums: equal up to rounding."""
        dataset = ingest_frame(frame, tmp_path, target=target, columns=["town"])
        kind = {"price": "continuous", "sold": "binary", "colour": "multiclass"}[target]
        X, y = frame[["town"]], frame[target].to_numpy()
        folds, found = fold_of_rows(0, len(frame)), all_rows(dataset).X
        for fold in range(5):
            others = folds != fold
            oracle = TargetEncoder(target_type=kind).fit(X[others], y[others])
            np.testing.assert_allclose(found[~others], oracle.transform(X[~others]), rtol=1e-9, atol=1e-12)
        recipe, whole = recipe_of(dataset.attributes), TargetEncoder(target_type=kind).fit(X, y)
        new = pd.DataFrame({"town": ["town 7", "nowhere"]})
        encoded = recipe.encode(pa.RecordBatch.from_pandas(new))
        np.testing.assert_allclose(encoded, whole.transform(new), rtol=1e-9)

    def test_a_mean_holds_nothing_of_its_own_row(self, tmp_path):
        """On noise the means of all rows would predict the targets they were made of."""
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"k": rng.integers(0, 900, 3000).astype(str), "y": rng.standard_normal(3000)})
        dataset = ingest_frame(frame, tmp_path, target="y", categories="target")
        assert abs(np.corrcoef(all_rows(dataset).X[:, 0], frame["y"])[0, 1]) < 0.1  # 5 deviations of 1/√3000

    def test_that_are_all_different_are_left_out_and_said(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, target="price")
        left_out = dataset.attributes["recipe"]["left_out"]
        assert left_out == {"order": "its texts rarely come twice: 3,000 in 3,000 rows"}

    def test_that_are_new_have_their_place(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, columns=["colour"])
        recipe = recipe_of(dataset.attributes)
        encoded = recipe.encode(pa.record_batch({"colour": ["pink", "red", None, ""]}))
        np.testing.assert_array_equal(encoded, [[0, 0, 0], [0, 0, 1], [np.nan] * 3, [np.nan] * 3])


class TestMissingValues:
    @pytest.mark.parametrize("how", ["median", "mean", "median-only", "most-frequent"])
    def test_become_what_imputers_make_of_them(self, tmp_path, frame, how):
        frame["area"] = frame["area"].round(1).where(np.arange(3000) % 7 > 0)
        frame["sold"] = frame["sold"].astype("boolean").where(np.arange(3000) % 11 > 0)
        dataset = ingest_frame(frame, tmp_path, columns=["area", "sold"], impute=how)
        is_marked = how in ("median", "mean")  # the places that were missing stand in further columns
        strategy = "median" if how == "median-only" else how.replace("-", "_")
        imputer = SimpleImputer(strategy=strategy, add_indicator=is_marked)
        values = frame[["area", "sold"]].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        expected = imputer.fit_transform(values)
        expected = expected[:, [0, 2, 1, 3]] if is_marked else expected
        np.testing.assert_allclose(all_rows(dataset).X, expected, rtol=1e-12)
        names = ("area", "area: missing", "sold", "sold: missing")
        assert dataset.feature_names == (names if is_marked else names[::2])

    @pytest.mark.parametrize(("n_missing", "is_marked"), [(30, False), (31, True)])
    def test_are_marked_above_one_percent(self, tmp_path, frame, n_missing, is_marked):
        for name in ("area", "when"):
            frame[name] = frame[name].where(np.arange(3000) >= n_missing)
        dataset = ingest_frame(frame[["area", "when"]], tmp_path, impute="median", dates=["year"])
        marks = ("area: missing", "when: missing") if is_marked else ()
        assert set(dataset.feature_names) == {"area", "when: year", *marks}
        recipe = Recipe.from_dict(dataset.attributes["recipe"])
        when = pa.array([None, 0], pa.timestamp("us"))
        new = recipe.encode(pa.record_batch({"area": [None, 1.0], "when": when}))
        assert np.isfinite(new).all()
        if is_marked:
            at = [recipe.names.index(mark) for mark in marks]
            np.testing.assert_array_equal(new[:, at], [[1, 1], [0, 0]])

    def test_of_text_are_a_level_or_the_most_frequent_one(self, tmp_path, frame):
        frame["colour"] = frame["colour"].where(np.arange(3000) % 5 > 0)
        source = save(frame, tmp_path / "t.feather")
        dataset = ingest(source, tmp_path / "d", columns=["colour"], impute="median")
        np.testing.assert_array_equal(all_rows(dataset).X[:, 0], frame["colour"].isna())
        most = frame["colour"].mode()[0]
        dataset = ingest(source, tmp_path / "e", columns=["colour"], impute="most-frequent")
        at = dataset.feature_names.index(f"colour={most}")
        np.testing.assert_array_equal(all_rows(dataset).X[:, at], frame["colour"].fillna(most) == most)
        with refuses(DataError, "1", "'colour'"):
            ingest(source, tmp_path / "f", columns=["colour"])

    def test_are_counted_in_what_people_read(self, tmp_path, frame):
        n_missing = {"town": 4, "colour": 5, "when": 6, "area": 7}
        for name, n in n_missing.items():
            frame[name] = frame[name].where(np.arange(3000) >= n)
        dataset = ingest_frame(frame, tmp_path, columns=[*n_missing], target="price", impute="median")
        recipe = Recipe.from_dict(dataset.attributes["recipe"])
        assert [type(part).__name__ for part in recipe.columns] == ["TargetMeans", "OneHot", "Date", "Number"]
        for part in recipe.columns:
            assert f"{n_missing[part.column]} missing" in part.words

    def test_medians_of_more_rows_are_off_by_a_percent_of_ranks(self, tmp_path):
        values = np.random.default_rng(0).permutation(100_000).astype(float)
        values[0] = np.nan
        recipe = recipe_of(ingest_frame(pd.DataFrame({"a": values}), tmp_path, impute="median").attributes)
        assert abs(recipe.columns[0].fill - 50_000) < 0.03 * 100_000  # 4 deviations of 0.5/√4096


class TestDates:
    def test_have_the_parts_that_pandas_has(self, tmp_path, frame):
        parts = ["year", "month", "day-of-year", "weekday", "hour", "elapsed-days"]
        dataset = ingest_frame(frame, tmp_path, columns=["when"], dates=parts)
        when = frame["when"].dt
        since = (frame["when"] - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D")
        hour = when.hour + when.minute / 60
        expected = [when.year, when.month, when.day_of_year, when.day_of_week, hour, since]
        np.testing.assert_allclose(all_rows(dataset).X, np.column_stack(expected), rtol=1e-14)

    def test_parts_that_do_not_vary_are_left_out(self, tmp_path):
        days = pd.date_range("2020-01-06", periods=4, freq="7D")
        dataset = ingest_frame(pd.DataFrame({"day": days, "same": days[0]}), tmp_path)
        assert dataset.feature_names == ("day: elapsed-days", "day: day-of-year")
        assert dataset.attributes["recipe"]["left_out"] == {"same": "it holds one value only"}

    def test_unknown_parts_are_refused(self, tmp_path, frame):
        with refuses(InvalidParameterError, "'elapsed-days'"):
            ingest_frame(frame, tmp_path, dates=["century"])


class TestRecipes:
    def test_are_the_same_after_json(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, target="price", impute="mean")
        recipe = recipe_of(dataset.attributes)
        again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        batch = pa.RecordBatch.from_pandas(frame)
        np.testing.assert_array_equal(again.encode(batch), recipe.encode(batch))
        assert again.digest() == recipe.digest()
        assert again.names == list(dataset.feature_names)

    def test_make_of_appended_rows_what_they_made_before(self, tmp_path, frame):
        whole = ["colour", "when", "area"]
        dates = {"dates": ["elapsed-days"]}
        ingest(save(frame, tmp_path / "t.feather"), tmp_path / "w", columns=whole, **dates)
        ingest(save(frame[:2000], tmp_path / "1.feather"), tmp_path / "d", columns=whole, **dates)
        frame[2000:].to_csv(tmp_path / "2.csv", index=False)
        found = ingest_more(tmp_path / "2.csv", tmp_path / "d")
        assert (found.n_before, found.n_after) == (2000, 3000)
        d, w = (all_rows(open_dataset(tmp_path / name)).X for name in "dw")
        np.testing.assert_array_equal(d, w)

    def test_of_rows_held_out_hold_nothing_of_them(self, tmp_path, frame):
        source = save(frame, tmp_path / "t.feather")
        options = {"target": "price", "id": "order"}
        train, test = ingest_parts(source, (tmp_path / "d", tmp_path / "e"), 0.25, **options)
        ids = [values_in(tmp_path / name, "id") for name in "de"]
        assert not ids[0] & ids[1]
        assert ids[0] | ids[1] == set(frame["order"])
        assert 600 < test.n_samples < 900  # 750, and 6 deviations of 24
        kept = frame[frame["order"].isin(ids[0])]
        oracle = TargetEncoder(target_type="continuous").fit(kept[["town"]], kept["price"])
        of_test = frame[frame["order"].isin(ids[1])]
        at = train.feature_names.index("town: mean")
        found, expected = all_rows(test).X[:, at], oracle.transform(of_test[["town"]])[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert test.attributes["recipe"] == train.attributes["recipe"]

    @pytest.mark.parametrize(
        ("share", "n_rows", "named"),
        [
            (0.001, 1, ["no row is held out"]),
            (0.999, 1, ["no row is left"]),
            (0.001, 3000, ["row 3000", "'x'"]),  # of those to train on
        ],
    )
    def test_are_both_there_or_neither(self, tmp_path, share, n_rows, named):
        lines = ["x,y", *("1,2" for _ in range(min(n_rows, 2999))), *([",2"] if n_rows > 1 else [])]
        (tmp_path / "t.csv").write_text("\n".join(lines))
        with refuses(DataError, *named):
            ingest_parts(tmp_path / "t.csv", (tmp_path / "d", tmp_path / "e"), share, target="y")
        assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]

    def test_groups_are_held_out_whole(self, tmp_path, frame):
        source = save(frame, tmp_path / "t.feather")
        options = {"target": "price", "groups": "town", "columns": ["area"]}
        ingest_parts(source, (tmp_path / "d", tmp_path / "e"), 0.3, **options)
        towns = [values_in(tmp_path / name, "groups") for name in "de"]
        assert not towns[0] & towns[1]
        assert len(towns[0] | towns[1]) == 300

    @pytest.mark.parametrize("dropped", [(), ("day",)])
    @pytest.mark.parametrize("kind", ["csv", "parquet", "db"])
    def test_no_row_to_train_on_is_later_than_a_row_to_test_on(self, tmp_path, kind, dropped):
        n = 400
        numbers = np.random.default_rng(0).permutation(n)
        # Three rows a day, and rows of one day are in one part.
        days = pd.Timestamp("1968-12-01") + pd.to_timedelta(numbers // 3, "D")
        days = numbers // 3 if kind == "db" else days  # SQLite has no dates, and a query is read once
        table = pd.DataFrame({"day": days, "x": numbers.astype(float), "y": 1.0})
        urls = tmp_path / "d", tmp_path / "e"
        source = save(table, tmp_path / f"t.{kind}")
        train, test = ingest_parts(source, urls, 0.25, by="day", target="y", drop=dropped)
        at = train.feature_names.index("x")
        train_days, test_days = (all_rows(one).X[:, at] // 3 for one in (train, test))
        assert train_days.max() < test_days.min()
        assert train.n_samples + test.n_samples == n
        assert abs(test.n_samples - n / 4) <= 3

    def test_rows_that_have_no_order_are_refused_or_named(self, tmp_path, caplog):
        path = tmp_path / "t.csv"
        path.write_text("when,town,x,y\n" + "1,a,1,1\n" * 5 + "2,b,1,1\n" * 2 + ",b,1,1\n" * 3)
        urls = tmp_path / "d", tmp_path / "e"
        given = {"target": "y", "columns": ["x"]}
        train, test = ingest_parts(path, urls, 0.01, by="when", **given)
        assert (train.n_samples, test.n_samples) == (8, 2)
        assert "3 rows have no value in 'when' and are trained on" in caplog.text
        for by, said in (("town", "'town' holds text"), ("x", "1 distinct values in 10 rows")):
            with refuses(DataError, said):
                ingest_parts(path, (tmp_path / "f", tmp_path / "g"), 0.2, by=by, **given)
        with refuses(InvalidParameterError, "holdout_by", "'wen'", "'when'"):
            ingest_parts(path, (tmp_path / "f", tmp_path / "g"), 0.2, by="wen", **given)

    def test_a_choice_at_random_from_a_table_with_dates_is_said(self, tmp_path, frame, caplog):
        source = save(frame, tmp_path / "t.feather")
        ingest_parts(source, (tmp_path / "d", tmp_path / "e"), 0.25, target="price")
        assert "chosen at random, although the table has dates ('when')" in caplog.text
        caplog.clear()
        ingest_parts(source, (tmp_path / "f", tmp_path / "g"), 0.25, by="when", target="price")
        assert "at random" not in caplog.text
