"""Files, a query or a lakehouse table → opened inputs with rows that a dataset lacks.

Each input comes with a digest of its bytes, by which it is recognised under any name.
If a file was ingested before and has changed since, it is refused: the rows that are
still in it would count twice.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from rff_dist.data.sources import (
    ROWS,
    Provenance,
    is_forgotten,
    is_named,
)
from rff_dist.errors import DataError
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import RawTable
from rff_dist.typing import BoolArray, Facts, PathLike, Summary, frozen
from rff_dist.workbench.tables import files
from rff_dist.workbench.tables.lakes import Lake
from rff_dist.workbench.tables.queries import Query, run_query

_log = logging.getLogger(__name__)

#: what users give
type Sources = PathLike | Sequence[PathLike] | Query
#: one thing that has rows
type Source = files.File | Lake | Query


@frozen
class Input:
    """A table to read, and what a dataset stores about it."""

    provenance: Provenance
    table: RawTable
    #: whether the provenance's digest must still be completed by the rows: a query has
    #: no bytes before it runs
    is_query: bool = False


def with_tables(opened: Sequence[Input], tables: Sequence[RawTable]) -> list[Input]:
    """Return inputs with new tables, which read the same rows in another way."""
    pairs = zip(opened, tables, strict=True)
    return [replace(source, table=table) for source, table in pairs]


@dataclass(slots=True)
class Journal:
    """What was read until now; `rows.read_tables` fills it."""

    #: an entry for each finished input, for the dataset's attribute `sources`
    entries: list[Summary] = field(default_factory=list)
    #: selected rows of finished inputs, and how many of these were dropped
    n_read: int = 0
    n_dropped: int = 0
    #: rows of all inputs, selected or not, so far
    n_seen: int = 0
    #: the recipe with the levels of all rows that were read
    recipe: Recipe | None = None

    def count_new_rows(self, is_new: BoolArray) -> None:
        """Leave the rows that a dataset has already out of the entries.

        Otherwise these would count more rows than there are, and no row of the dataset
        could be found in its file.
        """
        for entry in self.entries:
            is_new_here, is_new = np.split(is_new, [entry["n_samples"]])
            if not is_new_here.all():
                entry["n_samples"] = int(is_new_here.sum())
                entry[ROWS] = None


def find_sources(sources: Sources, *, may_be_none: bool = False) -> Sequence[Source]:
    """Return the query, or what is at the paths: files, or one lakehouse table."""
    if isinstance(sources, Query):
        return [sources]
    return files.find_files(sources, may_be_none=may_be_none)


def open_inputs(
    stack: ExitStack,
    found: Sequence[Source],
    reading: CsvOptions,
    known: Sequence[Facts] = (),
    *,
    has_ids: bool = False,
) -> tuple[list[Input], list[str]]:
    """Open the inputs that are not among the `known` sources of a dataset.

    Returns these inputs, and the names of the others. Raises DataError if a file has
    changed since it was ingested, unless its rows have ids (`has_ids`).
    """
    digests = {str(entry.get("sha256")) for entry in known}
    match found:
        case [Query() as query]:
            return [_open_query(stack, query, known)], []
        case [Lake() as lake]:
            if lake.provenance.sha256 in digests:
                return [], [lake.url]
            return [Input(lake.provenance, lake.rows)], []

    # a query or a lakehouse table comes alone
    table_files = [source for source in found if isinstance(source, files.File)]
    opened: list[Input] = []
    skipped: list[str] = []
    partitions = files.partition_values([file.partitions for file in table_files])
    for file, values in zip(table_files, partitions, strict=True):
        if file.is_known(known):
            skipped.append(file.name)
            continue

        path = stack.enter_context(files.fetch(file))
        provenance = files.identify(file, path)
        if provenance.sha256 in digests:
            skipped.append(file.name)
            _log.info("%s holds rows that are there already", file.name)
            continue

        # Ids tell which rows of a changed file are new, unless some were forgotten at a
        # user's request: the dataset has lost their ids, and would add them again.
        if not has_ids or is_forgotten(known, file.name):
            _refuse_changed(file.name, known)
        # two files of this call with the same bytes count once
        digests.add(provenance.sha256)
        table = files.open_table(file, path, reading, values)
        opened.append(Input(provenance, table))
    return opened, skipped


def _open_query(stack: ExitStack, query: Query, known: Sequence[Facts]) -> Input:
    """Run a query; if it is incremental, for the rows after those read before."""
    n_ingested = query.n_ingested(known)
    table = stack.enter_context(run_query(query, n_ingested=n_ingested))
    # Two increments with the same values are both new rows, so their digests must
    # differ: they begin with the number of rows before.
    digest_start = str(n_ingested) if query.is_incremental else ""
    return Input(Provenance(query.name, digest_start), table, is_query=True)


def _refuse_changed(name: str, known: Sequence[Facts]) -> None:
    """Raise DataError if a file of this name was ingested, with other bytes."""
    before = [entry for entry in known if is_named(entry, name)]
    if before:
        n_rows = sum(int(entry.get("n_samples", 0)) for entry in before)
        raise DataError(
            f"{name} was ingested already, with other contents ({n_rows:,} rows), which"
            " would count twice; expected new rows in a file of another name. Rename"
            " it if all its rows are new, or replace rows by"
            " `rff-dist data correct --by COLUMN`"
        )
