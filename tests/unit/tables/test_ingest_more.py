"""Ingesting again and again: only what is new is added, columns by their names, all or
nothing.
"""

import csv
import logging
import os
import re
import sqlite3
import subprocess
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy
import xlsxwriter
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from pyarrow import parquet

from rff_dist import RFFRidge, open_dataset, save_model, write_dataset
from rff_dist.data.sources import find_rows
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    StorageError,
)
from rff_dist.storage.columns import open_column
from rff_dist.storage.editing import editing
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import read_history
from rff_dist.workbench.jobs.tables import is_table
from rff_dist.workbench.tables import queries
from rff_dist.workbench.tables.corrections import correct, read_rows_to_change
from rff_dist.workbench.tables.existing import IngestResult
from rff_dist.workbench.tables.queries import Query
from tests.refusals import refuses
from tests.tables import (
    all_rows,
    ingest,
    ingest_more,
    ingest_parts,
    predict_table,
    save,
)

pandas = pytest.importorskip("pandas")


def make_frame(n_rows, *, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(rng.normal(size=(n_rows, 3)), columns=["a", "b", "price"])


def read_all(url):
    rows = all_rows(open_dataset(url))
    return np.column_stack([rows.X, rows.y])


def rows_of(found):
    return found.n_before, found.n_after


@settings(max_examples=4, deadline=None)
@given(
    cuts=st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(1, 40)),
    kinds=st.data(),
)
def test_files_one_after_the_other_are_the_table_at_once(tmp_path_factory, cuts, kinds):
    folder = tmp_path_factory.mktemp("files")
    frame = make_frame(sum(cuts))
    start = 0
    for i, n_rows in enumerate(cuts):
        part = frame[start : start + n_rows]
        columns = (
            kinds.draw(st.permutations(["a", "b", "price"]))
            if i
            else ["a", "b", "price"]
        )
        suffix = (
            kinds.draw(st.sampled_from([".csv", ".parquet"])) if n_rows else ".parquet"
        )
        save(
            part[columns].assign(**({"note": "text"} if i else {})),
            folder / f"{i}{suffix}",
        )
        start += n_rows
        # The pattern names the old files too.
        found = ingest_more(
            folder / "*.[cp]*", folder / "data.zarr", target="price", chunk_rows=16
        )
        assert (found.n_after, len(found.ingested), len(found.skipped)) == (start, 1, i)
    assert_array_equal(read_all(folder / "data.zarr"), frame.to_numpy())


class TestASecondRun:
    @pytest.fixture
    def folder(self, tmp_path):
        save(make_frame(30), "1.csv")
        save(make_frame(20, seed=1), "2.parquet")
        ingest(["1.csv", "2.parquet"], "data.zarr", target="price")
        return tmp_path

    def test_does_nothing_and_says_so(self, folder):
        before = open_dataset(folder / "data.zarr")
        found = ingest_more(
            [folder / "1.csv", folder / "2.parquet"], folder / "data.zarr"
        )
        assert found == IngestResult(
            50, 50, (), (str(folder / "1.csv"), str(folder / "2.parquet")), 0
        )
        after = open_dataset(folder / "data.zarr")
        assert (after.fingerprint(), after.attributes) == (
            before.fingerprint(),
            before.attributes,
        )

    def test_skips_the_same_bytes_of_another_name_or_time(self, folder):
        (folder / "copy.csv").write_bytes((folder / "1.csv").read_bytes())
        os.utime(folder / "1.csv", (0, 0))
        found = ingest_more(
            [folder / "copy.csv", folder / "1.csv"], folder / "data.zarr"
        )
        assert (rows_of(found), len(found.skipped)) == ((50, 50), 2)

    def test_adds_a_file_whose_content_is_new(self, folder):
        frame = save(make_frame(5, seed=2), folder / "3.csv")
        assert rows_of(ingest_more(frame, folder / "data.zarr")) == (50, 55)
        sources = open_dataset(folder / "data.zarr").attributes["sources"]
        assert [source["n_samples"] for source in sources] == [30, 20, 5]
        newest, *_ = read_history(parse_location(folder / "data.zarr"))
        assert newest.message == f"append 5 rows from {folder / '3.csv'}"
        assert newest.facts["sources"] == [str(folder / "3.csv")]

    def test_refuses_a_file_that_has_grown(self, folder):
        with open(folder / "1.csv", "a") as file:
            file.write("1,2,3\n")
        with refuses(DataError, "was ingested already"):
            ingest_more(folder / "1.csv", folder / "data.zarr")

    def test_of_a_dataset_that_is_not_there_does_not_guess_what_it_is_to_hold(
        self, folder
    ):
        with refuses(
            InvalidParameterError,
            "no dataset at",
            "dta.zarr to append to; to create it",
        ):
            ingest_more(folder / "1.csv", folder / "dta.zarr")
        assert not (folder / "dta.zarr").exists()
        assert rows_of(
            ingest_more(folder / "1.csv", folder / "inputs", columns=["a", "b"])
        ) == (0, 30)

    @pytest.mark.faults("F12")
    def test_adds_all_files_or_none(self, folder):
        save(make_frame(5, seed=3), folder / "3.csv")
        save(make_frame(5, seed=4).assign(b=np.nan), folder / "4.csv")
        before = open_dataset(folder / "data.zarr").fingerprint()
        with refuses(DataError, "4", "1", "'b'"):
            ingest_more([folder / "3.csv", folder / "4.csv"], folder / "data.zarr")
        assert open_dataset(folder / "data.zarr").fingerprint() == before
        found = ingest_more(
            [folder / "3.csv", folder / "4.csv"], folder / "data.zarr", on_nan="drop"
        )
        assert (rows_of(found), found.dropped_rows) == ((50, 55), 5)
        assert open_dataset(folder / "data.zarr").attributes["dropped_rows"] == 5


