"""Feature maps made of other maps: side by side, or their principal components.

Maps go in; one map comes out: for a sum of kernels, or for k-means on a few principal
components. Features that callers concatenate or project themselves would have no
digest, could not be stored, and would all be in memory at once.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rff_dist.features import maps
from rff_dist.features.levels import Levels
from rff_dist.numerics import exact_sums, machine
from rff_dist.typing import (
    AnyArray,
    Arrays,
    Facts,
    Float32Array,
    FloatArray,
    IntArray,
    Summary,
)


@dataclass(frozen=True, eq=False, repr=False)
class ConcatenatedFeatureMap(maps.FeatureMap):
    """Like `sklearn.pipeline.FeatureUnion` of √wᵢ·zᵢ: the features of Σ wᵢ·kᵢ."""

    kind = "concatenated"

    #: They have no standardizers: this map's comes first.
    parts: tuple[maps.FeatureMap, ...]
    weights: tuple[float, ...]
    standardizer: maps.Standardizer | None = None
    spec: maps.FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        return self.parts[0].n_features

    @property
    def n_components(self) -> int:
        return sum(part.n_components for part in self.parts)

    @property
    def levels(self) -> Levels:
        levels: dict[int, tuple[str, ...]] = {}
        for part in self.parts:
            for column, texts in part.levels.items():
                # parts may know more levels, at the end of the list: take the longest
                levels[column] = max(levels.get(column, ()), texts, key=len)
        return levels

    def with_levels(self, levels: Levels) -> Self:
        parts = tuple(part.with_levels(levels) for part in self.parts)
        return replace(self, parts=parts)

    @property
    def drawn_levels(self) -> Levels:
        levels: dict[int, tuple[str, ...]] = {}
        # parts that have a component for each level come last
        for part in self.parts:
            levels |= part.drawn_levels
        return levels

    @property
    def learns_levels(self) -> bool:
        return all(part.learns_levels for part in self.parts)

    @property
    def own_columns(self) -> IntArray:
        return np.concatenate([part.own_columns for part in self.parts])

    @property
    def scales(self) -> exact_sums.Runs:
        runs = []
        for part, weight in zip(self.parts, self.weights, strict=True):
            for count, scale in part.scales:
                runs.append((count, math.sqrt(weight) * scale))
        return tuple(runs)

    @property
    def squared_norm(self) -> float | None:
        norms = []
        for part in self.parts:
            norm = part.squared_norm
            if norm is None:
                return None
            norms.append(norm)
        return math.fsum(norms)

    @property
    def bounded(self) -> bool:
        return all(part.bounded for part in self.parts)

    @property
    def fixed_point(self) -> bool:
        return all(part.fixed_point for part in self.parts)

    @property
    def stripes(self) -> list[tuple[int, int]]:
        stripes = []
        for first, part in zip(self._firsts, self.parts, strict=True):
            for start, stop in part.stripes:
                stripes.append((first + start, first + stop))
        return stripes

    @property
    def _firsts(self) -> list[int]:
        ends = np.cumsum([part.n_components for part in self.parts])
        return [0, *ends[:-1].tolist()]

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        for first, part in zip(self._firsts, self.parts, strict=True):
            a = max(start, first)
            b = min(stop, first + part.n_components)
            # the part has some of the components `start:stop`
            if a < b:
                part.fill(inputs, out[a - start : b - start], a - first, b - first)

    def digest(self) -> str:
        digests = [part.digest() for part in self.parts]
        label = " ".join([self.kind, *digests, repr(self.weights)])
        return maps.arrays_digest(label, [], self.standardizer)

    def record(self) -> maps.Record:
        facts: list[Summary] = []
        arrays: dict[str, AnyArray] = {}
        for i, part in enumerate(self.parts):
            part_facts, part_arrays = part.record()
            facts.append({"kind": part.kind, **part_facts})
            arrays |= {f"part{i}_{name}": array for name, array in part_arrays.items()}
        return {"parts": facts, "weights": list(self.weights)}, arrays

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        return cls(tuple(facts["parts"]), tuple(facts["weights"]), standardizer)


# -- principal components


def unit_vectors(vectors: FloatArray, axis: int) -> FloatArray:
    """Return vectors along an axis divided by their norms; those of zeros stay.

    Rows far from all centres have scores like 1e-200, whose squares are 0.
    """
    largest = np.abs(vectors).max(axis=axis, keepdims=True)
    near_one = vectors / exact_sums.scales_near(largest)
    norms = np.linalg.norm(near_one, axis=axis, keepdims=True)
    return near_one / np.where(norms > 0, norms, 1.0)


# Rows of one product. Products always have this shape, since it decides how they round.
_PANEL_ROWS = 64
_WORK_BYTES = 2**22  # the other map's features that are filled at once


@dataclass(frozen=True, eq=False, repr=False)
class PrincipalFeatureMap(maps.FeatureMap):
    """Z·A + a for another map's Z: its leading principal components.

    Z is computed again for each tile, and only the tile's part exists at a time. A row
    costs O(D · (n_features + n_kept)), where D is the other map's number of components.
    """

    kind = "principal"
    bounded = False

    #: The other map, without a standardizer of its own.
    base: maps.FeatureMap
    #: A, for the other map's unnormalised features; shape (D, n_kept).
    coefficients: FloatArray
    #: a, shape (n_kept,).
    intercept: FloatArray
    #: Whether rows are divided by their norms; then degrees cancel.
    is_unit: bool = False
    standardizer: maps.Standardizer | None = None

    @property
    def n_features(self) -> int:
        return self.base.n_features

    @property
    def n_components(self) -> int:
        return len(self.intercept)

    @property
    def levels(self) -> Levels:
        return self.base.levels

    @property
    def learns_levels(self) -> bool:
        return self.base.learns_levels

    def with_levels(self, levels: Levels) -> Self:
        return replace(self, base=self.base.with_levels(levels))

    @property
    def stripes(self) -> list[tuple[int, int]]:
        return [(0, self.n_components)]

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        D = self.base.n_components
        panel = np.zeros((D, _PANEL_ROWS))
        height = max(1, _WORK_BYTES // (8 * D * _PANEL_ROWS)) * _PANEL_ROWS
        features = np.empty((D, min(height, len(inputs))))
        for first in range(0, len(inputs), height):
            rows = inputs[first : first + height]
            tile = features[:, : len(rows)]
            for a, b in self.base.stripes:
                self.base.fill(rows, tile[a:b], a, b)
            for i in range(0, len(rows), _PANEL_ROWS):
                part = tile[:, i : i + _PANEL_ROWS]
                # the last part may be short; the panel's old rows pad it
                panel[:, : part.shape[1]] = part
                scores = self._scores(panel)[start:stop, : part.shape[1]]
                out[:, first + i : first + i + part.shape[1]] = scores

    def _scores(self, features: FloatArray) -> FloatArray:
        scores: FloatArray = (
            self.coefficients.T @ features + self.intercept[:, np.newaxis]
        )
        if self.is_unit:
            return unit_vectors(scores, axis=0)
        return scores

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.float64) -> AnyArray:
        # one BLAS thread, as in a pass: the same bits
        with machine.single_threaded_blas():
            return super().transform(X, dtype=dtype)

    def digest(self) -> str:
        label = (
            f"{self.kind} {self.base.digest()} {self.coefficients.shape} {self.is_unit}"
        )
        arrays: list[AnyArray | None] = [self.coefficients, self.intercept]
        return maps.arrays_digest(label, arrays, self.standardizer)

    def record(self) -> maps.Record:
        facts, arrays = self.base.record()
        stored = {f"base_{name}": array for name, array in arrays.items()}
        stored |= {"coefficients": self.coefficients, "intercept": self.intercept}
        base = {"kind": self.base.kind, **facts, **maps.spec_record(self.base)}
        return {"base": base, "is_unit": self.is_unit}, stored

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        return cls(
            facts["base"],
            np.asarray(arrays["coefficients"], np.float64),
            np.asarray(arrays["intercept"], np.float64),
            facts["is_unit"],
            standardizer,
        )
