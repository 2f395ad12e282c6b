"""Datasets, and models of them, that follow a Delta table, commit by commit."""

import json
import logging
import shutil
import struct
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rff_dist import delete_rows, open_dataset
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    StorageError,
)
from tests.lake_tables import (
    FEED,
    FIRST,
    DeltaTable,
    LakeContract,
    as_arrow,
    draw,
    follow,
)
from tests.lake_tables import data as data  # fixtures
from tests.lake_tables import table as table
from tests.refusals import refuses
from tests.s3_server import KEY_ID, SECRET_KEY
from tests.tables import ingest, ingest_more

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def make(tmp_path):
    return partial(DeltaTable, tmp_path / "prices")


class TestDelta(LakeContract):
    pass


@pytest.mark.faults("F17")
def test_model_follows_a_table_without_a_feed_too(tmp_path, monkeypatch, make):
    follow(partial(make, feed=False), tmp_path, monkeypatch, 20, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.faults("F17")
def test_model_that_followed_a_thousand_commits_has_the_bits_of_one_full_pass(
    tmp_path, monkeypatch, make
):
    follow(make, tmp_path, monkeypatch, 1000, 10_000)


def unchanged(data, version):
    return open_dataset(data).version == version


def test_rows_that_went_and_came_back_or_were_copied_change_nothing(table, data):
    """The dataset then only remembers the version."""
    rows = {key: table.held[key] for key in sorted(table.held)[:40]}
    table.commit("delete", list(rows))
    table.commit("insert", rows)
    deltalake.DeltaTable(table.url).restore(0)
    done = ingest_more(table.url, data)
    assert (done.n_after, done.n_replaced, done.n_deleted, done.table["version"]) == (
        300,
        0,
        0,
        3,
    )
    assert ingest_more(table.url, data).skipped == (table.url,)
    deltalake.DeltaTable(table.url).optimize.compact()
    assert ingest_more(table.url, data).n_after == 300
    table.assert_held(data)


def test_rows_read_are_in_proportion_to_what_changed():
    """Of a table of 10 MB, the changes of 20 rows: the system counts the bytes of this
    process.
    """
    values = np.random.default_rng(0).standard_normal((50_000, 25))
    columns = {f"x{i}": values[:, i] for i in range(25)} | {"key": np.arange(50_000)}
    deltalake.write_deltalake("t", pa.table(columns), configuration=FEED)
    ingest_more("t", "data.zarr", target="x0", id="key", chunk_rows=1024)
    table = deltalake.DeltaTable("t")
    table.update(updates={"x1": "0.5"}, predicate="key < 10")
    table.delete("key >= 49990")

    def n_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    before = n_read()
    assert ingest_more("t", "data.zarr").n_replaced == 10
    assert n_read() - before < values.nbytes / 5


@pytest.mark.s3
def test_a_table_in_an_object_store_is_followed_by_what_the_environment_names(
    server, caplog, monkeypatch
):
    table = DeltaTable(server.url("prices"), 300)
    data = server.url("prices.zarr")
    with caplog.at_level(logging.DEBUG):
        ingest_more(table.url, data, target="price", id="key", chunk_rows=128)
        table.commit_a_night()
        done = ingest_more(table.url, data)
        assert (
            done.n_after,
            done.n_replaced,
            done.n_deleted,
            done.table["version"],
        ) == (303, 3, 2, 2)
        table.assert_held(data)
        assert ingest_more(table.url, data).skipped == (table.url,)
        table.commit("insert", table.add(5))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET_KEY}-of-another")
        server.fail(10**6, status=403, path="prices/")
        with refuses(StorageError, table.url) as refused:
            ingest_more(table.url, data)
        server.fail(0, status=0)
    assert open_dataset(data).n_samples == 303
    for secret in (KEY_ID, SECRET_KEY):
        assert secret not in caplog.text + str(refused.value)


# -- what is refused, or said
# ----------------------------------------------------------------------


def test_columns_that_change_are_named_and_left_out_or_refused(table, data, caplog):
    wider = as_arrow(table.add(3)).append_column("c", pa.array([1.0, 2.0, 3.0]))
    table.write(wider, schema_mode="merge")
    with caplog.at_level(logging.WARNING):
        assert ingest_more(table.url, data).n_after == 303
    assert "'c' was added" in caplog.text
    version = open_dataset(data).version
    renamed = [{"a": "area"}.get(name, name) for name in wider.schema.names]
    table.write(wider.rename_columns(renamed), "overwrite", schema_mode="overwrite")
    with refuses((DataError, InvalidParameterError), "a"):
        ingest_more(table.url, data)
    assert "'area' was added" in caplog.text
    assert "'a' is gone" in caplog.text
    assert unchanged(data, version)


def test_vacuumed_changes_are_refused_until_the_table_is_ingested_again(table, data):
    version = open_dataset(data).version
    table.commit("update", table.update())
    deltalake.DeltaTable(table.url).vacuum(
        0, dry_run=False, enforce_retention_duration=False
    )
    shutil.rmtree(Path(table.url) / "_change_data")
    with refuses(StorageError, table.url, "version 1", "vacuumed", "`overwrite`"):
        ingest_more(table.url, data)
    assert unchanged(data, version)
    ingest(table.url, data, target="price", id="key", overwrite=True)
    table.assert_held(data)


