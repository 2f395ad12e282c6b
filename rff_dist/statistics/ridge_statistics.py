"""Sufficient statistics of ridge regression, and their exact `+` and `-`.

Sums of blocks go in; Z'Z, Z'y and normal equations come out, where Z is the matrix of
features. The Gram matrix U'U of unnormalised features is stored as int64 multiples of a
power of two; Z'Y, Y'Y and the plain sums as `ExactSum`. Both add without rounding,
unlike float64 sums. So the same blocks give the same bits in any order and on any
number of workers, and `(S + T) - T` is S. Scaling, offsets and centring are applied
when the statistics are read, in float64.
"""

import hashlib
import json
import operator
from dataclasses import asdict, field, replace
from typing import Any, Self

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, solution
from rff_dist.statistics import layouts, reading, specs, target_moments
from rff_dist.text import short_repr
from rff_dist.typing import (
    AnyArray,
    Arrays,
    EqualByFields,
    Facts,
    FloatArray,
    IntArray,
    Summary,
    frozen,
)

# A sum may need two int64 numbers, its limbs: it is low + high · 2**62.
type _Limbs = tuple[IntArray, IntArray | None]

_LIMB_MASK = (1 << specs.LIMB_BITS) - 1
_COUNTS = ("n_samples", "n_observations", "n_tiles")
# Numbers that are worked on at a time, a few MiB: no temporary array is as large as the
# result.
_STRIP = 2**18


