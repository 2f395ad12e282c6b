"""What text, dates and missing values become; scikit-learn's imputers and pandas are
the oracle.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.impute import SimpleImputer

from rff_dist import open_dataset
from rff_dist.data.columns import MISSING
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.encoders import Category
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import Recipe, levels_of, recipe_of
from rff_dist.storage.columns import open_column
from rff_dist.workbench.tables.corrections import correct
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
            "when": (
                pd.Timestamp("2020-01-01")
                + pd.to_timedelta(rng.integers(0, 10**6, n), "min")
            ),
            "area": rng.standard_normal(n),
            "sold": rng.integers(0, 2, n).astype(bool),
            "order": [f"o{i}" for i in range(n)],
        }
    )
    frame["price"] = frame["town"].str[5:].astype(float) + rng.standard_normal(n)
    return frame


def values_in(url, name):
    return set(open_column(url, name).array[:].tolist())


def texts_in(dataset, name):
    """Return a column's codes as the texts of their levels."""
    at = dataset.feature_names.index(name)
    levels = levels_of(dataset.attributes)[at]
    return [levels[int(code)] for code in all_rows(dataset).X[:, at]]


class TestLevels:
    @pytest.mark.parametrize("kind", ["csv", "feather", "parquet", "jsonl", "db"])
    def test_are_the_texts_again(self, tmp_path, frame, kind):
        frame = frame[["colour", "town", "price"]].assign(site=np.arange(3000) % 7)
        dataset = ingest_frame(
            frame, tmp_path, kind, target="price", categories=["site"]
        )
        for name in ("colour", "town", "site"):
            assert texts_in(dataset, name) == list(frame[name].astype(str))
        for levels in levels_of(dataset.attributes).values():
            assert list(levels) == sorted(levels)

    def test_that_are_all_different_are_left_out_and_said(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, target="price")
        left_out = dataset.attributes["recipe"]["left_out"]
        assert list(left_out) == ["order"]
        assert "3,000 in 3,000 rows" in left_out["order"]

    @pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "db"])
    @pytest.mark.parametrize("values", [int, str, float])
    def test_of_whole_numbers_are_the_same_from_any_container(self, kind, values):
        """A missing value makes pandas write 5 as 5.0."""
        codes = pd.Series([5, 12, 5, 7] * 10).astype(values)
        if values is float:
            codes[2] = np.nan
        table = pd.DataFrame({"zip": codes, "y": 1.0})
        dataset = ingest(save(table, f"t.{kind}"), "d", target="y", categories=["zip"])
        missing = [MISSING] if values is float else []
        assert levels_of(dataset.attributes) == {
            0: tuple(sorted([*missing, "5", "12", "7"]))
        }

    def test_with_zeros_in_front_are_others(self):
        Path("t.csv").write_text("zip,y\n" + "05,1\n5,1\n" * 5)
        dataset = ingest("t.csv", "d", target="y", categories=["zip"])
        assert texts_in(dataset, "zip") == ["05", "5"] * 5

    @pytest.mark.parametrize(("names", "shown"), [(["zipp"], "'zipp'"), (["y"], "'y'")])
    def test_of_no_column_of_X_are_refused(self, names, shown):
        path = save(pd.DataFrame({"zip": [1, 2] * 5, "y": 1.0}), "t.csv")
        with refuses(InvalidParameterError, "categories", shown):
            ingest(path, "d", target="y", categories=names)


