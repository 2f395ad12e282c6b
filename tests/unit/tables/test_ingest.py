import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import feather, parquet

from rff_dist import open_dataset, write_dataset
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    OutputExistsError,
    StorageError,
)
from rff_dist.storage.columns import open_column
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_more, save


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "rooms": rng.integers(1, 9, 4000),
            "area": rng.standard_normal(4000) * 100,
            "new": rng.integers(0, 2, 4000).astype(bool),
            "price": rng.standard_normal(4000),
            "tax": rng.standard_normal(4000).astype(np.float32),
            "w": rng.uniform(1, 2, 4000),
        }
    )


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
class TestTables:
    def test_the_dataset_is_what_pandas_reads(self, tmp_path, frame, name):
        source = save(frame, tmp_path / name)
        seen = []
        dataset = ingest(
            source,
            "out",
            target=["price", "tax"],
            weight="w",
            chunk_rows=512,
            observer=lambda done, total: seen.append((done, total)),
        )
        read = (
            pd.read_parquet(source) if name.endswith("parquet") else pd.read_csv(source)
        )
        rows = all_rows(dataset)
        assert_array_equal(
            rows.X, read[["rooms", "area", "new"]].to_numpy(dtype=np.float64)
        )
        assert_array_equal(rows.y, read[["price", "tax"]].to_numpy(dtype=np.float64))
        assert_array_equal(rows.sample_weight, read["w"])
        assert dataset.dtype == np.float64
        assert dataset.feature_names == ("rooms", "area", "new")
        assert dataset.target_names == ("price", "tax")
        assert seen[-1] == (4000, 4000 if name.endswith("parquet") else None)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("column", ["area", "price", "w"])
    def test_missing_values_are_refused_with_row_and_column(
        self, tmp_path, frame, name, column, value
    ):
        frame.loc[3210, column] = value
        with refuses(
            DataError,
            "row 3211" if name.endswith("parquet") else "line 3212",
            f"'{column}'",
        ):
            ingest(save(frame, tmp_path / name), "out", target="price", weight="w")
        assert [p.name for p in tmp_path.iterdir()] == [name]

    def test_dropped_rows_are_counted(self, tmp_path, frame, name, caplog):
        frame.loc[[5, 3210], "area"] = np.nan
        frame.loc[5, "price"] = np.nan
        dataset = ingest(
            save(frame, tmp_path / name), "out", target="price", on_nan="drop"
        )
        assert_allclose(all_rows(dataset).y[:, 0], frame.drop([5, 3210])["price"])
        assert dataset.attributes["dropped_rows"] == 2
        assert "2 of 4000 rows dropped" in caplog.text
        first = "line 7, line 3212"
        if name.endswith("parquet"):
            first = "row 6 (rows count from 1, without a header), row 3211 ("
        assert f"2 in 'area', 1 in 'price'; first {first}" in caplog.text


@settings(max_examples=8)
@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 30), st.integers(1, 3)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_csv_and_parquet_keep_every_digit(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("digits")
    frame = pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])])
    for name in ("t.csv", "t.parquet"):
        dataset = ingest(save(frame, folder / name), folder / "out", overwrite=True)
        assert_array_equal(all_rows(dataset).X, values)


