"""What all real Fourier features share: cosines and sines of angles, and their scale.

Sines follow their cosines, (cos ω₁, sin ω₁, cos ω₂, sin ω₂, …), so that the leading components are the
features of a smaller draw.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.numerics.runs import Runs
from rff_dist.typing import Float32Array, FloatArray

type MapName = Literal["pairs", "phases"]


class CosineFeatureMap(FeatureMap):
    """Random Fourier features of a shift-invariant kernel, however their angles are made.

    `phases`: float32 array of shape (n_components,), or None. In radians; None for cos/sin pairs.
    """

    phases: Float32Array | None

    @property
    @abstractmethod
    def n_frequencies(self) -> int:
        """How many frequencies there are."""

    @abstractmethod
    def angles(
        self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray
    ) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        """Yield ω'x of frequencies `start:stop`, piece by piece.

        `inputs`: float32 array of shape (n_samples, n_features).
        `start`, `stop`: which frequencies.
        `scratch`: float64 array of shape (stop - start, n_samples). May be overwritten.
        Yields `frequencies, rows`: which angles these are; frequencies are counted from `start`.
        Yields `angles`, float32 array of shape (n_frequencies, n_rows): each row's are the same in whatever
          company. The caller may overwrite them.
        """

    @property
    def n_components(self) -> int:
        return self.n_frequencies * self.per_frequency

    @property
    def per_frequency(self) -> int:
        """Components of a frequency."""
        return 2 if self.phases is None else 1

    @property
    def map(self) -> MapName:
        """Whether these are cos/sin pairs or cosines with random phases."""
        return "pairs" if self.phases is None else "phases"

    @property
    def scale(self) -> float:
        """√(2/D), for both maps: pairs average D/2 frequencies, phases D cosines of mean square 1/2."""
        return float(np.sqrt(2 / self.n_components))

    @property
    def scales(self) -> Runs:
        return ((self.n_components, self.scale),)

    @property
    def squared_norm(self) -> float | None:
        return self.n_components / 2 if self.phases is None else None

    def with_standardizer(self, standardizer: Standardizer | None) -> Self:
        return replace(self, standardizer=standardizer)  # type: ignore[type-var]  # all are dataclasses

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Write unnormalised components `start:stop` to `out`.

        `inputs`: float32 array of shape (n_samples, n_features). From `prepare`.
        `out`: float64 array of shape (stop - start, n_samples). Overwritten; its values are float32 cosines
          and sines.
        `start`, `stop`: even for pairs.
        """
        each = self.per_frequency
        first, last = start // each, stop // each
        for frequencies, rows, angles in self.angles(inputs, first, last, out[: last - first]):
            lines = out[each * frequencies.start : each * frequencies.stop, rows]
            if self.phases is None:
                np.cos(angles, out=lines[0::2], dtype=np.float32)
                np.sin(angles, out=lines[1::2], dtype=np.float32)
            else:
                angles += self.phases[first:last][frequencies, np.newaxis]
                np.cos(angles, out=lines, dtype=np.float32)