class TestLaterLevels:
    """Rows that come later add levels at the end of the list."""

    def test_join_at_the_end_and_change_no_code(self, frame):
        first = frame[["colour", "town", "area"]].copy()
        later = first[:40].assign(colour=["grey", "red", None, "azure"] * 10)
        before = ingest(save(first, "1.parquet"), "d", columns=["colour", "town"])
        levels = levels_of(before.attributes)
        codes = all_rows(before).X
        found = ingest_more(save(later, "2.parquet"), "d")
        after = open_dataset("d")
        np.testing.assert_array_equal(all_rows(after).X[:3000], codes)
        names = [*first["colour"], *later["colour"].fillna(MISSING)]
        assert texts_in(after, "colour") == names
        assert levels_of(after.attributes) == {
            0: (*levels[0], MISSING, "azure", "grey"),
            1: levels[1],
        }
        assert [
            (one["column"], one["what"], one["n_rows"]) for one in found.unlike
        ] == [("colour", "unseen level", 20), ("colour", "missing", 10)]
        # the version before has the list of before
        assert levels_of(open_dataset("d", version=before.version).attributes) == levels
        # known ever after
        assert not ingest_more(save(later[:8], "3.parquet"), "d").unlike

    def test_of_a_load_that_is_refused_do_not_join(self, frame):
        first = frame[["colour", "area"]]
        save(first, "1.csv")
        ingest("1.csv", "d", columns=["colour", "area"])
        broken = first[:9].assign(colour="grey", area=[1.0] * 8 + [np.nan])
        with refuses(DataError, "line 10", "'area'"):
            ingest_more(save(broken, "2.csv"), "d")
        assert "grey" not in levels_of(open_dataset("d").attributes)[0]

    def test_of_corrected_rows_join_too(self, frame):
        ingest(save(frame, "1.csv"), "d", columns=["colour", "area"])
        fixed = pd.DataFrame({"row": [5, 2], "colour": ["grey", "blue"], "area": 1.5})
        correct(save(fixed, "2.csv"), "d", by="row")
        expected = frame["colour"].copy()
        expected[[5, 2]] = ["grey", "blue"]
        assert texts_in(open_dataset("d"), "colour") == list(expected)

    def test_of_rows_by_a_given_recipe_come_after_its_own(self, frame):
        source = save(frame, "1.csv")
        given = recipe_of(ingest(source, "d", columns=["colour"]).attributes)
        later = frame[:6].assign(colour=["grey", "red"] * 3)
        found = ingest(save(later, "2.csv"), "e", recipe=given)
        assert levels_of(found.attributes) == {0: (*given.levels[0], "grey")}
        assert texts_in(found, "colour") == ["grey", "red"] * 3

    def test_of_held_out_rows_are_theirs_only(self, frame):
        frame.loc[:1, "colour"] = ["grey", "azure"]
        source = save(frame, "t.feather")
        train, test = ingest_parts(
            source, ("d", "e"), 0.5, by="when", columns=["colour"]
        )
        known, more = (levels_of(part.attributes)[0] for part in (train, test))
        is_late = frame["when"] >= frame["when"].sort_values().iloc[train.n_samples]
        assert set(known) == set(frame["colour"][~is_late])
        assert more[: len(known)] == known
        assert texts_in(test, "colour") == list(frame["colour"][is_late])


