"""CSV files as people write them; pandas, which is told how, is the oracle."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.recipes import recipe_of
from rff_dist.storage.columns import open_column
from rff_dist.workbench.tables.csv_files import has_names
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_more


@pytest.fixture
def numbers():
    return pd.DataFrame(
        np.random.default_rng(0).standard_normal((200, 3)), columns=["a", "b", "c d"]
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("decimal", [".", ","])
def test_delimiter_header_and_decimal_point_are_found(
    numbers, delimiter, header, decimal
):
    if decimal == "," and delimiter in ", ":
        pytest.skip("ambiguous")
    numbers.to_csv("t.csv", sep=delimiter, header=header, decimal=decimal, index=False)
    dataset = ingest("t.csv", "d")
    assert_array_equal(all_rows(dataset).X, numbers)
    assert dataset.feature_names == (tuple(numbers) if header else ("0", "1", "2"))
    assert bool(dataset.attributes["recipe"]["notes"]) == (
        not header or delimiter != ","
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([["x", "y"], ["1", "2"]], True),
        ([["1", "2"], ["3", "4"]], False),
        ([["name", "2019"], ["x", "5"]], False),
        ([["name", "total", "2019"], ["x", "5", "6"]], True),
        ([["5.1", "setosa"], ["4.9", "setosa"]], False),
        ([["red", "x"], ["blue", "y"], ["red", "z"]], False),
        ([["colour", "name"], ["blue", "y"], ["red", "z"]], True),
        ([["0", "1", "2"], ["7", "8", "9"]], True),
        ([["?", "1"], ["2", "3"]], False),
        ([["", "a"], ["0", "2"]], True),
        ([["2020-01-01", "x"], ["2020-01-02", "y"]], False),
    ],
)
def test_names_are_told_from_values(rows, expected):
    assert has_names(rows) == expected


def test_other_encodings_are_said():
    frame = pd.DataFrame({"город": ["Москва", "Омск"] * 9, "y": range(18)})
    frame.to_csv("t.csv", index=False, encoding="cp1251")
    ingest("t.csv", "d", target="город", encoding="cp1251")
    assert set(open_column("d", "y").take(range(18)).tolist()) == {"Москва", "Омск"}
    with refuses(InvalidParameterError, "encoding", "'klingon'"):
        CsvOptions(encoding="klingon")


def test_a_file_of_many_blocks_keeps_the_order_and_the_bits_of_its_rows():
    # a thread parses blocks of 1 MiB ahead of those that are written
    frame = pd.DataFrame(
        {"row": np.arange(300_000), "x": np.random.default_rng(0).random(300_000)}
    )
    frame.to_csv("t.csv", index=False)
    assert Path("t.csv").stat().st_size > 5 * 2**20
    dataset = ingest("t.csv", "d", chunk_rows=5_000)
    assert all_rows(dataset).X.tobytes() == frame.to_numpy().tobytes()
    with Path("t.csv").open("a") as file:
        file.write("300000,no number\n")
    with refuses(DataError, "300002", "'no number'"):
        ingest("t.csv", "f")


def test_a_block_may_end_within_a_quoted_text():
    said = "\n".join(["one of, many lines"] * 40)
    rows = "".join(f'{i},"{said}"\n' for i in range(8_000))
    Path("t.csv").write_text(f"row,said\n{rows}")
    assert Path("t.csv").stat().st_size > 2**20  # of a block
    dataset = ingest("t.csv", "d", drop=["said"])
    assert_array_equal(all_rows(dataset).X[:, 0], np.arange(8_000))


class TestIndex:
    @pytest.fixture
    def numbers(self):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame(rng.standard_normal((300, 2)), columns=["x", "y"])
        frame["city"] = rng.choice(["Ulm", "Bonn", None], 300)
        return frame

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            (lambda frame: frame, ""),
            # a shuffled part
            (lambda frame: frame.sample(frac=0.5, random_state=0), ""),
            (lambda frame: frame.set_index(np.arange(1, 301)), ""),
            # written, read and written again
            (lambda frame: frame.rename_axis("Unnamed: 0"), "Unnamed: 0"),
            (lambda frame: frame.rename_axis("index"), "index"),
        ],
    )
    def test_that_pandas_writes_is_left_out_and_said(self, numbers, change, name):
        change(numbers).to_csv("t.csv")
        dataset = ingest("t.csv", "d", target="y", impute="median")
        features = ("x", "city")
        assert dataset.feature_names == features
        assert dataset.attributes["recipe"]["left_out"] == {
            name: "it numbers the rows; `keep_index` keeps it"
        }
        kept = ingest("t.csv", "e", target="y", impute="median", keep_index=True)
        assert kept.feature_names == (name, *features)

    @pytest.mark.parametrize(
        ("first", "name"),
        [
            (np.arange(300) + 0.5, ""),
            (np.arange(300) // 2, ""),
            (np.arange(300) - 7, ""),
            (np.arange(300) + 1990, "year"),
            (np.arange(300) + 7, "index"),
        ],
    )
    def test_is_none_where_a_first_column_is_no_index(self, numbers, first, name):
        numbers.set_index(pd.Index(first, name=name)).to_csv("t.csv")
        dataset = ingest("t.csv", "d", columns=None, target="y", drop=["city"])
        assert dataset.feature_names == (name, "x")

    @pytest.mark.parametrize("has_index", [True, False])
    def test_may_be_there_or_not_in_later_tables(self, numbers, has_index):
        numbers.to_csv("1.csv")
        given = {"columns": None, "target": "y", "drop": ["city"]}
        recipe = recipe_of(ingest("1.csv", "d", **given).attributes)
        numbers[:1].to_csv("2.csv", index=has_index)
        assert ingest_more("2.csv", "d").n_after == 301
        dataset = ingest("2.csv", "e", recipe=recipe)
        assert_array_equal(all_rows(dataset).X, numbers[["x"]][:1])
