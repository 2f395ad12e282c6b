"""Feature maps side by side: the features of a sum of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.features.feature_map import FeatureMap, FeatureSpec, Record, Standardizer, arrays_digest
from rff_dist.numerics.runs import Runs
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class ConcatenatedFeatureMap(FeatureMap):
    """√w₁·z₁, √w₂·z₂, …: the features of Σ wᵢ·kᵢ.

    `parts`: feature maps without standardizers of their own.
    """

    kind = "concatenated"

    parts: tuple[FeatureMap, ...]
    weights: tuple[float, ...]
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        return self.parts[0].n_features

    @property
    def n_components(self) -> int:
        return sum(part.n_components for part in self.parts)

    @property
    def scales(self) -> Runs:
        return tuple(
            (count, math.sqrt(weight) * scale)
            for part, weight in zip(self.parts, self.weights, strict=True)
            for count, scale in part.scales
        )

    @property
    def squared_norm(self) -> float | None:
        norms = [part.squared_norm for part in self.parts]
        return None if None in norms else math.fsum(norm for norm in norms if norm is not None)

    @property
    def bounded(self) -> bool:
        return all(part.bounded for part in self.parts)

    @property
    def fixed_point(self) -> bool:
        return all(part.fixed_point for part in self.parts)

    @property
    def stripes(self) -> list[tuple[int, int]]:
        return [
            (first + start, first + stop)
            for first, part in zip(self._firsts, self.parts, strict=True)
            for start, stop in part.stripes
        ]

    @property
    def _firsts(self) -> list[int]:
        ends = np.cumsum([part.n_components for part in self.parts])
        return [0, *ends[:-1].tolist()]

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        for first, part in zip(self._firsts, self.parts, strict=True):
            a, b = max(start, first), min(stop, first + part.n_components)
            if a < b:
                part.fill(inputs, out[a - start : b - start], a - first, b - first)

    def digest(self) -> str:
        label = " ".join([self.kind, *(part.digest() for part in self.parts), repr(self.weights)])
        return arrays_digest(label, [], self.standardizer)

    def record(self) -> Record:
        facts: list[dict[str, Any]] = []
        arrays: dict[str, NDArray[Any]] = {}
        for i, part in enumerate(self.parts):
            part_facts, part_arrays = part.record()
            facts.append({"kind": part.kind, **part_facts})
            arrays |= {f"part{i}_{name}": array for name, array in part_arrays.items()}
        return {"parts": facts, "weights": list(self.weights)}, arrays

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: Standardizer | None) -> Self:
        return cls(tuple(facts["parts"]), tuple(facts["weights"]), standardizer)
