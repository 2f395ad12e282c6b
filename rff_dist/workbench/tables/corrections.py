"""Rows of a dataset to change: those that a file names, and those that a file replaces."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist.errors import DataError
from rff_dist.recipes import recipes, tables
from rff_dist.recipes.reading import Reading
from rff_dist.storage import appending, columns, corrections, locations
from rff_dist.typing import IntArray, PathLike
from rff_dist.workbench.tables import files, ingest, roles
from rff_dist.workbench.tables.rows import Input, Journal


def correct(source: PathLike, url: PathLike, *, by: str, message: str | None = None) -> appending.Changed:
    """Replace rows of a versioned dataset by those of a table, in one commit.

    `source`: one file, as `ingest` takes it, with the dataset's columns by their names.
    `by`: the column that says which row each one replaces. If the dataset has this column, each value must
      belong to one row; otherwise it holds row numbers, counted from 0.
    Raises DataError if a value is missing, or belongs to no row or several; InvalidParameterError if there is
      no such column; and as `replace_rows`.
    """
    (file,) = files.find_files(source)
    with files.fetch(file) as path, appending.editing(locations.parse_location(url)) as dataset:
        recipe = recipes.recipe_of(dataset.attributes)
        reading = Reading() if recipe is None else recipe.reading
        table = files.open_table(file, path, reading)
        rows = _rows_of(dataset, by, _column(table, by))
        opened = [Input(files.identify(file, path, []), table, path)]
        batches = ingest.read_onto(dataset, opened, roles.Roles(), Journal())
        return corrections.replace_batches(dataset, rows, batches, message=message)


def read_rows_to_change(source: PathLike, dataset: appending.Editing, by: str | None) -> IntArray:
    """Return the numbers of the rows that a file names.

    `by`: a column of the file and the dataset, whose values select all rows that have them. None takes the
      file's first column as row numbers, counted from 0.
    Raises DataError if no row has one of the values, or a row number is out of range.
    """
    (file,) = files.find_files(source)
    with files.fetch(file) as path:
        table = files.open_table(file, path, Reading())
        column = by or table.schema.names[0]
        if by == columns.ID and columns.ID not in table.schema.names:
            # the file may call ids as the ingested table did
            column = columns.id_column(dataset.attributes) or columns.ID
        values = _column(table, column)
    if by is None:
        return _row_numbers(dataset, values)
    found = corrections.find_rows(dataset, by, values)
    missing = [value for value, rows in zip(values, found, strict=True) if not len(rows)]
    if missing:
        raise DataError(
            f"no row of {dataset.location} has {by!r} = {tables.listed([str(value) for value in missing])}; "
            "leave such values out"
        )
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _rows_of(dataset: appending.Editing, by: str, values: Sequence[Any]) -> IntArray:
    known: set[Any] = {*(dataset.names("feature_names") or ()), *(dataset.names("target_names") or ())}
    attributes = dataset.attributes
    known |= {"groups", attributes.get(ingest.GROUPS_COLUMN), columns.ID, columns.id_column(attributes)}
    if by not in known:
        return _row_numbers(dataset, values)
    found = corrections.find_rows(dataset, by, values)
    for value, rows in zip(values, found, strict=True):
        if len(rows) != 1:
            raise DataError(
                f"{len(rows):_} rows of {dataset.location} have {by!r} = {value!r}; expected one, which is "
                "replaced. Or name the rows by their numbers, in a column that the dataset does not have"
            )
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _row_numbers(dataset: appending.Editing, values: Sequence[Any]) -> IntArray:
    for value in values:
        if isinstance(value, str) or value != int(value) or not 0 <= value < dataset.n_before:
            raise DataError(
                f"{value!r} is no row of {dataset.location}; expected row numbers from 0 to "
                f"{dataset.n_before - 1:_}"
            )
    return np.array([int(value) for value in values], np.int64)


def _column(table: tables.Table, name: str) -> list[Any]:
    """Return the values of one column: numbers, or text."""
    roles.check_column(table.name, table.schema, name, "by")
    kind = table.schema.field(name).type
    values: list[Any] = []
    for batch in table.batches({name: tables.read_type(kind, None)}):
        column = batch.column(name)
        if column.null_count:
            raise DataError(
                f"{table.name} has empty values in {name!r}; expected a value in each row, which names a row"
            )
        values += column.to_pylist()
    return values
