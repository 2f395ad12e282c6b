"""Random Fourier features: standardise, project, cosine and sine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import BroadcastError, InvalidParameterError
from rff_dist.features.cosines import CosineFeatureMap
from rff_dist.features.feature_map import FeatureSpec, Standardizer, arrays_digest
from rff_dist.features.structured import StructuredFeatureMap, in_float32
from rff_dist.frequencies.counter import draw_phases
from rff_dist.frequencies.designs import Structured
from rff_dist.frequencies.hadamard import HadamardBlocks
from rff_dist.kernels.base import ShiftInvariant
from rff_dist.kernels.stationary import Stationary
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray


@dataclass(frozen=True, eq=False)
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
        precision = facts.get("precision", "high")
        return cls(arrays["frequencies"], arrays.get("phases"), standardizer, precision=precision)


type _Drawn = Float32Array | HadamardBlocks


@lru_cache(maxsize=8)
def _draw_arrays(spec: FeatureSpec) -> tuple[_Drawn, Float32Array | None]:
    n_frequencies = spec.n_components // 2 if spec.map == "pairs" else spec.n_components
    drawn = _draw_blocks(spec, n_frequencies) or _draw_matrix(spec, n_frequencies)
    if spec.map == "pairs":
        return drawn, None
    phases = draw_phases(n_frequencies, spec.seed).astype(np.float32)
    phases.setflags(write=False)
    return drawn, phases


def _draw_matrix(spec: FeatureSpec, n_frequencies: int) -> Float32Array:
    assert isinstance(spec.kernel, ShiftInvariant)
    drawn = spec.kernel.sample_frequencies(spec.n_features, n_frequencies, design=spec.design, rng=spec.seed)
    _check_float32(float(np.abs(drawn).max()), spec)
    frequencies = drawn.astype(np.float32)
    frequencies.setflags(write=False)  # the cache shares them, and digests name them
    return frequencies


def _draw_blocks(spec: FeatureSpec, n_frequencies: int) -> HadamardBlocks | None:
    """Return the blocks of a structured draw; None if the kernel or the design has none."""
    kernel, design, n_features = spec.kernel, spec.design, spec.n_features
    if not isinstance(design, Structured) or not isinstance(kernel, Stationary):
        return None
    unit = design.blocks(kernel.spectral_measure(), n_features, n_frequencies, spec.seed)
    if unit is None:
        return None
    stretch = unit.stretch / kernel.length_scales(n_features)
    _check_float32(float(unit.radii.max() * max(1.0, stretch.max())), spec)
    return in_float32(replace(unit, stretch=stretch))


def _check_float32(largest: float, spec: FeatureSpec) -> None:
    if not largest <= float(np.finfo(np.float32).max):
        raise InvalidParameterError(
            f"frequencies of {spec.kernel} reach {largest:.3g}, more than float32 holds; take a "
            "larger `length_scale` (or `nu`), or scale the inputs up with it"
        )


def redraw(
    spec: FeatureSpec, standardizer: Standardizer | None, digest: str
) -> FourierFeatureMap | StructuredFeatureMap:
    """Draw a feature map that was pickled as its spec; raises BroadcastError if its digest has changed."""
    feature_map = draw_fourier(spec, standardizer)
    if feature_map.digest() != digest:
        raise BroadcastError(
            f"this process drew a feature map with the digest {feature_map.digest()[:12]}; expected "
            f"{digest[:12]}. Its processor or libraries round differently: use one kind of machine, or give "
            "the frequencies as arrays"
        )
    return feature_map


def draw_fourier(
    spec: FeatureSpec, standardizer: Standardizer | None = None
) -> FourierFeatureMap | StructuredFeatureMap:
    """Draw the features of a shift-invariant kernel, or take them from the last few draws.

    Raises InvalidParameterError if float32 cannot hold the frequencies, or the design does not suit the
      kernel.
    """
    drawn, phases = _draw_arrays(replace(spec, precision="high"))  # both precisions share frequencies
    if isinstance(drawn, HadamardBlocks):
        return StructuredFeatureMap(drawn, phases, standardizer, spec, spec.precision)
    return FourierFeatureMap(drawn, phases, standardizer, spec, spec.precision)
