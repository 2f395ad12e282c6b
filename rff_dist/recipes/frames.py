"""Tables in memory (Arrow, pandas, polars) → a recipe; or → inputs, by a recipe.

A recipe says how the columns of a table become X: `learn_table` learns it, and
`encode_table` applies it. Frames of all three packages first become tables of Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from numbers import Number
from typing import Any

import numpy as np

from rff_dist.errors import DataError, warn
from rff_dist.recipes import learn
from rff_dist.recipes.arrow import pyarrow, types
from rff_dist.recipes.encoders import Category, unknown_levels
from rff_dist.recipes.options import Encoding
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import (
    Batches,
    RawTable,
    Types,
    cast_columns,
    kind_of,
    listed,
    read_type,
    repeated,
    to_column,
)
from rff_dist.storage.locations import explain
from rff_dist.text import clipped
from rff_dist.typing import FloatArray


def encode_table(recipe: Recipe, table: Any) -> FloatArray:
    """Return the inputs that a recipe makes of a table, of shape (n_rows, n_features).

    The table is a pyarrow.Table or RecordBatch, or a pandas or polars frame. A recipe
    that is a transformer takes what the transformer was fitted on. Warns of levels that
    the recipe does not know.
    Raises DataError if a column is missing, or has another kind of values.
    """
    table = as_table(table)
    if not isinstance(table, pyarrow.Table) and recipe.transformer is not None:
        return recipe.transformer.transform(table)
    table = as_arrow(table)
    rows = recipe.read(_raw(table))
    # checked before any batch is read, so that a missing column is reported at once
    parts = rows.batches(recipe.types_to_read_by(rows.schema, rows.name))
    no_rows = np.empty((0, len(recipe.names)))
    inputs = np.concatenate([no_rows, *map(recipe.encode, parts)])
    for encoder in recipe.columns:
        if isinstance(encoder, Category):
            _warn_of_levels(encoder, table.column(encoder.column).combine_chunks())
    return inputs


def with_levels_of(recipe: Recipe, table: Any) -> Recipe:
    """Return a recipe that also knows the levels of a table, after its own."""
    if recipe.transformer is not None:
        return recipe
    rows = recipe.read(_raw(as_arrow(as_table(table))))
    for batch in rows.batches(recipe.types_to_read_by(rows.schema, rows.name)):
        recipe = recipe.with_levels_of(batch)
    return recipe


def learn_table(
    table: pyarrow.Table, categories: Collection[str] | None = None
) -> Recipe:
    """Learn the recipe of all columns of a table; it fills no missing value.

    Without `categories`, text and dictionaries are categories. Warns of columns that
    are left out. Raises DataError if a column is no category, and holds neither numbers
    nor dates; or if no column is left.
    """
    schema = table.schema
    encoding = Encoding()
    if categories is None:
        kinds = learn.kinds_of(schema, table.column_names, encoding)
    else:
        encoding = Encoding(categories=list(categories))
        kinds = {
            column.name: "text" if column.name in categories else kind_of(column.type)
            for column in schema
        }
        texts = {name for name, kind in kinds.items() if kind == "text"}
        if unnamed := sorted(texts - set(categories)):
            category_names = listed(list(categories)) or "none"
            raise DataError(
                f"text in the columns {listed(unnamed)}, but the named categories are"
                f" {category_names}; expected numbers or dates. Name all columns of"
                " text, or leave them out"
            )
    if others := [name for name, kind in kinds.items() if kind is None]:
        column_words = [f"{name} ({schema.field(name).type})" for name in others]
        raise DataError(
            "columns that hold no single numbers, texts or dates:"
            f" {listed(column_words)}; leave them out, or turn them into texts, as by"
            " `astype(str)`"
        )
    types_to_read = {}
    for name, kind in kinds.items():
        types_to_read[name] = read_type(schema.field(name).type, kind)
    recipe = learn.learn(kinds, _raw(table).batches(types_to_read), encoding)
    if recipe.left_out:
        reasons = [f"{clipped(name)}: {why}" for name, why in recipe.left_out.items()]
        warn(f"columns that are left out: {'; '.join(reasons[:10])}")
    return recipe.with_meanings(schema)


def is_plain(table: Any) -> bool:
    """Return whether a frame has plain numbers only: no text, category, date, time of
    day or duration, which a recipe reads, and nothing that it refuses.
    """
    if isinstance(table, pyarrow.Table):
        return not any(map(_needs_recipe, table.schema.types))
    if hasattr(table, "iloc"):
        return not any(map(_needs_recipe, _types_to_check(table)))
    if hasattr(table, "to_arrow"):
        return not any(map(_needs_recipe, table.head(0).to_arrow().schema.types))
    return True


def _needs_recipe(type_: pyarrow.DataType) -> bool:
    is_span = types.is_time(type_) or types.is_duration(type_)
    is_category = types.is_dictionary(type_)
    return is_span or is_category or kind_of(type_) != "number"


def _types_to_check(frame: Any) -> Iterator[pyarrow.DataType]:
    """Yield the types of a pandas frame's columns, except those whose dtype is one of
    numbers.
    """
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind in "biufc":
            continue
        column = frame.iloc[:, place]
        try:
            yield pyarrow.array(column, from_pandas=True).type
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            # values of several types: text, unless all are numbers
            if not all(isinstance(value, Number) for value in column):
                yield pyarrow.string()


def columns_of(table: Any) -> list[str] | None:
    """Return the names of a frame's columns; None if it has no names."""
    # a table of Arrow has its values as `columns`, and their names as `column_names`
    names = getattr(table, "column_names", getattr(table, "columns", None))
    return None if names is None else list(names)