class TestColumns:
    def test_weights_and_groups_are_found_again_by_name(self):
        for i in range(2):
            frame = make_frame(4, seed=i).assign(w=float(i), site=[f"site {i}"] * 4)
            save(frame[sorted(frame.columns, reverse=bool(i))], f"{i}.csv")
        ingest("0.csv", "d", target="price", weight="w", groups="site")
        ingest_more("1.csv", "d")
        dataset = open_dataset("d", sample_weight="sample_weight")
        assert all_rows(dataset).sample_weight.tolist() == [0] * 4 + [1] * 4
        assert open_column("d", "groups").take([0, 7]).tolist() == ["site 0", "site 1"]

    @pytest.mark.parametrize(
        ("change", "options", "error", "named"),
        [
            (
                {"b": None},
                {},
                DataError,
                ["`columns`: 2.csv has no column 'b'"],
            ),
            (
                {"price": None},
                {},
                DataError,
                ["`target`: 2.csv has no column 'price'"],
            ),
            ({"b": "x"}, {}, DataError, ["2.csv", "line 2", "'b'", "'x'"]),
            (
                {},
                {"target": "a"},
                InvalidParameterError,
                ["target", "['a'", "['price'"],
            ),
            (
                {},
                {"columns": ["b", "a"]},
                InvalidParameterError,
                ["columns", "['b', 'a'"],
            ),
            (
                {},
                {"dtype": "float32"},
                InvalidParameterError,
                ["dtype", "'float32'", "float64"],
            ),
        ],
    )
    def test_others_are_refused_by_name(self, change, options, error, named):
        ingest(save(make_frame(6), "1.csv"), "d", target="price")
        frame = make_frame(3, seed=1).assign(**change)
        save(frame.dropna(axis="columns"), "2.csv")
        with refuses(error, *named):
            ingest_more("2.csv", "d", **options)
        assert open_dataset("d").n_samples == 6

    def test_are_rounded_to_the_datasets_dtype_on_request_only(self):
        ingest(save(make_frame(6), "1.csv"), "d", target="price", dtype="float32")
        save(make_frame(3, seed=1), "2.csv")
        with refuses(DataError, 'dtype="float32'):
            ingest_more("2.csv", "d")
        assert rows_of(ingest_more("2.csv", "d", dtype="float32")) == (6, 9)

    def test_of_an_unnamed_dataset_are_to_be_named(self):
        write_dataset("d", np.zeros((4, 2)), np.zeros(4), versioned=True)
        path = save(make_frame(3), "1.csv")
        with refuses(InvalidParameterError, "no names of columns"):
            ingest_more(path, "d")
        with refuses(InvalidParameterError, "no names of targets"):
            ingest_more(path, "d", columns=["a", "b"])
        found = ingest_more(path, "d", columns=["a", "b"], target="price")
        assert rows_of(found) == (4, 7)


