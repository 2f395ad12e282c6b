"""Feature maps of kernels that are not functions of x - y: constant, linear, polynomial, min."""

import math
from collections import Counter
from dataclasses import dataclass, fields
from itertools import combinations_with_replacement
from typing import Self

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.features import maps
from rff_dist.frequencies.uniforms import counter_uniforms
from rff_dist.kernels import explicit
from rff_dist.numerics import exact_sums
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray, IntArray, Summary

_THRESHOLD_STREAM = 3


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExplicitFeatureMap(maps.FeatureMap):
    """Features stored by their fields: arrays, and numbers such as `width`, the number of input columns."""

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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        facts = {name: value for name, value in values.items() if isinstance(value, int | float)}
        return facts, {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None) -> Self:
        stored: Summary = {**facts, **arrays, "standardizer": standardizer}
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})


@dataclass(frozen=True, eq=False, repr=False)
class LinearFeatureMap(ExplicitFeatureMap):
    """Input columns and constants: the exact features of linear and constant kernels.

    `columns`: int64 array of shape (n_components,). The input column of each component; -1 is the constant 1.
    """

    kind = "linear"

    columns: IntArray

    @property
    def n_components(self) -> int:
        return len(self.columns)

    @property
    def bounded(self) -> bool:
        return bool((self.columns < 0).all())

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        for line, column in zip(out, self.columns[start:stop], strict=True):
            line[:] = 1.0 if column < 0 else inputs[:, column]


@dataclass(frozen=True, eq=False, repr=False)
class ThresholdFeatureMap(ExplicitFeatureMap):
    """1{t ≤ x} for thresholds t spread over an interval: features of the min kernel.

    `thresholds`: float32 array of shape (n_components,).
    `columns`: int64 array of shape (n_components,). The input column of each threshold.
    `factors`: float64 array of shape (n_components,). √(length of the column's interval / number of its
      thresholds).
    """

    kind = "threshold"

    thresholds: Float32Array
    columns: IntArray
    factors: FloatArray

    @property
    def n_components(self) -> int:
        return len(self.thresholds)

    @property
    def scales(self) -> exact_sums.Runs:
        return exact_sums.as_runs(self.factors)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        for i, component in enumerate(range(start, stop)):
            np.greater_equal(inputs[:, self.columns[component]], self.thresholds[component], out=out[i])


def draw_thresholds(
    kernel: explicit.Min, columns: IntArray, n_components: int, seed: int, *, width: int
) -> ThresholdFeatureMap:
    """Draw the thresholds of a min kernel, each uniform on its column's interval.

    Columns take turns. A column's thresholds follow a van der Corput sequence, shifted at random. So of the
    first 2**k there is one in each of 2**k equal parts of the interval, and more thresholds begin with them.

    Raises InvalidParameterError if there are fewer thresholds than columns, of which some would have none.
    """
    if n_components < len(columns):
        raise InvalidParameterError(
            f"the min kernel of {len(columns)} columns has {n_components} components; expected at least one "
            "per column. Give more `n_components`, fewer columns, or features='nystrom'"
        )
    lower, upper = kernel.interval(len(columns))
    turns = np.arange(n_components)
    which, index = turns % len(columns), turns // len(columns)
    shift = counter_uniforms(seed, _THRESHOLD_STREAM, len(columns), 1)[:, 0]
    # min(x, y) − lower = ∫ 1{t ≤ x}·1{t ≤ y} dt over the interval, which thresholds average
    places = (_radical_inverse(index) + shift[which]) % 1.0
    thresholds = lower[which] + (upper - lower)[which] * places
    counts = np.bincount(which, minlength=len(columns))
    factors = np.sqrt((upper - lower)[which] / counts[which])
    return ThresholdFeatureMap(thresholds.astype(np.float32), columns[which], factors, width=width)


def _radical_inverse(indices: IntArray) -> FloatArray:
    """Return each index with its binary digits mirrored at the point (van der Corput)."""
    result, half, rest = np.zeros(len(indices)), 0.5, indices.copy()
    while rest.any():
        result += half * (rest & 1)
        rest >>= 1
        half /= 2
    return result


@dataclass(frozen=True, eq=False, repr=False)
class MonomialFeatureMap(ExplicitFeatureMap):
    """All monomials of a polynomial kernel, which are its exact features.

    (x·y + offset)^degree is a power of the inner product of (x, √offset) and (y, √offset). So its features
    are the products of `degree` of these entries, times the root of the number of orders of each product.

    `inputs`: int64 array of shape (n_components, degree). The input columns that are multiplied; -1 is the
      constant 1.
    `factors`: float64 array of shape (n_components,). √(multinomial coefficient · offset^(number of
      constants)).
    """

    kind = "monomial"
    bounded = False

    inputs: IntArray
    factors: FloatArray

    @property
    def n_components(self) -> int:
        return len(self.inputs)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        inputs_of, factors = self.inputs[start:stop].tolist(), self.factors[start:stop]
        for line, columns, factor in zip(out, inputs_of, factors, strict=True):
            line[:] = factor
            for column in columns:
                if column >= 0:
                    line *= inputs[:, column]


def n_monomials(kernel: explicit.Polynomial, n_columns: int) -> int:
    """Return how many exact features a polynomial kernel has."""
    # multisets of `degree` entries of (x, √offset); without √offset if that is 0
    return math.comb(n_columns - (kernel.offset == 0) + kernel.degree, kernel.degree)


def make_monomials(kernel: explicit.Polynomial, columns: IntArray, *, width: int) -> MonomialFeatureMap:
    """Return the exact features of a polynomial kernel."""
    degree, offset = kernel.degree, kernel.offset
    choices = [*columns.tolist(), *([-1] if offset else [])]
    products = np.array(list(combinations_with_replacement(choices, degree)), np.int64)
    repeats = [map(math.factorial, Counter(row).values()) for row in products.tolist()]
    # multinomial coefficients: a product of k different entries stands k! times in the expanded power
    orders = [math.factorial(degree) // math.prod(counts) for counts in repeats]
    constants = (products < 0).sum(axis=1)
    factors = np.sqrt(np.array(orders, np.float64) * offset**constants)
    return MonomialFeatureMap(products, factors, width=width)
