"""Read exact sums over U as float64 sums over Z.

Integers of U'U go in; Z'Z comes out as one matrix, with a bound on its error. U are
unnormalised features in [-1, 1], Z the features, with Z = factors · U. Nyström features
are Z = K·T⁻¹ instead, where K = factors · U are the kernel's values at centres, and T
is the *whitener*. Scaling a copy of the sums would take the memory of a second D × D
array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.numerics import machine, triangular
from rff_dist.statistics import layouts, specs
from rff_dist.typing import EPS, FloatArray

if TYPE_CHECKING:
    from rff_dist.statistics import ridge_statistics

# rows of an output tile that are worked on at a time, 256 KiB, to fit the cache
_STRIP_ROWS = 64


def gram_of(
    statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None
) -> FloatArray:
    """Return U'U - center·center', scaled to Z'Z, without a second D² array."""
    layout = statistics.spec.layout
    factors = statistics.spec.factors
    gram = np.empty((statistics.n_components, statistics.n_components))
    for tile in layout.tiles():
        height = layout.width(tile.row)
        columns = slice(tile.column, tile.column + layout.width(tile.column))
        for strip in machine.slices(0, height, _STRIP_ROWS):
            rows = slice(tile.row + strip.start, tile.row + strip.stop)
            # In place: fresh memory for temporary arrays took most of the time of a
            # small Gram.
            part = _numbers(statistics, tile, strip, out=gram[rows, columns])
            if center is not None:
                part -= np.outer(center[rows], center[columns])
            part *= factors[rows, np.newaxis] * factors[columns]
            gram[columns, rows] = part.T
    whitener = _whitener_of(statistics)
    if whitener is not None:
        with machine.tile_pool() as pool:
            triangular.whiten_in_place(gram, whitener.factor, pool)
    return gram


def sums_over_z(
    statistics: ridge_statistics.RidgeStatistics, sums: FloatArray
) -> FloatArray:
    """Turn sums U'[…] of shape (n_components, n_columns) into sums Z'[…]."""
    whitener = _whitener_of(statistics)
    scaled = statistics.spec.factors[:, np.newaxis] * sums
    return whiten(scaled, None if whitener is None else whitener.factor)


def whiten(scaled: FloatArray, whitener: FloatArray | None) -> FloatArray:
    """Turn sums over K into sums over Z = K·T⁻¹ in place, with the whitener T."""
    if whitener is not None:
        with machine.single_threaded_blas():
            triangular.solve_transposed(whitener, scaled)
    return scaled


def gram_error_of(
    statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None
) -> float:
    """Return a bound on the spectral norm of the error of Z'Z, centred or not.

    For each tile of rows every entry is rounded to the grid. D x D independent
    roundings have the norm 2·√D/√12 of the grid, doubled to be safe. Centring subtracts
    cc', whose entries and roots are rounded.

    With a whitener T, independent roundings E of size s give T⁻ᵀET⁻¹ the norm
    2·s·‖T⁻¹‖·‖T⁻¹‖_F (Chevet's inequality). Two more roundings count there: of the sums
    to float64, and of the products with T⁻¹. The latter gives 0.2 to 0.4 times
    ε·√(largest sum · ‖K'K‖)·‖T⁻¹‖·‖T⁻¹‖_F, measured against long doubles for 200 to
    1,024 centres with condition numbers of 1e3 to 1e4.
    """
    spec = statistics.spec
    grid_error = float(
        np.sqrt(statistics.n_tiles / 12)
        * 2.0**spec.grid_exponent
        * spec.factors.max() ** 2
    )
    whitener = _whitener_of(statistics)
    if whitener is None:
        centring_error = 0.0
        if center is not None:
            centring_error = 2 * EPS * float(np.square(spec.factors * center).sum())
        return math.hypot(
            4 * math.sqrt(statistics.n_components) * grid_error, centring_error
        )
    # The largest entry of K'K is on its diagonal, and ‖K'K‖ is at most its trace.
    squares = [
        np.abs(diagonal) * spec.factors[rows] ** 2
        for rows, diagonal in _diagonals(statistics)
    ]
    largest = max(float(diagonal.max()) for diagonal in squares)
    trace = sum(float(diagonal.sum()) for diagonal in squares)
    sum_error = EPS * largest
    product_error = EPS * math.sqrt(largest * trace)
    spectral, frobenius = whitener.inverse_norms
    return (
        math.hypot(4 * grid_error, 4 * sum_error, 0.5 * product_error)
        * spectral
        * frobenius
    )


def trace_of(statistics: ridge_statistics.RidgeStatistics) -> float:
    """Return the trace of U'U."""
    return sum(float(diagonal.sum()) for _, diagonal in _diagonals(statistics))


def _numbers(
    statistics: ridge_statistics.RidgeStatistics,
    tile: layouts.OutputTile,
    strip: slice,
    *,
    out: FloatArray,
) -> FloatArray:
    """Fill `out` with some rows of an output tile of U'U."""
    layout = statistics.spec.layout
    exponent = statistics.spec.grid_exponent
    # Products with powers of two are exact, and take 0.56 of the time of `ldexp`.
    np.multiply(
        layout.view(statistics.low, tile)[strip], np.ldexp(1.0, exponent), out=out
    )
    if statistics.high is not None:
        out += layout.view(statistics.high, tile)[strip] * np.ldexp(
            1.0, exponent + specs.LIMB_BITS
        )
    return out


def _diagonals(
    statistics: ridge_statistics.RidgeStatistics,
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the diagonal of U'U in pieces, each with its range of components."""
    layout = statistics.spec.layout
    for tile in layout.tiles():
        if tile.row == tile.column:
            size = layout.width(tile.row)
            square = np.empty((size, size))
            _numbers(statistics, tile, slice(size), out=square)
            yield slice(tile.row, tile.row + size), np.diagonal(square)


def _whitener_of(statistics: ridge_statistics.RidgeStatistics) -> Whitener | None:
    if statistics.spec.whitened and statistics.whitener is None:
        raise StatisticsError(
            "these are sums of kernel values at Nyström centres: reading them needs the"
            " feature map's whitener; use"
            " statistics.with_whitener(feature_map.whitener)"
        )
    return statistics.whitener if statistics.spec.whitened else None


@dataclass(frozen=True, eq=False)
class Whitener:
    """A feature map's upper triangular T of Z = K·T⁻¹."""

    #: Of shape (n_components, n_components).
    factor: FloatArray

    def leading(self, n_components: int) -> Whitener:
        return Whitener(self.factor[:n_components, :n_components].copy())

    @cached_property
    def inverse_norms(self) -> tuple[float, float]:
        """Estimates of ‖T⁻¹‖ and ‖T⁻¹‖_F, at worst a few per cent too small.

        They are made once for the sums of all folds, with sixteen random vectors g:
        ‖T⁻¹‖ by three steps of a subspace iteration with (T'T)⁻¹, ‖T⁻¹‖_F by the mean
        square of T⁻ᵀg (Hutchinson).
        """
        shape = len(self.factor), min(16, len(self.factor))
        vectors = np.random.Generator(np.random.Philox(0)).standard_normal(shape)
        with machine.single_threaded_blas():
            triangular.solve_transposed(self.factor, vectors)
            frobenius = float(np.sqrt(np.square(vectors).sum(axis=0).mean()))
            for _ in range(2):
                triangular.solve_upper(self.factor, vectors)
                vectors = np.ascontiguousarray(np.linalg.qr(vectors)[0])
                triangular.solve_transposed(self.factor, vectors)
            spectral = float(np.linalg.norm(vectors, 2))
        return spectral, max(frobenius, spectral)
