"""Files that name rows of a dataset → replaced rows, or the numbers of these rows.

A row is named by an id, by the value of another column, or by its number. In `correct`
the file also has the new values, and in `read_rows_to_change` it only names rows.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from numbers import Number
from typing import Any

import numpy as np

from rff_dist.errors import DataError
from rff_dist.recipes import recipes, tables
from rff_dist.recipes.reading import CsvOptions
from rff_dist.storage import columns, editing, locations
from rff_dist.storage.corrections import find_rows, replace_in
from rff_dist.text import first_few
from rff_dist.typing import IntArray, PathLike
from rff_dist.workbench.tables import attributes, existing, roles
from rff_dist.workbench.tables.inputs import Journal, find_sources, open_inputs


def correct(
    source: PathLike, url: PathLike, *, by: str, message: str | None = None
) -> editing.ChangeResult:
    """Replace rows of a versioned dataset by those of a table, in one commit.

    Each row of the file replaces the row of the dataset that its column `by` names. If
    the dataset has the column `by`, each value must belong to one of its rows;
    otherwise the values are row numbers, counted from 0.
    Raises DataError if a value is missing, or belongs to no row or several;
    InvalidParameterError if the file has no such column; and as `replace_rows`.
    """
    found = find_sources(source)
    with (
        ExitStack() as stack,
        editing.editing(locations.parse_location(url)) as dataset,
    ):
        recipe = recipes.recipe_of(dataset.attributes)
        reading = CsvOptions() if recipe is None else recipe.reading
        (opened,), _ = open_inputs(stack, found, reading)
        table = opened.table if recipe is None else recipe.read(opened.table)
        rows = _rows_of(dataset, by, _values_of(table, by))
        journal = Journal()
        monitor = existing.monitor_of(dataset)
        batches = existing.read_onto(dataset, [opened], roles.Roles(), journal, monitor)
        parts = dataset.cast_all(batches)
        changed = {}
        # the journal has the recipe, with new levels, once all batches are read
        if recipe is not None and journal.recipe is not None:
            changed[recipes.RECIPE] = journal.recipe.to_dict()
        return replace_in(dataset, rows, parts, message=message, attributes=changed)


def read_rows_to_change(
    source: PathLike, dataset: editing.DatasetEditor, by: str | None
) -> IntArray:
    """Return the numbers of the rows that a file names.

    Values of the column `by` select all rows that have them; without it, the file's
    first column holds row numbers, counted from 0. Raises DataError if no row has one
    of the values, or a row number is out of range.
    """
    with ExitStack() as stack:
        (opened,), _ = open_inputs(stack, find_sources(source), CsvOptions())
        recipe = recipes.recipe_of(dataset.attributes)
        table = opened.table if recipe is None else recipe.read(opened.table)
        column = by or table.schema.names[0]
        if by == columns.ID and columns.ID not in table.schema.names:
            # the file may name its column of ids as the ingested table did
            column = columns.id_column(dataset.attributes) or columns.ID
        values = _values_of(table, column)
    if by is None:
        return _row_numbers(dataset, values)
    matches = find_rows(dataset, by, values)
    missing = [
        value for value, rows in zip(values, matches, strict=True) if not len(rows)
    ]
    if missing:
        raise DataError(
            f"no row of {dataset.location} has {by!r} ="
            f" {tables.listed([str(value) for value in missing])}; leave such"
            " values out"
        )
    return np.unique(np.concatenate(matches)) if matches else np.empty(0, np.int64)


def _rows_of(
    dataset: editing.DatasetEditor, by: str, values: Sequence[Any]
) -> IntArray:
    """Return the number of the row that each value of the column `by` names.

    If the dataset has no column `by`, the values are row numbers.
    """
    searchable_columns: set[Any] = {
        *(dataset.names("feature_names") or ()),
        *(dataset.names("target_names") or ()),
        "groups",
        dataset.attributes.get(attributes.GROUPS_COLUMN),
        columns.ID,
        columns.id_column(dataset.attributes),
    }
    if by not in searchable_columns:
        return _row_numbers(dataset, values)
    matches = find_rows(dataset, by, values)
    if by in (columns.ID, columns.id_column(dataset.attributes)):
        # a file of whole numbers may name ids that are stored as text
        ids = {*values, *map(str, values)}
        other, elsewhere = editing.find_in_other_part(dataset, ids)
        if elsewhere:
            raise DataError(
                f"{first_few(sorted(elsewhere))} are {by!r} of rows of {other}, which"
                f" the table of {dataset.location} was split into too; expected rows of"
                " this dataset. Correct those rows there, from a file of their own"
            )
    for value, rows in zip(values, matches, strict=True):
        if len(rows) != 1:
            raise DataError(
                f"{len(rows):_} rows of {dataset.location} have {by!r} = {value!r};"
                " expected one, which is replaced. Or name the rows by their numbers,"
                " in a column that the dataset does not have"
            )
    return np.concatenate(matches) if matches else np.empty(0, np.int64)


def _row_numbers(dataset: editing.DatasetEditor, values: Sequence[Any]) -> IntArray:
    for value in values:
        if not _is_whole(value) or not 0 <= value < dataset.n_before:
            raise DataError(
                f"{value!r} is no row of {dataset.location}; expected row numbers from"
                f" 0 to {dataset.n_before - 1:_}"
            )
    return np.array([int(value) for value in values], np.int64)


def _is_whole(value: Any) -> bool:
    # NaN % 1 and inf % 1 are NaN, which is not 0
    return isinstance(value, Number) and bool(value % 1 == 0)  # type: ignore[operator]


def _values_of(table: tables.RawTable, name: str) -> list[Any]:
    """Return the values of one column: numbers, or text."""
    roles.check_column(table.name, table.schema, name, "by")
    stored_type = table.schema.field(name).type
    values: list[Any] = []
    for batch in table.batches({name: tables.read_type(stored_type, None)}):
        column = batch.column(name)
        if column.null_count:
            raise DataError(
                f"{table.name} has empty values in {name!r}; expected a value in each"
                " row, which names a row"
            )
        values += column.to_pylist()
    return values