@frozen(eq=False)
class RidgeStatistics(EqualByFields):
    """Exact Z'Z, Z'Y, Y'Y, Z'1, sums and counts of the rows seen so far.

    `s + t` are the statistics of both sets of rows; `s - t` removes the rows of t;
    neither rounds. Takes 8 bytes for each of about D²/2 numbers, twice that above 8
    million rows.

    Attributes
    ----------
    spec : StatisticsSpec
        Features, targets and grid of the sums.
    n_samples : int
        Number of rows.
    n_observations : int
        Number of rows with a weight above 0. If weights repeat rows: the sum of the
        weights, without class weights.
    low, high : int64 arrays, `high` None while one limb is enough
        Output tiles of U'WU, low + high · 2**62, in multiples of 2**grid_exponent.
    cross : ExactSum of shape (n_components, n_targets + 1)
        U'W[Y - offset, 1].
    targets : ExactSum of shape (2, n_targets + 1)
        1'W[Y - offset, 1], and the same of squares.
    n_tiles : int
        Number of tiles of rows whose products were rounded to the grid, 0 in fixed
        point: the Gram's error grows with it. Not part of equality or digest.
    whitener : Whitener or None
        The feature map's whitener. Not part of equality, digest or storage.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import accumulate, draw_feature_map
    >>> from rff_dist.data.memory import ArrayDataset
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> feature_map = draw_feature_map('gaussian', n_features=3, n_components=16)
    >>> spec = accumulate(ArrayDataset(X, X[:, 0]), feature_map).spec
    >>> first, second = (
    ...     accumulate(
    ...         ArrayDataset(X[rows], X[rows, 0]), feature_map, spec=spec
    ...     )
    ...     for rows in (slice(0, 100), slice(100, 200))
    ... )
    >>> (first + second) - second == first  # without rounding
    True
    """

    spec: specs.StatisticsSpec
    n_samples: int
    n_observations: int
    low: IntArray
    high: IntArray | None
    cross: exact_sums.ExactSum
    targets: exact_sums.ExactSum
    n_tiles: int = field(default=0, compare=False)
    whitener: reading.Whitener | None = field(default=None, compare=False)

    __repr__ = short_repr

    @classmethod
    def empty(cls, spec: specs.StatisticsSpec) -> Self:
        """Return the statistics of no rows."""
        width = spec.n_targets + 1
        return cls(
            spec,
            n_samples=0,
            n_observations=0,
            low=np.zeros(spec.layout.size, np.int64),
            high=None,
            cross=exact_sums.ExactSum.zeros((spec.n_components, width)),
            targets=exact_sums.ExactSum.zeros((2, width)),
        )

    # -- arithmetic

    def __add__(self, other: object) -> Self:
        if not isinstance(other, RidgeStatistics):
            return NotImplemented
        return _combine(self, other, 1)

    def __sub__(self, other: object) -> Self:
        if not isinstance(other, RidgeStatistics):
            return NotImplemented
        return _combine(self, other, -1)

    def with_whitener(self, whitener: FloatArray | reading.Whitener | None) -> Self:
        """Return the same sums, to be read with a feature map's `whitener`."""
        if isinstance(whitener, np.ndarray):
            whitener = reading.Whitener(whitener)
        return replace(self, whitener=whitener)

    def leading(self, feature_map: maps.FeatureMap) -> Self:
        """Return the statistics of the leading components: those of fewer features.

        Parameters
        ----------
        feature_map : FeatureMap
            The map with these components; see `shortened`.

        Raises
        ------
        StatisticsError
            If there are fewer components.
        """
        n_components = feature_map.n_components
        if not 1 <= n_components <= self.n_components:
            raise StatisticsError(
                f"there are no leading {n_components} components of {self.n_components}"
            )
        exponents = self.spec.exponents
        if exponents:
            # a run (count, exponent) stands for so many components with this exponent
            runs = exact_sums.as_runs(exact_sums.expand(exponents)[:n_components])
            exponents = tuple((count, int(exponent)) for count, exponent in runs)
        spec = replace(
            self.spec,
            n_components=n_components,
            feature_digest=feature_map.digest(),
            scales=feature_map.scales,
            exponents=exponents,
        )
        if spec == self.spec:  # spare a default fit its copies of the sums
            return self

        def leading_tiles(limb: IntArray) -> IntArray:
            shorter = np.empty(spec.layout.size, np.int64)
            return self.spec.layout.copy(limb, spec.layout, shorter)

        whitener = self.whitener
        return replace(
            self,
            spec=spec,
            low=leading_tiles(self.low),
            high=None if self.high is None else leading_tiles(self.high),
            cross=self.cross.leading(n_components),
            whitener=None if whitener is None else whitener.leading(n_components),
        )

    def digest(self) -> str:
        """Return the SHA-256 of spec, counts and all integers."""
        spec = _spec_to_dict(self.spec)
        # Members at their defaults are left out, so that digests from before these
        # members existed stay the same.
        if not self.spec.fixed_point:
            del spec["fixed_point"]
        facts = [spec, self.n_samples]
        usual = self.n_samples
        if self.spec.frequency_weights:
            usual = round(self.sum_of_weights)
        if self.n_observations != usual:
            facts.append(self.n_observations)
        hasher = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for limb in (self.low, self.high):
            if limb is not None:
                hasher.update(np.ascontiguousarray(limb).astype("<i8", copy=False))
        self.cross.update_digest(hasher)
        self.targets.update_digest(hasher)
        return hasher.hexdigest()

    # -- reading

    @property
    def n_components(self) -> int:
        """D, the number of components of Z."""
        return self.spec.n_components

    @property
    def sum_of_weights(self) -> float:
        """Sum of the sample weights; the number of rows without weights."""
        return float(self.targets.value()[0, -1])

    @property
    def target_moments(self) -> target_moments.TargetMoments:
        """Means, sums of squares and standard deviations of the targets."""
        return target_moments.TargetMoments.of(self.targets, self.spec.offsets)

    def ZtZ(self) -> FloatArray:  # noqa: N802  the public name is the formula
        """Return Z'Z (Z'WZ with weights), of shape (n_components, n_components)."""
        return reading.gram_of(self)

    def Zty(self) -> FloatArray:  # noqa: N802
        """Return Z'y of shape (n_components,), or Z'Y of (n_components, n_targets)."""
        cross = self.cross.value()
        raw = cross[:, :-1] + np.outer(cross[:, -1], self.spec.offsets)
        ZtY = reading.sums_over_z(self, raw)
        return ZtY[:, 0] if self.spec.one_dimensional else ZtY

    def yty(self) -> float | FloatArray:
        """Return y'y, or y'y of each target, of shape (n_targets,)."""
        squares = self.target_moments.sums_of_squares(centred=False)
        return float(squares[0]) if self.spec.one_dimensional else squares

    def Zt1(self) -> FloatArray:  # noqa: N802
        """Return Z'1, the sums of the features, of shape (n_components,)."""
        return reading.sums_over_z(self, self.cross.value()[:, -1:])[:, 0]

    def target_means(self) -> FloatArray:
        """Return the (weighted) means of the targets, of shape (n_targets,)."""
        return self.target_moments.means

    def target_deviations(self) -> FloatArray:
        """Return the targets' (weighted) population standard deviations."""
        return self.target_moments.deviations

    def normal_equations(
        self, *, fit_intercept: bool = True
    ) -> solution.NormalEquations:
        """Return the equations for the solvers, centred if an intercept is fitted.

        Raises
        ------
        StatisticsError
            If no rows were counted, or their weights add up to 0.
        """
        total = self.sum_of_weights
        if self.n_samples == 0 or not total > 0:
            raise StatisticsError(
                f"nothing to solve: there are {self.n_samples:_} rows of total weight"
                f" {total:g}"
            )
        cross = self.cross.value()
        targets = self.target_moments
        if fit_intercept:
            # Z'Z − n·z̄z̄' = Z'Z − cc' with c = Z'1/√n
            center = cross[:, -1] / np.sqrt(total)
            # `shifts`, means minus offsets, are small, so that few digits cancel
            raw = cross[:, :-1] - np.outer(cross[:, -1], targets.shifts)
            ZtY = reading.sums_over_z(self, raw)
            feature_means = self.Zt1() / total
            target_means = targets.means
        else:
            center = None
            ZtY = np.reshape(self.Zty(), (self.n_components, self.spec.n_targets))
            feature_means = np.zeros(self.n_components)
            target_means = np.zeros(self.spec.n_targets)
        return solution.NormalEquations(
            gram=reading.gram_of(self, center),
            moments=ZtY,
            total_sum_of_squares=targets.sums_of_squares(centred=fit_intercept),
            feature_means=feature_means,
            target_means=target_means,
            n_samples=self.n_observations,
            sum_of_weights=total,
            fit_intercept=fit_intercept,
            gram_error=reading.gram_error_of(self, center),
        )

    # -- checks

    def check_complete(self, n_samples: int, feature_map: maps.FeatureMap) -> None:
        """Check that every row was counted once, before anything is solved.

        Parameters
        ----------
        n_samples : int
            Number of rows of the dataset.
        feature_map : FeatureMap
            If it has a `squared_norm`, each row adds this to the trace of U'U.

        Raises
        ------
        StatisticsError
            If rows are missing or were counted twice.
        """
        specs.check_counted(self.n_samples, n_samples)
        squared_norm = feature_map.squared_norm
        if squared_norm is None:
            return
        # Each row adds the same to the trace, so lost, doubled and damaged rows change
        # it.
        expected = squared_norm * self.sum_of_weights
        trace = reading.trace_of(self)
        # each diagonal entry was rounded by up to a unit of the grid in each tile
        rounding = (
            self.n_components * max(1, self.n_tiles) * 2.0**self.spec.grid_exponent
        )
        if abs(trace - expected) > feature_map.squared_norm_error * expected + rounding:
            raise StatisticsError(
                f"the trace of U'U is {trace:.9g}, expected {expected:.9g} for"
                f" {n_samples:_} rows; features or sums are damaged: run the pass again"
                " and report this"
            )

    # -- storing

    def to_arrays(self) -> tuple[Summary, dict[str, AnyArray]]:
        """Return metadata for JSON, and packed arrays; `from_arrays` reads them.

        The Gram is packed: the upper triangle of each diagonal tile, and the whole of
        each other tile.
        """
        arrays = {"gram_low": _pack(self.spec.layout, self.low)}
        if self.high is not None:
            arrays["gram_high"] = _pack(self.spec.layout, self.high)
        for name in ("cross", "targets"):
            arrays |= exact_sums.exact_sum_arrays(name, getattr(self, name))
        metadata = {
            "spec": _spec_to_dict(self.spec),
            **{name: getattr(self, name) for name in _COUNTS},
            "digest": self.digest(),
        }
        return metadata, arrays

    @classmethod
    def from_arrays(cls, metadata: Facts, arrays: Arrays) -> Self:
        """Build statistics from metadata and arrays of `to_arrays`.

        Raises
        ------
        StatisticsError
            If the digest does not match.
        """
        values = dict(metadata["spec"])
        values["target_offset"] = tuple(values["target_offset"])
        for name in ("scales", "exponents"):
            values[name] = tuple((count, value) for count, value in values[name])
        spec = specs.StatisticsSpec(**values)
        counts: dict[str, Any] = {name: int(metadata[name]) for name in _COUNTS}
        high = None
        if "gram_high" in arrays:
            high = _unpack(spec.layout, arrays["gram_high"])
        statistics = cls(
            spec=spec,
            low=_unpack(spec.layout, arrays["gram_low"]),
            high=high,
            cross=exact_sums.exact_sum_from_arrays("cross", arrays),
            targets=exact_sums.exact_sum_from_arrays("targets", arrays),
            **counts,
        )
        if statistics.digest() != metadata["digest"]:
            raise StatisticsError(
                "stored statistics do not have the digest they were stored with"
            )
        return statistics