class TestCsv:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("t.csv", b""),
            ("t.csv.gz", gzip.compress(b"a,b\n" + b"1.25,2.5\n" * 300_000)[:-999]),
            ("t.parquet", b"PAR1" + bytes(100)),
        ],
        ids=["empty", "cut short", "no Parquet"],
    )
    def test_damaged_files_are_an_error_of_ours(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with refuses((DataError, StorageError), name):
            ingest(tmp_path / name, "out")
        assert not Path("out").exists()


class TestParquet:
    def test_a_folder_is_read_in_the_order_of_names(self):
        Path("t").mkdir()
        for i in (2, 0, 1):
            columns = {"a": [float(i)] * 3, "b": [10 * i] * 3}
            names = sorted(columns, reverse=i == 1)
            parquet.write_table(
                pa.table({n: columns[n] for n in names}),
                Path("t") / f"part-{i}.parquet",
            )
        dataset = ingest("t", "out")
        assert_array_equal(
            all_rows(dataset).X, np.repeat([[0, 0], [1, 10], [2, 20]], 3, axis=0)
        )

    def test_files_with_other_columns_are_refused(self):
        Path("t").mkdir()
        parquet.write_table(pa.table({"a": [1.0]}), Path("t") / "0.parquet")
        parquet.write_table(pa.table({"b": [1.0]}), Path("t") / "1.parquet")
        with refuses(DataError, "1.parquet", "0.parquet", "'a', 'b'"):
            ingest("t", "out")

    def test_partition_folders_are_columns(self):
        frame = pd.DataFrame(
            {"a": np.arange(6.0), "day": 3 * [20, 21], "town": ["ä b", "c", None] * 2}
        )
        frame.to_parquet("t", partition_cols=["day", "town"])
        dataset = ingest("t", "out", impute="median")
        assert dataset.feature_names == ("a", "day", "town")
        X = all_rows(dataset).X
        codes = frame["town"].map({"c": 1, "ä b": 2}).fillna(0)
        expected = np.column_stack([frame["a"], frame["day"], codes])
        assert_array_equal(X[np.argsort(X[:, 0])], expected)
        n_again = ingest_more("t", "out").n_after
        assert n_again == 6

    @pytest.mark.parametrize(
        ("types", "expected"),
        [
            (["float32", "int16"], "float32"),
            (["float32", "int32"], "float64"),
            (["int8", "bool"], "float32"),
            (["uint64"], "float64"),
        ],
    )
    def test_small_types_make_float32(self, types, expected):
        columns = {
            f"c{i}": np.array([0, 1]).astype(kind) for i, kind in enumerate(types)
        }
        parquet.write_table(pa.table(columns), "t.parquet")
        dataset = ingest("t.parquet", "out")
        assert dataset.dtype == expected
        assert_array_equal(all_rows(dataset).X, [[0] * len(types), [1] * len(types)])


class TestParameters:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"target": "area", "columns": ["area"]}, "'area' are named twice"),
            ({"columns": ["area", "area"]}, "named twice"),
            ({"columns": ["nothing"]}, "has no column 'nothing'"),
            ({"target": "prize"}, "no column 'prize'; did you mean 'price'"),
            ({"weight": "w"}, "`weight` without `target`"),
            ({"groups": "w"}, "`groups` without `target`"),
            ({"target": "price", "groups": "nothing"}, "has no column 'nothing'"),
        ],
    )
    def test_are_checked_before_anything_is_written(
        self, tmp_path, frame, options, said
    ):
        with refuses(InvalidParameterError, said):
            ingest(save(frame, "t.parquet"), "out", **options)
        assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]

    def test_sources_that_cannot_be_read(self, tmp_path):
        for name in ("t.docx", "t.xlsx", "t.XLS", "t.ods"):
            (tmp_path / name).write_bytes(b"\0")
        (tmp_path / "t.csv").write_text("a,b\n1,2\n3\n")
        Path("folder").mkdir()
        write_dataset("a", np.ones((2, 2)))
        for name, said in {
            "nothing.csv": "there is no file at",
            "t.docx": "unknown type",
            "folder": "without Parquet or CSV files",
            "a": "is Zarr data already",
            "t.xlsx": "cannot be read as a spreadsheet",
            "t.csv": "cannot be read as CSV: line 3: Expected 2 columns, got 1: 3",
            **dict.fromkeys(("t.XLS", "t.ods"), "unknown type; expected text such as"),
        }.items():
            with refuses(StorageError, said):
                ingest(tmp_path / name, "out")

    def test_the_output_is_kept_and_not_put_into_the_source(self, frame):
        Path("t").mkdir()
        save(frame, Path("t") / "0.parquet")
        ingest("t", "out", target="price")
        with pytest.raises(OutputExistsError):
            ingest("t", "out")
        with refuses(StorageError, "overlap"):
            ingest("t", Path("t") / "out")
        assert open_dataset("out").n_targets == 1


# -- labels and groups
# -----------------------------------------------------------------------------


@pytest.fixture
def species():
    rng = np.random.default_rng(1)
    words = np.array(["setosa", "versicolor", "été"], object)
    return pd.DataFrame(
        {
            "length": rng.standard_normal(2500),
            "species": words[rng.integers(0, 3, 2500)],
            "site": rng.integers(0, 50, 2500),
            "ward": np.array(["east", "west"], object)[rng.integers(0, 2, 2500)],
            "width": rng.standard_normal(2500),
        }
    )


