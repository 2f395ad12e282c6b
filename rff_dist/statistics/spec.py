"""What statistics are about, and how Z'Z is laid out in tiles."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.numerics.runs import Runs, expand
from rff_dist.products.protocol import FIXED_POINT_BITS
from rff_dist.typing import FloatArray

type Region = tuple[slice, slice, list[tuple[int, int, int]]]  # its rows and columns in Z'Z, its output tiles
type Part = tuple[int, int]  # index, number of parts

OUTPUT_TILE = 512  # columns of an output tile; see TileLayout
# All output tiles of a cell, a square of so many components, belong to the same part. Where parts are likely,
# a cell is as large as the largest region that is multiplied, so that no region is in two parts.
CELL, SMALL_CELL, SMALL_COMPONENTS = 2048, 512, 8192
WHOLE: Part = (0, 1)

FRACTION_BITS = 39  # float64 products of up to 2**13 rows, with entries up to 1, have bits down to 2**-39
FINE_FRACTION_BITS = 49  # for few rows, whose products are smaller and have finer bits
FIXED_FRACTION_BITS = 2 * FIXED_POINT_BITS  # products of fixed-point features are exact on this grid
LIMB_BITS = 62  # of an int64: one bit for the sign, one to spare


def tile_rows(n_components: int) -> int:
    """Return the rows of a tile, which depend on D only, so that sums have the same bits everywhere.

    With 4,096 rows, adding the integers takes below 1 % of the product's time. Wide maps take 2,048, so that
    the tile's float64 features, `8 * tile_rows * n_components` bytes, take 128 MiB for D = 8,192.
    """
    return 4096 if n_components <= 4096 else 2048


@dataclass(frozen=True, slots=True)
class TileLayout:
    """How the upper triangle of a D x D matrix is cut into output tiles, stored one after another.

    Tiles of 512 columns are as fast as one large product (measured: 1.03 of the dsyrk limit at D = 4,096).
    They keep the float64 work of a tile in the cache, are shared evenly among threads, and avoid the large
    symmetric products that crash threaded OpenBLAS (numpy issue 19685).

    `part`: (index, number of parts). Which part of the triangle is stored; parts are of about equal size.
    """

    n_components: int
    part: Part = WHOLE

    @property
    def edges(self) -> range:
        """First component of each strip of `OUTPUT_TILE` components."""
        return range(0, self.n_components, OUTPUT_TILE)

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

        found: dict[tuple[int, int], Region] = {}
        for row, column, offset in self.tiles():
            left, right = components(row), components(column)
            region = found.setdefault((left.start, right.start), (left, right, []))
            region[2].append((row, column, offset))
        return sorted(found.values(), key=lambda region: region[0] == region[1])

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

    def view(self, buffer: NDArray[Any], row: int, column: int, offset: int) -> NDArray[Any]:
        """Return one tile of a flat buffer as a matrix."""
        height, width = self.width(row), self.width(column)
        return buffer[offset : offset + height * width].reshape(height, width)


@lru_cache(maxsize=16)
def _tiles(n_components: int, part: Part) -> list[tuple[int, int, int]]:
    layout = TileLayout(n_components)
    tiles = []
    offset = 0
    for row, column in _places(layout) if part == WHOLE else _places_of_part(layout, part):
        tiles.append((row, column, offset))
        offset += layout.width(row) * layout.width(column)
    return tiles


def _places(layout: TileLayout) -> list[tuple[int, int]]:
    return [(row, column) for row in layout.edges for column in layout.edges if row <= column]


def _places_of_part(layout: TileLayout, part: Part) -> list[tuple[int, int]]:
    """Return the output tiles of a part: those of the cells whose first number falls in it."""
    index, n_parts = part
    cell = cell_components(layout.n_components)

    def cell_of(place: tuple[int, int]) -> tuple[int, int]:
        return place[0] // cell, place[1] // cell

    found, before = [], 0
    for _, places in itertools.groupby(sorted(_places(layout), key=cell_of), cell_of):
        within = list(places)
        if before * n_parts // layout.size == index:
            found += within
        before += sum(layout.width(row) * layout.width(column) for row, column in within)
    return found


def cell_components(n_components: int) -> int:
    """Return the components of a cell; see `CELL`."""
    return CELL if n_components > SMALL_COMPONENTS else SMALL_CELL


@dataclass(frozen=True, slots=True)
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
    scales: Runs
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
        scales = expand(self.scales)
        return np.ldexp(scales, expand(self.exponents).astype(np.int64)) if self.exponents else scales

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
