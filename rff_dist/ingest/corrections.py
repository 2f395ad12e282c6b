"""Rows of a dataset to change: those that a file names, and those that a file replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.ingest.files import fetch, find_files, identify, open_table
from rff_dist.ingest.ingest import GROUPS_COLUMN, read_onto
from rff_dist.ingest.recipe import recipe_of
from rff_dist.ingest.roles import Roles
from rff_dist.ingest.rows import Input, Journal
from rff_dist.ingest.tables import Reading, Table, listed, read_type
from rff_dist.storage.columns import ID, id_column
from rff_dist.storage.corrections import Corrected, find_rows, replace_batches
from rff_dist.storage.editing import Editing, editing
from rff_dist.storage.locations import parse_location
from rff_dist.typing import IntArray, PathLike


def correct(source: PathLike, url: PathLike, *, by: str, message: str | None = None) -> Corrected:
    """Replace rows of a versioned dataset by those of a table, in one commit.

    `source`: one file, as `ingest` takes it, with the dataset's columns by their names.
    `by`: the column that says which row each one replaces. If the dataset has this column, each value must
      belong to one row; otherwise it holds row numbers, counted from 0.
    Raises DataError if a value is missing, or belongs to no row or several; InvalidParameterError if there is
      no such column; and as `replace_rows`.
    """
    (file,) = find_files(source)
    with fetch(file) as path, editing(parse_location(url)) as dataset:
        recipe = recipe_of(dataset.attributes)
        reading = Reading() if recipe is None else recipe.reading
        table = open_table(path, file.kind, reading, {})
        rows = _rows_of(dataset, by, _column(table, by))
        opened = [Input(identify(file, path, []), table, path)]
        batches = read_onto(dataset, opened, Roles(), Journal())
        return replace_batches(dataset, rows, batches, message=message)


def read_rows_to_change(source: PathLike, dataset: Editing, by: str | None) -> IntArray:
    """Return the numbers of the rows that a file names.

    `by`: a column of the file and the dataset, whose values select all rows that have them. None takes the
      file's first column as row numbers, counted from 0.
    Raises DataError if no row has one of the values, or a row number is out of range.
    """
    (file,) = find_files(source)
    with fetch(file) as path:
        table = open_table(path, file.kind, Reading(), {})
        column = by or table.schema.names[0]
        if by == ID and ID not in table.schema.names:  # the file may call ids as the ingested table did
            column = id_column(dataset.attributes) or ID
        values = _column(table, column)
    if by is None:
        return _row_numbers(dataset, values)
    found = find_rows(dataset, by, values)
    missing = [value for value, rows in zip(values, found, strict=True) if not len(rows)]
    if missing:
        raise DataError(
            f"no row of {dataset.location} has {by!r} = {listed([str(one) for one in missing])}; leave such "
            "values out"
        )
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _rows_of(dataset: Editing, by: str, values: Sequence[Any]) -> IntArray:
    known: set[Any] = {*(dataset.names("feature_names") or ()), *(dataset.names("target_names") or ())}
    known |= {"groups", dataset.attributes.get(GROUPS_COLUMN), ID, id_column(dataset.attributes)}
    if by not in known:
        return _row_numbers(dataset, values)
    found = find_rows(dataset, by, values)
    for value, rows in zip(values, found, strict=True):
        if len(rows) != 1:
            raise DataError(
                f"{len(rows):_} rows of {dataset.location} have {by!r} = {value!r}; expected one, which is "
                "replaced. Or name the rows by their numbers, in a column that the dataset does not have"
            )
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _row_numbers(dataset: Editing, values: Sequence[Any]) -> IntArray:
    for value in values:
        if isinstance(value, str) or value != int(value) or not 0 <= value < dataset.n_before:
            raise DataError(
                f"{value!r} is no row of {dataset.location}; expected row numbers from 0 to "
                f"{dataset.n_before - 1:_}"
            )
    return np.array([int(value) for value in values], np.int64)


def _column(table: Table, name: str) -> list[Any]:
    """Return the values of one column: numbers, or text."""
    if name not in table.schema.names:
        known = listed(table.schema.names)
        raise InvalidParameterError(f"{table.name} has no column {name!r}; it has {known}")
    kind = table.schema.field(name).type
    values: list[Any] = []
    for batch in table.batches({name: read_type(kind, None)}):
        column = batch.column(name)
        if column.null_count:
            raise DataError(
                f"{table.name} has empty values in {name!r}; expected a value in each row, which names a row"
            )
        values += column.to_pylist()
    return values