def read_column(url, name):
    return open_column(url, name).array[:]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
class TestLabels:
    def test_text_becomes_labels_and_groups_keep_their_type(
        self, tmp_path, species, name
    ):
        source = save(species, tmp_path / name)
        out = Path("d.zarr")
        dataset = ingest(
            source, out, target="species", groups="site", columns=["length", "width"]
        )
        assert read_column(out, "y").tolist() == species["species"].tolist()
        assert read_column(out, "groups").tolist() == species["site"].tolist()
        assert read_column(out, "groups").dtype == np.int64
        assert dataset.n_targets == 0
        assert dataset.attributes["target_names"] == ["species"]
        assert_array_equal(all_rows(dataset).X, species[["length", "width"]])

    def test_missing_text_is_an_error_or_a_dropped_row(self, tmp_path, species, name):
        species.loc[2000, "species"] = None
        species.loc[1000, "width"] = np.nan
        source = save(species, tmp_path / name)
        out = Path("d.zarr")
        place = "row 2001" if name.endswith("parquet") else "line 2002"
        with refuses(DataError, place, "'species'", "expected a value"):
            ingest(source, out, target="species", columns=["length"])
        ingest(
            source, out, target="species", columns=["length", "width"], on_nan="drop"
        )
        assert (
            read_column(out, "y").tolist()
            == species["species"].drop([1000, 2000]).tolist()
        )


def test_a_fraction_among_the_groups_is_refused():
    Path("t.csv").write_text("a,y,g\n1,2,0.5\n")
    with refuses(DataError, "t.csv", "'g' is 0.5", "line 2"):
        ingest("t.csv", "d.zarr", target="y", groups="g")


def test_an_id_beyond_64_bits_that_is_read_as_a_float_is_refused():
    ids = [1, 2**64 - 1]
    Path("t.jsonl").write_text("".join(f'{{"a": 1, "id": {i}}}\n' for i in ids))
    with refuses(DataError, "t.jsonl", "'id'", "line 2", "2^53"):
        ingest("t.jsonl", "d.zarr", id="id")


class TestFoldersAndFilesThatAreNoRows:
    @pytest.mark.parametrize(
        ("log", "name"),
        [
            ("_delta_log/00000000000000000000.json", "Delta"),
            ("metadata/v1.metadata.json", "Iceberg"),
        ],
    )
    @pytest.mark.parametrize(
        "source", ["lake", "lake/day=1/0.parquet", "lake/*/*.parquet", "."]
    )
    def test_tables_with_a_log_are_refused_by_name(self, log, name, source):
        """Their folders hold removed files too: bare Parquet would count rows again and
        again.
        """
        for path in ("lake/day=1/0.parquet", f"lake/{log}"):
            (Path("in") / path).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"a": [1.0, 2.0]}), "in/lake/day=1/0.parquet")
        assert ingest(Path("in") / source, "out").n_samples == 2
        (Path("in/lake") / log).write_text("{}")
        # the folder itself is taken as a table, whose log cannot be read here
        is_opened = (source, name) == ("lake", "Delta")
        with refuses(
            StorageError,
            "as a Delta table" if is_opened else f"lake is a table in {name} format",
        ):
            ingest(Path("in") / source, "out2")
        assert not Path("out2").exists()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_columns_of_one_name_are_numbered(tmp_path, name):
    values = [
        np.arange(4.0),
        np.arange(4.0) * 2,
        np.arange(4.0) + 7,
        np.arange(4.0) ** 2,
    ]
    table = pa.table([pa.array(one) for one in values], names=["a", "", "a", ""])
    if name == "t.csv":
        rows = ["a,,a,", *(",".join(map(str, row)) for row in np.column_stack(values))]
        (tmp_path / name).write_text("\n".join(rows))
    elif name == "t.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        feather.write_feather(table, str(tmp_path / name), compression="uncompressed")
    dataset = ingest(tmp_path / name, "out", columns=["a.2", ".2", "a", ""])
    assert_array_equal(
        all_rows(dataset).X, np.column_stack([values[i] for i in (2, 3, 0, 1)])
    )
    assert dataset.attributes["recipe"]["notes"] == {
        name: ["columns of the same name are numbered: 'a.2', '.2'"]
    }