class TestMissingValues:
    @pytest.mark.parametrize("how", ["median", "mean", "median-only", "most-frequent"])
    def test_become_what_imputers_make_of_them(self, tmp_path, frame, how):
        frame["area"] = frame["area"].round(1).where(np.arange(3000) % 7 > 0)
        frame["sold"] = frame["sold"].astype("boolean").where(np.arange(3000) % 11 > 0)
        dataset = ingest_frame(frame, tmp_path, columns=["area", "sold"], impute=how)
        # the places that were missing stand in further columns
        is_marked = how in ("median", "mean")
        strategy = "median" if how == "median-only" else how.replace("-", "_")
        imputer = SimpleImputer(strategy=strategy, add_indicator=is_marked)
        values = (
            frame[["area", "sold"]]
            .astype("Float64")
            .to_numpy(np.float64, na_value=np.nan)
        )
        expected = imputer.fit_transform(values)
        expected = expected[:, [0, 2, 1, 3]] if is_marked else expected
        assert_allclose(all_rows(dataset).X, expected, rtol=1e-12)
        names = ("area", "area: missing", "sold", "sold: missing")
        assert dataset.feature_names == (names if is_marked else names[::2])

    @pytest.mark.parametrize(("n_missing", "is_marked"), [(30, False), (31, True)])
    def test_are_marked_above_one_percent(self, tmp_path, frame, n_missing, is_marked):
        for name in ("area", "when"):
            frame[name] = frame[name].where(np.arange(3000) >= n_missing)
        dataset = ingest_frame(
            frame[["area", "when"]], tmp_path, impute="median", dates=["year"]
        )
        marks = ("area: missing", "when: missing") if is_marked else ()
        assert set(dataset.feature_names) == {"area", "when: year", *marks}
        recipe = Recipe.from_dict(dataset.attributes["recipe"])
        when = pa.array([None, 0], pa.timestamp("us"))
        new = recipe.encode(pa.record_batch({"area": [None, 1.0], "when": when}))
        assert np.isfinite(new).all()
        if is_marked:
            at = [recipe.names.index(mark) for mark in marks]
            assert_array_equal(new[:, at], [[1, 1], [0, 0]])

    @pytest.mark.parametrize("how", ["none", "median", "most-frequent"])
    def test_of_text_are_a_level(self, tmp_path, frame, how):
        frame["colour"] = frame["colour"].where(np.arange(3000) % 5 > 0)
        dataset = ingest_frame(frame, tmp_path, columns=["colour"], impute=how)
        assert texts_in(dataset, "colour") == list(frame["colour"].fillna(MISSING))

    def test_medians_of_more_rows_are_off_by_a_percent_of_ranks(self, tmp_path):
        values = np.random.default_rng(0).permutation(100_000).astype(float)
        values[0] = np.nan
        recipe = recipe_of(
            ingest_frame(
                pd.DataFrame({"a": values}), tmp_path, impute="median"
            ).attributes
        )
        # 4 deviations of 0.5/√4096
        assert abs(recipe.columns[0].fill - 50_000) < 0.03 * 100_000