class TestCorrections:
    @pytest.fixture
    def data(self):
        lines = [
            f"{key};{town};{area};{i},5"
            for i, (key, town, area) in enumerate(self.ROWS)
        ]
        Path("t.csv").write_text("\n".join(["key;town;area;price", *lines]))
        ingest("t.csv", "d", target="price", id="key", impute="mean")
        return Path("d")

    ROWS = (
        ("a", "Ulm", "1,0"),
        ("b", "Bonn", ""),
        ("c", "Ulm", "3,0"),
        ("d", "Bonn", "5,0"),
    )

    def test_of_rows_named_by_their_ids_are_encoded_as_the_dataset_is(self, data):
        Path("new.csv").write_text("town;area;key;price\nUlm;;d;9,5\nBonn;7,0;a;8,5\n")
        correct("new.csv", data, by="key")
        X, y, _ = open_dataset(data).take(np.arange(4))
        assert open_dataset(data).feature_names == ("town", "area")
        # The mean that fills in is the first rows', (1 + 3 + 5) / 3.
        assert_array_equal(X, [[0, 7], [0, 3], [1, 3], [1, 3]])
        assert_array_equal(y[:, 0], [8.5, 1.5, 2.5, 9.5])
        assert open_column(data, "id").take(np.arange(4)).tolist() == [
            "a",
            "b",
            "c",
            "d",
        ]

    @pytest.mark.parametrize(
        "value", [np.nan, np.inf, 1.5, -1.0, 4.0, "1", date(2024, 2, 29)]
    )
    def test_a_value_that_is_no_row_number_is_refused(self, data, value):
        parquet.write_table(pa.table({"row": [value]}), "gone.parquet")
        with (
            editing(parse_location(data)) as dataset,
            refuses(DataError, "is no row of", "0 to 3"),
        ):
            read_rows_to_change("gone.parquet", dataset, None)


def test_each_sheet_of_a_workbook_is_a_source(tmp_path):
    with xlsxwriter.Workbook("t.xlsx") as book:
        for name, values in {"May": [1.5, 2], "June": [3, 4.5]}.items():
            book.add_worksheet(name).write_column(0, 0, ["a", *values])
    may = f"{tmp_path / 't.xlsx'}#May"
    june = f"{tmp_path / 't.xlsx'}#June"
    assert rows_of(ingest_more([may], "d", columns=["a"])) == (0, 2)
    assert rows_of(ingest_more([may, june], "d")) == (2, 4)
    dataset = open_dataset("d")
    assert all_rows(dataset).X[:, 0].tolist() == [1.5, 2, 3, 4.5]
    assert is_table(june)
    places = find_rows(dataset.attributes, 4, np.array([1, 2]))
    assert places == ["sheet row 3 of t.xlsx#May", "sheet row 2 of t.xlsx#June"]


LATE_TEXT = "SELECT a, CASE WHEN id > 2000 THEN 'q' ELSE price END AS price FROM sales"


