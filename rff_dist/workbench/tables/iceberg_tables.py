"""An Iceberg table of a catalog → its current rows, and what changed since a snapshot.

In goes a location, out comes a `Lake`. PyIceberg has no feed of changes, so they are
found by files: a data file that only one of the two snapshots has is read, without the
rows that its delete files remove.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pyarrow

from rff_dist.errors import DataError
from rff_dist.lazy import require
from rff_dist.recipes.tables import Batches, RawTable, Types, cast_columns
from rff_dist.storage import locations
from rff_dist.workbench.tables.lakes import Feed, Lake

_ADVICE = (
    "Check the catalog's entry in .pyiceberg.yaml or the environment, and the table's"
    " name"
)


def open_iceberg(location: locations.Location) -> Lake:
    """Open the current snapshot of a table; its rows are not read yet.

    The location is iceberg://CATALOG/NAMESPACE.TABLE, of a catalog that PyIceberg's
    configuration names. Raises MissingDependencyError without the package pyiceberg;
    StorageError if the table cannot be read; DataError if it has no snapshot.
    """
    require(
        "pyiceberg",
        f"{location} is an Iceberg table, which needs the package pyiceberg",
        "iceberg",
    )
    from pyiceberg.catalog import load_catalog
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    catalog, _, name = location.path.partition("/")
    cannot = f"{location} cannot be read as an Iceberg table"
    as_iceberg = partial(locations.reaching, cannot, advice=_ADVICE)
    with as_iceberg(), closing(load_catalog(catalog)) as opened:
        table = opened.load_table(name)
        snapshot = table.current_snapshot()
        schema = table.schema().as_arrow()
    if snapshot is None:
        raise DataError(
            f"{location} has no snapshot, so no rows; expected some to begin with"
        )

    def plan(version: int) -> dict[Any, Any]:
        """Return the tasks that read a snapshot, by the path of the data file and the
        paths of its delete files.
        """
        tasks = {}
        for task in table.scan(snapshot_id=version).plan_files():
            deletes = sorted(file.file_path for file in task.delete_files)
            tasks[task.file.file_path, *deletes] = task
        return dict(sorted(tasks.items()))

    def read(tasks: Sequence[Any], types: Types) -> Batches:
        # Selects by ids of columns, so a file from before a column was renamed has it
        # under its new name.
        projected = table.schema().select(*types)
        scan = ArrowScan(table.metadata, table.io, projected, AlwaysTrue())
        with as_iceberg():
            for task in tasks:  # one file at a time: PyIceberg holds all its rows
                for batch in scan.to_record_batches([task]):
                    yield cast_columns(batch, types, name)

    def read_feed(entry: Mapping[str, Any], columns: Sequence[str]) -> Feed:
        since = int(entry["version"])
        if table.snapshot_by_id(since) is None:
            raise DataError(
                f"{location} no longer has the snapshot {since}, which the dataset"
                " holds: it has expired. Ingest the table again with `overwrite`"
            )
        types = {column: schema.field(column).type for column in columns}
        with as_iceberg():
            before = plan(since)
        removed_files = [task for key, task in before.items() if key not in current]
        added_files = [task for key, task in current.items() if key not in before]
        removed = list(read(removed_files, types))
        added = list(read(added_files, types))
        rows = pyarrow.Table.from_batches([*removed, *added], pyarrow.schema(types))
        signs = np.repeat([-1, 1], [sum(map(len, removed)), sum(map(len, added))])
        return Feed(rows, signs, commits=np.zeros(len(signs), np.int64))

    with as_iceberg():
        current = plan(snapshot.snapshot_id)
        lengths = [
            None if task.delete_files else task.file.record_count
            for task in current.values()
        ]
    n_samples = None if None in lengths else sum(filter(None, lengths))
    rows = RawTable(
        name, schema, lambda types: read([*current.values()], types), n_samples
    )
    # as text, since not all readers of JSON keep integers of 64 bits
    version = str(snapshot.snapshot_id)
    return Lake(
        location.url,
        format="Iceberg",
        id=str(table.metadata.table_uuid),
        version=version,
        facts={},
        rows=rows,
        read_feed=read_feed,
    )