def test_a_table_that_was_rolled_back_behind_the_dataset_is_refused(table, data):
    backup = shutil.copytree(table.url, "backup")
    table.commit("insert", table.add(5))
    ingest_more(table.url, data)
    shutil.rmtree(table.url)
    shutil.move(backup, table.url)
    with refuses(DataError, table.url, "version 0", "version 1", "rolled back"):
        ingest_more(table.url, data)
    table.commit("insert", table.add(6))
    table.commit("insert", table.add(7))
    with refuses(DataError, table.url, "version 2", "version 1", "written again"):
        ingest_more(table.url, data)


def test_a_table_stands_alone_and_data_of_other_sources_follow_none(table):
    Path("t.csv").write_text("a,price\n1,2\n3,4\n")
    with refuses(StorageError, table.url, "alone"):
        ingest([table.url, "t.csv"], "out")
    ingest("t.csv", "data.zarr", target="price")
    with refuses(DataError, table.url, "other sources"):
        ingest_more(table.url, "data.zarr")


def test_keys_that_are_missing_or_of_another_type_are_refused(table, data):
    rows = as_arrow(table.add(1))
    table.write(rows.set_column(0, "key", pa.array([None], pa.int64())))
    with refuses(DataError, table.url, "key"):
        ingest_more(table.url, data)
    table.write(
        rows.set_column(0, "key", pa.array(["a"])), "overwrite", schema_mode="overwrite"
    )
    with refuses(DataError, table.url):
        ingest_more(table.url, data)


def test_rows_that_someone_else_deleted_are_noticed(table, data):
    delete_rows(data, [0])
    table.commit("update", draw([FIRST + 299], 3))
    assert open_dataset(data).n_samples == 299
    table.commit("update", draw([FIRST], 4))
    with refuses(DataError, FIRST):
        ingest_more(table.url, data)


def test_no_row_may_be_left(table, data):
    deltalake.DeltaTable(table.url).delete()
    with refuses(DataError, data):
        ingest_more(table.url, data)


def test_rows_with_missing_values_are_dropped_and_come_when_they_are_whole():
    def write(values, mode="overwrite"):
        rows = pa.table(
            {
                "key": [1, 2, 3],
                "a": pa.array(values, "float64"),
                "price": [1.0, 2.0, 3.0],
            }
        )
        deltalake.write_deltalake("t", rows, mode=mode, configuration=FEED)
        return ingest_more("t", "data.zarr", target="price", id="key", on_nan="drop")

    assert write([1, None, 3], "error").n_after == 2
    done = write([None, 5, 3])
    assert (done.n_after, done.n_deleted, done.n_replaced) == (2, 1, 0)
    found = open_dataset("data.zarr").take(range(2))
    assert sorted(
        zip(found.X.ravel().tolist(), found.y.ravel().tolist(), strict=True)
    ) == [(3, 3), (5, 2)]
    deltalake.DeltaTable("t").delete("key = 1")
    assert ingest_more("t", "data.zarr").n_after == 2


def test_without_the_package_it_is_named(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with refuses(MissingDependencyError, "deltalake"):
        ingest(table.url, "out", target="price")


# -- tables as others write them
# ----------------------------------------------------------------------


def test_partitions_are_columns_and_versions_are_read_in_the_order_of_files(tmp_path):
    rows = as_arrow(draw(range(FIRST, FIRST + 50), 0))
    deltalake.write_deltalake("t", rows, partition_by=["kind"])
    found = [
        ingest("t", tmp_path / name, target="price", id="key") for name in ("1", "2")
    ]
    assert [*found[0].feature_names] == ["a", "b", "kind"]
    assert found[0].fingerprint() == found[1].fingerprint()


Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def deletion_vector(rows):
    """Delta's protocol, "Deletion Vector Format": one bitmap with one array of 16-bit
    numbers, as Z85.
    """
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(
        f"<{len(rows)}H", *rows
    )
    body = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = body + bytes(-len(body) % 4)
    words = (int.from_bytes(padded[i : i + 4], "big") for i in range(0, len(padded), 4))
    text = "".join(
        Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0)
    )
    sizes = {"sizeInBytes": len(body), "cardinality": len(rows)}
    return {"storageType": "i", "pathOrInlineDv": text, **sizes}


def test_rows_that_deletion_vectors_delete_are_gone():
    """As Spark deletes rows; deltalake does not write these."""
    rows = pa.table({"key": range(10), "a": np.arange(10.0), "price": np.arange(10.0)})
    url = Path("t")
    how = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(url, rows, configuration=how)
    log = url / "_delta_log"
    actions = [
        json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()
    ]
    add = next(action["add"] for action in actions if "add" in action)
    ingest(url, "before.zarr", target="price", id="key")
    removed = {
        "path": add["path"],
        "dataChange": True,
        "deletionTimestamp": add["modificationTime"],
    }
    commit = [
        {"remove": removed},
        {"add": {**add, "deletionVector": deletion_vector([3, 4])}},
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, commit)))
    assert ingest_more(url, "before.zarr").n_deleted == 2
    ingest(url, "after.zarr", target="price", id="key")
    for name in ("before", "after"):
        dataset = open_dataset(f"{name}.zarr")
        assert sorted(dataset.take(range(8)).X.ravel().tolist()) == [
            0,
            1,
            2,
            5,
            6,
            7,
            8,
            9,
        ]
