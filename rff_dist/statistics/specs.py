"""What statistics are sums of, how Z'Z is laid out in tiles, and how it is read.

Sums are over features U in [-1, 1], in whole multiples of a power of two, so that they
add up exactly. Here they become float64 sums over Z = factors · U, or over Z = V·T⁻¹
for Nyström features. The upper triangle of Z'Z is cut into tiles; one D × D array would
take twice the memory, and could not be summed in parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.numerics import cholesky, exact_sums, machine
from rff_dist.products import protocol
from rff_dist.typing import EPS, AnyArray, FloatArray, IntArray, frozen

if TYPE_CHECKING:
    from rff_dist.statistics import ridge_statistics

#: Its rows and columns in Z'Z, and its output tiles.
type Region = tuple[slice, slice, list[tuple[int, int, int]]]
#: Index, and number of parts.
type Part = tuple[int, int]

# Not one large product: threaded OpenBLAS kills the process on symmetric ones from D ≈
# 16,000 on (numpy issue 19685). Tiles also stay in the cache, and reach 1.03 of the
# rate of one dsyrk.
OUTPUT_TILE = 512  # columns of an output tile; see TileLayout
# If Z'Z is summed in parts, a pass each, all output tiles of a cell, a square of so
# many components, belong to the same part.
# Where parts are likely, a cell is as large as the largest region that is multiplied,
# so that no region is in two parts.
CELL = 2048
SMALL_CELL = 512
SMALL_COMPONENTS = 8192
WHOLE: Part = (0, 1)

# float64 products of up to 2**13 rows, with entries up to 1, have bits down to 2**-39
FRACTION_BITS = 39
FINE_FRACTION_BITS = 49  # for few rows, whose products are smaller and have finer bits
# products of fixed-point features are exact on this grid
FIXED_FRACTION_BITS = 2 * protocol.FIXED_POINT_BITS
LIMB_BITS = 62  # of an int64: one bit for the sign, one to spare


def tile_rows(n_components: int) -> int:
    """Return the rows of a tile, by D alone: sums have the same bits everywhere.

    With 4,096 rows, adding the integers takes below 1 % of the product's time. Wide
    maps take 2,048, so that the tile's float64 features, `8 * tile_rows * n_components`
    bytes, take 128 MiB for D = 8,192.
    """
    return 4096 if n_components <= 4096 else 2048


@frozen
class TileLayout:
    """How the upper triangle of a D x D matrix is cut into output tiles.

    They are stored one after another. Tiles of 512 columns are as fast as one large
    product (measured: 1.03 of the dsyrk limit at D = 4,096). They keep the float64 work
    of a tile in the cache, are shared evenly among threads, and avoid the large
    symmetric products that crash threaded OpenBLAS (numpy issue 19685).
    """

    n_components: int
    #: Which part of the triangle is stored; parts are of about equal size.
    part: Part = WHOLE

    def width(self, start: int) -> int:
        """Return the number of components of the strip that begins at `start`."""
        return min(OUTPUT_TILE, self.n_components - start)

    def tiles(self) -> list[tuple[int, int, int]]:
        """Return (row start, column start, offset) of each output tile, row by row."""
        return _tiles(self.n_components, self.part)

    def regions(self, most: int) -> list[Region]:
        """Return the regions of Z'Z that are multiplied, those off the diagonal first.

        A region has at most `most` components on a side, and fewer if it would be the
        only one, which threads cannot share.
        """
        most = self._region_components(most)

        def components(tile: int) -> slice:
            first = tile // most * most
            return slice(first, min(first + most, self.n_components))

        regions: dict[tuple[int, int], Region] = {}
        for row, column, offset in self.tiles():
            left = components(row)
            right = components(column)
            region = regions.setdefault((left.start, right.start), (left, right, []))
            region[2].append((row, column, offset))
        return sorted(regions.values(), key=lambda region: region[0] == region[1])

    def count_regions(self, most: int) -> int:
        """Return the number of regions that `regions` makes of a whole triangle."""
        # closed form: plans ask about D so large that listing tiles takes minutes
        strips = -(-self.n_components // self._region_components(most))
        return strips * (strips + 1) // 2

    def _region_components(self, most: int) -> int:
        while most > OUTPUT_TILE and self.n_components <= most:
            most //= 2
        return most

    @property
    def size(self) -> int:
        """The number of stored numbers; tiles on the diagonal are stored whole."""
        if self.part != WHOLE:
            tiles = self.tiles()
            return sum(self.width(row) * self.width(column) for row, column, _ in tiles)
        whole, last = divmod(self.n_components, OUTPUT_TILE)
        squares = whole * OUTPUT_TILE**2 + last**2  # on the diagonal
        return (self.n_components**2 + squares) // 2

    def view(self, buffer: AnyArray, row: int, column: int, offset: int) -> AnyArray:
        """Return one tile of a flat buffer as a matrix."""
        height = self.width(row)
        width = self.width(column)
        return buffer[offset : offset + height * width].reshape(height, width)

    def copy(self, buffer: IntArray, target: TileLayout, out: IntArray) -> IntArray:
        """Copy the tiles that `target` has to `out`, a buffer that it lays out."""
        offsets = {(row, column): offset for row, column, offset in self.tiles()}
        for row, column, offset in target.tiles():
            if (row, column) in offsets:
                tile = target.view(out, row, column, offset)
                tile[:] = self.view(buffer, row, column, offsets[row, column])[
                    : len(tile), : tile.shape[1]
                ]
        return out


@lru_cache(maxsize=16)
def _tiles(n_components: int, part: Part) -> list[tuple[int, int, int]]:
    """List the output tiles of the cells that begin in a part."""
    layout = TileLayout(n_components)
    index, n_parts = part
    cell = cell_components(n_components)

    def cell_of(place: tuple[int, int]) -> tuple[int, int]:
        return place[0] // cell, place[1] // cell

    starts = range(0, n_components, OUTPUT_TILE)
    places = list(itertools.combinations_with_replacement(starts, 2))
    if part != WHOLE:
        places.sort(key=cell_of)
    n_numbers = layout.size
    tiles = []
    offset = 0
    n_before = 0  # numbers of the triangle before this tile, and before its cell
    n_before_cell = 0
    last_cell = None
    for place in places:
        if cell_of(place) != last_cell:
            last_cell = cell_of(place)
            n_before_cell = n_before
        size = layout.width(place[0]) * layout.width(place[1])
        n_before += size
        if n_before_cell * n_parts // n_numbers == index:
            tiles.append((*place, offset))
            offset += size
    return tiles


def cell_components(n_components: int) -> int:
    """Return the components of a cell; see `CELL`."""
    return CELL if n_components > SMALL_COMPONENTS else SMALL_CELL


@frozen
class StatisticsSpec:
    """What statistics are sums of: only those with equal specs can be added."""

    n_components: int
    #: Columns of Y; 0 for sums of features only.
    n_targets: int
    #: Of the feature map.
    feature_digest: str
    #: Z = scale · V, where V are the unnormalised features.
    scales: exact_sums.Runs
    #: Sample weights are at most 2**weight_exponent.
    weight_exponent: int = 0
    #: Z'Z is counted in multiples of 2**(weight_exponent - fraction_bits).
    fraction_bits: int = FRACTION_BITS
    #: V = 2**exponent · U, where U is in [-1, 1]; empty if V already is.
    exponents: tuple[tuple[int, int], ...] = ()
    #: Subtracted from Y before anything is summed, so that large means cancel nothing.
    target_offset: tuple[float, ...] = ()
    #: Whether Y is a vector; then `Zty` and `yty` drop the target axis.
    one_dimensional: bool = False
    #: Whether weights are whole numbers that repeat their rows, rather than precisions.
    frequency_weights: bool = False
    #: Whether Z is V·T⁻¹ with the feature map's T, which reading the sums then needs.
    whitened: bool = False
    #: Whether features are whole multiples of 2**-14 and rows have no weights. Then
    #: nothing is rounded.
    fixed_point: bool = False
    #: The part of Z'Z that is summed; see `statistics.passes`.
    part: Part = WHOLE

    @property
    def layout(self) -> TileLayout:
        """Where each output tile of the Gram is stored."""
        return TileLayout(self.n_components, self.part)

    @property
    def factors(self) -> FloatArray:
        """Z = factors · U, shape (n_components,)."""
        scales = exact_sums.expand(self.scales)
        if not self.exponents:
            return scales
        return np.ldexp(scales, exact_sums.expand(self.exponents).astype(np.int64))

    @property
    def offsets(self) -> FloatArray:
        """`target_offset` as an array of shape (n_targets,), by default zeros."""
        return np.array(self.target_offset or (0.0,) * self.n_targets)

    @property
    def grid_exponent(self) -> int:
        """Z'Z is counted in multiples of 2**grid_exponent."""
        return self.weight_exponent - self.fraction_bits

    @property
    def limb_rows(self) -> int:
        """The most rows whose sums fit in an int64: 2**23, 2**13 on the fine grid.

        In fixed point 2**34.
        """
        return 1 << (LIMB_BITS - self.fraction_bits)