def _spec_to_dict(spec: specs.StatisticsSpec) -> Summary:
    """Return the spec as JSON values, without `part`: only whole sums are stored."""
    values = asdict(spec)
    del values["part"]
    return values


def _combine[S: RidgeStatistics](left: S, right: RidgeStatistics, sign: int) -> S:
    if left.spec != right.spec:
        others = asdict(right.spec)
        differing = ", ".join(
            f"{name}: {value!r} and {others[name]!r}"
            for name, value in asdict(left.spec).items()
            if value != others[name]
        )
        raise StatisticsError(
            f"these statistics do not belong together ({differing}); accumulate the"
            " second with the feature map and the spec of the first"
        )
    n_samples = left.n_samples + sign * right.n_samples
    if n_samples < 0:
        raise StatisticsError(
            f"cannot forget {right.n_samples:_} rows: the statistics have"
            f" {left.n_samples:_}; subtract only rows that were added"
        )
    low, high = _combine_limbs(left, right, sign, n_samples)
    combine = operator.add if sign > 0 else operator.sub
    return replace(
        left,
        n_samples=n_samples,
        n_observations=left.n_observations + sign * right.n_observations,
        low=low,
        high=high,
        cross=combine(left.cross, right.cross),
        targets=combine(left.targets, right.targets),
        n_tiles=left.n_tiles + sign * right.n_tiles,
        whitener=right.whitener if left.whitener is None else left.whitener,
    )


