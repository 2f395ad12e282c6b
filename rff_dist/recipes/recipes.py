"""Recipes: how the columns of a table become numbers, stored as JSON.

A recipe is learned from the rows of a dataset (`rff_dist.workbench.tables.learn`), and stored with it and
with models that are trained on it. It then encodes other rows in the same way, also unknown levels and
missing values.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from rff_dist.errors import DataError, VersionError
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.notations import Notation, with_notations
from rff_dist.recipes.reading import Reading
from rff_dist.recipes.tables import (
    Batches,
    Table,
    Types,
    cast_columns,
    kind_of,
    listed,
    number_dtype,
    read_type,
    repeated,
    to_numbers,
    to_text,
    with_lists,
)
from rff_dist.recipes.transformer import Transformer
from rff_dist.storage import locations
from rff_dist.text import clipped
from rff_dist.typing import AnyDType, Facts, FloatArray, IntArray, Summary, frozen

RECIPE = "recipe"  # the attribute's name in datasets and in models' cards
MISSING = "(missing)"  # the level of missing text, if missing values are filled in
_FORMAT = 1

_SHOWN_LEVELS = 6
DATE_PARTS = ("elapsed-days", "year", "month", "day-of-year", "weekday", "hour")


@frozen
class Number:
    """A column of numbers, booleans (0 and 1), times of day (hours) or durations (days).

    `fill`: what missing values become; None leaves them missing.
    `n_missing`: how many values were missing in the rows that this was learned from.
    `indicator`: whether a further column of 0 and 1 marks the missing values.
    """

    kind: ClassVar[str] = "number"
    reads: ClassVar[str] = "number"

    column: str
    fill: float | None = None
    n_missing: int = 0
    indicator: bool = False

    @property
    def names(self) -> list[str]:
        return [self.column, *_indicator_names(self)]

    @property
    def words(self) -> str:
        """What is done, for people."""
        if self.fill is None or not self.n_missing:
            return "as it is"
        marked = ", marked in a column of their own" if self.indicator else ""
        return f"{self.n_missing:,} missing values become {self.fill:.6g}{marked}"

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """Return the numbers, of shape (n_rows, n_names)."""
        return _filled([to_numbers(column)], [self.fill], self.indicator)


@frozen
class Date:
    """A column of dates or times, as numbers in UTC.

    `parts`: the parts that are used, of `DATE_PARTS`. "elapsed-days" are days since 1970 with a fraction;
      weekdays count from 0 on Mondays; hours have a fraction.
    `fill`: what each part of a missing date becomes; None leaves it missing.
    `indicator`: whether a further column of 0 and 1 marks the missing dates.
    `n_missing`: how many dates were missing in the rows that this was learned from.
    """

    kind: ClassVar[str] = "date"
    reads: ClassVar[str] = "date"

    column: str
    parts: Sequence[str]
    fill: Sequence[float] | None = None
    indicator: bool = False
    n_missing: int = 0

    @property
    def names(self) -> list[str]:
        return [*(f"{self.column}: {part}" for part in self.parts), *_indicator_names(self)]

    @property
    def words(self) -> str:
        """What is done, for people."""
        marks = ["a column that marks missing dates"] if self.indicator else []
        return ", ".join([*self.parts, *marks]) + _missing_words(self.n_missing)

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """Return the parts, of shape (n_rows, n_parts)."""
        fill = [None] * len(self.parts) if self.fill is None else self.fill
        return _filled(date_parts(column, self.parts), fill, self.indicator)


@frozen
class OneHot:
    """A column of text as a column of 0 and 1 for each of its levels; two levels share one column.

    `levels`: the levels that have a column.
    `rest`: whether one more column marks all other levels.
    `fill`: the level that missing text counts as; None leaves it missing.
    `n_missing`: how many texts were missing in the rows that this was learned from.
    """

    kind: ClassVar[str] = "one-hot"
    reads: ClassVar[str] = "text"

    column: str
    levels: Sequence[str]
    rest: bool = False
    fill: str | None = None
    n_missing: int = 0

    @property
    def names(self) -> list[str]:
        shown = self.levels[1:] if self._is_binary else self.levels
        return [f"{self.column}={level}" for level in shown] + ([f"{self.column}=…"] if self.rest else [])

    @property
    def words(self) -> str:
        """What is done, for people."""
        names = [clipped(level) for level in self.levels[:_SHOWN_LEVELS]]
        names += ["…"] if len(self.levels) > _SHOWN_LEVELS else []
        rest = "; one more column for all others" if self.rest else ""
        others = rest + _missing_words(self.n_missing)
        return f"one-hot, {len(self.levels):,} levels: {', '.join(names)}{others}"

    @property
    def _is_binary(self) -> bool:
        return len(self.levels) == 2 and not self.rest

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """One-hot encode: shape (n_rows, n_names). Unknown levels are 1 in the column of `rest`, if any."""
        places, missing = _places(column, self.levels, self.fill)
        marks = np.zeros((len(places), len(self.levels) + 1))
        marks[np.arange(len(places)), places] = 1.0
        # NaN in all columns of the text, so that a pass refuses it and names the row
        marks[missing] = np.nan
        # the last column collects unknown levels; of two levels the first is 1 minus the second
        return marks[:, 1 if self._is_binary else 0 : len(self.levels) + self.rest]


@frozen
class TargetMeans:
    """A column of text, with each level as the mean target of its rows, shrunk to the mean of all rows.

    `levels`: the levels that were learned.
    `outputs`: names of the targets that are averaged, or of the classes, whose shares of the rows are taken.
      Of two classes only the second is used.
    `means`: for each level, the mean of each output.
    `rest`: the means of all rows, for unknown levels.
    `fill`: the level that missing text counts as; None leaves it missing.
    `n_missing`: how many texts were missing in the rows that this was learned from.
    """

    kind: ClassVar[str] = "target"
    reads: ClassVar[str] = "text"

    column: str
    levels: Sequence[str]
    outputs: Sequence[str]
    means: Sequence[Sequence[float]]
    rest: Sequence[float]
    fill: str | None = None
    n_missing: int = 0

    @property
    def names(self) -> list[str]:
        if len(self.outputs) == 1:
            return [f"{self.column}: mean"]
        return [f"{self.column}: mean of {output}" for output in self.outputs]

    @property
    def words(self) -> str:
        """What is done, for people."""
        return f"the mean target of each of {len(self.levels):,} levels" + _missing_words(self.n_missing)

    def encode(
        self, column: pyarrow.Array, tables: FloatArray | None = None, folds: IntArray | None = None
    ) -> FloatArray:
        """Return means, of shape (n_rows, n_outputs).

        `tables`: float64 array of shape (n_folds, n_levels + 1, n_outputs). For rows that the means were
          learned from: the means of all other folds, which do not contain these rows' own targets.
        `folds`: int64 array of shape (n_rows,). The fold of each row.
        """
        places, missing = _places(column, self.levels, self.fill)
        if tables is None:
            # unknown levels have the place n_levels, behind the means of known ones
            encoded = np.array([*self.means, self.rest], np.float64)[places]
        else:
            # a row's own target in its own input would be a leak: training errors far below those on new rows
            encoded = tables[folds, places]
        encoded[missing] = np.nan
        return encoded


def _missing_words(n_missing: int) -> str:
    return f"; {n_missing:,} missing" if n_missing else ""


type Encoder = Number | Date | OneHot | TargetMeans | Transformer
_ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder for encoder in (Number, Date, OneHot, TargetMeans, Transformer)
}


@frozen
class Recipe:
    """How a table's rows become inputs.

    `columns`: the encoder of each column of the table, in the order of X; or one transformer for all.
    `left_out`: why columns are not used, by their names.
    `id`: the column of ids.
    `reading`: how CSV files are read, as far as that was given.
    `notes`: unusual things about how each file was read.
    `notations`: how columns of text write numbers or dates, also those that are no inputs.
    """

    columns: Sequence[Encoder]
    left_out: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    reading: Reading = field(default_factory=Reading)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notations: Mapping[str, Notation] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of X's columns."""
        return [name for encoder in self.columns for name in encoder.names]

    @property
    def inputs(self) -> list[str]:
        """The columns of the table that are read, in the order of X."""
        return list(self._reads)

    @property
    def _reads(self) -> dict[str, str | None]:
        """The same columns, with what each must hold."""
        return {name: held for encoder in self.columns for name, held in reads(encoder).items()}

    @property
    def sources(self) -> list[str]:
        """For each column of X, the table's column that it is made of; with a transformer, its own name."""
        names = ((part, name) for part in self.columns for name in part.names)
        return [name if isinstance(part, Transformer) else part.column for part, name in names]

    @property
    def transformer(self) -> Transformer | None:
        """The transformer of scikit-learn that makes all columns of X, if there is one."""
        first = self.columns[0] if self.columns else None
        return first if isinstance(first, Transformer) else None

    @property
    def words(self) -> str:
        """What is done to columns that are not taken as they are, for people."""
        encoders = [part for part in self.columns if not isinstance(part, Number) or part.words != "as it is"]
        shown = "; ".join(f"{clipped(part.column)}: {clipped(part.words, 80)}" for part in encoders[:4])
        return shown + ("; …" if len(encoders) > 4 else "")

    @property
    def is_plain(self) -> bool:
        """Whether inputs are the columns themselves, in their order, wherever no value is missing."""
        return all(isinstance(part, Number) and not part.indicator for part in self.columns)

    def are_inputs(self, names: Sequence[str] | None) -> bool:
        """Return whether columns of these names can only be inputs that the recipe has made."""
        return names is not None and list(names) == self.names and not set(self.inputs) <= set(self.names)

    def read(self, table: Table) -> Table:
        """Return a table whose texts are read as those that the recipe was learned from.

        Inputs that were numbers or dates by type may be plain numbers or dates in text here.
        """
        table = with_lists(table)
        plain = {name: Notation(held) for name, held in self._reads.items() if held in ("number", "date")}
        texts = {column.name for column in table.schema if kind_of(column.type) == "text"}
        needed = {name: notation for name, notation in plain.items() if name in texts}
        return with_notations(table, {**needed, **self.notations})

    def check(self, schema: pyarrow.Schema, table: str) -> dict[str, pyarrow.DataType]:
        """Return the types to read a table's columns by.

        Raises DataError if a column is missing, or holds another kind of values.
        """
        there = set(schema.names)
        absent = [name for name in self._reads if name not in there]
        if absent:
            raise DataError(
                f"{table} has no column {listed(absent)}; it has {listed(schema.names)}. Expected the "
                "columns that the dataset or model was made of"
            )
        types = {}
        for name, wanted in self._reads.items():
            kind = schema.field(name).type
            held = kind_of(kind)
            reads = wanted or held or "number"
            # Text may look like numbers in this table, and an empty column counts as one of numbers.
            if held is None or (held != reads and reads != "text" and str(kind) != "null"):
                raise DataError(
                    f"{table}: not {reads}s: {name!r} ({kind}); expected {reads}s, as in the table that the "
                    "dataset or model was made of"
                )
            types[name] = read_type(kind, reads)
        return types

    def dtype(self, schema: pyarrow.Schema) -> AnyDType:
        """Return the dtype of X that keeps all digits of a table's numbers."""
        # float32 at least; integers of more digits or float64 widen it
        kinds: set[AnyDType] = {np.dtype(np.float32)}
        for encoder in self.columns:
            if isinstance(encoder, Number):
                kinds.add(number_dtype(schema.field(encoder.column).type))
            elif not isinstance(encoder, OneHot):
                kinds.add(np.dtype(np.float64))
        return np.result_type(*kinds)

    def encode(
        self,
        batch: pyarrow.RecordBatch,
        *,
        tables: Mapping[str, FloatArray] | None = None,
        folds: IntArray | None = None,
    ) -> FloatArray:
        """Return the inputs of some rows, of shape (n_rows, n_features), with NaN for missing values.

        `tables`, `folds`: for rows that target means were learned from, see `TargetMeans.encode`; tables by
          column.
        """
        X = np.empty((batch.num_rows, len(self.names)))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        start = 0
        for encoder in self.columns:
            if isinstance(encoder, Transformer):
                part = encoder.encode(batch)
            elif isinstance(encoder, TargetMeans) and tables is not None:
                part = encoder.encode(columns[encoder.column], tables[encoder.column], folds)
            else:
                part = encoder.encode(columns[encoder.column])
            X[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return X

    def to_dict(self) -> Summary:
        """Return the recipe as JSON values."""
        return {
            "format": _FORMAT,
            "columns": [{"kind": part.kind, **_as_dict(part)} for part in self.columns],
            "left_out": dict(self.left_out),
            "id": self.id,
            "reading": _as_dict(self.reading),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
            "notations": {name: _as_dict(part) for name, part in self.notations.items()},
        }

    @classmethod
    def from_dict(cls, values: Facts) -> Recipe:
        """Return the recipe that `to_dict` wrote.

        Raises VersionError if a newer release wrote it.
        """
        if values.get("format") != _FORMAT:
            raise VersionError(
                f"the recipe is of format {str(values.get('format'))[:100]}; this release reads format "
                f"{_FORMAT}. Use a newer release of rff_dist"
            )
        columns = [_ENCODERS[part.pop("kind")](**part) for part in map(dict, values["columns"])]
        notations = {name: Notation(**part) for name, part in values["notations"].items()}
        reading = Reading(**values["reading"])
        return cls(columns, values["left_out"], values["id"], reading, values["notes"], notations)

    def digest(self) -> str:
        """Return the SHA-256 of what is done to the columns."""
        # notes, notations and counts say how a table was read and what it held, not what X is made of
        columns = [{**part, "n_missing": 0} for part in self.to_dict()["columns"]]
        text = json.dumps(columns, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def plain_recipe(columns: Sequence[str]) -> Recipe:
    """Return the recipe of plain numbers, for datasets that were made without a recipe."""
    return Recipe([Number(name) for name in columns])


def recipe_of(attributes: Facts) -> Recipe | None:
    """Return the recipe among a dataset's attributes or on a model's card, if there is one."""
    values = attributes.get(RECIPE)
    return Recipe.from_dict(values) if isinstance(values, Mapping) else None


def encode_table(recipe: Recipe, table: Any) -> FloatArray:
    """Return the inputs that a recipe makes of a table in memory, of shape (n_rows, n_features).

    `table`: a pyarrow.Table or RecordBatch, or a pandas or polars frame; for a transformer whatever it was
      fitted on.
    Warns of levels that the recipe does not know.
    Raises DataError if a column is missing, or holds another kind of values.
    """
    table = as_table(table)
    if not isinstance(table, pyarrow.Table):
        if recipe.transformer is not None:
            return recipe.transformer.transform(table)
        table = _as_arrow(table)
    if twice := repeated(table.column_names):
        raise DataError(f"the table has several columns {listed(twice)}; expected one of each name")
    held = Table("the table", table.schema, partial(_rows_of, table), table.num_rows)
    rows = recipe.read(held)
    # checked before any batch is read, so that a missing column is reported at once
    parts = rows.batches(recipe.check(rows.schema, rows.name))
    encoded = np.concatenate([np.empty((0, len(recipe.names))), *map(recipe.encode, parts)])
    for encoder in recipe.columns:
        if isinstance(encoder, OneHot | TargetMeans):
            _warn_of_levels(encoder, table.column(encoder.column).combine_chunks())
    return encoded


def as_table(rows: Any) -> Any:
    """Return the frame of a lazy frame of polars, and the table of a batch of Arrow; all else as it is."""
    if hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        return rows.collect()
    return pyarrow.Table.from_batches([rows]) if type(rows).__name__ == "RecordBatch" else rows


def _as_arrow(frame: Any) -> pyarrow.Table:
    try:
        if hasattr(frame, "to_arrow"):
            return frame.to_arrow()
        return pyarrow.Table.from_pandas(frame, preserve_index=False)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise DataError(
            f"the {type(frame).__name__} is no table that Arrow can hold: {locations.explain(error)}. "
            "Expected columns of different names, and one type of value in each"
        ) from error


def _rows_of(table: pyarrow.Table, types: Types) -> Batches:
    for batch in table.select(list(types)).combine_chunks().to_batches():
        yield cast_columns(batch, types, "the table")


def _warn_of_levels(encoder: OneHot | TargetMeans, column: pyarrow.Array) -> None:
    """Warn of texts that no training row had, which the encoder cannot tell apart."""
    unknown = unknown_levels(column, encoder.levels)
    # rare levels share a column, and are not listed: only if no text is known, it is told
    if not len(unknown) or (encoder.rest is True and len(unknown) < len(column)):
        return
    counts = sorted((-one["counts"], one["values"]) for one in unknown.value_counts().to_pylist())
    shown = ", ".join(f"{clipped(text)!r} ({-count:,})" for count, text in counts[:3])
    more = ", …" if len(counts) > 3 else ""
    warnings.warn(
        f"{len(unknown):,} of {len(column):,} values of the column {encoder.column!r} are levels that the "
        f"training rows did not have: {shown}{more}. They count as the first of two levels, as none of "
        "several, or as the mean of all; correct them, or train again with such rows",
        UserWarning,
        stacklevel=3,
    )


def date_parts(column: pyarrow.Array, parts: Sequence[str]) -> list[FloatArray]:
    """Return parts of dates as numbers, with NaN for missing dates."""
    moments = column.cast(pyarrow.timestamp("us"), safe=False)
    microseconds = to_numbers(moments.cast("int64"))
    # a day has 8.64e10 microseconds, an hour 3.6e9
    readers: dict[str, Callable[[], FloatArray]] = {
        "year": lambda: to_numbers(compute.year(moments)),
        "month": lambda: to_numbers(compute.month(moments)),
        "day-of-year": lambda: to_numbers(compute.day_of_year(moments)),
        "weekday": lambda: to_numbers(compute.day_of_week(moments)),
        # NumPy's % is never negative here, so that times before 1970 have hours too
        "hour": lambda: microseconds % 8.64e10 / 3.6e9,
        "elapsed-days": lambda: microseconds / 8.64e10,
    }
    return [readers[part]() for part in parts]


def reads(encoder: Encoder) -> Mapping[str, str | None]:
    """Return the columns of the table that an encoder reads, and what each must hold."""
    return encoder.reads if isinstance(encoder, Transformer) else {encoder.column: encoder.reads}


def _indicator_names(encoder: Number | Date) -> list[str]:
    return [f"{encoder.column}: missing"] if encoder.indicator else []


def _filled(parts: Sequence[FloatArray], fill: Sequence[float | None], indicator: bool) -> FloatArray:
    """Return columns with missing values filled in, and perhaps one that marks those of the first."""
    filled = [
        values if replacement is None else np.where(np.isnan(values), replacement, values)
        for values, replacement in zip(parts, fill, strict=True)
    ]
    filled += [np.isnan(parts[0]).astype(float)] if indicator else []
    return filled[0][:, np.newaxis] if len(filled) == 1 else np.column_stack(filled)


def unknown_levels(column: pyarrow.Array, levels: Sequence[str]) -> pyarrow.Array:
    """Return the texts of a column that are none of the levels; missing ones are left out."""
    text = to_text(column).drop_null()
    return text.filter(compute.invert(compute.is_in(text, value_set=pyarrow.array(levels, pyarrow.string()))))


def _places(column: pyarrow.Array, levels: Sequence[str], fill: str | None) -> tuple[IntArray, IntArray]:
    """Return the place of each value among the levels (n_levels if it is none), and the missing rows."""
    text = to_text(column)
    text = text if fill is None else text.fill_null(fill)
    places = compute.index_in(text, value_set=pyarrow.array(levels, pyarrow.string()))
    missing = np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))
    return places.fill_null(len(levels)).to_numpy(zero_copy_only=False).astype(np.int64), missing


def _as_dict(item: Any) -> Summary:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(item).items()}