def check_counted(n_samples: int, expected: int) -> None:
    """Raise StatisticsError unless a pass counted each of the expected rows once."""
    if n_samples != expected:
        raise StatisticsError(
            f"a pass counted {n_samples:_} rows, but the data have {expected:_}: some"
            " were lost or counted twice; run it again, and report this if the data"
            " did not change"
        )


# -- reading


_TARGETS = 64  # whose products are made together
# rows of an output tile that are worked on at a time, 256 KiB, to fit the cache
_STRIP_ROWS = 64


def gram_of(
    statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None
) -> FloatArray:
    """Return U'U - center·center', scaled to Z'Z, without a second D² array."""
    layout = statistics.spec.layout
    factors = statistics.spec.factors
    gram = np.empty((statistics.n_components, statistics.n_components))
    for row, column, offset in layout.tiles():
        height = layout.width(row)
        columns = slice(column, column + layout.width(column))
        for first in range(0, height, _STRIP_ROWS):
            strip = slice(first, min(first + _STRIP_ROWS, height))
            rows = slice(row + strip.start, row + strip.stop)
            # in place: fresh pages for arrays next to the result took most of the time
            # of a small Gram
            part = _numbers(
                statistics, (row, column, offset), strip, out=gram[rows, columns]
            )
            if center is not None:
                part -= np.outer(center[rows], center[columns])
            part *= factors[rows, np.newaxis] * factors[columns]
            gram[columns, rows] = part.T
    whitener = _whitener_of(statistics)
    if whitener is not None:
        with machine.tile_pool() as pool:
            cholesky.whiten_in_place(gram, whitener.factor, pool)
    return gram


