"""What all real Fourier features share: cosines and sines of angles, and their scale.

Each sine follows its cosine, (cos ω₁'x, sin ω₁'x, cos ω₂'x, sin ω₂'x, …), so that the leading components are
the features of a smaller draw.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import BroadcastError, InvalidParameterError
from rff_dist.features import maps
from rff_dist.frequencies import uniforms
from rff_dist.numerics import exact_sums
from rff_dist.products import protocol
from rff_dist.typing import AnyArray, Float32Array, FloatArray

type Angles = Iterator[tuple[slice, slice, AnyArray]]  # of which frequencies and rows

_WHOLE_ROWS = 128  # rows whose angles stay in a core's own cache


class CosineFeatureMap(maps.FeatureMap):
    """Random Fourier features of a shift-invariant kernel, however their angles are computed.

    `phases`: float32 array of shape (n_components,), or None. In radians; None for cos/sin pairs.
    `precision`: {"standard", "high"}. "standard" rounds cosines and sines to whole multiples of 1/16,256,
      whose products are summed exactly and fast; "high" keeps them as float32 numbers.
    """

    phases: Float32Array | None
    precision: str

    @property
    @abstractmethod
    def n_frequencies(self) -> int:
        """How many frequencies there are."""

    @abstractmethod
    def angles(self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray) -> Angles:
        """Yield ω'x of frequencies `start:stop`, piece by piece.

        `inputs`: float32 array of shape (n_samples, n_features).
        `scratch`: float64 array of shape (stop - start, n_samples). May be overwritten.
        Yields `frequencies, rows`: which angles these are, as slices; frequencies count from `start`.
        Yields `angles`, float32 array of shape (n_frequencies, n_rows): a row's angles do not depend on the
          rows next to it. The caller may overwrite them.
        """

    @property
    def n_components(self) -> int:
        return self.n_frequencies * self.per_frequency

    @property
    def per_frequency(self) -> int:
        """How many components each frequency makes."""
        return 2 if self.phases is None else 1

    @property
    def map(self) -> Literal["pairs", "phases"]:
        """Whether these are cos/sin pairs or cosines with random phases."""
        return "pairs" if self.phases is None else "phases"

    @property
    def scale(self) -> float:
        """√(2/D), for both maps: pairs average D/2 frequencies, phases D cosines whose mean square is 1/2."""
        return float(np.sqrt(2 / self.n_components))

    @property
    def scales(self) -> exact_sums.Runs:
        return ((self.n_components, self.scale / self._one),)

    @property
    def squared_norm(self) -> float | None:
        # cos² + sin² = 1 for each of D/2 frequencies
        return self._one**2 * self.n_components / 2 if self.phases is None else None

    @property
    def fixed_point(self) -> bool:
        return self.precision == "standard"

    @property
    def _one(self) -> float:
        """The number that `fill` writes for a cosine of 1."""
        return protocol.FIXED_POINT_ONE / 2.0**protocol.FIXED_POINT_BITS if self.fixed_point else 1.0

    @abstractmethod
    def frequency_arrays(self) -> dict[str, AnyArray]:
        """Return the arrays that store the frequencies, by name."""

    def record(self) -> maps.Record:
        arrays = self.frequency_arrays()
        if self.phases is not None:
            arrays["phases"] = self.phases
        return {"map": self.map, "precision": self.precision}, arrays

    def __reduce__(self) -> tuple[Any, ...]:
        if self.spec is None:
            return type(self), tuple(getattr(self, field.name) for field in fields(cast("Any", self)))
        return redraw, (type(self), self.spec, self.standardizer, self.digest())

    @classmethod
    @abstractmethod
    def drawn(cls, spec: maps.FeatureSpec, standardizer: maps.Standardizer | None) -> Self:
        """Draw the map of a spec, or take it from the last few draws."""

    @abstractmethod
    def angles_of_rows(self, inputs: Float32Array) -> Float32Array:
        """Return all angles, of shape (n_samples, n_frequencies); the caller may overwrite them."""

    def fill_whole(self, inputs: Float32Array, out: NDArray[np.int16]) -> None:
        """Write all components, rows first, as whole numbers: 2**14 times what `fill` writes.

        `inputs`: float32 array of shape (n_samples, n_features). From `prepare`.
        `out`: int16 array of shape (n_samples, n_components). Overwritten.
        Raises DataError if angles overflow.
        """
        for i in range(0, len(inputs), _WHOLE_ROWS):
            lines = out[i : i + _WHOLE_ROWS]
            with np.errstate(over="ignore", invalid="ignore"):
                angles = self.angles_of_rows(inputs[i : i + _WHOLE_ROWS])
                finite = np.isfinite(angles.sum())  # in int16 a NaN would be a number like any other
            if not finite:
                raise maps.overflow()
            if self.phases is None:
                interleave(to_whole(np.cos(angles)), to_whole(np.sin(angles, out=angles)), lines)
            else:
                angles += self.phases
                np.copyto(lines, to_whole(np.cos(angles, out=angles)), casting="unsafe")

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Write unnormalised components `start:stop`, both even for pairs: float32 cosines and sines."""
        each = self.per_frequency
        first, last = start // each, stop // each
        # `out` itself is the scratch: angles come as float32 copies, so lines may overwrite it
        for frequencies, rows, angles in self.angles(inputs, first, last, out[: last - first]):
            lines = out[each * frequencies.start : each * frequencies.stop, rows]
            if self.phases is not None:
                angles += self.phases[first:last][frequencies, np.newaxis]
            if self.fixed_point:
                self._fill_fixed(angles, lines)
            elif self.phases is None:
                # in float32, where cosines take 1/31 of the time and lose no accuracy
                np.cos(angles, out=lines[0::2], dtype=np.float32)
                np.sin(angles, out=lines[1::2], dtype=np.float32)
            else:
                np.cos(angles, out=lines, dtype=np.float32)

    def _fill_fixed(self, angles: Float32Array, lines: FloatArray) -> None:
        """Write rounded cosines (and sines, for pairs) of some angles; these are overwritten."""
        strip = max(1, 2**17 // max(1, angles.shape[1]))  # lines of 512 KiB in all, which stay in the cache
        for i in range(0, len(angles), strip):
            part = angles[i : i + strip]
            if self.phases is None:
                to_fixed_point(np.cos(part), lines[2 * i : 2 * (i + strip) : 2])
                to_fixed_point(np.sin(part, out=part), lines[2 * i + 1 : 2 * (i + strip) : 2])
            else:
                to_fixed_point(np.cos(part, out=part), lines[i : i + strip])


def to_fixed_point(values: Float32Array, out: AnyArray) -> None:
    """Round cosines or sines to multiples m/16,256, and write m · 2**-14 to `out`.

    `values`: float32 array, overwritten.
    """
    np.multiply(to_whole(values), np.float32(2.0**-protocol.FIXED_POINT_BITS), out=out)


def to_whole(values: Float32Array) -> Float32Array:
    """Overwrite cosines or sines by m, where m/16,256 is the nearest whole multiple."""
    values *= np.float32(protocol.FIXED_POINT_ONE)
    return np.rint(values, out=values)


def interleave(even: Float32Array, odd: Float32Array, out: NDArray[np.int16]) -> None:
    """Write whole numbers of two arrays in turns: two in one int32, in half the time of two strided writes.

    `even`, `odd`: float32 arrays of shape (n, m).
    `out`: int16 array of shape (n, 2m), in C order. Overwritten.
    """
    first, second = even.astype(np.int32), odd.astype(np.int32)
    low, high = (first, second) if sys.byteorder == "little" else (second, first)
    # else the sign of a negative lower half would fill the upper one
    low &= 0xFFFF
    high <<= 16
    np.bitwise_or(low, high, out=out.view(np.int32))


def redraw(
    kind: type[CosineFeatureMap], spec: maps.FeatureSpec, standardizer: maps.Standardizer | None, digest: str
) -> CosineFeatureMap:
    """Draw a feature map that was pickled as its spec; raises BroadcastError if its digest has changed."""
    feature_map = kind.drawn(spec, standardizer)
    if feature_map.digest() != digest:
        raise BroadcastError(
            f"this process drew a feature map with the digest {feature_map.digest()[:12]}; expected "
            f"{digest[:12]}. Its processor or libraries round differently: use one kind of machine, or give "
            "the frequencies as arrays"
        )
    return feature_map


def n_frequencies_of(spec: maps.FeatureSpec) -> int:
    """Return how many frequencies a spec's components have."""
    return spec.n_components // 2 if spec.map == "pairs" else spec.n_components


def drawn_phases(spec: maps.FeatureSpec) -> Float32Array | None:
    """Draw the phases of a spec; None for pairs."""
    if spec.map == "pairs":
        return None
    phases = uniforms.draw_phases(n_frequencies_of(spec), spec.seed).astype(np.float32)
    phases.setflags(write=False)  # digests name them
    return phases


def check_float32(largest: float, spec: maps.FeatureSpec) -> None:
    """Raise InvalidParameterError if float32 does not hold the largest of a spec's frequencies."""
    if not largest <= float(np.finfo(np.float32).max):
        raise InvalidParameterError(
            f"frequencies of {spec.kernel} reach {largest:.3g}, more than float32 holds; take a "
            "larger `length_scale` (or `nu`), or scale the inputs up with it"
        )
