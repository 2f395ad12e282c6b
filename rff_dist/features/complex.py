"""Complex Fourier features, for teaching: Z·Z* approximates the kernel, straight from Bochner's theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from rff_dist.errors import InvalidParameterError
from rff_dist.features.feature_map import (
    FeatureMap,
    FeatureSpec,
    Record,
    Standardizer,
    arrays_digest,
    check_inputs,
)
from rff_dist.numerics.runs import Runs
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class ComplexFeatureMap(FeatureMap):
    """exp(i·ω_j'x) / √D: D frequencies, D complex components. For `transform` only, not for training.

    `frequencies`: float32 array of shape (n_features, n_components). In radians per unit of the
      (standardised) inputs.
    """

    kind = "complex"
    map = "complex"

    frequencies: Float32Array
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        return int(self.frequencies.shape[0])

    @property
    def n_components(self) -> int:
        return int(self.frequencies.shape[1])

    @property
    def scales(self) -> Runs:
        return ((self.n_components, 1 / np.sqrt(self.n_components)),)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Raise InvalidParameterError: sums and solvers are real."""
        raise InvalidParameterError(
            "map='complex' is for teaching: it has no real features to train on; take map='pairs', whose "
            "cosines and sines are its real and imaginary parts"
        )

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.complex128) -> NDArray[Any]:
        inputs = self.prepare(np.asarray(X))
        check_inputs(inputs)
        angles = inputs.astype(np.float64) @ self.frequencies.astype(np.float64)
        return np.asarray(np.exp(1j * angles) / np.sqrt(self.n_components), dtype)

    def digest(self) -> str:
        return arrays_digest(f"{self.kind} {self.frequencies.shape}", [self.frequencies], self.standardizer)

    def record(self) -> Record:
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: Standardizer | None) -> Self:
        return cls(arrays["frequencies"], standardizer)