def table_of_array(rows: np.ndarray) -> pyarrow.Table:
    """Return an array's columns as a table, with the names x0, x1, …."""
    return pyarrow.table(
        {f"x{place}": to_column(column) for place, column in enumerate(rows.T)}
    )


def as_table(rows: Any) -> Any:
    """Return rows in a form that the functions here take: a polars LazyFrame is
    collected, a RecordBatch becomes a Table, and pandas' intervals and periods become
    categories of texts. Others are returned as they are.

    Raises DataError if two columns share a name, or the rows are no table.
    """
    if type(rows).__module__ in ("dask.delayed", "distributed.client"):
        raise DataError(
            f"X is a {type(rows).__name__}; expected rows. Give X.compute() of what is"
            " delayed, or X.result() of a future"
        )
    if hasattr(rows, "to_frame"):
        raise DataError(
            f"X is a {type(rows).__name__}; expected a table or array of 2 axes. Give"
            " X.to_frame() for one column, or X.to_frame().T for one row"
        )
    if hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        return rows.collect()
    if type(rows).__name__ == "RecordBatch":
        rows = pyarrow.Table.from_batches([rows])
    if twice := repeated(columns_of(rows) or ()):
        raise DataError(
            f"the table has several columns {listed(twice)}; expected one of each name."
            " Rename or drop them"
        )
    return _with_texts(rows) if hasattr(rows, "iloc") else rows


def _with_texts(frame: Any) -> Any:
    """Return a frame of pandas with texts in place of intervals and periods, which
    Arrow does not turn into texts.
    """
    for name, dtype in frame.dtypes.items():
        values = getattr(getattr(dtype, "categories", None), "dtype", dtype)
        if str(values).startswith(("interval", "period")):
            levels = frame[name].astype("category").cat.rename_categories(str)
            frame = frame.copy(deep=False)  # the user's keeps its column
            frame[name] = levels
    return frame


def as_arrow(frame: Any) -> pyarrow.Table:
    """Return a frame as a table of Arrow; raises DataError if Arrow cannot hold it."""
    if isinstance(frame, pyarrow.Table):
        return frame
    try:
        if hasattr(frame, "to_arrow"):
            return frame.to_arrow()
        table = pyarrow.Table.from_pandas(frame, preserve_index=False)
        for name, dtype in frame.dtypes.items():
            if dtype.kind == "O" and types.is_timestamp(table.field(str(name)).type):
                zones = frame[name].dropna().map(lambda time: time.tzinfo is None)
                if zones.nunique() > 1:
                    raise ValueError(f"column {name!r} has times with and without zone")
        return table
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"the {type(frame).__name__} is no table that Arrow can hold:"
            f" {_mixture(frame) or explain(error)}. Expected one type of value in each"
            " column"
        ) from error


def _mixture(frame: Any) -> str:
    """Name a number and another value in one column of pandas, if a column has both."""
    for name, column in frame.reset_index(drop=True).items():
        is_number = column.dropna().map(lambda value: isinstance(value, Number))
        rows = is_number.drop_duplicates().index.tolist()
        if len(rows) > 1:
            return f"column {name!r} holds {column[rows].tolist()} in the rows {rows}"
    return ""


def _raw(table: pyarrow.Table) -> RawTable:
    def batches(wanted_types: Types) -> Batches:
        for batch in table.select(list(wanted_types)).combine_chunks().to_batches():
            yield cast_columns(batch, wanted_types, "the table")

    return RawTable("the table", table.schema, batches, table.num_rows)


def _warn_of_levels(encoder: Category, column: pyarrow.Array) -> None:
    """Warn of texts that no training row had."""
    unknown = unknown_levels(column, encoder.levels)
    if not len(unknown):
        return
    levels = unknown.value_counts().to_pylist()
    levels.sort(key=lambda level: (-level["counts"], level["values"]))
    shown = ", ".join(
        f"{clipped(level['values'])!r} ({level['counts']:,})" for level in levels[:3]
    )
    more = ", …" if len(levels) > 3 else ""
    warn(
        f"{len(unknown):,} of {len(column):,} values of the column {encoder.column!r}"
        f" are levels that the training rows did not have: {shown}{more}; they count as"
        " unknown, and their predictions are less certain",
    )
