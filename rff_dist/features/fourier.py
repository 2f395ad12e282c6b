"""Random Fourier features: standardise, project, cosine and sine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rff_dist.checks import as_array
from rff_dist.errors import InvalidParameterError
from rff_dist.features import cosines, maps
from rff_dist.kernels import base
from rff_dist.numerics import exact_sums
from rff_dist.typing import AnyArray, Arrays, Facts, Float32Array, FloatArray

LARGEST_ANGLE = 2.0**19  # radians; float32 rounds it by 0.03


@dataclass(frozen=True, eq=False, repr=False)
class FourierFeatureMap(cosines.CosineFeatureMap):
    """Random Fourier features of a shift-invariant kernel (Rahimi & Recht 2007).

    A map that was drawn from a spec pickles as the spec and its digest; unpickling draws it again and checks
    the digest. A map of given frequencies pickles them.

    `frequencies`: float32 array of shape (n_features, n_frequencies). In radians per unit of the
      (standardised) inputs.
    """

    kind = "fourier"

    frequencies: Float32Array
    phases: Float32Array | None = None
    standardizer: maps.Standardizer | None = None
    spec: maps.FeatureSpec | None = None
    precision: str = "high"

    @property
    def n_features(self) -> int:
        return int(self.frequencies.shape[0])

    @property
    def n_frequencies(self) -> int:
        return int(self.frequencies.shape[1])

    def angles(self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray) -> cosines.Angles:
        # A float32 product rounds by the shape of its factors and the number of BLAS threads. In float64 and
        # rounded once, a row's angles do not depend on the rows next to it; this costs 1 to 2 % of a pass (32
        # inputs, D = 1,024).
        frequencies = self.frequencies[:, start:stop]
        np.matmul(frequencies.T.astype(np.float64), inputs.T.astype(np.float64), out=scratch)
        _warn_of_lost_angles(scratch[:, :8])
        yield slice(0, stop - start), slice(0, len(inputs)), scratch.astype(np.float32)

    def angles_of_rows(self, inputs: Float32Array) -> Float32Array:
        angles = inputs.astype(np.float64) @ self.frequencies.astype(np.float64)
        _warn_of_lost_angles(angles[:8])
        return angles.astype(np.float32)

    def digest(self) -> str:
        label = f"{self.map} {self.frequencies.shape}{' fixed point' if self.fixed_point else ''}"
        return maps.arrays_digest(label, [self.frequencies, self.phases], self.standardizer)

    def frequency_arrays(self) -> dict[str, AnyArray]:
        return {"frequencies": self.frequencies}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None) -> Self:
        phases = arrays.get("phases")
        return cls(arrays["frequencies"], phases, standardizer, precision=facts["precision"])

    @classmethod
    def drawn(cls, spec: maps.FeatureSpec, standardizer: maps.Standardizer | None) -> Self:
        frequencies = _draw_matrix(replace(spec, precision="high"))  # both precisions share frequencies
        return cls(frequencies, cosines.drawn_phases(spec), standardizer, spec, spec.precision)


def _warn_of_lost_angles(angles: FloatArray) -> None:
    """Warn if float32, in which inputs and angles are rounded, loses the angles of a few rows."""
    typical = float(np.median(np.abs(angles))) if angles.size else 0.0
    if typical > LARGEST_ANGLE:
        warnings.warn(
            f"angles of Fourier features are about {typical:.3g} radians, of which float32 keeps few digits: "
            "length scales are far smaller than inputs. Standardise the inputs, or give larger length scales",
            stacklevel=2,
        )


@lru_cache(maxsize=8)
def _draw_matrix(spec: maps.FeatureSpec) -> Float32Array:
    assert isinstance(spec.kernel, base.ShiftInvariant)
    count = cosines.n_frequencies_of(spec)
    drawn = spec.kernel.sample_frequencies(spec.n_features, count, design=spec.design, rng=spec.seed)
    cosines.check_float32(float(np.abs(drawn).max()), spec)
    frequencies = drawn.astype(np.float32)
    frequencies.setflags(write=False)  # the cache shares them, and digests name them
    return frequencies


def draw_fourier(spec: maps.FeatureSpec, standardizer: maps.Standardizer | None = None) -> FourierFeatureMap:
    """Draw the features of a shift-invariant kernel, or take them from the last few draws.

    Raises InvalidParameterError if float32 cannot hold the frequencies, or the design does not suit the
      kernel.
    """
    return FourierFeatureMap.drawn(spec, standardizer)


# -- complex Fourier features, for teaching --------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class ComplexFeatureMap(maps.FeatureMap):
    """exp(i·ω_j'x) / √D: D frequencies, D complex components. For `transform` only, not for training.

    `frequencies`: float32 array of shape (n_features, n_components). In radians per unit of the
      (standardised) inputs.
    """

    kind = "complex"
    map = "complex"

    frequencies: Float32Array
    standardizer: maps.Standardizer | None = None
    spec: maps.FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        return int(self.frequencies.shape[0])

    @property
    def n_components(self) -> int:
        return int(self.frequencies.shape[1])

    @property
    def scales(self) -> exact_sums.Runs:
        return ((self.n_components, 1 / np.sqrt(self.n_components)),)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Raise InvalidParameterError: sums and solvers are real."""
        raise InvalidParameterError(
            "map='complex' is for teaching: it has no real features to train on; take map='pairs', whose "
            "cosines and sines are its real and imaginary parts"
        )

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.complex128) -> AnyArray:
        inputs = self.prepare(as_array(X, "X"))
        maps.check_inputs(inputs)
        angles = inputs.astype(np.float64) @ self.frequencies.astype(np.float64)
        return np.asarray(np.exp(1j * angles) / np.sqrt(self.n_components), dtype)

    def digest(self) -> str:
        label = f"{self.kind} {self.frequencies.shape}"
        return maps.arrays_digest(label, [self.frequencies], self.standardizer)

    def record(self) -> maps.Record:
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None) -> Self:
        return cls(arrays["frequencies"], standardizer)