def make_room[S: RidgeStatistics](statistics: S, n_samples: int) -> S:
    """Return the same sums, with a second limb if `n_samples` more rows need one.

    This changes `low` in place.
    """
    fits = statistics.n_samples + n_samples <= statistics.spec.int64_rows
    if fits or statistics.high is not None:
        return statistics
    return carry_in_place(replace(statistics, high=np.zeros_like(statistics.low)))


def carry_in_place[S: RidgeStatistics](statistics: S) -> S:
    """Carry multiples of 2**62 from `low` to `high`, and return the same sums."""
    if statistics.high is not None:
        for start in range(0, len(statistics.low), _STRIP):
            low = statistics.low[start : start + _STRIP]
            high = statistics.high[start : start + _STRIP]
            # The value is high · 2**62 + low. `>>` rounds down, so that low is not
            # negative, and high has the sign.
            high += low >> specs.LIMB_BITS
            low &= _LIMB_MASK
    return statistics


def _combine_limbs(
    left: RidgeStatistics, right: RidgeStatistics, sign: int, n_samples: int
) -> _Limbs:
    """Add or subtract Gram matrices.

    The result has one limb up to `int64_rows` rows, and two above, so that equal sums
    have equal arrays.
    """
    needs_high = n_samples > left.spec.int64_rows
    if left.high is None and right.high is None and not needs_high:
        return (left.low + right.low if sign > 0 else left.low - right.low), None

    low = np.empty(len(left.low), np.int64)
    high = np.empty_like(low) if needs_high else None
    for start in range(0, len(low), _STRIP):
        part = slice(start, start + _STRIP)
        left_low, left_high = _split(left, part)
        right_low, right_high = _split(right, part)
        # low ± low is between −2**62 and 2**63, which fits into an int64; multiples of
        # 2**62 are carried to high
        lower = left_low + sign * right_low
        upper = left_high + sign * right_high + (lower >> specs.LIMB_BITS)
        lower &= _LIMB_MASK
        if high is None:
            low[part] = lower + (upper << specs.LIMB_BITS)
        else:
            low[part] = lower
            high[part] = upper
    return low, high


def _split(statistics: RidgeStatistics, part: slice) -> tuple[IntArray, IntArray]:
    if statistics.high is not None:
        return statistics.low[part], statistics.high[part]
    # one limb as two, in the form of `carry_in_place`
    return statistics.low[part] & _LIMB_MASK, statistics.low[part] >> specs.LIMB_BITS


def _pack(layout: layouts.TileLayout, buffer: IntArray) -> IntArray:
    parts = []
    for tile in layout.tiles():
        matrix = layout.view(buffer, tile)
        numbers = matrix.ravel()
        if tile.row == tile.column:
            # symmetric, so half of it is enough
            numbers = matrix[np.triu_indices(len(matrix))]
        parts.append(numbers)
    return np.concatenate(parts)


def _unpack(layout: layouts.TileLayout, packed: IntArray) -> IntArray:
    buffer = np.empty(layout.size, np.int64)
    expected = layout.n_components * (layout.n_components + 1) // 2
    if packed.shape != (expected,):
        raise StatisticsError(
            f"stored statistics have a Gram of shape {packed.shape}; "
            f"expected ({expected},) for n_components={layout.n_components}"
        )
    position = 0
    for tile in layout.tiles():
        matrix = layout.view(buffer, tile)
        if tile.row == tile.column:
            indices = np.triu_indices(len(matrix))
            count = len(indices[0])
            numbers = packed[position : position + count]
            matrix[indices] = matrix.T[indices] = numbers
        else:
            count = matrix.size
            matrix[:] = packed[position : position + count].reshape(matrix.shape)
        position += count
    return buffer
