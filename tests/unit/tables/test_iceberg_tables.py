"""Datasets, and models of them, that follow an Iceberg table of a catalog on SQLite."""

import logging
import os
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from rff_dist import write_dataset
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    StorageError,
)
from tests.lake_tables import FIRST, IcebergTable, LakeContract, follow
from tests.lake_tables import data as data  # fixtures
from tests.lake_tables import table as table
from tests.refusals import refuses
from tests.tables import ingest, ingest_more

pytest.importorskip("pyiceberg")

URL = IcebergTable.url


@pytest.fixture
def make(catalog):
    return partial(IcebergTable, catalog)


class TestIceberg(LakeContract):
    pass


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.faults("F17")
def test_model_that_followed_large_commits_has_the_bits_of_one_full_pass(
    tmp_path, monkeypatch, make
):
    follow(make, tmp_path, monkeypatch, 100, 10_000)


def test_a_table_that_was_rolled_back_to_a_snapshot_is_followed_there(table, data):
    first = table.table.current_snapshot().snapshot_id
    rows = table.add(9)
    table.commit("insert", rows)
    assert ingest_more(URL, data).n_after == 309
    table.table.manage_snapshots().rollback_to_snapshot(first).commit()
    done = ingest_more(URL, data)
    assert (done.n_deleted, done.table["version"]) == (9, str(first))
    for key in rows:
        del table.held[key]
    table.assert_held(data)


def test_a_renamed_column_is_named_and_refused_until_it_has_its_name_again(
    table, data, caplog
):
    with table.table.update_schema() as schema:
        schema.rename_column("a", "area")
    table.commit("delete", table.delete())
    with (
        caplog.at_level(logging.WARNING),
        refuses((DataError, InvalidParameterError), "a"),
    ):
        ingest_more(URL, data)
    assert "'a' is gone" in caplog.text
    with table.table.update_schema() as schema:
        schema.rename_column("area", "a")
    ingest_more(URL, data)
    table.assert_held(data)


def test_expired_snapshots_are_refused(table, data):
    version = table.table.current_snapshot().snapshot_id
    table.commit("insert", table.add(3))
    table.table.maintenance.expire_snapshots().by_id(version).commit()
    with refuses(DataError, URL, version, "`overwrite`"):
        ingest_more(URL, data)


def test_tables_and_catalogs_that_are_not_there_are_named(catalog, monkeypatch):
    for url in (
        "iceberg://shop/main.none",
        "iceberg://other/main.prices",
        "iceberg://shop",
    ):
        with refuses(StorageError, url):
            ingest(url, "out", target="price")
    catalog.create_table("main.empty", schema=pa.schema([("a", "float64")]))
    with refuses(DataError, "main.empty", "snapshot"):
        ingest("iceberg://shop/main.empty", "out", columns=["a"])
    with refuses(StorageError, URL):
        write_dataset(URL, np.ones((3, 2)))
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with refuses(MissingDependencyError, "pyiceberg"):
        ingest(URL, "out", target="price")


def delete_positions(table, positions):
    """Delete rows of the only data file as Spark does, by a file of positions;
    PyIceberg writes none.
    """
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    class DeletesWriter(ManifestWriterV2):
        def content(self):
            return ManifestContent.DELETES

        @property
        def _meta(self):
            return {**super()._meta, "content": "deletes"}

    class Deletes(_FastAppendFiles):
        def new_manifest_writer(self, spec):
            schema = self._transaction.table_metadata.schema()
            output = self.new_manifest_output()
            return DeletesWriter(
                spec, schema, output, self._snapshot_id, self._compression
            )

    (task,) = table.scan().plan_files()
    # the ids of these columns are reserved, see "Position Delete Files" in the
    # specification
    schema = pa.schema(
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": number})
        for name, kind, number in (
            ("file_path", "string", "2147483546"),
            ("pos", "int64", "2147483545"),
        )
    )
    url = f"{table.location()}/data/deletes.parquet"
    path = url.removeprefix("file://")
    parquet.write_table(
        pa.table([[task.file.file_path] * len(positions), positions], schema=schema),
        path,
    )
    nothing = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=os.path.getsize(path),
        **{name: {} for name in nothing},
    )
    file.spec_id = 0
    with table.transaction() as transaction:
        operation = {
            "operation": Operation.DELETE,
            "transaction": transaction,
            "io": table.io,
        }
        with Deletes(**operation) as deletes:
            deletes.append_data_file(file)


def test_rows_that_files_of_positions_delete_are_gone(table, data):
    delete_positions(table.table, [3, 4])
    for key in (FIRST + 3, FIRST + 4):
        del table.held[key]
    assert ingest_more(URL, data).n_deleted == 2
    table.assert_held(data)
    ingest(URL, "after.zarr", target="price", id="key")
    table.assert_held("after.zarr")