def sums_over_z(
    statistics: ridge_statistics.RidgeStatistics, sums: FloatArray
) -> FloatArray:
    """Turn sums U'[…] of shape (n_components, n_columns) into sums Z'[…]."""
    whitener = _whitener_of(statistics)
    scaled = statistics.spec.factors[:, np.newaxis] * sums
    return whitened(scaled, None if whitener is None else whitener.factor)


def whitened(scaled: FloatArray, whitener: FloatArray | None) -> FloatArray:
    """Turn sums over V into sums over Z = V·T⁻¹ in place, with the whitener T."""
    if whitener is not None:
        with machine.single_threaded_blas():
            cholesky.solve_transposed(whitener, scaled)
    return scaled


# of the squares about the offset: so much of a constant's variance may be rounding
_CONSTANT = 1e-14


@frozen(eq=False)
class TargetMoments:
    """Means and squares of the targets, from exact sums of targets minus offsets."""

    #: The sum of the rows' weights.
    weight: float
    #: Means minus the offsets, of shape (n_targets,).
    shifts: FloatArray
    #: Weighted sums of squares of the targets minus the offsets.
    squares: FloatArray
    offsets: FloatArray

    @classmethod
    def of(cls, targets: exact_sums.ExactSum, offsets: FloatArray) -> Self:
        """Read the sums that `target_products` makes of tiles."""
        sums, squares = targets.value()
        weight = float(sums[-1])
        shifts = sums[:-1] / weight if weight else np.zeros_like(offsets)
        return cls(weight, shifts, squares[:-1], offsets)

    @property
    def means(self) -> FloatArray:
        return self.offsets + self.shifts

    def sums_of_squares(self, *, centred: bool) -> FloatArray:
        """Return sums of squares about the means or about 0, shape (n_targets,)."""
        if centred:
            return np.maximum(self.squares - self.weight * self.shifts**2, 0.0)
        # Σ w·(d + o)² multiplied out, for the differences d from the offsets o
        return self.squares + self.weight * self.offsets * (
            2.0 * self.shifts + self.offsets
        )

    def variances(self, *, centred: bool = True) -> FloatArray:
        """Return population variances, or mean squares about 0.

        That of a constant target is exactly 0.
        """
        squares = self.sums_of_squares(centred=centred)
        return np.where(squares > _CONSTANT * self.squares, squares, 0.0) / self.weight

    @property
    def deviations(self) -> FloatArray:
        """Population standard deviations, shape (n_targets,)."""
        return np.sqrt(self.variances())