class TestQueries:
    @pytest.fixture
    def database(self, tmp_path, monkeypatch):
        database = sqlite3.connect("shop.db")
        database.execute(
            "CREATE TABLE sales (id INTEGER PRIMARY KEY, a REAL, b INTEGER, price REAL,"
            " t TEXT)"
        )
        self.sell(database, make_frame(2500).to_numpy())
        monkeypatch.setenv("RFF_DIST_SQL", f"sqlite:///{tmp_path / 'shop.db'}")
        yield database
        database.close()

    def sell(self, database, rows):
        text = "INSERT INTO sales (a, b, price, t) VALUES (?, ?, ?, 'x')"
        database.executemany(
            text, [(a, round(100 * b), price) for a, b, price in rows.tolist()]
        )
        database.commit()

    def test_rows_are_streamed_and_columns_found_by_name(self, database):
        ingest(Query("SELECT b, price, a FROM sales ORDER BY id"), "d", target="price")
        expected = np.array(
            database.execute("SELECT b, a, price FROM sales ORDER BY id").fetchall()
        )
        assert_array_equal(read_all("d"), expected)
        assert open_dataset("d").feature_names == ("b", "a")
        twice = ingest(Query("SELECT a, b, a, price FROM sales"), "e", target="price")
        assert twice.feature_names == ("a", "b", "a.2")

    def test_only_new_rows_are_asked_for_with_n_ingested(self, database):
        query = Query(
            "SELECT a, price FROM sales ORDER BY id LIMIT 99999 OFFSET :n_ingested"
        )
        sizes = [rows_of(ingest_more(query, "d", target="price", on_nan="drop"))]
        self.sell(database, np.zeros((3, 3)))
        sizes.append(rows_of(ingest_more(query, "d", on_nan="drop")))
        database.execute("INSERT INTO sales (a, price) VALUES (NULL, 1), (7, 8)")
        database.commit()
        # A dropped row was read; the same values as before are new rows.
        sizes.append(rows_of(ingest_more(query, "d", on_nan="drop")))
        self.sell(database, np.zeros((3, 3)))
        sizes.append(rows_of(ingest_more(query, "d", on_nan="drop")))
        sizes.append(rows_of(ingest_more(query, "d", on_nan="drop")))
        assert sizes == [
            (0, 2500),
            (2500, 2503),
            (2503, 2504),
            (2504, 2507),
            (2507, 2507),
        ]

    @pytest.mark.parametrize(
        ("sql", "error", "named"),
        [
            ("SELECT nope FROM sales", StorageError, ["no such column: nope"]),
            (
                "SELECT a, price FROM sales WHERE id < 0",
                DataError,
                ["the query: no rows"],
            ),
            (
                "SELECT x'00' AS t, price FROM sales",
                DataError,
                ["not numbers", "'t' (binary"],
            ),
            ("SELECT a, NULL AS price FROM sales", DataError, ["row 1", "'price'"]),
            (LATE_TEXT, DataError, ["'price'", "'q'", "row 2_001"]),
            (
                "SELECT a, price FROM sales WHERE t = ':x'",
                StorageError,
                ["a colon in its text"],
            ),
        ],
    )
    def test_bad_ones_are_refused(self, database, sql, error, named):
        with refuses(error, *named):
            ingest(Query(sql), "d", target="price")
        assert not Path("d").exists()

    @pytest.mark.parametrize(
        ("url", "bound"),
        [
            ("postgresql+psycopg://host/name", {"connect_timeout": 30}),
            ("mysql+pymysql://host/name", {"connect_timeout": 30}),
            ("postgresql+psycopg://host/name?connect_timeout=5", {}),
            ("sqlite:///file.db", {}),
        ],
    )
    def test_a_database_that_does_not_answer_is_given_up(self, monkeypatch, url, bound):
        asked = []

        def create_engine(url, **options):
            asked.append(options["connect_args"])
            raise ImportError(name="driver")

        monkeypatch.setattr(sqlalchemy, "create_engine", create_engine)
        with pytest.raises(MissingDependencyError):
            ingest_more(Query("SELECT 1", url), "d", target="y")
        assert asked == [bound]

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://me:geheim@127.0.0.1:9/x",
            "mysql://me:geheim@127.0.0.1:9/x",
            "nothing://me:geheim@host/x",
            "sqlite:////no/folder/geheim.db?key=geheim",
            "me:geheim@host",
        ],
    )
    def test_passwords_are_in_no_error_log_or_attribute(self, url, caplog):
        import traceback

        caplog.set_level(logging.DEBUG)
        with pytest.raises(
            (StorageError, InvalidParameterError, ImportError)
        ) as caught:
            ingest(Query("SELECT 1 AS a", url), "d")
        text = "".join(traceback.format_exception(caught.value)).replace(url, "")
        shown = str(caught.value) + caplog.text + repr(Query("SELECT 1", url))
        assert "geheim" not in shown.replace("/no/folder/geheim.db", "")
        assert "geheim" not in text.replace("/no/folder/geheim.db", "")

    def test_dates_and_flags_of_drivers_are_read(self):
        """psycopg gives a DATE column as datetime.date and a boolean one as bool, which
        sqlite3 does not.
        """
        day = date(2020, 2, 1)
        moment = datetime(2020, 2, 1, 6)
        zone = datetime(2020, 2, 1, 6, tzinfo=timezone(timedelta(hours=2)))
        columns = {
            "day": [day, None],
            "mixed": [day, moment],
            "zone": [zone, None],
            "flag": [True, None],
        }
        rows = [*zip(*columns.values(), strict=True)]
        # what SQLAlchemy gives of a driver's cursor
        result = SimpleNamespace(
            keys=lambda: list(columns), partitions=lambda _: iter([rows])
        )
        table = queries._as_table(result, Query("SELECT 1"), None)
        (batch,) = table.batches({field.name: field.type for field in table.schema})
        midnight = datetime(2020, 2, 1)
        assert batch.to_pydict() == {
            "day": [midnight, None],
            "mixed": [midnight, moment],
            "zone": [datetime(2020, 2, 1, 4, tzinfo=UTC), None],
            "flag": [True, None],
        }

    def test_a_dataset_and_its_messages_do_not_hold_the_query(self, database, caplog):
        """Queries have customers' names in them; datasets are handed on."""
        caplog.set_level(logging.DEBUG)
        query = Query(
            "SELECT a, price FROM sales WHERE t <> 'geheim' ORDER BY id LIMIT 9 OFFSET"
            " :n_ingested"
        )
        found = ingest_more(query, "d", target="price")
        files = [path for path in Path("d").rglob("*") if path.is_file()]
        assert len(files) > 3
        for path in files:
            content = path.read_bytes()
            assert not any(
                word in content for word in (b"SELECT", b"sales", b"geheim", b"shop.db")
            )
        with refuses(StorageError, "no such column: nope") as caught:
            ingest(Query("SELECT nope FROM sales WHERE t = 'geheim'"), "e")
        said = f"{caplog.text}{caught.value}{found}"
        assert not any(word in said for word in ("SELECT", "geheim"))

    def test_a_line_of_the_query_in_a_drivers_error_is_left_out(self):
        class PostgresError(Exception):
            pass

        orig = PostgresError(
            "column \"geheim\" of 'geheim' does not exist\nLINE 1: SELECT x FROM t"
            " WHERE y = 12345\n   ^"
        )
        error = sqlalchemy.exc.ProgrammingError("SELECT 12345", {"a": 12345}, orig)
        explained = queries._explained(
            error, sqlalchemy.make_url("sqlite://"), "SELECT x WHERE z = 'geheim'"
        )
        assert explained == "PostgresError: column \"***\" of '***' does not exist"

    def test_a_query_is_read_from_a_file_where_nobody_else_looks(self, monkeypatch):
        Path("q.sql").write_text("SELECT 2\n")
        given = ("file:q.sql", "SELECT 3")
        assert [*map(queries.read_text, given)] == ["SELECT 2\n", "SELECT 3"]
        monkeypatch.delenv("RFF_DIST_SQL", raising=False)
        for call, named in (
            (lambda: queries.read_text("file:no/such"), "no/such"),
            (lambda: ingest(Query("SELECT 1"), "d"), "RFF_DIST_SQL"),
        ):
            with refuses(InvalidParameterError, named):
                call()


