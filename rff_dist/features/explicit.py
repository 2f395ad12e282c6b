"""Feature maps of kernels that are not functions of x - y.

A constant, linear, polynomial or min kernel goes in; a map to its features comes out.
The features are exact, except for the min kernel. Such kernels have no spectral measure
to draw frequencies from.

A linear kernel gives each level of a category a *mark*: a component that is 1 in rows
with this level, and else 0. Columns of categories hold codes: a code is the place of a
level in the column's list of texts. A level may join the end of this list later; it has
no mark.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations_with_replacement
from typing import Self

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.features import levels as levels_of
from rff_dist.features import maps
from rff_dist.features.levels import Levels
from rff_dist.frequencies.uniforms import counter_uniforms
from rff_dist.kernels import explicit
from rff_dist.numerics import exact_sums
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray, IntArray, Summary

_THRESHOLD_STREAM = 3  # of a seed's random numbers, see `frequencies.uniforms`


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExplicitFeatureMap(maps.FeatureMap):
    """A map whose record has its fields, by name, that are arrays and numbers.

    Subclasses record other fields; callers store the standardizer.
    """

    #: Number of input columns.
    width: int
    standardizer: maps.Standardizer | None = None

    @property
    def n_features(self) -> int:
        return self.width

    def digest(self) -> str:
        facts, arrays = self.record()
        label = " ".join([self.kind, *map(repr, facts.values())])
        return maps.arrays_digest(label, list(arrays.values()), self.standardizer)

    def record(self) -> maps.Record:
        facts: Summary = {}
        arrays = {}
        for field_ in fields(self):
            value = getattr(self, field_.name)
            if isinstance(value, int | float):
                facts[field_.name] = value
            elif isinstance(value, np.ndarray):
                arrays[field_.name] = value
        return facts, arrays

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        stored: Summary = {**facts, **arrays, "standardizer": standardizer}
        names = [field.name for field in fields(cls) if field.name in stored]
        return cls(**{name: stored[name] for name in names})


@dataclass(frozen=True, eq=False, repr=False)
class LinearFeatureMap(ExplicitFeatureMap):
    """Features of linear and constant kernels: columns, constants, marks of levels."""

    kind = "linear"

    #: The input column of each component, -1 for the constant 1.
    columns: IntArray
    #: A component is 1 where a column of categories has this code; -1 is a column of
    #: numbers. None without categories.
    codes: IntArray | None = None
    #: The lists of texts that `levels` returns.
    level_texts: Levels = field(default_factory=dict)

    @property
    def own_columns(self) -> IntArray:
        return self.columns

    @property
    def n_components(self) -> int:
        return len(self.columns)

    @property
    def bounded(self) -> bool:
        is_number = self.columns >= 0
        if self.codes is not None:
            is_number &= self.codes < 0
        return not bool(is_number.any())

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        codes = np.full(len(self.columns), -1) if self.codes is None else self.codes
        for i, component in zip(range(start, stop), out, strict=True):
            column = self.columns[i]
            if column < 0:
                component[:] = 1.0
            elif codes[i] < 0:
                component[:] = inputs[:, column]
            else:
                component[:] = inputs[:, column] == codes[i]

    @property
    def levels(self) -> Levels:
        return self.level_texts

    @property
    def marked_levels(self) -> dict[int, list[str]]:
        """The levels that have a mark, by column, in the order of components."""
        marked: dict[int, list[str]] = {}
        if self.codes is not None:
            for column, code in zip(self.columns.tolist(), self.codes, strict=True):
                if code >= 0:
                    marked.setdefault(column, []).append(self.levels[column][code])
        return marked

    @property
    def drawn_levels(self) -> Levels:
        marked = self.marked_levels
        return {column: tuple(marked.get(column, ())) for column in self.levels}

    @property
    def learns_levels(self) -> bool:
        return self.codes is None  # without marks a new level needs none

    def with_levels(self, levels: Levels) -> Self:
        if self.levels == levels or self.codes is None:
            return self
        union = levels_of.joined(levels, self.marked_levels)
        codes = self.codes.copy()
        changes = levels_of.code_changes(self.levels, union)
        for column, new_codes in changes.items():
            marks = self.columns == column
            codes[marks] = new_codes[codes[marks]]
        return replace(self, codes=codes, level_texts=union)

    def digest(self) -> str:
        # codes depend on the list of levels, texts do not
        marks = [text for texts in self.marked_levels.values() for text in texts]
        label = " ".join([self.kind, repr(self.width), *marks])
        return maps.arrays_digest(label, [self.columns], self.standardizer)

    def record(self) -> maps.Record:
        facts, arrays = super().record()
        if self.levels:
            facts["levels"] = levels_of.to_json(self.levels)
        return facts, arrays

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        levels = levels_of.from_json(facts.get("levels", {}))
        stored = {**facts, "level_texts": levels}
        return super().from_record(stored, arrays, standardizer)


def linear_map(
    columns: Sequence[int], levels: Levels, *, width: int
) -> LinearFeatureMap:
    """Return the features of a linear kernel of some columns.

    A column of categories has a mark for each of its levels.
    """
    pairs: list[tuple[int, int]] = []
    for column in columns:
        codes: Sequence[int] = [-1]
        if column in levels:
            # sorted by texts, so that a list in another order has the same features
            texts = levels[column]
            codes = sorted(range(len(texts)), key=texts.__getitem__)
        pairs += [(column, code) for code in codes]
    components = np.array([column for column, _ in pairs])
    if not levels:
        return LinearFeatureMap(components, width=width)
    codes_of_components = np.array([code for _, code in pairs])
    return LinearFeatureMap(components, codes_of_components, levels, width=width)


@dataclass(frozen=True, eq=False, repr=False)
class ThresholdFeatureMap(ExplicitFeatureMap):
    """1{t ≤ x} for thresholds t spread over an interval: features of the min kernel."""

    kind = "threshold"

    #: Of shape (n_components,), as are the others.
    thresholds: Float32Array
    #: The input column of each threshold.
    columns: IntArray
    #: √(length of the column's interval / number of its thresholds).
    factors: FloatArray

    @property
    def own_columns(self) -> IntArray:
        return self.columns

    @property
    def n_components(self) -> int:
        return len(self.thresholds)

    @property
    def scales(self) -> exact_sums.Runs:
        return exact_sums.as_runs(self.factors)

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        for i, component in enumerate(range(start, stop)):
            np.greater_equal(
                inputs[:, self.columns[component]],
                self.thresholds[component],
                out=out[i],
            )


def draw_thresholds(
    kernel: explicit.Min, columns: IntArray, n_components: int, seed: int, *, width: int
) -> ThresholdFeatureMap:
    """Draw the thresholds of a min kernel, each uniform on its column's interval.

    Columns take turns. A column's thresholds follow a van der Corput sequence, shifted
    at random. So each of 2**k equal parts of the interval has one of the first 2**k
    thresholds, and a longer draw begins with the thresholds of a shorter one.

    Raises InvalidParameterError if there are fewer thresholds than columns, since some
    columns would have none.
    """
    if n_components < len(columns):
        raise InvalidParameterError(
            f"the min kernel of {len(columns)} columns has {n_components} components;"
            " expected at least one per column. Give more `n_components`, fewer"
            " columns, or features='nystrom'"
        )
    from scipy.stats import qmc  # takes 50 MiB, which few kernels need

    lower, upper = kernel.interval(len(columns))
    turns = np.arange(n_components)
    which = turns % len(columns)
    index = turns // len(columns)
    shift = counter_uniforms(seed, _THRESHOLD_STREAM, len(columns), 1)[:, 0]
    # the kernel min(x, y) − lower is ∫ 1{t ≤ x}·1{t ≤ y} dt over the interval, which
    # the mean over thresholds estimates
    sequence = qmc.Halton(1, scramble=False).random(index[-1] + 1)[:, 0]
    places = (sequence[index] + shift[which]) % 1.0
    thresholds = lower[which] + (upper - lower)[which] * places
    counts = np.bincount(which, minlength=len(columns))
    factors = np.sqrt((upper - lower)[which] / counts[which])
    return ThresholdFeatureMap(
        thresholds.astype(np.float32), columns[which], factors, width=width
    )


@dataclass(frozen=True, eq=False, repr=False)
class MonomialFeatureMap(ExplicitFeatureMap):
    """All monomials of a polynomial kernel, which are its exact features.

    (x·y + offset)^degree is a power of the inner product of (x, √offset) and (y,
    √offset). So its features are the products of `degree` of these entries, times the
    root of the number of orders of each product.
    """

    kind = "monomial"
    bounded = False

    #: The input columns that are multiplied, of shape (n_components, degree); -1 is the
    #: constant 1. Stored maps have this name.
    inputs: IntArray
    #: √(multinomial coefficient · offset^(number of constants)) of each component.
    factors: FloatArray

    @property
    def own_columns(self) -> IntArray:
        # All components have the column if there is only one. Else none has, since the
        # kernel has no term for a single column.
        columns = np.unique(self.inputs[self.inputs >= 0])
        own = columns[0] if len(columns) == 1 else -1
        return np.full(self.n_components, own)

    @property
    def n_components(self) -> int:
        return len(self.inputs)

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        factor_columns = self.inputs[start:stop].tolist()
        factors = self.factors[start:stop]
        for component, columns, factor in zip(
            out, factor_columns, factors, strict=True
        ):
            component[:] = factor
            for column in columns:
                if column >= 0:
                    component *= inputs[:, column]


def n_monomials(kernel: explicit.Polynomial, n_columns: int) -> int:
    """Return how many exact features a polynomial kernel has."""
    # multisets of `degree` entries of (x, √offset), or of x if the offset is 0
    n_entries = n_columns + (kernel.offset > 0)
    return math.comb(n_entries - 1 + kernel.degree, kernel.degree)


def make_monomials(
    kernel: explicit.Polynomial, columns: IntArray, *, width: int
) -> MonomialFeatureMap:
    """Return the exact features of a polynomial kernel."""
    degree = kernel.degree
    offset = kernel.offset
    choices = [*columns.tolist(), *([-1] if offset else [])]
    products = np.array(list(combinations_with_replacement(choices, degree)), np.int64)
    repeats = [map(math.factorial, Counter(row).values()) for row in products.tolist()]
    # multinomial coefficients: how many times the expanded power has each product
    orders = [math.factorial(degree) // math.prod(counts) for counts in repeats]
    constants = (products < 0).sum(axis=1)
    factors = np.sqrt(np.array(orders, np.float64) * offset**constants)
    return MonomialFeatureMap(products, factors, width=width)
