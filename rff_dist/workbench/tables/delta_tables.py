"""The folder of a Delta table → its current rows, and what changed since a version.

In goes the folder's location, out comes a `Lake`. The package deltalake reads rows, and
the feed of changes if the table records one; else a change of one row is the removal
and the addition of a whole file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow

from rff_dist.errors import DataError, StorageError
from rff_dist.lazy import require
from rff_dist.recipes.arrow import compute
from rff_dist.recipes.tables import (
    Batches,
    RawTable,
    Types,
    cast_columns,
    rows_per_batch,
)
from rff_dist.storage import locations
from rff_dist.workbench.tables.lakes import Feed, Lake

_CHANGE = "_change_type"
_COMMIT = "_commit_version"


def open_delta(location: locations.Location) -> Lake:
    """Open the current version of a Delta table; its rows are not read yet.

    Raises MissingDependencyError without the package deltalake; StorageError if the
    table cannot be read.
    """
    why = f"{location} is a Delta table, which needs the package deltalake"
    deltalake = require("deltalake", why, "delta")
    # Turns errors into a StorageError: the errors of stores, DataFusion and Arrow have
    # no common class.
    reading_delta = partial(
        locations.reaching, f"{location} cannot be read as a Delta table"
    )
    with reading_delta():
        table = deltalake.DeltaTable(location.url)
        schema: Any = pyarrow.schema(table.schema().to_arrow())
        name = PurePosixPath(location.path).name
        version = table.version()
        protocol = table.protocol()
        # Only DataFusion reads tables with deletion vectors or renamed columns. It
        # returns the files in any order, so `is_read_once` is set for them.
        is_plain = protocol.min_reader_version == 1 or protocol.reader_features == []
        n_samples = table.count() if is_plain else None

    def batches(types: Types) -> Batches:
        with reading_delta():
            if is_plain:
                # few batches in memory at once
                ahead = {"batch_readahead": 1, "fragment_readahead": 1}
                n_rows = rows_per_batch(8 * len(types))
                read_batches = table.to_pyarrow_dataset().to_batches(
                    columns=list(types), batch_size=n_rows, **ahead
                )
            else:
                read_batches = pyarrow.RecordBatchReader.from_stream(
                    table.scan(columns=list(types))
                )
            for batch in read_batches:
                yield cast_columns(batch, types, name)

    def read_feed(entry: Mapping[str, Any], columns: Sequence[str]) -> Feed:
        """Return the rows that came or went since the version of `entry`.

        `entry` is what a dataset stored of that version, which is not this one; see
        `Lake.read_feed`.
        """
        since = int(entry["version"])
        if since > version or _is_rewritten(location, since, entry["commit"]):
            raise DataError(
                f"{location} is at version {version}, and its history no longer leads"
                f" there from version {since}, which the dataset holds: the table was"
                " rolled back or written again. Ingest it again with `overwrite`"
            )
        types = {column: schema.field(column).type for column in columns}
        try:
            # If the table records no feed, these are the rows of added and of removed
            # files.
            wanted = [*columns, _CHANGE, _COMMIT]
            feed: Any = table.load_cdf(since + 1, version, columns=wanted)
            changes = pyarrow.table(feed)
        except Exception as error:  # of DataFusion, Parquet and the store
            raise StorageError(
                f"the changes of {location} from version {since + 1} to {version}"
                f" cannot be read: {locations.explain(error)}. If its log or its files"
                " of removed rows were vacuumed, ingest it again with `overwrite`"
            ) from error
        removals = pyarrow.array(["delete", "update_preimage"])
        kind = changes.column(_CHANGE).cast("string")
        is_removed = compute.is_in(kind, removals).to_numpy()
        parts = [cast_columns(batch, types, name) for batch in changes.to_batches()]
        changed = pyarrow.Table.from_batches(parts, pyarrow.schema(types))
        commits = changes.column(_COMMIT).to_numpy().astype(np.int64)
        return Feed(changed, np.where(is_removed, -1, 1), commits)

    return Lake(
        location.url,
        format="Delta",
        id=str(table.metadata().id),
        version=version,
        facts={"commit": _commit_digest(location, version)},
        rows=RawTable(name, schema, batches, n_samples, is_read_once=not is_plain),
        read_feed=read_feed,
    )


def _is_rewritten(
    location: locations.Location, version: int, recorded_digest: str | None
) -> bool:
    """Return whether a commit differs from the recorded one, if both are known."""
    digest = _commit_digest(location, version)
    if digest is None or recorded_digest is None:
        return False
    return digest != recorded_digest


def _commit_digest(location: locations.Location, version: int) -> str | None:
    """Return the digest of a version's commit, if the log still has it."""
    content = locations.read_file(location.child("_delta_log"), f"{version:020}.json")
    return None if content is None else hashlib.sha256(content).hexdigest()