def _row_at(place, folder):
    """Return the cells of a row at a place that a dataset names."""
    unit, at, name = re.fullmatch(r"(line|row) (\d+) of (.*)", place).groups()
    assert (unit == "line") == (name in ("plain.csv", "titled.csv"))
    if unit == "line":
        command = ["sed", "-n", f"{at}p", folder / name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        return shown.stdout.split(",")
    if name.endswith("parquet"):
        row = parquet.read_table(folder / name).slice(int(at) - 1, 1)
        return [row["number"][0].as_py()]
    with (folder / name).open(newline="") as file:
        return [row for row in csv.reader(file) if row][int(at)]


@pytest.mark.parametrize("by", [None, "number"])
@pytest.mark.parametrize("n_files", [1, 5])
def test_rows_are_found_again_in_the_files_that_they_came_from(tmp_path, by, n_files):
    rows = [(i, None if i % 7 == 3 else i, "ab"[i % 2]) for i in range(1, 201)]
    lines = [f"{i},{y or ''},{text}" for i, y, text in rows]
    names = "number,y,text"
    texts = {
        "plain.csv": [names, *lines[:40]],
        # no line end at the end of the file
        "titled.csv": ["Sales of May", "", names, *lines[40:80]],
        "blank.csv": [names, *lines[80:90], "", *lines[90:120]],
        "broken.csv": [names, *lines[120:130], '131,131,"a\nb"', *lines[131:160]],
    }
    for name, of_file in texts.items():
        end = "" if name == "titled.csv" else "\n"
        (tmp_path / name).write_text("\n".join(of_file) + end)
    columns = dict(zip(names.split(","), zip(*rows[160:], strict=True), strict=True))
    parquet.write_table(pa.table(columns), tmp_path / "last.parquet")
    sources = [tmp_path / name for name in (*texts, "last.parquet")][:n_files]
    urls = (tmp_path / "train", tmp_path / "test")
    how = {"target": "y", "on_nan": "drop"}
    parts = ingest_parts(sources, urls, 0.3, by=by, **how)
    for part in (*parts, ingest(sources, tmp_path / "all", **how)):
        chosen = np.random.default_rng(0).permutation(part.n_samples)[:30]
        places = find_rows(part.attributes, part.n_samples, chosen)
        found = [int(_row_at(place, tmp_path)[0]) for place in places]
        assert_array_equal(found, all_rows(part).X[chosen, 0])
        assert find_rows(part.attributes, part.n_samples - 1, chosen) is None


def test_a_gap_has_one_message_in_a_first_file_and_in_later_ones(tmp_path):
    def message_of(gap):
        (tmp_path / "t.csv").write_text(f"a,y\n{gap}\n5,6\n")
        with pytest.raises(DataError) as error:
            ingest_more(tmp_path / "t.csv", tmp_path / "data", target="y")
        return str(error.value)

    gaps = (",2", "1,")
    first = [*map(message_of, gaps)]
    (tmp_path / "whole.csv").write_text("a,y\n1,2\n3,4\n")
    ingest_more(tmp_path / "whole.csv", tmp_path / "data", target="y")
    assert [*map(message_of, gaps)] == first
    assert len({message.partition("expected")[2][:50] for message in first}) == 1
    # only gaps in features are filled, so no other advice names it
    assert ["impute" in message for message in first] == [True, False]


def test_a_folder_that_is_gone_is_no_night_without_files(tmp_path):
    sales = tmp_path / "sales"
    sales.mkdir()
    (sales / "one.csv").write_text("a,y\n1,2\n3,4\n")
    url = tmp_path / "data"
    ingest_more(sales / "*.csv", url, target="y")
    (sales / "one.csv").unlink()
    assert rows_of(ingest_more(sales / "*.csv", url)) == (2, 2)
    sales.rmdir()
    with refuses(StorageError, f"no folder {sales}"):
        ingest_more(sales / "*.csv", url)


@pytest.mark.parametrize("start", ["0", str(2**64)[:-3]], ids=["zeros", "64 bits"])
def test_ids_and_groups_keep_all_digits(tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    texts = [f"{start}{i:02d}" for i in range(500, 540)]
    frame = make_frame(40).assign(key=texts, site=[f"0{text}" for text in texts])
    ingest(save(frame, "1.csv"), "d", target="price", id="key", groups="site")
    new = frame.iloc[[5]].assign(a=9.0)
    found = ingest_more(save(new, "2.csv"), "d", replace_ids=True)
    assert (found.n_replaced, rows_of(found)) == (1, (40, 40))
    correct(save(new.assign(a=8.0), "3.csv"), "d", by="key")
    Path("gone.csv").write_text(f"key\n{texts[7]}\n")
    with editing(parse_location("d")) as dataset:
        assert read_rows_to_change("gone.csv", dataset, "key").tolist() == [7]
    assert read_all("d")[5, 0] == 8.0
    model = RFFRidge("linear", alpha=1.0, features="fourier").fit("d")
    save_model(model, "m")
    predict_table("m", "1.csv", "p.csv")
    assert pandas.read_csv("p.csv", dtype=str)["key"].tolist() == texts
    for name, expected in (("id", texts), ("groups", frame["site"])):
        column = open_column("d", name)
        assert_array_equal(column.take(np.arange(40)), expected)
