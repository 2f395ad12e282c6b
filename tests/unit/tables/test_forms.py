"""Tables in the forms that other programs write: read like the CSV file, or refused by
a short message.
"""

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from pyarrow import parquet

from rff_dist.errors import DataError, StorageError
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import recipe_of
from tests.refusals import refuses
from tests.tables import all_rows, ingest

N = 300
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "x": RNG.normal(size=N).round(3),
        "n": np.arange(N),
        "y": RNG.normal(size=N).round(3),
    }
)
CSV = FRAME.to_csv(index=False)


def packed(path, pack):
    with pack(path, "wt") as file:
        file.write(CSV)


def zipped(path, *names):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, CSV)


def aligned(path):
    lines = [
        " ".join(f"{cell:>9}" for cell in row)
        for row in [list(FRAME), *FRAME.to_numpy().tolist()]
    ]
    path.write_text("\n".join(lines) + "\n")


def as_json(path, **how):
    path.write_text(FRAME.to_json(**how))


FORMS = {
    "t.csv.zip": lambda path: zipped(path, "inner/t.csv"),
    "t.zip": lambda path: zipped(path, "t.csv", "__MACOSX/._t.csv"),
    "t.dat.gz": lambda path: packed(path, gzip.open),
    "t.dat": lambda path: path.write_text(CSV),
    "t.user": lambda path: FRAME.to_csv(path, index=False, sep="|"),
    "t": lambda path: path.write_text(CSV.replace(",", ";").replace(".", ",")),
    "t.data": aligned,
    "aligned.csv": aligned,
    "lines.json": lambda path: as_json(path, orient="records", lines=True),
    "lines.bin": lambda path: as_json(path, orient="records", lines=True),
    "t.bin": lambda path: FRAME.to_parquet(path),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_table_is_read_like_the_csv_file(tmp_path, name):
    FORMS[name](tmp_path / name)
    dataset = ingest(tmp_path / name, "d", target="y")
    assert dataset.feature_names == ("x", "n")
    assert_array_equal(
        np.column_stack([all_rows(dataset).X, all_rows(dataset).y]), FRAME
    )


def test_a_format_that_is_given_counts_more_than_the_name():
    Path("t.parquet").write_text(CSV)
    dataset = ingest("t.parquet", "d", target="y", format="csv")
    assert dataset.n_samples == N
    assert recipe_of(dataset.attributes).reading.format is None


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 3)])
def test_lists_of_one_length_are_columns(kind):
    lists = RNG.normal(size=(N, 3)).astype(np.float32)
    table = pa.table({"e": pa.array(lists.tolist(), kind), "y": FRAME["y"]})
    parquet.write_table(table, "t.parquet")
    dataset = ingest("t.parquet", "d", target="y")
    assert dataset.feature_names == ("e 0", "e 1", "e 2")
    assert_array_equal(all_rows(dataset).X, lists)
    recipe = recipe_of(dataset.attributes)
    assert_array_equal(encode_table(recipe, table[:5]), lists[:5])
    short = pa.table({"e": pa.array([[1.0, 2.0, 3.0], [1.0]], pa.list_(pa.float32()))})
    with refuses(DataError, "'e'", 2, 1, 3):
        encode_table(recipe, short)


MIXED = [{"name": 1776 if i % 50 == 7 else f"n{i % 5}", "y": i % 7} for i in range(N)]


REFUSED = {
    "two.zip": (lambda path: zipped(path, "a.csv", "b.csv"), (StorageError, 2)),
    "t.sas": (
        lambda path: path.write_bytes(bytes(range(64)) * 9),
        (StorageError, "format"),
    ),
    "mixed.jsonl": (
        lambda path: path.write_text("\n".join(map(json.dumps, MIXED))),
        (StorageError, "name"),
    ),
    "records.json": (
        lambda path: as_json(path, orient="records"),
        (StorageError, "jq"),
    ),
    "records": (lambda path: as_json(path, orient="records"), (StorageError, "jq")),
    "pretty.json": (
        lambda path: path.write_text(json.dumps(FRAME.to_dict("list"), indent=1)),
        (StorageError, "jq"),
    ),
    "columns.json": (as_json, (ValueError, "'y'")),
    "words.json": (lambda path: path.write_text('["a", "b"]'), (StorageError, "jq")),
    "broken.json": (
        lambda path: path.write_text('{"a": [1,'),
        (StorageError, "broken.json"),
    ),
    "nested.json": (
        lambda path: path.write_text(
            json.dumps({"a": {f"key {i}": i for i in range(500)}, "y": 1})
        ),
        (DataError, "'a'", "drop"),
    ),
    "long.csv": (
        lambda path: path.write_text(
            ",".join("n" * 3000 + str(i) for i in range(30)) + "\n" + "1," * 29 + "1\n"
        ),
        (ValueError, "target"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_a_message_that_does_not_grow(tmp_path, name):
    write, (error, *named) = REFUSED[name]
    write(tmp_path / name)
    with refuses(error, *named) as caught:
        ingest(tmp_path / name, "d", target="y")
    assert len(str(caught.value)) < 1000


def test_a_file_that_breaks_off_is_no_value_of_another_type(tmp_path):
    # longer than the 4 MiB that decide the types, so that only a pass finds its end
    rows = [{"x": 1.5, "y": 2.5, "note": RNG.bytes(400).hex()} for _ in range(20_000)]
    content = gzip.compress("\n".join(map(json.dumps, rows)).encode(), 1)
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content[:-20])
    with refuses(StorageError, "end"):
        ingest(path, "d", target="y")
