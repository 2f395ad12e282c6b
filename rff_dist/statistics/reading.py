"""Reads exact sums over the scaled features U, or over kernel values at centres, as sums over Z."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.numerics.threads import tile_pool
from rff_dist.numerics.triangular import solve_transposed, solve_upper, whiten_in_place
from rff_dist.statistics.spec import LIMB_BITS
from rff_dist.typing import FloatArray

if TYPE_CHECKING:
    from rff_dist.statistics.ridge_statistics import RidgeStatistics

_STRIP_ROWS = 64  # rows of an output tile that are worked on at a time, 256 KiB, to fit the cache


def gram_of(statistics: RidgeStatistics, center: FloatArray | None = None) -> FloatArray:
    """Return U'U - center·center', scaled to Z'Z, as a symmetric matrix without a second D² array."""
    layout, factors = statistics.spec.layout, statistics.spec.factors
    gram = np.empty((statistics.n_components, statistics.n_components))
    for row, column, offset in layout.tiles():
        height, columns = layout.width(row), slice(column, column + layout.width(column))
        for first in range(0, height, _STRIP_ROWS):
            strip = slice(first, min(first + _STRIP_ROWS, height))
            rows = slice(row + strip.start, row + strip.stop)
            # in place: fresh pages for arrays beside the result took most of the time of a small Gram
            part = _numbers(statistics, (row, column, offset), strip, out=gram[rows, columns])
            if center is not None:
                part -= np.outer(center[rows], center[columns])
            part *= factors[rows, np.newaxis] * factors[columns]
            gram[columns, rows] = part.T
    if (whitener := _whitener_of(statistics)) is not None:
        with tile_pool() as pool:
            whiten_in_place(gram, whitener, pool)
    return gram


def sums_over_z(statistics: RidgeStatistics, sums: FloatArray) -> FloatArray:
    """Turn sums U'[…] of shape (n_components, n_columns) into sums Z'[…]."""
    return whitened(statistics.spec.factors[:, np.newaxis] * sums, _whitener_of(statistics))


def whitened(scaled: FloatArray, whitener: FloatArray | None) -> FloatArray:
    """Turn sums over scaled features into sums over Z, in place; `whitener` is T of Z = V·T⁻¹."""
    if whitener is not None:
        with tile_pool():
            solve_transposed(whitener, scaled)
    return scaled


def deviations_of(targets: ExactSum) -> FloatArray:
    """Return the targets' population standard deviations, given [Y - offset, 1]'W[Y - offset, 1]."""
    sums = targets.value()
    variances = np.diagonal(sums)[:-1] / sums[-1, -1] - (sums[:-1, -1] / sums[-1, -1]) ** 2
    return np.asarray(np.sqrt(np.maximum(variances, 0.0)))


def gram_error_of(statistics: RidgeStatistics) -> float:
    """Return a bound on the spectral norm of the error of Z'Z.

    Each tile rounds every entry to the grid: for D x D independent roundings the norm is 2·√D/√12 of the
    grid, doubled to be safe.

    With a whitener, independent roundings E of size s give T⁻ᵀET⁻¹ the norm 2·s·‖T⁻¹‖·‖T⁻¹‖_F (Chevet's
    inequality). There the rounding of the sums to float64 counts too, and that of the products with T⁻¹:
    0.2 to 0.4 times ε·√(largest sum · ‖V'V‖)·‖T⁻¹‖·‖T⁻¹‖_F, measured against long doubles for 200 to 1,024
    centres of condition 1e3 to 1e4.
    """
    spec = statistics.spec
    of_grid = float(np.sqrt(statistics.n_tiles / 12) * 2.0**spec.grid_exponent * spec.factors.max() ** 2)
    if (whitener := _whitener_of(statistics)) is None:
        return 4 * float(np.sqrt(statistics.n_components)) * of_grid
    eps = float(np.finfo(np.float64).eps)
    # The largest entry of V'V is on its diagonal, and ‖V'V‖ is at most its trace.
    squares = [np.abs(diagonal) * spec.factors[rows] ** 2 for rows, diagonal in _diagonals(statistics)]
    largest, trace = max(float(one.max()) for one in squares), sum(float(one.sum()) for one in squares)
    of_sums, of_products = eps * largest, eps * math.sqrt(largest * trace)
    spectral, frobenius = _inverse_norms(whitener)
    return math.hypot(4 * of_grid, 4 * of_sums, 0.5 * of_products) * spectral * frobenius


def trace_of(statistics: RidgeStatistics) -> float:
    """Return the trace of U'U."""
    return sum(float(diagonal.sum()) for _, diagonal in _diagonals(statistics))


def _numbers(
    statistics: RidgeStatistics, tile: tuple[int, int, int], strip: slice, *, out: FloatArray
) -> FloatArray:
    """Fill `out` with some rows of an output tile of U'U."""
    layout, exponent = statistics.spec.layout, statistics.spec.grid_exponent - statistics.halvings
    np.ldexp(layout.view(statistics.low, *tile)[strip].astype(np.float64), exponent, out=out)
    if statistics.high is not None:
        high = layout.view(statistics.high, *tile)[strip].astype(np.float64)
        out += np.ldexp(high, exponent + LIMB_BITS)
    return out


def _diagonals(statistics: RidgeStatistics) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the diagonal of U'U in pieces, each with the components it belongs to."""
    layout = statistics.spec.layout
    for row, column, offset in layout.tiles():
        if row == column:
            size = layout.width(row)
            tile = _numbers(statistics, (row, column, offset), slice(size), out=np.empty((size, size)))
            yield slice(row, row + size), np.diagonal(tile)


def _whitener_of(statistics: RidgeStatistics) -> FloatArray | None:
    if statistics.spec.whitened and statistics.whitener is None:
        raise StatisticsError(
            "these are sums of kernel values at Nyström centres: reading them needs the feature map's "
            "whitener, which was not given; use statistics.with_whitener(feature_map.whitener)"
        )
    return statistics.whitener if statistics.spec.whitened else None


def _inverse_norms(factor: FloatArray) -> tuple[float, float]:
    """Estimate ‖T⁻¹‖ and ‖T⁻¹‖_F from sixteen random vectors g; at worst a few per cent too small.

    ‖T⁻¹‖ comes from three steps of a subspace iteration with (T'T)⁻¹, ‖T⁻¹‖_F from the mean square of T⁻ᵀg
    (Hutchinson).
    """
    vectors = np.random.Generator(np.random.Philox(0)).standard_normal((len(factor), min(16, len(factor))))
    with tile_pool():
        solve_transposed(factor, vectors)
        frobenius = float(np.sqrt(np.square(vectors).sum(axis=0).mean()))
        for _ in range(2):
            solve_upper(factor, vectors)
            vectors = np.ascontiguousarray(np.linalg.qr(vectors)[0])
            solve_transposed(factor, vectors)
        spectral = float(np.linalg.norm(vectors, 2))
    return spectral, max(frobenius, spectral)
