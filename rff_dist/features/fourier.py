"""Random Fourier features: standardise, project, cosine and sine.

Rows go in; their features Z come out, an array row per component (`fill`) or per input
row (`fill_whole`). Each sine follows its cosine, (cos ω₁'x, sin ω₁'x, cos ω₂'x, sin
ω₂'x, …), so that the leading components are the features of a smaller draw. With
`np.cos(X @ W)` a row's bits would depend on the rows next to it, and features could not
be summed without rounding.

In fixed point a cosine is rounded to m/16,256, with a whole number m from −16,256 to
16,256. To be multiplied fast, m is split into two signed bytes, which is possible up to
16,256 = 127 · 128. It is written in one of two units:

- `fill_whole` writes m.
- `fill` writes m/2**14, whose products float64 adds without rounding. So it writes
  127/128 for a cosine of 1, and `scales` undo that factor.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import BroadcastError, InvalidParameterError, warn
from rff_dist.features import maps
from rff_dist.features.levels import (
    NO_LEVELS,
    Levels,
    LevelTable,
    draw_tables,
    from_json,
    never_seen,
    to_json,
)
from rff_dist.frequencies import designs, uniforms
from rff_dist.kernels import base
from rff_dist.numerics import exact_sums
from rff_dist.products import protocol
from rff_dist.typing import (
    AnyArray,
    Arrays,
    Facts,
    Float32Array,
    FloatArray,
    IndexArray,
    IntArray,
    Summary,
)

LARGEST_ANGLE = 2.0**19  # radians; float32 rounds it by 0.03
_ROWS_OF_ANGLES = 128  # rows whose angles stay in a core's own cache
# Rows whose levels are looked up at once; with 128 it takes 1.0 to 2.3 times as long.
_LEVEL_ROWS = 512


@dataclass(frozen=True, eq=False, repr=False)
class FourierFeatureMap(maps.FeatureMap):
    """Random Fourier features of a shift-invariant kernel (Rahimi & Recht 2007).

    A map that was drawn from a spec pickles as the spec and its digest; unpickling
    draws it again and checks the digest. A map of given frequencies pickles them.
    """

    kind = "fourier"

    #: Of shape (n_features, n_frequencies), in radians per unit of the (standardised)
    #: inputs; 0 for columns of categories.
    frequencies: Float32Array
    #: Of shape (n_components,), in radians; None for pairs of cosines and sines.
    phases: Float32Array | None = None
    standardizer: maps.Standardizer | None = None
    spec: maps.FeatureSpec | None = None
    #: "standard" is fixed point: products are summed exactly and fast. "high" keeps
    #: cosines and sines as float32 numbers.
    precision: str = "high"
    #: Angles of levels, for each column of categories.
    tables: tuple[LevelTable, ...] = ()

    @property
    def n_features(self) -> int:
        return int(self.frequencies.shape[0])

    @property
    def n_frequencies(self) -> int:
        return int(self.frequencies.shape[1])

    @property
    def n_components(self) -> int:
        return self.n_frequencies * self.per_frequency

    @property
    def per_frequency(self) -> int:
        """How many components each frequency makes."""
        return 2 if self.phases is None else 1

    @property
    def map_form(self) -> Literal["pairs", "phases"]:
        """Whether these are cos/sin pairs or cosines with random phases."""
        return "pairs" if self.phases is None else "phases"

    @property
    def scale(self) -> float:
        """√(2/D), whether there are phases or not.

        Pairs average D/2 frequencies, phases D cosines whose mean square is 1/2.
        """
        return float(np.sqrt(2 / self.n_components))

    @property
    def scales(self) -> exact_sums.Runs:
        # divide by the number that `fill` writes for a cosine of 1
        return ((self.n_components, self.scale / self.value_of_cosine_one),)

    @property
    def squared_norm(self) -> float | None:
        if self.phases is not None:
            return None
        # cos² + sin² = 1 for each of D/2 frequencies
        return self.value_of_cosine_one**2 * self.n_components / 2

    @property
    def fixed_point(self) -> bool:
        return self.precision == "standard"

    @property
    def value_of_cosine_one(self) -> float:
        """The number that `fill` writes for a cosine of 1."""
        if not self.fixed_point:
            return 1.0
        return protocol.COSINE_ONE / protocol.UNITS_PER_ONE  # 127/128

    @property
    def own_columns(self) -> IntArray:
        uses_column = self.frequencies != 0  # shape (n_features, n_frequencies)
        for table in self.tables:
            uses_column[table.column] = table.angles.any(axis=0)
        has_one = uses_column.sum(axis=0) == 1
        own_columns = np.where(has_one, uses_column.argmax(axis=0), -1)
        return np.repeat(own_columns, self.per_frequency)

    @property
    def levels(self) -> Levels:
        return {table.column: table.texts for table in self.tables}

    def with_levels(self, levels: Levels) -> Self:
        if self.levels == levels:
            return self
        if self.spec is None:
            raise InvalidParameterError(
                "the feature map was made of given frequencies: it has no angles for"
                " other levels"
            )
        return replace(self, tables=_draw_tables(self.spec, levels))

    def record(self) -> maps.Record:
        arrays: dict[str, AnyArray] = {"frequencies": self.frequencies}
        if self.phases is not None:
            arrays["phases"] = self.phases
        for table in self.tables:
            arrays[f"angles{table.column}"] = table.angles
            # the name in stored maps: an expected cosine is a value of the angles'
            # characteristic function
            arrays[f"characteristic{table.column}"] = table.expected_cosines
        facts: Summary = {"map": self.map_form, "precision": self.precision}
        if self.tables:
            facts |= {"levels": to_json(self.levels), "seed": self.tables[0].seed}
        return facts, arrays

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        tables = []
        for column, texts in from_json(facts.get("levels", {})).items():
            stored = arrays[f"angles{column}"], arrays[f"characteristic{column}"]
            tables.append(LevelTable(column, texts, facts["seed"], *stored))
        return cls(
            arrays["frequencies"],
            arrays.get("phases"),
            standardizer,
            precision=facts["precision"],
            tables=tuple(tables),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # a map that was drawn pickles as its spec, which is small, and is drawn again
        if self.spec is None:
            values = [getattr(self, field.name) for field in fields(self)]
            return type(self), tuple(values)
        return redraw, (self.spec, self.standardizer, self.levels, self.digest())

    def digest(self) -> str:
        label = f"{self.map_form} {self.frequencies.shape}"
        if self.fixed_point:
            label += " fixed point"
        arrays: list[AnyArray | None] = [self.frequencies, self.phases]
        # A level's angles depend on its text, the seed and the distribution, for which
        # the expected cosines stand. Neither further levels nor their order change
        # features, so the list is left out.
        for table in self.tables:
            label += f" category {table.column} {table.seed}"
            arrays.append(table.expected_cosines)
        return maps.arrays_digest(label, arrays, self.standardizer)

    def angles_of_rows(self, inputs: Float32Array) -> Float32Array:
        """Return all angles, of shape (n_samples, n_frequencies).

        The caller may overwrite them.
        """
        columns = self._number_columns
        frequencies = self.frequencies[columns].astype(np.float64)
        angles = inputs[:, columns].astype(np.float64) @ frequencies
        _warn_of_lost_angles(angles[:8])
        rounded = angles.astype(np.float32)
        if self.tables:
            rounded += self._of_levels(inputs, 0, self.n_frequencies)
        return rounded

    @property
    def _number_columns(self) -> slice | IndexArray:
        """The columns of numbers: all but categories."""
        if not self.tables:
            return slice(None)
        categories = [table.column for table in self.tables]
        return np.setdiff1d(np.arange(self.n_features), categories)

    def _angles(
        self, inputs: Float32Array, start: int, stop: int, scratch: FloatArray
    ) -> Float32Array:
        """Return angles, shape (stop − start, n_samples), of frequencies `start:stop`.

        `scratch`, of their shape, is overwritten.
        """
        # A float32 product rounds by the shape of its factors and the number of BLAS
        # threads. In float64 and rounded once, a row's angles do not depend on the rows
        # next to it; this costs 1 to 2 % of a pass (32 inputs, D = 1,024).
        columns = self._number_columns
        frequencies = self.frequencies[columns, start:stop]
        np.matmul(
            frequencies.T.astype(np.float64),
            inputs[:, columns].T.astype(np.float64),
            out=scratch,
        )
        _warn_of_lost_angles(scratch[:, :8])
        angles = scratch.astype(np.float32)
        if self.tables:
            # some rows at a time, so that the transpose stays in the cache
            for i in range(0, len(inputs), _LEVEL_ROWS):
                rows = inputs[i : i + _LEVEL_ROWS]
                angles[:, i : i + _LEVEL_ROWS] += self._of_levels(rows, start, stop).T
        return angles

    def _of_levels(self, inputs: Float32Array, start: int, stop: int) -> Float32Array:
        """Return the sum of the levels' angles, shape (n_samples, stop - start)."""
        first, *others = self.tables
        total = first.angles[first.places(inputs), start:stop]
        for table in others:
            total += table.angles[table.places(inputs), start:stop]
        return total

    def _never_seen(self, inputs: Float32Array) -> tuple[IndexArray, Float32Array]:
        """Return the rows with levels that were never seen, and factors for them.

        Multiplied by these factors, shape (n_rows, n_frequencies), a row's features are
        the mean over levels. Factors are below 1, since cosines of several angles
        partly cancel in a mean.
        """
        rows = np.flatnonzero(never_seen(inputs, self.levels))
        factors = np.ones((len(rows), self.n_frequencies), np.float32)
        for table in self.tables:
            is_unseen = table.places(inputs[rows]) == len(table.texts)
            factors[is_unseen] *= table.unseen_factors
        return rows, factors

    def fill_whole(self, inputs: Float32Array, out: NDArray[np.int16]) -> None:
        """Write all components in fixed point, as whole numbers m.

        In standard precision they are 2**14 times what `fill` writes. `inputs` come
        from `prepare`; `out` has the shape (n_samples, n_components). Raises DataError
        if angles overflow.
        """
        for i in range(0, len(inputs), _ROWS_OF_ANGLES):
            out_rows = out[i : i + _ROWS_OF_ANGLES]
            with np.errstate(over="ignore", invalid="ignore"):
                angles = self.angles_of_rows(inputs[i : i + _ROWS_OF_ANGLES])
                # checked here, since int16 has no NaN, and would hold some number
                # instead
                finite = np.isfinite(angles.sum())
            if not finite:
                raise maps.overflow()
            if self.phases is None:
                cosines = to_whole(np.cos(angles))
                sines = to_whole(np.sin(angles, out=angles))
                interleave(cosines, sines, out_rows)
            else:
                angles += self.phases
                cosines = to_whole(np.cos(angles, out=angles))
                np.copyto(out_rows, cosines, casting="unsafe")
        rows, factors = self._never_seen(inputs)
        if len(rows):
            factors = np.repeat(factors, self.per_frequency, axis=1)
            out[rows] = np.rint(out[rows] * factors)

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        """Write unnormalised components `start:stop`, both even for pairs.

        `out` has the shape (stop − start, n_samples), a row per component. Components
        are cosines and sines of float32. Unlike `fill_whole` this checks nothing:
        angles that overflow become NaN, and so do sums of their features.
        """
        per_frequency = self.per_frequency
        first = start // per_frequency
        last = stop // per_frequency
        # the memory of `out` serves as scratch too: angles come as a float32 copy
        angles = self._angles(inputs, first, last, out[: last - first])
        if self.phases is not None:
            angles += self.phases[first:last, np.newaxis]
        if self.fixed_point:
            self._fill_fixed(angles, out)
        elif self.phases is None:
            # in float32, where cosines take 1/31 of the time and lose no accuracy
            np.cos(angles, out=out[0::2], dtype=np.float32)
            np.sin(angles, out=out[1::2], dtype=np.float32)
        else:
            np.cos(angles, out=out, dtype=np.float32)
        rows, factors = self._never_seen(inputs)
        if len(rows):
            shrunk = (
                out[:, rows]
                * np.repeat(factors[:, first:last], per_frequency, axis=1).T
            )
            if self.fixed_point:
                units = np.rint(shrunk * protocol.UNITS_PER_ONE)
                shrunk = units / protocol.UNITS_PER_ONE
            out[:, rows] = shrunk

    def _fill_fixed(self, angles: Float32Array, out: FloatArray) -> None:
        """Write rounded cosines (and sines, for pairs) of angles; overwrites these."""
        # angles of 512 KiB at a time, which stay in the cache
        strip = max(1, 2**17 // max(1, angles.shape[1]))
        for i in range(0, len(angles), strip):
            part = angles[i : i + strip]
            if self.phases is None:
                pairs = out[2 * i : 2 * (i + strip)]
                to_fixed_point(np.cos(part), pairs[0::2])
                to_fixed_point(np.sin(part, out=part), pairs[1::2])
            else:
                to_fixed_point(np.cos(part, out=part), out[i : i + strip])


def _warn_of_lost_angles(angles: FloatArray) -> None:
    """Warn if rounding to float32 loses these angles, of a few rows."""
    if not angles.size:
        return
    typical = float(np.median(np.abs(angles)))
    if typical > LARGEST_ANGLE:
        warn(
            f"angles of Fourier features are about {typical:.3g} radians, and float32"
            " keeps few of their digits: length scales are far smaller than inputs."
            " Standardise the inputs, or give larger length scales",
        )


@lru_cache(maxsize=8)
def _draw_matrix(spec: maps.FeatureSpec) -> Float32Array:
    assert isinstance(spec.kernel, base.ShiftInvariant)
    count = n_frequencies_of(spec)
    drawn = spec.kernel.sample_frequencies(
        spec.n_features, count, design=spec.design, rng=spec.seed
    )
    check_float32(float(np.abs(drawn).max()), spec)
    frequencies = drawn.astype(np.float32)
    frequencies.setflags(
        write=False
    )  # the cache shares them, and digests depend on them
    return frequencies


def draw_fourier(
    spec: maps.FeatureSpec,
    standardizer: maps.Standardizer | None = None,
    levels: Levels = NO_LEVELS,
) -> FourierFeatureMap:
    """Draw the features of a shift-invariant kernel; recent frequencies are cached.

    Raises InvalidParameterError if float32 cannot hold the frequencies, or the design
    does not suit the kernel.
    """
    # both precisions have the same frequencies, and so share the cache's entry
    frequencies = _draw_matrix(replace(spec, precision="high"))
    return FourierFeatureMap(
        frequencies,
        drawn_phases(spec),
        standardizer,
        spec,
        spec.precision,
        _draw_tables(spec, levels),
    )


def _draw_tables(spec: maps.FeatureSpec, levels: Levels) -> tuple[LevelTable, ...]:
    if not levels:
        return ()
    assert isinstance(spec.kernel, base.ShiftInvariant)
    n_frequencies = n_frequencies_of(spec)
    draw = designs.Draw(spec.design, spec.n_features, n_frequencies, spec.seed)
    return draw_tables(spec.kernel, draw, levels)


def to_fixed_point(values: Float32Array, out: AnyArray) -> None:
    """Round cosines or sines to multiples m/16,256, and write m/2**14 to `out`.

    `values` are overwritten.
    """
    np.multiply(to_whole(values), np.float32(2.0**-protocol.FIXED_POINT_BITS), out=out)


def to_whole(values: Float32Array) -> Float32Array:
    """Overwrite cosines or sines by m, where m/16,256 is the nearest multiple."""
    values *= np.float32(protocol.COSINE_ONE)
    return np.rint(values, out=values)


def interleave(even: Float32Array, odd: Float32Array, out: NDArray[np.int16]) -> None:
    """Write whole numbers of two arrays (n, m) in turns to `out`, (n, 2m) in C order.

    A pair is written as one int32, in half the time of two strided writes.
    """
    low = even.astype(np.int32)
    high = odd.astype(np.int32)
    if sys.byteorder == "big":
        low, high = high, low
    # without the mask the sign of a negative lower half would fill the upper half
    low &= 0xFFFF
    high <<= 16
    np.bitwise_or(low, high, out=out.view(np.int32))


def redraw(
    spec: maps.FeatureSpec,
    standardizer: maps.Standardizer | None,
    levels: Levels,
    digest: str,
) -> FourierFeatureMap:
    """Draw a feature map that was pickled as its spec.

    Raises BroadcastError if its digest has changed.
    """
    feature_map = draw_fourier(spec, standardizer, levels)
    if feature_map.digest() != digest:
        raise BroadcastError(
            "this process drew a feature map with the digest"
            f" {feature_map.digest()[:12]}; expected {digest[:12]}. Its processor or"
            " libraries round differently: use one kind of machine, or give the"
            " frequencies as arrays"
        )
    return feature_map


def n_frequencies_of(spec: maps.FeatureSpec) -> int:
    """Return the number of frequencies of a spec."""
    return spec.n_components // 2 if spec.map_form == "pairs" else spec.n_components


def drawn_phases(spec: maps.FeatureSpec) -> Float32Array | None:
    """Draw the phases of a spec; None for pairs."""
    if spec.map_form == "pairs":
        return None
    phases = uniforms.draw_phases(n_frequencies_of(spec), spec.seed).astype(np.float32)
    phases.setflags(write=False)  # a change would not match the map's digest
    return phases


def check_float32(largest: float, spec: maps.FeatureSpec) -> None:
    """Raise InvalidParameterError if a spec's largest frequency overflows float32."""
    if not largest <= float(np.finfo(np.float32).max):
        raise InvalidParameterError(
            f"frequencies of {spec.kernel} reach {largest:.3g}, more than float32"
            " holds; take a larger `length_scale` (or `nu`), or scale the inputs up"
            " with it"
        )