def target_products(right: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return the sums 1'W[Y, 1] and the squares 1'W[Y², 1] of a tile.

    `right` is [Y, 1]; the result has the shape (2, n_targets + 1).
    """
    last = right.shape[1] - 1
    sums = np.empty((2, last + 1))
    # products of a few columns at a time, of which only the last column and the
    # diagonal are kept
    for first in range(0, max(1, last), _TARGETS):
        columns = [*range(first, min(first + _TARGETS, last)), last]
        these = np.take(right, columns, axis=1)
        weighted = these if weights is None else these * weights[:, np.newaxis]
        products = these.T @ weighted
        sums[0, columns] = products[:, -1]
        sums[1, columns] = np.diagonal(products)
    return sums


def gram_error_of(
    statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None
) -> float:
    """Return a bound on the spectral norm of the error of Z'Z, centred or not.

    Each tile rounds every entry to the grid: for D x D independent roundings the norm
    is 2·√D/√12 of the grid, doubled to be safe. Centring subtracts cc', whose entries
    and roots are rounded.

    With a whitener, independent roundings E of size s give T⁻ᵀET⁻¹ the norm
    2·s·‖T⁻¹‖·‖T⁻¹‖_F (Chevet's inequality). There the rounding of the sums to float64
    counts too, and that of the products with T⁻¹: 0.2 to 0.4 times ε·√(largest sum ·
    ‖V'V‖)·‖T⁻¹‖·‖T⁻¹‖_F, measured against long doubles for 200 to 1,024 centres of
    condition 1e3 to 1e4.
    """
    spec = statistics.spec
    of_grid = float(
        np.sqrt(statistics.n_tiles / 12)
        * 2.0**spec.grid_exponent
        * spec.factors.max() ** 2
    )
    whitener = _whitener_of(statistics)
    if whitener is None:
        of_centring = 0.0
        if center is not None:
            of_centring = 2 * EPS * float(np.square(spec.factors * center).sum())
        return math.hypot(4 * math.sqrt(statistics.n_components) * of_grid, of_centring)
    # The largest entry of V'V is on its diagonal, and ‖V'V‖ is at most its trace.
    squares = [
        np.abs(diagonal) * spec.factors[rows] ** 2
        for rows, diagonal in _diagonals(statistics)
    ]
    largest = max(float(diagonal.max()) for diagonal in squares)
    trace = sum(float(diagonal.sum()) for diagonal in squares)
    of_sums = EPS * largest
    of_products = EPS * math.sqrt(largest * trace)
    spectral, frobenius = whitener.inverse_norms
    return (
        math.hypot(4 * of_grid, 4 * of_sums, 0.5 * of_products) * spectral * frobenius
    )


def trace_of(statistics: ridge_statistics.RidgeStatistics) -> float:
    """Return the trace of U'U."""
    return sum(float(diagonal.sum()) for _, diagonal in _diagonals(statistics))


def _numbers(
    statistics: ridge_statistics.RidgeStatistics,
    tile: tuple[int, int, int],
    strip: slice,
    *,
    out: FloatArray,
) -> FloatArray:
    """Fill `out` with some rows of an output tile of U'U."""
    layout = statistics.spec.layout
    exponent = statistics.spec.grid_exponent
    # powers of two are exact factors; this takes 0.56 of the time of `ldexp`
    np.multiply(
        layout.view(statistics.low, *tile)[strip], np.ldexp(1.0, exponent), out=out
    )
    if statistics.high is not None:
        out += layout.view(statistics.high, *tile)[strip] * np.ldexp(
            1.0, exponent + LIMB_BITS
        )
    return out


def _diagonals(
    statistics: ridge_statistics.RidgeStatistics,
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the diagonal of U'U in pieces, each with the components it belongs to."""
    layout = statistics.spec.layout
    for row, column, offset in layout.tiles():
        if row == column:
            size = layout.width(row)
            tile = _numbers(
                statistics,
                (row, column, offset),
                slice(size),
                out=np.empty((size, size)),
            )
            yield slice(row, row + size), np.diagonal(tile)


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
    """A feature map's upper triangular T of Z = V·T⁻¹."""

    #: Of shape (n_components, n_components).
    factor: FloatArray

    def leading(self, n_components: int) -> Whitener:
        return Whitener(self.factor[:n_components, :n_components].copy())

    @cached_property
    def inverse_norms(self) -> tuple[float, float]:
        """‖T⁻¹‖ and ‖T⁻¹‖_F by sixteen random vectors g; at worst a few per cent too
        small.

        Estimated once for the sums of all folds. ‖T⁻¹‖ comes from three steps of a
        subspace iteration with (T'T)⁻¹, ‖T⁻¹‖_F from the mean square of T⁻ᵀg
        (Hutchinson).
        """
        shape = len(self.factor), min(16, len(self.factor))
        vectors = np.random.Generator(np.random.Philox(0)).standard_normal(shape)
        with machine.single_threaded_blas():
            cholesky.solve_transposed(self.factor, vectors)
            frobenius = float(np.sqrt(np.square(vectors).sum(axis=0).mean()))
            for _ in range(2):
                cholesky.solve_upper(self.factor, vectors)
                vectors = np.ascontiguousarray(np.linalg.qr(vectors)[0])
                cholesky.solve_transposed(self.factor, vectors)
            spectral = float(np.linalg.norm(vectors, 2))
        return spectral, max(frobenius, spectral)
