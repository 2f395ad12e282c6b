"""Random Fourier features by fast Hadamard transforms, without a matrix of frequencies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.features.cosines import CosineFeatureMap, check_float32, drawn_phases, n_frequencies_of
from rff_dist.features.feature_map import STRIPE, FeatureSpec, Standardizer, arrays_digest
from rff_dist.frequencies.designs import Structured
from rff_dist.frequencies.hadamard import HadamardBlocks
from rff_dist.kernels.stationary import Stationary
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray

_STORED = ("rotations", "signs", "radii", "stretch")


@dataclass(frozen=True, eq=False, repr=False)
class StructuredFeatureMap(CosineFeatureMap):
    """Random Fourier features of an isotropic kernel (Choromanski, Rowland & Weller 2017).

    A row takes O(n_components · log n_features) work. Pickles as `FourierFeatureMap` does.

    `blocks`: with float32 rotations and radii.
    """

    kind = "structured"
    transform_rows = 128  # stripes are wide: only so few of their rows fit a core's own cache

    blocks: HadamardBlocks
    phases: Float32Array | None = None
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None
    precision: str = "high"

    @property
    def frequencies(self) -> Float32Array:
        """The frequencies multiplied out, shape (n_features, n_frequencies), for inspection."""
        return self.blocks.frequencies().astype(np.float32)

    @property
    def n_features(self) -> int:
        return len(self.blocks.stretch)

    @property
    def n_frequencies(self) -> int:
        return len(self.blocks.radii)

    @property
    def stripes(self) -> list[tuple[int, int]]:
        block = self.blocks.block_size * self.per_frequency
        width, D = max(1, STRIPE // block) * block, self.n_components
        return [(start, min(start + width, D)) for start in range(0, D, width)]

    def angles(
        self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray
    ) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        for frequencies, rows, products in self.blocks.products(inputs, start, stop):
            yield frequencies, rows, products.astype(np.float32)

    def angles_of_rows(self, inputs: Float32Array) -> Float32Array:
        angles = np.empty((len(inputs), self.n_frequencies), np.float32)
        for frequencies, rows, products in self.blocks.products(inputs, 0, self.n_frequencies):
            angles[rows, frequencies] = products.T
        return angles

    def digest(self) -> str:
        label = f"{self.kind} {self.map} {self.blocks.signs.shape} {self.blocks.radii.shape}"
        label += " fixed point" if self.fixed_point else ""
        arrays = [*self.frequency_arrays().values(), self.phases]
        return arrays_digest(label, arrays, self.standardizer)

    def frequency_arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self.blocks, name) for name in _STORED}

    @classmethod
    def from_record(cls, facts: Facts, arrays: Arrays, standardizer: Standardizer | None) -> Self:
        blocks = HadamardBlocks(*(arrays[name] for name in _STORED))
        return cls(blocks, arrays.get("phases"), standardizer, precision=facts["precision"])

    @classmethod
    def drawn(cls, spec: FeatureSpec, standardizer: Standardizer | None) -> Self:
        blocks = _draw_blocks(replace(spec, precision="high"))  # both precisions share frequencies
        assert blocks is not None
        return cls(blocks, drawn_phases(spec), standardizer, spec, spec.precision)


def has_blocks(spec: FeatureSpec) -> bool:
    """Return whether a spec is drawn as blocks; a matrix serves other designs, and few columns."""
    return _draw_blocks(replace(spec, precision="high")) is not None


@lru_cache(maxsize=8)
def _draw_blocks(spec: FeatureSpec) -> HadamardBlocks | None:
    """Return the blocks of a structured draw; None if the kernel or the design has none."""
    kernel, design, n_features = spec.kernel, spec.design, spec.n_features
    if not isinstance(design, Structured) or not isinstance(kernel, Stationary):
        return None
    unit = design.blocks(kernel.spectral_measure(), n_features, n_frequencies_of(spec), spec.seed)
    if unit is None:
        return None
    stretch = unit.stretch / kernel.length_scales(n_features)
    check_float32(float(unit.radii.max() * max(1.0, stretch.max())), spec)
    rotations, radii = unit.rotations.astype(np.float32), unit.radii.astype(np.float32)
    for array in (rotations, unit.signs, radii, stretch):
        array.setflags(write=False)  # the cache shares them, and digests name them
    return replace(unit, rotations=rotations, radii=radii, stretch=stretch)
