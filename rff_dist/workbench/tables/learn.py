"""The first pass over a table: it learns levels, medians and means, and makes a recipe of them.

It keeps a count of each level of text, a sample of rows for medians (all rows up to 4,096; with more rows
quantiles are off by a percent of the ranks), and sums of targets by level and fold.

References
----------
Micci-Barreca (2001), A preprocessing scheme for high-cardinality categorical attributes, SIGKDD Explorations
3(1), eq. 3 to 5: means that are shrunk to the mean of all rows, as in scikit-learn's TargetEncoder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import blocks, folding
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import recipes
from rff_dist.recipes.tables import kind_of, listed, to_numbers, to_text
from rff_dist.statistics import inspection
from rff_dist.typing import FloatArray, IntArray, frozen
from rff_dist.workbench.tables.encoding import Encoding

#: With `categories` "auto" and targets, columns with more levels become target means.
FEW_LEVELS = 20
#: At most so many levels, the most frequent ones, get a column of their own.
MOST_COLUMNS = 100
#: At most so many levels are counted; a column with more is left out.
MAX_LEVELS = 100_000
#: At most so many levels a target may have: classes, each of which a model has coefficients for.
MAX_CLASSES = 10_000
#: Memory of the levels of all columns and their sums; beyond it the largest column is left out.
MAX_BYTES = 2**27
# Means of all rows would predict the targets that are in them: noise, of 3,000 rows with 900 levels.
#: The folds of cross-fitted target means; their seed is none that folds of rows to train on have.
_FOLDS = folding.HashFolds(5, 2**40 + 1)
#: Why columns that hold the same value in all rows are left out.
CONSTANT = ("it holds one text only", "it holds one value only")
#: Above this share of missing values a column marks them, if so many are there to learn from.
_MARKED_SHARE, _MARKED_ROWS = 0.01, 10


@frozen
class Learned:
    """A recipe, and the cross-fitted target means for the rows that it was learned from.

    `tables`: the means by column, see `TargetMeans.encode`.
    """

    recipe: recipes.Recipe
    tables: Mapping[str, FloatArray] = field(default_factory=dict)

    def encode(self, batch: pyarrow.RecordBatch, start: int) -> FloatArray:
        """Return the inputs of rows that the recipe was learned from, rows `start` and on of the table."""
        if not self.tables:
            return self.recipe.encode(batch)
        return self.recipe.encode(batch, tables=self.tables, folds=fold_of_rows(start, batch.num_rows))


def needs_pass(kinds: Mapping[str, str | None], encoding: Encoding) -> bool:
    """Say whether a recipe for these columns needs a pass over the rows."""
    dates = encoding.dates is None and "date" in kinds.values()
    return encoding.impute != "none" or "text" in kinds.values() or dates


def plain(kinds: Mapping[str, str | None], encoding: Encoding) -> recipes.Recipe:
    """Return the recipe of columns that need no pass; for others it only serves to read them."""
    encoders: list[recipes.Encoder] = []
    for name, kind in kinds.items():
        if kind == "text":
            encoders.append(recipes.OneHot(name, ()))
        elif kind == "date":
            encoders.append(recipes.Date(name, tuple(encoding.dates or ())))
        else:
            encoders.append(recipes.Number(name))
    return recipes.Recipe(encoders)


def learn(
    schema: pyarrow.Schema,
    columns: Sequence[str],
    batches: Iterator[tuple[pyarrow.RecordBatch, int, np.ndarray | None]],
    encoding: Encoding,
    *,
    targets: Sequence[str],
) -> Learned:
    """Learn a recipe in a pass over rows.

    `columns`: the columns of X.
    `batches`: rows, the number of the first in the table, and which of them to learn from; None for all.
    `targets`: columns of numbers, or one column of text, which holds classes.
    Raises DataError if there is no row to learn from, or no column is left.
    """
    kinds = {name: kind_of(schema.field(name).type) for name in columns}
    numbers = _Numbers(kinds, encoding)
    texts = {name: _Levels() for name, kind in kinds.items() if kind == "text"}
    outputs = _Outputs.of(schema, targets) if texts else None
    n_rows = n_bytes = 0
    for batch, start, chosen in batches:
        rows = np.arange(batch.num_rows) if chosen is None else np.flatnonzero(chosen)
        n_rows += len(rows)
        numbers.add(batch, rows, n_rows - len(rows))
        if not texts:
            continue
        Y = None if outputs is None else outputs.read(batch)
        if outputs is not None and Y is None:
            if encoding.categories == "target":
                raise InvalidParameterError(
                    f"`categories` is 'target', but the target {targets[0]!r} has more than {MOST_COLUMNS} "
                    "levels, and a column of text would become a mean for each of them; use 'one-hot'"
                )
            outputs = None
            for levels in texts.values():
                levels.drop_sums()
            n_bytes = sum(levels.n_bytes for levels in texts.values())
        Y = None if Y is None else Y[rows]
        folds = fold_of_rows(start, batch.num_rows)[rows]
        for name, levels in texts.items():
            n_bytes -= levels.n_bytes
            levels.add(batch.column(name), rows, Y, folds)
            n_bytes += levels.n_bytes
            while n_bytes > MAX_BYTES:
                largest = max(texts.values(), key=lambda levels: levels.n_bytes)
                n_bytes -= largest.n_bytes
                largest.give_up()
    if not n_rows:
        raise DataError("no rows to learn from: expected some to begin with")
    learned: list[recipes.Encoder] = []
    left_out: dict[str, str] = {}
    tables: dict[str, FloatArray] = {}
    for name, kind in kinds.items():
        if kind == "text":
            encoder = texts[name].encoder(name, encoding, outputs, n_rows)
        else:
            encoder = numbers.encoder(name, encoding.impute)
        if isinstance(encoder, str):
            left_out[name] = encoder
            continue
        learned.append(encoder)
        if isinstance(encoder, recipes.TargetMeans):
            assert outputs is not None
            tables[name] = texts[name].cross_fitted(encoder.levels, outputs)
    if not learned:
        raise DataError(
            f"no column is left for X: {listed([f'{name} ({why})' for name, why in left_out.items()])}; "
            "expected some that vary. Say how text is encoded with `categories`"
        )
    return Learned(recipes.Recipe(learned, left_out), tables)


def check_classes(target: str, classes: Collection[str], n_rows: int | None = None) -> None:
    """Check that a target's texts can be classes.

    `n_rows`: how many rows have them, once all are read.
    Raises DataError if they are too many, or rarely come twice.
    """
    n_classes = len(classes)
    if n_classes > MAX_CLASSES:
        raise DataError(
            f"the target {target!r} has more than {MAX_CLASSES:,} levels; expected numbers, or text with "
            "fewer levels, which are classes"
        )
    if n_rows is not None and n_classes > max(FEW_LEVELS, n_rows // 2):
        raise DataError(
            f"almost no text of the target {target!r} comes twice ({n_classes:,} levels in {n_rows:,} "
            "rows); expected classes, or numbers"
        )


def fold_of_rows(start: int, n_rows: int) -> IntArray:
    """Return the fold of each row for cross-fitted target means."""
    return _FOLDS.assign(start, start + n_rows, n_samples=start + n_rows, groups=None)


# -- numbers and dates -----------------------------------------------------------------------------


class _Numbers:
    """Sums, extremes and a row sample of all number columns and parts of dates.

    `parts`: the parts of each date column, None for a number column.
    `starts`: the place of each column's first part among all.
    `given`: whether the user named the parts of dates; else parts that do not vary are left out.
    """

    def __init__(self, kinds: Mapping[str, str | None], encoding: Encoding) -> None:
        automatic = ("elapsed-days", "day-of-year", "weekday", "hour")
        wanted = tuple(encoding.dates or automatic)
        parts = {name: wanted if kind == "date" else None for name, kind in kinds.items() if kind != "text"}
        *starts, n_parts = accumulate((len(names or (name,)) for name, names in parts.items()), initial=0)
        self.parts, self.starts = parts, dict(zip(parts, starts, strict=True))
        self.given = encoding.dates is not None
        size = inspection.sample_size(max(1, n_parts))
        self.sample = inspection.RowSample.empty(size, n_parts)
        self.sums: FloatArray = np.zeros(n_parts)
        self.counts: IntArray = np.zeros(n_parts, np.int64)
        self.n_missing: IntArray = self.counts
        self.least: FloatArray = self.sums + np.inf
        self.most: FloatArray = self.sums - np.inf

    def add(self, batch: pyarrow.RecordBatch, rows: IntArray, start: int) -> None:
        numbers: list[FloatArray] = []
        for name, parts in self.parts.items():
            column = batch.column(name)
            numbers += [to_numbers(column)] if parts is None else recipes.date_parts(column, parts)
        if not numbers:
            return
        values = np.column_stack(numbers)[rows]
        there, block = np.isfinite(values), blocks.Block(0, start, start + len(values))
        columns = np.arange(values.shape[1])
        self.sample = self.sample + inspection.sample_columns(blocks.Rows(block, values), columns)
        self.sums = self.sums + np.where(there, values, 0.0).sum(axis=0)
        self.counts = self.counts + there.sum(axis=0)
        self.n_missing = self.n_missing + np.isnan(values).sum(axis=0)
        self.least = np.minimum(self.least, np.where(there, values, np.inf).min(axis=0, initial=np.inf))
        self.most = np.maximum(self.most, np.where(there, values, -np.inf).max(axis=0, initial=-np.inf))

    def encoder(self, name: str, impute: str) -> recipes.Encoder | str:
        """Return the encoder of a column, or why the column is left out."""
        at, parts = self.starts[name], self.parts[name]
        if parts is None and impute == "none":
            return recipes.Number(name)
        if not self.counts[at]:
            return "it holds no value"
        share = self.n_missing[at] / (self.n_missing[at] + self.counts[at])
        is_many = bool(share > _MARKED_SHARE and self.n_missing[at] >= _MARKED_ROWS)
        is_marked = impute in ("median", "mean") and is_many
        if parts is None:
            return recipes.Number(name, self._fill(at, impute), int(self.n_missing[at]), is_marked)
        places = range(at, at + len(parts))
        kept = [i for i in places if self.given or self.least[i] < self.most[i]]
        if not kept:
            return CONSTANT[1]
        fill = None if impute == "none" else [self._fill(i, impute) for i in kept]
        kept_parts = tuple(parts[i - at] for i in kept)
        return recipes.Date(name, kept_parts, fill, is_marked, int(self.n_missing[at]))

    def _fill(self, i: int, impute: str) -> float:
        sampled = self.sample.values[:, i]
        sampled = sampled[np.isfinite(sampled)]
        if impute == "mean" or not len(sampled):  # the sample may miss a column's few values
            return float(self.sums[i] / self.counts[i])
        if impute in ("median", "median-only"):
            return float(np.median(sampled))
        values, counts = np.unique(sampled, return_counts=True)
        return float(values[np.argmax(counts)])


# -- text ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outputs:
    """The outputs that are averaged: targets, or an indicator for each class.

    `classes`: the place of each class, in order of appearance; None if targets are numbers.
    """

    columns: Sequence[str]
    classes: dict[str, int] | None

    @classmethod
    def of(cls, schema: pyarrow.Schema, targets: Sequence[str]) -> _Outputs | None:
        if not targets:
            return None
        text = kind_of(schema.field(targets[0]).type) == "text"
        return cls(targets, {} if text else None)

    def read(self, batch: pyarrow.RecordBatch) -> FloatArray | None:
        """Return a column for each output, NaN where a target is missing; None if classes are too many.

        Raises DataError if they are too many for a target.
        """
        if self.classes is None:
            return np.column_stack([to_numbers(batch.column(name)) for name in self.columns])
        places, missing = _numbered(batch.column(self.columns[0]), self.classes)
        check_classes(self.columns[0], self.classes)
        if len(self.classes) > MOST_COLUMNS:
            return None
        Y = np.zeros((len(places), max(1, len(self.classes))))
        Y[np.arange(len(places)), places] = 1.0
        Y[missing] = np.nan
        return Y

    @property
    def order(self) -> IntArray:
        """The outputs whose means are used: all targets; all classes, sorted; of two classes the second."""
        if self.classes is None:
            return np.arange(len(self.columns))
        places = np.array([self.classes[name] for name in sorted(self.classes)], np.int64)
        return places[1:] if len(places) == 2 else places

    @property
    def names(self) -> list[str]:
        by_place = list(self.columns if self.classes is None else self.classes)
        return [by_place[i] for i in self.order]


class _Levels:
    """The levels of a column of text: their counts, and sums of the outputs by fold and level.

    `sums`, `squares`: float64 arrays of shape (n_folds, n_levels, n_outputs), of outputs minus `pivot`.
    `weights`: numbers of rows with targets, of shape (n_folds, n_levels).
    """

    def __init__(self) -> None:
        self.n_missing = self.n_given_up = 0
        self._begin()

    def _begin(self) -> None:
        self.index: dict[str, int] = {}
        self.n_characters, self.counts = 0, np.zeros(0, np.int64)
        self.drop_sums()

    def drop_sums(self) -> None:
        """Free the sums of outputs."""
        self.weights: FloatArray = np.zeros((_FOLDS.n_folds, 0))
        self.sums, self.squares = np.zeros((2, _FOLDS.n_folds, 0, 0))
        self.pivot: FloatArray | None = None

    def add(self, column: pyarrow.Array, rows: IntArray, Y: FloatArray | None, folds: IntArray) -> None:
        if self.n_given_up or not len(rows):
            return
        n_before = len(self.index)
        places, missing = _numbered(column, self.index)
        self.n_characters += sum(map(len, islice(self.index, n_before, None)))
        n_sums = 0 if Y is None else 8 * len(self.weights) * (1 + 2 * Y.shape[1])
        if len(self.index) > MAX_LEVELS or len(self.index) * n_sums > MAX_BYTES:
            self.give_up()
            return
        self.n_missing += int(np.isin(rows, missing).sum())
        places[missing] = self.index.setdefault(recipes.MISSING, len(self.index))
        places = places[rows]
        n_levels = len(self.index)
        self.counts = _grown(self.counts, (n_levels,))
        self.counts += np.bincount(places, minlength=n_levels)
        if Y is None:
            return
        usable = np.isfinite(Y).all(axis=1)
        Y, places, folds = Y[usable], places[usable], folds[usable]
        shape = (_FOLDS.n_folds, n_levels, Y.shape[1])
        # Sums are taken about a mean: a variance from raw squares would cancel where targets are far from 0.
        if self.pivot is None and len(Y):
            self.pivot = Y.mean(axis=0)
        self.pivot = np.zeros(Y.shape[1]) if self.pivot is None else _grown(self.pivot, (Y.shape[1],))
        self.weights = _grown(self.weights, shape[:2])
        self.sums, self.squares = _grown(self.sums, shape), _grown(self.squares, shape)
        centred = Y - self.pivot
        # A new class was 0 in all rows before, and has a pivot of 0, so its former sums are 0.
        np.add.at(self.weights, (folds, places), 1.0)
        np.add.at(self.sums, (folds, places), centred)
        np.add.at(self.squares, (folds, places), centred**2)

    @property
    def n_bytes(self) -> int:
        """Memory of the levels, about: a text as Python holds it, its place, and its sums."""
        arrays = (self.counts, self.weights, self.sums, self.squares)
        return self.n_characters + 150 * len(self.index) + sum(array.nbytes for array in arrays)

    def give_up(self) -> None:
        """Free the memory, and remember how many levels there were."""
        self.n_given_up = len(self.index)
        self._begin()

    def encoder(
        self, name: str, encoding: Encoding, outputs: _Outputs | None, n_rows: int
    ) -> recipes.Encoder | str:
        """Return the encoder of the column, or why the column is left out."""
        counted = zip(self.index, self.counts.tolist(), strict=False)
        # levels of held-out rows count 0, and so does MISSING where nothing is missing
        count_of = {level: count for level, count in counted if count}
        n_levels = len(count_of)
        if self.n_given_up:
            return f"it has {self.n_given_up:,} levels or more"
        if not n_rows - self.n_missing:
            return "it holds no value"
        if n_levels == 1:
            return CONSTANT[0]
        if encoding.categories == "auto" and n_levels > max(FEW_LEVELS, n_rows // 2):
            return f"its texts rarely come twice: {n_levels:,} in {n_rows:,} rows"
        most = max(count_of, key=lambda level: (count_of[level] if level != recipes.MISSING else 0, level))
        fill = {"none": None, "most-frequent": most}.get(encoding.impute, recipes.MISSING)
        if encoding.categories == "target" and outputs is None:
            raise InvalidParameterError(
                "`categories` is 'target', but there is no target to take means of; name it, or use 'one-hot'"
            )
        many = encoding.categories == "auto" and n_levels > FEW_LEVELS
        if outputs is not None and (many or encoding.categories == "target"):
            levels = sorted(count_of)
            means, rest = self._means(levels, outputs, np.arange(_FOLDS.n_folds))
            means_of = (outputs.names, means.tolist(), rest.tolist())
            return recipes.TargetMeans(name, levels, *means_of, fill, self.n_missing)
        # Ties go by name, so that the order of the rows does not decide which levels get a column.
        kept = sorted(count_of, key=lambda level: (-count_of[level], level))[:MOST_COLUMNS]
        if fill != recipes.MISSING:  # missing text is then refused, or becomes another level
            kept = [level for level in kept if level != recipes.MISSING or not self.n_missing]
        return recipes.OneHot(name, sorted(kept), n_levels > MOST_COLUMNS, fill, self.n_missing)

    def cross_fitted(self, levels: Sequence[str], outputs: _Outputs) -> FloatArray:
        """Return the means for the rows of each fold, of shape (n_folds, n_levels + 1, n_outputs)."""
        folds = np.arange(_FOLDS.n_folds)
        return np.stack([np.vstack(self._means(levels, outputs, np.delete(folds, fold))) for fold in folds])

    def _means(
        self, levels: Sequence[str], outputs: _Outputs, folds: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the means of the levels and the mean of all, from the rows of some folds."""
        assert self.pivot is not None
        places = np.array([self.index[level] for level in levels], np.int64)
        weights = self.weights[folds].sum(axis=0)
        sums, squares = (part[folds].sum(axis=0)[:, outputs.order] for part in (self.sums, self.squares))
        total = max(1.0, float(weights.sum()))
        mean = sums.sum(axis=0) / total
        variance = squares.sum(axis=0) / total - mean**2
        count = weights[places, np.newaxis]
        with np.errstate(divide="ignore", invalid="ignore"):  # a level without rows gets the mean below
            means = sums[places] / count
            spread = np.maximum(squares[places] - count * means**2, 0.0) / count
            # the empirical Bayes weight of TargetEncoder(smooth="auto")
            share = variance * count / (variance * count + spread)
            drawn = share * means + (1.0 - share) * mean
        pivot = self.pivot[outputs.order]
        return np.where(np.isfinite(drawn), drawn, mean) + pivot, mean + pivot


def _numbered(column: pyarrow.Array, index: dict[str, int]) -> tuple[IntArray, IntArray]:
    """Return the number of each text in `index`, which new texts are added to, and the missing rows."""
    encoded: Any = to_text(column).dictionary_encode()
    numbers = [index.setdefault(text, len(index)) for text in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    missing = np.flatnonzero(encoded.is_null().to_numpy(zero_copy_only=False))
    # missing texts alone have an empty dictionary, in which place 0 must still be found
    return np.array(numbers or [0], np.int64)[places], missing


def _grown(array: Any, shape: tuple[int, ...]) -> Any:
    if array.shape == shape:
        return array
    grown = np.zeros(shape, array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown
