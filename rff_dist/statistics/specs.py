"""What statistics are about, how Z'Z is laid out in tiles, and how sums over U are read as sums over Z."""

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

type Region = tuple[slice, slice, list[tuple[int, int, int]]]  # its rows and columns in Z'Z, its output tiles
type Part = tuple[int, int]  # index, number of parts

# Not one large product: threaded OpenBLAS kills the process on symmetric ones from D ≈ 16,000 on (numpy issue
# 19685). Tiles also stay in the cache, and reach 1.03 of the rate of one dsyrk.
OUTPUT_TILE = 512  # columns of an output tile; see TileLayout
# All output tiles of a cell, a square of so many components, belong to the same part. Where parts are likely,
# a cell is as large as the largest region that is multiplied, so that no region is in two parts.
CELL, SMALL_CELL, SMALL_COMPONENTS = 2048, 512, 8192
WHOLE: Part = (0, 1)

FRACTION_BITS = 39  # float64 products of up to 2**13 rows, with entries up to 1, have bits down to 2**-39
FINE_FRACTION_BITS = 49  # for few rows, whose products are smaller and have finer bits
FIXED_FRACTION_BITS = 2 * protocol.FIXED_POINT_BITS  # products of fixed-point features are exact on this grid
LIMB_BITS = 62  # of an int64: one bit for the sign, one to spare


def tile_rows(n_components: int) -> int:
    """Return the rows of a tile, which depend on D only, so that sums have the same bits everywhere.

    With 4,096 rows, adding the integers takes below 1 % of the product's time. Wide maps take 2,048, so that
    the tile's float64 features, `8 * tile_rows * n_components` bytes, take 128 MiB for D = 8,192.
    """
    return 4096 if n_components <= 4096 else 2048


@frozen
class TileLayout:
    """How the upper triangle of a D x D matrix is cut into output tiles, stored one after another.

    Tiles of 512 columns are as fast as one large product (measured: 1.03 of the dsyrk limit at D = 4,096).
    They keep the float64 work of a tile in the cache, are shared evenly among threads, and avoid the large
    symmetric products that crash threaded OpenBLAS (numpy issue 19685).

    `part`: (index, number of parts). Which part of the triangle is stored; parts are of about equal size.
    """

    n_components: int
    part: Part = WHOLE

    def width(self, start: int) -> int:
        """Return the number of components of the strip that begins at `start`."""
        return min(OUTPUT_TILE, self.n_components - start)

    def tiles(self) -> list[tuple[int, int, int]]:
        """Return (row start, column start, offset) of each output tile, row by row."""
        return _tiles(self.n_components, self.part)

    def regions(self, most: int) -> list[Region]:
        """Return the regions of Z'Z that are multiplied for a tile of rows: those off the diagonal first.

        `most`: components of a region. If that gave a single region, which threads cannot share, regions are
          smaller.
        """
        most = self._region_components(most)

        def components(tile: int) -> slice:
            first = tile // most * most
            return slice(first, min(first + most, self.n_components))

        regions: dict[tuple[int, int], Region] = {}
        for row, column, offset in self.tiles():
            left, right = components(row), components(column)
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
        """Count of stored numbers: the upper triangle or a part of it; diagonal tiles are stored whole."""
        if self.part != WHOLE:
            return sum(self.width(row) * self.width(column) for row, column, _ in self.tiles())
        whole, last = divmod(self.n_components, OUTPUT_TILE)
        squares = whole * OUTPUT_TILE**2 + last**2  # on the diagonal
        return (self.n_components**2 + squares) // 2

    def view(self, buffer: AnyArray, row: int, column: int, offset: int) -> AnyArray:
        """Return one tile of a flat buffer as a matrix."""
        height, width = self.width(row), self.width(column)
        return buffer[offset : offset + height * width].reshape(height, width)

    def copy(self, buffer: IntArray, target: TileLayout, out: IntArray) -> IntArray:
        """Copy tiles, as far as `target` has them, to `out`, a flat buffer that is laid out by it."""
        offsets = {(row, column): offset for row, column, offset in self.tiles()}
        for row, column, offset in target.tiles():
            if (row, column) in offsets:
                tile = target.view(out, row, column, offset)
                tile[:] = self.view(buffer, row, column, offsets[row, column])[: len(tile), : tile.shape[1]]
        return out


@lru_cache(maxsize=16)
def _tiles(n_components: int, part: Part) -> list[tuple[int, int, int]]:
    layout, tiles, offset = TileLayout(n_components), [], 0
    for row, column in _places(layout) if part == WHOLE else _places_of_part(layout, part):
        tiles.append((row, column, offset))
        offset += layout.width(row) * layout.width(column)
    return tiles


def _places(layout: TileLayout) -> list[tuple[int, int]]:
    return list(itertools.combinations_with_replacement(range(0, layout.n_components, OUTPUT_TILE), 2))


def _places_of_part(layout: TileLayout, part: Part) -> list[tuple[int, int]]:
    """Return the output tiles of a part: those of the cells whose first number falls in it."""
    index, n_parts = part
    cell = cell_components(layout.n_components)

    def cell_of(place: tuple[int, int]) -> tuple[int, int]:
        return place[0] // cell, place[1] // cell

    chosen, before = [], 0
    for _, places in itertools.groupby(sorted(_places(layout), key=cell_of), cell_of):
        within = list(places)
        if before * n_parts // layout.size == index:
            chosen += within
        before += sum(layout.width(row) * layout.width(column) for row, column in within)
    return chosen


def cell_components(n_components: int) -> int:
    """Return the components of a cell; see `CELL`."""
    return CELL if n_components > SMALL_COMPONENTS else SMALL_CELL


@frozen
class StatisticsSpec:
    """What statistics are about: only statistics with equal specs can be added.

    `n_components`, `n_targets`: D, and the number of columns of Y; 0 targets for sums of features only.
    `feature_digest`: digest of the feature map.
    `scales`: Z = scale · V, where V are the unnormalised features.
    `exponents`: V = 2**exponent · U, where U lies in [-1, 1]; () if V already does.
    `weight_exponent`: sample weights are at most 2**weight_exponent.
    `fraction_bits`: the Gram is counted in multiples of 2**(weight_exponent - fraction_bits).
    `target_offset`: subtracted from Y before anything is summed, so that large means cause no cancellation.
    `one_dimensional`: whether Y was given as a vector; then `Zty` and `yty` drop the target axis.
    `frequency_weights`: whether weights are whole numbers that repeat their rows, rather than precisions. See
      `RidgeStatistics.n_observations`.
    `whitened`: whether Z is V·T⁻¹ with the feature map's T, which is then needed to read the sums.
    `fixed_point`: whether features are whole multiples of 2**-14 and rows have no weights. Then nothing is
      rounded.
    `part`: (index, number of parts). The part of the Gram that is summed; see `statistics.passes`.
    """

    n_components: int
    n_targets: int
    feature_digest: str
    scales: exact_sums.Runs
    weight_exponent: int = 0
    fraction_bits: int = FRACTION_BITS
    exponents: tuple[tuple[int, int], ...] = ()
    target_offset: tuple[float, ...] = ()
    one_dimensional: bool = False
    frequency_weights: bool = False
    whitened: bool = False
    fixed_point: bool = False
    part: Part = WHOLE

    @property
    def layout(self) -> TileLayout:
        """Where each output tile of the Gram is stored."""
        return TileLayout(self.n_components, self.part)

    @property
    def factors(self) -> FloatArray:
        """Z = factors · U, shape (n_components,)."""
        scales, exponents = exact_sums.expand(self.scales), self.exponents
        return np.ldexp(scales, exact_sums.expand(exponents).astype(np.int64)) if exponents else scales

    @property
    def offsets(self) -> FloatArray:
        """`target_offset` as an array of shape (n_targets,), zeros if there is none."""
        return np.array(self.target_offset or (0.0,) * self.n_targets)

    @property
    def grid_exponent(self) -> int:
        """The Gram is counted in multiples of 2**grid_exponent."""
        return self.weight_exponent - self.fraction_bits

    @property
    def limb_rows(self) -> int:
        """Rows whose sums fit in one limb, at most: 2**23, 2**13 on the fine grid, 2**34 in fixed point."""
        return 1 << (LIMB_BITS - self.fraction_bits)


def check_counted(n_samples: int, expected: int) -> None:
    """Check that a pass counted each of the expected rows once; raises StatisticsError otherwise."""
    if n_samples != expected:
        raise StatisticsError(
            f"a pass counted {n_samples:_} rows, but the data have {expected:_}: some were lost or counted "
            "twice; run it again, and report this if the data did not change"
        )


# -- reading ---------------------------------------------------------------------------------------


_TARGETS = 64  # whose products are made together
_STRIP_ROWS = 64  # rows of an output tile that are worked on at a time, 256 KiB, to fit the cache


def gram_of(statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None) -> FloatArray:
    """Return U'U - center·center', scaled to Z'Z, as a symmetric matrix without a second D² array."""
    layout, factors = statistics.spec.layout, statistics.spec.factors
    gram = np.empty((statistics.n_components, statistics.n_components))
    for row, column, offset in layout.tiles():
        height, columns = layout.width(row), slice(column, column + layout.width(column))
        for first in range(0, height, _STRIP_ROWS):
            strip = slice(first, min(first + _STRIP_ROWS, height))
            rows = slice(row + strip.start, row + strip.stop)
            # in place: fresh pages for arrays next to the result took most of the time of a small Gram
            part = _numbers(statistics, (row, column, offset), strip, out=gram[rows, columns])
            if center is not None:
                part -= np.outer(center[rows], center[columns])
            part *= factors[rows, np.newaxis] * factors[columns]
            gram[columns, rows] = part.T
    if (whitener := _whitener_of(statistics)) is not None:
        with machine.tile_pool() as pool:
            cholesky.whiten_in_place(gram, whitener.factor, pool)
    return gram


def sums_over_z(statistics: ridge_statistics.RidgeStatistics, sums: FloatArray) -> FloatArray:
    """Turn sums U'[…] of shape (n_components, n_columns) into sums Z'[…]."""
    whitener = _whitener_of(statistics)
    scaled = statistics.spec.factors[:, np.newaxis] * sums
    return whitened(scaled, None if whitener is None else whitener.factor)


def whitened(scaled: FloatArray, whitener: FloatArray | None) -> FloatArray:
    """Turn sums over scaled features into sums over Z, in place; `whitener` is T of Z = V·T⁻¹."""
    if whitener is not None:
        with machine.single_threaded_blas():
            cholesky.solve_transposed(whitener, scaled)
    return scaled


_CONSTANT = 1e-14  # of the squares about the offset: rounding may leave a constant so much about its mean


@frozen(eq=False)
class TargetMoments:
    """What is read from the exact sums of targets less their offsets.

    `weight`: the sum of the rows' weights.
    `shifts`: float64 array of shape (n_targets,). Means less the offsets.
    `squares`: float64 array of shape (n_targets,). Weighted sums of squares of the targets less the offsets.
    """

    weight: float
    shifts: FloatArray
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
        return self.squares + self.weight * self.offsets * (2.0 * self.shifts + self.offsets)

    def variances(self, *, centred: bool = True) -> FloatArray:
        """Return population variances, or mean squares about 0; exactly 0 for a constant target."""
        squares = self.sums_of_squares(centred=centred)
        return np.where(squares > _CONSTANT * self.squares, squares, 0.0) / self.weight

    @property
    def deviations(self) -> FloatArray:
        """Population standard deviations, shape (n_targets,)."""
        return np.sqrt(self.variances())


def target_products(right: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return the sums 1'W[Y, 1] and the squares 1'W[Y², 1] of a tile, shape (2, n_targets + 1).

    `right`: float64 array of shape (n_samples, n_targets + 1). [Y, 1].
    """
    last = right.shape[1] - 1
    sums = np.empty((2, last + 1))
    # products of a few columns at a time, of which only the last column and the diagonal are kept
    for first in range(0, max(1, last), _TARGETS):
        columns = [*range(first, min(first + _TARGETS, last)), last]
        these = np.take(right, columns, axis=1)
        products = these.T @ (these if weights is None else these * weights[:, np.newaxis])
        sums[0, columns] = products[:, -1]
        sums[1, columns] = np.diagonal(products)
    return sums


def gram_error_of(statistics: ridge_statistics.RidgeStatistics, center: FloatArray | None = None) -> float:
    """Return a bound on the spectral norm of the error of Z'Z, less the means' share if there is a `center`.

    Each tile rounds every entry to the grid: for D x D independent roundings the norm is 2·√D/√12 of the
    grid, doubled to be safe. Centring subtracts cc', whose entries and roots are rounded.

    With a whitener, independent roundings E of size s give T⁻ᵀET⁻¹ the norm 2·s·‖T⁻¹‖·‖T⁻¹‖_F (Chevet's
    inequality). There the rounding of the sums to float64 counts too, and that of the products with T⁻¹:
    0.2 to 0.4 times ε·√(largest sum · ‖V'V‖)·‖T⁻¹‖·‖T⁻¹‖_F, measured against long doubles for 200 to 1,024
    centres of condition 1e3 to 1e4.
    """
    spec = statistics.spec
    of_grid = float(np.sqrt(statistics.n_tiles / 12) * 2.0**spec.grid_exponent * spec.factors.max() ** 2)
    if (whitener := _whitener_of(statistics)) is None:
        of_centring = 0.0 if center is None else 2 * EPS * float(np.square(spec.factors * center).sum())
        return math.hypot(4 * math.sqrt(statistics.n_components) * of_grid, of_centring)
    # The largest entry of V'V is on its diagonal, and ‖V'V‖ is at most its trace.
    squares = [np.abs(diagonal) * spec.factors[rows] ** 2 for rows, diagonal in _diagonals(statistics)]
    largest = max(float(diagonal.max()) for diagonal in squares)
    trace = sum(float(diagonal.sum()) for diagonal in squares)
    of_sums, of_products = EPS * largest, EPS * math.sqrt(largest * trace)
    spectral, frobenius = whitener.inverse_norms
    return math.hypot(4 * of_grid, 4 * of_sums, 0.5 * of_products) * spectral * frobenius


def trace_of(statistics: ridge_statistics.RidgeStatistics) -> float:
    """Return the trace of U'U."""
    return sum(float(diagonal.sum()) for _, diagonal in _diagonals(statistics))


def _numbers(
    statistics: ridge_statistics.RidgeStatistics, tile: tuple[int, int, int], strip: slice, *, out: FloatArray
) -> FloatArray:
    """Fill `out` with some rows of an output tile of U'U."""
    layout, exponent = statistics.spec.layout, statistics.spec.grid_exponent
    # powers of two are exact factors; this takes 0.56 of the time of `ldexp`
    np.multiply(layout.view(statistics.low, *tile)[strip], np.ldexp(1.0, exponent), out=out)
    if statistics.high is not None:
        out += layout.view(statistics.high, *tile)[strip] * np.ldexp(1.0, exponent + LIMB_BITS)
    return out


def _diagonals(statistics: ridge_statistics.RidgeStatistics) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the diagonal of U'U in pieces, each with the components it belongs to."""
    layout = statistics.spec.layout
    for row, column, offset in layout.tiles():
        if row == column:
            size = layout.width(row)
            tile = _numbers(statistics, (row, column, offset), slice(size), out=np.empty((size, size)))
            yield slice(row, row + size), np.diagonal(tile)


def _whitener_of(statistics: ridge_statistics.RidgeStatistics) -> Whitener | None:
    if statistics.spec.whitened and statistics.whitener is None:
        raise StatisticsError(
            "these are sums of kernel values at Nyström centres: reading them needs the feature map's "
            "whitener, which was not given; use statistics.with_whitener(feature_map.whitener)"
        )
    return statistics.whitener if statistics.spec.whitened else None


@dataclass(frozen=True, eq=False)
class Whitener:
    """A feature map's upper triangular T of Z = V·T⁻¹.

    `factor`: float64 array of shape (n_components, n_components).
    """

    factor: FloatArray

    def leading(self, n_components: int) -> Whitener:
        return Whitener(self.factor[:n_components, :n_components].copy())

    @cached_property
    def inverse_norms(self) -> tuple[float, float]:
        """‖T⁻¹‖ and ‖T⁻¹‖_F by sixteen random vectors g; at worst a few per cent too small.

        Estimated once for the sums of all folds. ‖T⁻¹‖ comes from three steps of a subspace iteration with
        (T'T)⁻¹, ‖T⁻¹‖_F from the mean square of T⁻ᵀg (Hutchinson).
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
