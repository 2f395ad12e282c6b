"""Random Fourier features by fast Hadamard transforms, without a matrix of frequencies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.features.cosines import CosineFeatureMap
from rff_dist.features.feature_map import STRIPE, FeatureSpec, Standardizer, arrays_digest
from rff_dist.frequencies.hadamard import HadamardBlocks
from rff_dist.typing import Arrays, Facts, Float32Array, FloatArray

_STORED = ("rotations", "signs", "radii", "stretch")


@dataclass(frozen=True, eq=False)
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
        precision = facts.get("precision", "high")
        return cls(blocks, arrays.get("phases"), standardizer, precision=precision)


def in_float32(blocks: HadamardBlocks) -> HadamardBlocks:
    """Return blocks as feature maps hold them: read-only, with rotations and radii in float32."""
    rotations, radii = blocks.rotations.astype(np.float32), blocks.radii.astype(np.float32)
    for array in (rotations, blocks.signs, radii, blocks.stretch):
        array.setflags(write=False)
    return replace(blocks, rotations=rotations, radii=radii)
