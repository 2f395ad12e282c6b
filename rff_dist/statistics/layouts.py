"""How Z'Z is laid out in memory: which output tiles are stored, and where.

The number of components D, the columns of Z, goes in; a list of tiles of the upper
triangle of Z'Z comes out, each with its place in one flat buffer. One D × D array would
take twice the memory, and could not be summed in parts.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from rff_dist.typing import AnyArray, IntArray, frozen


class Part(NamedTuple):
    """A share of the triangle, which one pass sums: `number` of `n_parts`."""

    number: int
    n_parts: int


class OutputTile(NamedTuple):
    """A stored tile of Z'Z: its first row and column, and its place in the buffer."""

    row: int
    column: int
    offset: int


class Region(NamedTuple):
    """Rows and columns of Z'Z that are multiplied at once, and their output tiles."""

    rows: slice
    columns: slice
    tiles: list[OutputTile]


# Components on a side of an output tile. One large product is not possible: threaded
# OpenBLAS kills the process on symmetric ones from D ≈ 16,000 on (numpy issue 19685).
# Tiles of 512 stay in the cache, are shared evenly among threads, and reach 1.03 of the
# rate of one dsyrk at D = 4,096.
OUTPUT_TILE = 512
# Components on a side of a cell. If Z'Z is summed in parts, one pass each, all output
# tiles of a cell belong to the same part. If D is so large that parts are likely, a
# cell is as large as the largest region, so that no region is in two parts.
CELL = 2048
SMALL_CELL = 512
SMALL_COMPONENTS = 8192
WHOLE = Part(0, 1)


@frozen
class TileLayout:
    """How the upper triangle of a D x D matrix is cut into output tiles.

    They are stored one after another, and tiles on the diagonal are stored whole.
    """

    n_components: int
    #: Which part of the triangle is stored; parts are of about equal size.
    part: Part = WHOLE

    def width(self, start: int) -> int:
        """Return the number of components of the strip that begins at `start`."""
        return min(OUTPUT_TILE, self.n_components - start)

    def tiles(self) -> list[OutputTile]:
        """Return the stored tiles, row by row."""
        return _tiles(self.n_components, self.part)

    def regions(self, most: int) -> list[Region]:
        """Return the regions of Z'Z, first those off the diagonal.

        A region has at most `most` components on a side. It has fewer if it would be
        the only region: threads could not share it.
        """
        most = self._region_components(most)

        def components(tile: int) -> slice:
            first = tile // most * most
            return slice(first, min(first + most, self.n_components))

        regions: dict[tuple[int, int], Region] = {}
        for tile in self.tiles():
            rows = components(tile.row)
            columns = components(tile.column)
            place = rows.start, columns.start
            regions.setdefault(place, Region(rows, columns, [])).tiles.append(tile)
        return sorted(
            regions.values(), key=lambda region: region.rows == region.columns
        )

    def count_regions(self, most: int) -> int:
        """Return the number of regions of a whole triangle."""
        # not by `regions`: for the D of some plans, listing tiles takes minutes
        strips = -(-self.n_components // self._region_components(most))
        return strips * (strips + 1) // 2

    def _region_components(self, most: int) -> int:
        while most > OUTPUT_TILE and self.n_components <= most:
            most //= 2
        return most

    @property
    def size(self) -> int:
        """The length of the buffer."""
        if self.part != WHOLE:
            return sum(
                self.width(tile.row) * self.width(tile.column) for tile in self.tiles()
            )
        whole, last = divmod(self.n_components, OUTPUT_TILE)
        squares = whole * OUTPUT_TILE**2 + last**2  # on the diagonal
        return (self.n_components**2 + squares) // 2

    def view(self, buffer: AnyArray, tile: OutputTile) -> AnyArray:
        """Return one tile of a flat buffer as a matrix."""
        height = self.width(tile.row)
        width = self.width(tile.column)
        numbers = buffer[tile.offset : tile.offset + height * width]
        return numbers.reshape(height, width)

    def copy(self, buffer: IntArray, target: TileLayout, out: IntArray) -> IntArray:
        """Copy the tiles that `target` has too to `out`, which is `target`'s buffer."""
        tiles_here = {(tile.row, tile.column): tile for tile in self.tiles()}
        for tile in target.tiles():
            tile_here = tiles_here.get((tile.row, tile.column))
            if tile_here is not None:
                copied = target.view(out, tile)
                height, width = copied.shape
                copied[:] = self.view(buffer, tile_here)[:height, :width]
        return out


@lru_cache(maxsize=16)
def _tiles(n_components: int, part: Part) -> list[OutputTile]:
    """List the output tiles of the cells that begin in a part."""
    layout = TileLayout(n_components)
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
    # how many numbers of the triangle come before this tile, and before its cell
    n_before = 0
    n_before_cell = 0
    last_cell = None
    for place in places:
        if cell_of(place) != last_cell:
            last_cell = cell_of(place)
            n_before_cell = n_before
        size = layout.width(place[0]) * layout.width(place[1])
        n_before += size
        if n_before_cell * part.n_parts // n_numbers == part.number:
            tiles.append(OutputTile(*place, offset))
            offset += size
    return tiles


def cell_components(n_components: int) -> int:
    """Return the components of a cell; see `CELL`."""
    return CELL if n_components > SMALL_COMPONENTS else SMALL_CELL
