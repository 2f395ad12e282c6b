"""Texts that are numbers or dates: what is read of them, and the same from every kind
of table.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import open_dataset
from rff_dist.errors import DataError
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import Recipe, levels_of, recipe_of
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_frame, ingest_more, save

N = 60
NUMBERS = np.random.default_rng(0).uniform(1000, 10**6, N).round(2)


def english(value):
    return f"{value:,.2f}"


def german(value):
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


WRITTEN = {
    "english": english,
    "german": german,
    "french": lambda value: f"{value:,.2f}".replace(",", "\u202f").replace(".", ","),
    "swiss": lambda value: f"{value:,.2f}".replace(",", "'"),
    "dollars": lambda value: f"${value:,.2f}",
    "euros": lambda value: f"{german(value)} €",
    "percent": lambda value: f"{value} %",
}


OTHERS = ["parquet", "feather", "jsonl", "db"]


@pytest.mark.parametrize(
    ("written", "suffix"),
    [
        *itertools.product(WRITTEN, ["csv"]),
        *itertools.product(["english", "euros"], OTHERS),
    ],
)
def test_numbers_in_text_are_numbers_whatever_holds_them(tmp_path, written, suffix):
    texts = [WRITTEN[written](value) for value in NUMBERS]
    frame = pd.DataFrame({"price": texts, "x": texts, "k": ["a", "b"] * (N // 2)})
    dataset = ingest_frame(frame, tmp_path, suffix, target="price")
    assert_array_equal(all_rows(dataset).y[:, 0], NUMBERS)
    assert_array_equal(all_rows(dataset).X[:, 0], NUMBERS)
    (notes,) = dataset.attributes["recipe"]["notes"].values()
    assert any("'price', 'x'" in note and "read as numbers" in note for note in notes)
    recipe = Recipe.from_dict(dataset.attributes["recipe"])
    # one row, which alone could be read otherwise
    row = frame.assign(x=WRITTEN[written](1234).replace(".00", "").replace(",00", ""))[
        :1
    ]
    assert encode_table(recipe, row)[0, 0] == 1234
    save(row, "one.csv")
    assert all_rows(ingest("one.csv", "e", recipe=recipe)).X[0, 0] == 1234


def test_points_group_thousands_in_files_with_decimal_commas():
    frame = pd.DataFrame(
        {"x": np.linspace(0.125, 1.5, N), "n": np.arange(N) * 1000 + 1234, "few": 7}
    )
    shown = frame.assign(
        x=[str(x).replace(".", ",") for x in frame["x"]],
        n=[f"{n:,}".replace(",", ".") for n in frame["n"]],
    )
    dataset = ingest(save(shown, "t.csv", sep=";"), "d")
    assert_array_equal(all_rows(dataset).X, frame)
    # a column that had no point yet is read by the same notation
    save(shown[:1].assign(few="1.234"), "u.csv", sep=";")
    ingest_more("u.csv", "d")
    assert all_rows(open_dataset("d")).X[-1, 2] == 1234


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # in a file of commas or with types; see below for other files
        (["1,234"] * N, 1234),
        (["-$1,234.50"] * N, -1234.5),
        (["$-1,234.50", "12"] * (N // 2), -1234.5),
        (["1.5e3", "2.5"] * (N // 2), 1500),
        (["1,5", "-", "None", ""] * (N // 4), 1.5),
    ],
)
def test_what_is_a_number(tmp_path, texts, expected):
    frame = pd.DataFrame({"a": texts, "b": range(N)})
    dataset = ingest_frame(frame, tmp_path, "parquet", columns=["a"], impute="median")
    assert all_rows(dataset).X[0, 0] == expected
    absent = recipe_of(dataset.attributes).notations["a"].missing
    assert set(absent) == set(texts) & {"-", "None"}


def test_a_word_among_numbers_counts_as_missing_with_a_warning_that_names_its_row():
    texts = [*map(str, NUMBERS[1:]), "n/a?"]
    frame = pd.DataFrame({"a": texts[20:] + texts[:20], "b": range(N)})
    path = save(frame, "t.csv")
    row = texts[20:].index("n/a?") + 1
    with pytest.warns(
        UserWarning, match=rf"'a' .* 1 of .* {N} rows, 'n/a\?' in line {row + 1};"
    ):
        dataset = ingest(path, "d", impute="median-only")
    assert all_rows(dataset).X[row - 1, 0] == np.median(NUMBERS[1:])
    # as the warning advises, without one
    ingest(path, "e", impute="median-only", missing=["n/a?"])


def test_many_words_among_numbers_are_refused_until_they_are_said_to_mean_missing():
    texts = [*map(str, NUMBERS[:40]), *["unknown"] * 20]
    path = save(pd.DataFrame({"a": texts, "b": range(N)}), "t.csv")
    with refuses(
        DataError, "'a'", "20 of the first 60", "'unknown' in line 42", "missing"
    ):
        ingest(path, "d", impute="median-only")
    dataset = ingest(path, "d", impute="median-only", missing=["unknown"])
    assert all_rows(dataset).X[-1, 0] == np.median(NUMBERS[:40])


@pytest.mark.parametrize(
    "texts",
    [
        ["101", "102", "103"] * (N // 3),  # types say that these are codes
        ["$5", "€5"] * (N // 2),
        ["01067", "1.5"] * (N // 2),
        ["12", "12 apples"] * (N // 2),
        ["1,23,456"] * (N // 2) + ["1.5"] * (N // 2),
        ["1.2.3", "1.2.4"] * (N // 2),
    ],
)
def test_what_stays_text(tmp_path, texts):
    dataset = ingest_frame(pd.DataFrame({"a": texts}), tmp_path, "parquet")
    assert set(levels_of(dataset.attributes)[0]) == set(texts)


@pytest.mark.parametrize(
    ("late", "suffix", "place"),
    [("12 apples", "csv", "line 69992"), ("€ 5.00", "parquet", "row 69991")],
)
def test_a_later_text_that_does_not_fit_is_refused_with_its_row(
    tmp_path, late, suffix, place
):
    texts = [
        f"$ {value:,.2f}"
        for value in np.random.default_rng(0).uniform(0, 10**5, 70_000)
    ]
    texts[69_990] = late
    with refuses(
        DataError, f"t.{suffix}", place, "'price'", f"'{late}'", "number in $"
    ):
        ingest_frame(
            pd.DataFrame({"price": texts, "x": range(len(texts))}),
            tmp_path,
            suffix,
            target="price",
        )
    assert not Path("d").exists()


STYLES = [
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%d.%m.%Y",
    "%Y/%m/%d",
]


@pytest.mark.parametrize(
    ("style", "suffix"),
    [*itertools.product(STYLES, ["csv"]), *itertools.product(STYLES[:1], OTHERS)],
)
def test_dates_in_text_are_dates_whatever_holds_them(tmp_path, style, suffix):
    days = pd.Series(pd.date_range("2023-12-30", periods=N, freq="D"))
    frame = pd.DataFrame({"day": days.dt.strftime(style), "x": range(N)})
    dataset = ingest_frame(
        frame, tmp_path, suffix, columns=["day"], dates=["elapsed-days"]
    )
    since = (days - pd.Timestamp("1970-01-01")).dt.days
    assert_array_equal(all_rows(dataset).X[:, 0], since)
    recipe = recipe_of(dataset.attributes)
    for other in (
        frame,
        frame.assign(day=days),
        frame.assign(day=days.dt.strftime("%Y-%m-%d")),
    ):
        assert_array_equal(encode_table(recipe, other)[:, 0], since)


def test_zones_are_taken_into_account(tmp_path):
    texts = [
        "2024-01-01T12:00:00Z",
        "2024-01-01T12:00:00+12:00",
        "2024-01-01T12:00:00.123456789-0600",
    ]
    dataset = ingest_frame(
        pd.DataFrame({"when": texts}), tmp_path, "parquet", dates=["hour"]
    )
    assert_allclose(all_rows(dataset).X[:, 0], [12, 0, 18], rtol=1e-4)


def test_days_that_are_none_are_no_dates():
    texts = [f"2023-01-{day:02}" for day in range(1, 31)] * 40
    save(pd.DataFrame({"day": texts, "x": 1.0}), "t.parquet")
    recipe = recipe_of(ingest("t.parquet", "d", columns=["day"]).attributes)
    with refuses(DataError, "3", "'day'", "'2023-02-29'"):
        encode_table(recipe, pd.DataFrame({"day": ["2023-02-01", None, "2023-02-29"]}))
