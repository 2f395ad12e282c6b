"""Recipes: how the columns of a table become X, stored as JSON.

A recipe has an encoder for each column of the table. It is learned from the rows of a
dataset (`rff_dist.recipes.learn`), and stored with the dataset and with models that are
trained on it, so later rows are encoded in the same way. Without it, a column of the
same name could hold other numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

import numpy as np

from rff_dist.errors import DataError, VersionError
from rff_dist.recipes.arrow import pyarrow
from rff_dist.recipes.encoders import (
    ENCODERS,
    Category,
    Encoder,
    Number,
    unknown_levels,
)
from rff_dist.recipes.notations import Notation, with_notations
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import (
    RawTable,
    kind_of,
    listed,
    meaning_of,
    number_dtype,
    read_type,
    with_lists,
)
from rff_dist.recipes.transformer import Transformer
from rff_dist.text import clipped, nearest
from rff_dist.typing import AnyDType, Facts, FloatArray, Summary, frozen

RECIPE = "recipe"  # the attribute's name in datasets and in models' cards
_FORMAT = 2
# By the meaning that a column should have.
_CONVERSIONS = {
    "durations": "pd.to_timedelta({}, unit='s') of seconds",
    "numbers": "{}.dt.total_seconds(), if the numbers are seconds",
    "times with a zone": "{}.dt.tz_localize(…), with the zone of these times",
    "times without a zone": "{}.dt.tz_localize(None)",
}


@frozen
class Recipe:
    """How a table's rows become inputs."""

    #: the encoder of each column, in the order of X; or one transformer for all
    columns: Sequence[Encoder]
    #: by column: why it is not used
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: the column of ids
    id: str | None = None
    #: how CSV files are read: what the user gave, else None
    reading: CsvOptions = field(default_factory=CsvOptions)
    #: what was unusual about each file
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: how texts write numbers or dates, also in columns that are no inputs
    notations: Mapping[str, Notation] = field(default_factory=dict)
    #: by column of numbers or dates: its `meaning_of`; not of texts that were read
    meanings: Mapping[str, str] = field(default_factory=dict)

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
        """The same columns, with the kind that each must hold.

        None accepts whatever kind the table stores.
        """
        reads: dict[str, str | None] = {}
        for encoder in self.columns:
            reads |= encoder.reads
        return reads

    @property
    def sources(self) -> list[str]:
        """For each column of X, the table's column that it is made of.

        Columns that a transformer makes are their own sources.
        """
        sources = []
        for encoder in self.columns:
            for name in encoder.names:
                is_column = not isinstance(encoder, Transformer)
                sources.append(encoder.column if is_column else name)
        return sources

    @property
    def levels(self) -> dict[int, tuple[str, ...]]:
        """The columns of X that hold categories, with the text of each code."""
        return {
            column: tuple(category.levels) for _, column, category in self._categories()
        }

    def _categories(self) -> Iterator[tuple[int, int, Category]]:
        """Yield each category, its place among the encoders, and its column of X."""
        column = 0
        for i, encoder in enumerate(self.columns):
            if isinstance(encoder, Category):
                yield i, column, encoder
            column += len(encoder.names)

    @property
    def transformer(self) -> Transformer | None:
        """The transformer of scikit-learn that makes all columns of X, if any."""
        first = self.columns[0] if self.columns else None
        return first if isinstance(first, Transformer) else None

    @property
    def words(self) -> str:
        """What is done to columns that are not taken as they are, for people."""
        changed_columns = [
            encoder
            for encoder in self.columns
            if not (isinstance(encoder, Number) and encoder.is_unchanged)
        ]
        text = "; ".join(
            f"{clipped(encoder.column)}: {clipped(encoder.words, 80)}"
            for encoder in changed_columns[:4]
        )
        return text + ("; …" if len(changed_columns) > 4 else "")

    @property
    def is_plain(self) -> bool:
        """Whether inputs are the columns themselves, if no value is missing."""
        return all(
            isinstance(encoder, Number) and not encoder.indicator
            for encoder in self.columns
        )

    def are_encoded(self, names: Sequence[str] | None) -> bool:
        """Return whether columns of these names are surely encoded: they are the names
        of X's columns, and not all the table's columns are among these.
        """
        if names is None or list(names) != self.names:
            return False
        return not set(self.inputs) <= set(self.names)

    def read(self, table: RawTable) -> RawTable:
        """Return a table whose texts are read as in the table that the recipe was
        learned from.

        An input that was a number or date by its type there may be text here, which is
        then read as plain numbers or dates.
        """
        table = with_lists(table)
        for name, meaning in self.with_meanings(table.schema).meanings.items():
            if (known := self.meanings.get(name, meaning)) != meaning:
                raise DataError(
                    f"{table.name}: column {name!r} holds {meaning}; expected {known},"
                    " as in the table that the dataset or model was made of. Use"
                    f" {_CONVERSIONS[known].format(f'X[{name!r}]')}"
                )
        notations = {}
        for name, kind in self._reads.items():
            is_text = name in table.schema.names and (
                kind_of(table.schema.field(name).type) == "text"
            )
            if kind in ("number", "date") and is_text:
                notations[name] = Notation(kind)
        return with_notations(table, {**notations, **self.notations})

    def with_meanings(self, schema: pyarrow.Schema) -> Recipe:
        """Return a recipe that knows the meanings of a table's columns, by the types of
        the table before texts are read.
        """
        kinds = self._reads
        meanings = {
            column.name: meaning_of(column.type)
            for column in schema
            if column.type != pyarrow.null()
            and kind_of(column.type) == kinds.get(column.name) != "text"
        }
        return replace(self, meanings=meanings)

    def types_to_read_by(
        self, schema: pyarrow.Schema, table: str
    ) -> dict[str, pyarrow.DataType]:
        """Return the types to read a table's columns by.

        Raises DataError if a column is missing, or holds another kind of values.
        """
        names = set(schema.names)
        missing_names = [name for name in self._reads if name not in names]
        if missing_names:
            unused = sorted(names - self._reads.keys())
            advice = ""
            for name in missing_names:
                if near := nearest(name, unused):
                    advice += f". Rename {near!r} to {name!r}?"
            raise DataError(
                f"{table} has no column {listed(missing_names)}; it has"
                f" {listed(schema.names)}. Expected the columns that the dataset or"
                f" model was made of{advice}"
            )
        types = {}
        for name, wanted_kind in self._reads.items():
            stored_type = schema.field(name).type
            kind = kind_of(stored_type)
            if wanted_kind is None:
                wanted_kind = kind or "number"
            # What was text may look like numbers in this table; an empty column fits
            # any kind.
            may_be_read = (
                kind == wanted_kind
                or wanted_kind == "text"
                or str(stored_type) == "null"
            )
            if kind is None or not may_be_read:
                raise DataError(
                    f"{table}: not {wanted_kind}s: {name!r} ({stored_type}); expected"
                    f" {wanted_kind}s, as in the table that the dataset or model was"
                    " made of"
                )
            types[name] = read_type(stored_type, wanted_kind)
        return types

    def dtype(self, schema: pyarrow.Schema) -> AnyDType:
        """Return the dtype of X that keeps all digits of a table's numbers."""
        # float32 at least; integers of more digits or float64 widen it
        dtypes: set[AnyDType] = {np.dtype(np.float32)}
        for encoder in self.columns:
            if isinstance(encoder, Number):
                dtypes.add(number_dtype(schema.field(encoder.column).type))
            # float32 counts levels up to 2^24
            elif not isinstance(encoder, Category):
                dtypes.add(np.dtype(np.float64))
        return np.result_type(*dtypes)

    def with_levels(self, levels: Mapping[int, Sequence[str]]) -> Recipe:
        """Return a recipe with other lists of levels, by the columns of X."""
        columns = list(self.columns)
        for i, column, category in self._categories():
            if column in levels:
                columns[i] = replace(category, levels=list(levels[column]))
        return replace(self, columns=columns)

    def without_levels(self, codes: Mapping[int, Iterable[int]]) -> Recipe:
        """Return a recipe without the texts of some levels; `codes` are the levels'
        codes, by columns of X.
        """
        columns = list(self.columns)
        for i, column, category in self._categories():
            columns[i] = category.without(codes.get(column, ()))
        return replace(self, columns=columns)

    def with_levels_of(self, batch: pyarrow.RecordBatch) -> Recipe:
        """Return a recipe that also knows the levels of these rows, after its own."""
        columns = list(self.columns)
        for i, _, category in self._categories():
            new = unknown_levels(batch.column(category.column), category.levels)
            if len(new):
                levels = [*category.levels, *sorted(new.unique().to_pylist())]
                columns[i] = replace(category, levels=levels)
        return replace(self, columns=columns)

    def encode(self, batch: pyarrow.RecordBatch) -> FloatArray:
        """Return the inputs of some rows, of shape (n_rows, n_features).

        Missing numbers and dates are NaN.
        """
        X = np.empty((batch.num_rows, len(self.names)))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        start = 0
        for encoder in self.columns:
            if isinstance(encoder, Transformer):
                part = encoder.encode(batch)
            else:
                part = encoder.encode(columns[encoder.column])
            X[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return X

    def to_dict(self) -> Summary:
        """Return the recipe as JSON values."""
        notations = {name: _as_dict(part) for name, part in self.notations.items()}
        return {
            "format": _FORMAT,
            "columns": [{"kind": part.kind, **_as_dict(part)} for part in self.columns],
            "left_out": dict(self.left_out),
            "id": self.id,
            "reading": _as_dict(self.reading),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
            "notations": notations,
            "meanings": dict(self.meanings),
        }

    @classmethod
    def from_dict(cls, values: Facts) -> Recipe:
        """Return the recipe that `to_dict` wrote.

        Raises VersionError if a release with another format wrote it.
        """
        if values.get("format") != _FORMAT:
            raise VersionError(
                f"the recipe is of format {str(values.get('format'))[:100]}; this"
                f" release reads format {_FORMAT}. Use the release that wrote it, or"
                " ingest the table again"
            )
        columns = []
        for members in map(dict, values["columns"]):
            columns.append(ENCODERS[members.pop("kind")](**members))
        # a grid's recipe stores columns only, hence the defaults
        notations = values.get("notations", {}).items()
        return cls(
            columns,
            values.get("left_out", {}),
            values.get("id"),
            CsvOptions(**values.get("reading", {})),
            values.get("notes", {}),
            {name: Notation(**members) for name, members in notations},
            values.get("meanings", {}),
        )

    @property
    def encoding(self) -> list[Summary]:
        """What is done to the columns, as JSON values."""
        # without notes, notations and counts: they tell how a table was read and what
        # it held, and change no number of X
        columns = [{**part, "n_missing": 0} for part in self.to_dict()["columns"]]
        for column in columns:
            if column["kind"] == Category.kind:  # later rows add levels to the list
                del column["levels"]
        return columns

    def digest(self) -> str:
        """Return the SHA-256 of what is done to the columns."""
        text = json.dumps(self.encoding, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _as_dict(item: Any) -> Summary:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(item).items()
    }


def plain_recipe(columns: Sequence[str]) -> Recipe:
    """Return the recipe of plain numbers, for datasets without a recipe."""
    return Recipe([Number(name) for name in columns])


def recipe_of(attributes: Facts) -> Recipe | None:
    """Return the recipe among a dataset's attributes or on a model's card, if any."""
    values = attributes.get(RECIPE)
    return Recipe.from_dict(values) if isinstance(values, Mapping) else None


def levels_of(attributes: Facts) -> Mapping[int, tuple[str, ...]]:
    """Return the columns of X that hold categories, with the text of each code."""
    recipe = recipe_of(attributes)
    return {} if recipe is None else recipe.levels
