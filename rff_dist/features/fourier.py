"""Random Fourier features: standardise, project, cosine and sine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.features.cosines import CosineFeatureMap, check_float32, drawn_phases, n_frequencies_of
from rff_dist.features.feature_map import FeatureSpec, Standardizer, arrays_digest
from rff_dist.features.structured import StructuredFeatureMap, has_blocks
from rff_dist.kernels.base import ShiftInvariant
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class FourierFeatureMap(CosineFeatureMap):
    """Random Fourier features of a shift-invariant kernel (Rahimi & Recht 2007).

    A map that was drawn from a spec pickles as the spec and its digest; unpickling draws it again and checks
    the digest. A map of given frequencies pickles them.

    `frequencies`: float32 array of shape (n_features, n_frequencies). In radians per unit of the
      (standardised) inputs.
    """

    kind = "fourier"

    frequencies: Float32Array
    phases: Float32Array | None = None
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None
    precision: str = "high"

    @property
    def n_features(self) -> int:
        return int(self.frequencies.shape[0])

    @property
    def n_frequencies(self) -> int:
        return int(self.frequencies.shape[1])

    def angles(
        self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray
    ) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        # A float32 product rounds by the shape of its factors and the number of BLAS threads. In float64 and
        # rounded once, a row's angles do not depend on the rows beside it; this costs 1 to 2 % of a pass (32
        # inputs, D = 1,024).
        frequencies = self.frequencies[:, start:stop]
        np.matmul(frequencies.T.astype(np.float64), inputs.T.astype(np.float64), out=scratch)
        yield slice(0, stop - start), slice(0, len(inputs)), scratch.astype(np.float32)

    def angles_of_rows(self, inputs: Float32Array) -> Float32Array:
        angles = inputs.astype(np.float64) @ self.frequencies.astype(np.float64)
        return angles.astype(np.float32)

    def digest(self) -> str:
        label = f"{self.map} {self.frequencies.shape}{' fixed point' if self.fixed_point else ''}"
        return arrays_digest(label, [self.frequencies, self.phases], self.standardizer)

    def frequency_arrays(self) -> dict[str, NDArray[Any]]:
        return {"frequencies": self.frequencies}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: Standardizer | None) -> Self:
        phases = arrays.get("phases")
        return cls(arrays["frequencies"], phases, standardizer, precision=facts["precision"])

    @classmethod
    def drawn(cls, spec: FeatureSpec, standardizer: Standardizer | None) -> Self:
        frequencies = _draw_matrix(replace(spec, precision="high"))  # both precisions share frequencies
        return cls(frequencies, drawn_phases(spec), standardizer, spec, spec.precision)


@lru_cache(maxsize=8)
def _draw_matrix(spec: FeatureSpec) -> Float32Array:
    assert isinstance(spec.kernel, ShiftInvariant)
    count = n_frequencies_of(spec)
    drawn = spec.kernel.sample_frequencies(spec.n_features, count, design=spec.design, rng=spec.seed)
    check_float32(float(np.abs(drawn).max()), spec)
    frequencies = drawn.astype(np.float32)
    frequencies.setflags(write=False)  # the cache shares them, and digests name them
    return frequencies


def draw_fourier(
    spec: FeatureSpec, standardizer: Standardizer | None = None
) -> FourierFeatureMap | StructuredFeatureMap:
    """Draw the features of a shift-invariant kernel, or take them from the last few draws.

    Raises InvalidParameterError if float32 cannot hold the frequencies, or the design does not suit the
      kernel.
    """
    kind = StructuredFeatureMap if has_blocks(spec) else FourierFeatureMap
    return kind.drawn(spec, standardizer)