class TestDates:
    def test_have_the_parts_that_pandas_has(self, tmp_path, frame):
        parts = ["year", "month", "day-of-year", "weekday", "hour", "elapsed-days"]
        dataset = ingest_frame(frame, tmp_path, columns=["when"], dates=parts)
        when = frame["when"].dt
        since = (frame["when"] - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D")
        hour = when.hour + when.minute / 60
        expected = [
            when.year,
            when.month,
            when.day_of_year,
            when.day_of_week,
            hour,
            since,
        ]
        assert_allclose(all_rows(dataset).X, np.column_stack(expected), rtol=1e-14)

    def test_parts_that_do_not_vary_are_left_out(self, tmp_path):
        days = pd.date_range("2020-01-06", periods=4, freq="7D")
        dataset = ingest_frame(pd.DataFrame({"day": days, "same": days[0]}), tmp_path)
        assert dataset.feature_names == ("day: elapsed-days", "day: day-of-year")
        assert dataset.attributes["recipe"]["left_out"] == {
            "same": "it holds one value only"
        }


class TestRecipes:
    def test_are_the_same_after_json(self, tmp_path, frame):
        dataset = ingest_frame(frame, tmp_path, target="price", impute="mean")
        recipe = recipe_of(dataset.attributes)
        again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        batch = pa.RecordBatch.from_pandas(frame)
        assert_array_equal(again.encode(batch), recipe.encode(batch))
        assert again.digest() == recipe.digest()
        assert again.names == list(dataset.feature_names)

    def test_make_of_appended_rows_what_they_made_before(self, tmp_path, frame):
        whole = ["colour", "when", "area"]
        dates = {"dates": ["elapsed-days"]}
        ingest(save(frame, "t.feather"), "w", columns=whole, **dates)
        ingest(save(frame[:2000], "1.feather"), "d", columns=whole, **dates)
        frame[2000:].to_csv("2.csv", index=False)
        found = ingest_more("2.csv", "d")
        assert (found.n_before, found.n_after) == (2000, 3000)
        d, w = (all_rows(open_dataset(tmp_path / name)).X for name in "dw")
        assert_array_equal(d, w)

    def test_of_rows_held_out_hold_nothing_of_them(self, tmp_path, frame):
        source = save(frame, "t.feather")
        options = {"target": "price", "id": "order"}
        train, test = ingest_parts(source, ("d", "e"), 0.25, **options)
        ids = [values_in(tmp_path / name, "id") for name in "de"]
        assert not ids[0] & ids[1]
        assert ids[0] | ids[1] == set(frame["order"])
        assert 600 < test.n_samples < 900  # 750, and 6 deviations of 24
        kept = frame[frame["order"].isin(ids[0])]
        assert set(levels_of(train.attributes)[0]) == set(kept["town"])

    @pytest.mark.parametrize(
        ("share", "n_rows", "named"),
        [
            (0.001, 1, ["no row is held out"]),
            (0.999, 1, ["no row is left"]),
            (0.001, 3000, ["line 3001", "'x'"]),  # of those to train on
        ],
    )
    def test_are_both_there_or_neither(self, tmp_path, share, n_rows, named):
        lines = [
            "x,y",
            *("1,2" for _ in range(min(n_rows, 2999))),
            *([",2"] if n_rows > 1 else []),
        ]
        Path("t.csv").write_text("\n".join(lines))
        with refuses(DataError, *named):
            ingest_parts("t.csv", ("d", "e"), share, target="y")
        assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]

    def test_groups_are_held_out_whole(self, tmp_path, frame):
        source = save(frame, "t.feather")
        options = {"target": "price", "groups": "town", "columns": ["area"]}
        ingest_parts(source, ("d", "e"), 0.3, **options)
        towns = [values_in(tmp_path / name, "groups") for name in "de"]
        assert not towns[0] & towns[1]
        assert len(towns[0] | towns[1]) == 300

    @pytest.mark.parametrize("dropped", [(), ("day",)])
    @pytest.mark.parametrize("kind", ["csv", "parquet", "db"])
    def test_no_row_to_train_on_is_later_than_a_row_to_test_on(self, kind, dropped):
        n = 400
        numbers = np.random.default_rng(0).permutation(n)
        # Three rows a day, and rows of one day are in one part.
        days = pd.Timestamp("1968-12-01") + pd.to_timedelta(numbers // 3, "D")
        # SQLite has no dates, and a query is read once
        days = numbers // 3 if kind == "db" else days
        table = pd.DataFrame({"day": days, "x": numbers.astype(float), "y": 1.0})
        urls = Path("d"), Path("e")
        source = save(table, f"t.{kind}")
        train, test = ingest_parts(
            source, urls, 0.25, by="day", target="y", drop=dropped
        )
        at = train.feature_names.index("x")
        train_days, test_days = (all_rows(one).X[:, at] // 3 for one in (train, test))
        assert train_days.max() < test_days.min()
        assert train.n_samples + test.n_samples == n
        assert abs(test.n_samples - n / 4) <= 3

    def test_rows_that_have_no_order_are_refused_or_named(self, caplog):
        path = Path("t.csv")
        path.write_text(
            "when,town,x,y\n" + "1,a,1,1\n" * 5 + "2,b,1,1\n" * 2 + ",b,1,1\n" * 3
        )
        urls = Path("d"), Path("e")
        given = {"target": "y", "columns": ["x"]}
        train, test = ingest_parts(path, urls, 0.01, by="when", **given)
        assert (train.n_samples, test.n_samples) == (8, 2)
        assert "3 rows have no value in 'when' and are trained on" in caplog.text
        for by, said in (
            ("town", "'town' holds text"),
            ("x", "1 distinct values in 10 rows"),
        ):
            with refuses(DataError, said):
                ingest_parts(path, ("f", "g"), 0.2, by=by, **given)
        with refuses(InvalidParameterError, "holdout_by", "'wen'", "'when'"):
            ingest_parts(path, ("f", "g"), 0.2, by="wen", **given)


def test_levels_that_a_model_does_not_know_are_counted_and_named():
    recipe = Recipe([Category("town", ["Bonn", "Ulm"])])
    encode_table(recipe, pa.table({"town": ["Bonn", "Ulm"]}))
    with pytest.warns(UserWarning, match=r"3 of 4 .*'town'.*'Rom' \(2\)"):
        encode_table(recipe, pa.table({"town": ["Rom", "Rom", "Ulm", None]}))
