"""Delta tables: their rows, and what changed between two versions."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from rff_dist.errors import DataError, StorageError
from rff_dist.lazy import require
from rff_dist.recipes import tables
from rff_dist.storage import locations
from rff_dist.workbench.tables.lakes import Feed, Lake

_CHANGE, _COMMIT = "_change_type", "_commit_version"


def open_delta(location: locations.Location) -> Lake:
    """Open the current version of a Delta table; its rows are not read yet.

    Raises MissingDependencyError without the package deltalake; StorageError if the table cannot be read.
    """
    why = f"{location} is a Delta table, which needs the package deltalake"
    deltalake = require("deltalake", why, "delta")
    # errors of stores, DataFusion and Arrow, which have no common class
    as_delta = partial(locations.reaching, f"{location} cannot be read as a Delta table")
    with as_delta():
        table = deltalake.DeltaTable(location.url)
        schema: Any = pyarrow.schema(table.schema().to_arrow())
        name, version, protocol = PurePosixPath(location.path).name, table.version(), table.protocol()
        # Deletion vectors and renamed columns are DataFusion's to read, in which files come in any order.
        plain = protocol.min_reader_version == 1 or protocol.reader_features == []
        n_samples = table.count() if plain else None

    def batches(types: tables.Types) -> tables.Batches:
        with as_delta():
            if plain:
                ahead = {"batch_readahead": 1, "fragment_readahead": 1}
                rows = tables.rows_per_batch(8 * len(types))
                read = table.to_pyarrow_dataset().to_batches(columns=list(types), batch_size=rows, **ahead)
            else:
                read = pyarrow.RecordBatchReader.from_stream(table.scan(columns=list(types)))
            for batch in read:
                yield tables.cast_columns(batch, types, name)

    def read_feed(entry: Mapping[str, Any], columns: Sequence[str]) -> Feed:
        since = int(entry["version"])
        content = _read_commit(location, since) if since <= version else None
        if since > version or (content and entry["commit"] and content != entry["commit"]):
            raise DataError(
                f"{location} is at version {version}, and its history no longer leads there from version "
                f"{since}, which the dataset holds: the table was rolled back or written again. Ingest it "
                "again with `overwrite`"
            )
        types = {column: schema.field(column).type for column in columns}
        try:
            # Where the feed is not recorded, these are the rows of added and of removed files.
            feed: Any = table.load_cdf(since + 1, version, columns=[*columns, _CHANGE, _COMMIT])
            read = pyarrow.table(feed)
        except Exception as error:  # of DataFusion, Parquet and the store, of many classes
            raise StorageError(
                f"the changes of {location} from version {since + 1} to {version} cannot be read: "
                f"{locations.explain(error)}. If its log or its files of removed rows were vacuumed, ingest "
                "it again with `overwrite`"
            ) from error
        change = read.column(_CHANGE).cast("string")
        went = compute.is_in(change, pyarrow.array(["delete", "update_preimage"])).to_numpy()
        parts = [tables.cast_columns(batch, types, name) for batch in read.to_batches()]
        rows = pyarrow.Table.from_batches(parts, pyarrow.schema(list(types.items())))
        return rows, np.where(went, -1, 1), read.column(_COMMIT).to_numpy().astype(np.int64)

    rows = tables.Table(name, schema, batches, n_samples, is_read_once=not plain)
    facts = {"commit": _read_commit(location, version)}
    return Lake(location.url, "Delta", str(table.metadata().id), version, facts, rows, read_feed)


def _read_commit(location: locations.Location, version: int) -> str | None:
    """Return the digest of a version's commit; None if the log no longer has it."""
    content = locations.read_file(location.child("_delta_log"), f"{version:020}.json")
    return None if content is None else hashlib.sha256(content).hexdigest()
