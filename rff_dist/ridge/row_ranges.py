"""Ranges of rows: merged, subtracted, counted, and cut into blocks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Block
from rff_dist.typing import IntArray

type Range = tuple[int, int]


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same rows as ascending ranges that neither touch nor overlap."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


def without_rows(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the ranges without the rows of `taken`; ranges are not merged."""
    holes = merge_ranges(taken)
    left = []
    for start, stop in ranges:
        for hole_start, hole_stop in holes:
            if hole_stop <= start or stop <= hole_start:
                continue
            if start < hole_start:
                left.append((start, hole_start))
            start = hole_stop
        if start < stop:
            left.append((start, stop))
    return left


def count_rows(ranges: Iterable[Range]) -> int:
    """Return the number of rows."""
    return sum(stop - start for start, stop in ranges)


def as_blocks(ranges: Iterable[Range]) -> list[Block]:
    """Return ranges as blocks, numbered in their order."""
    return [Block(i, start, stop) for i, (start, stop) in enumerate(ranges)]


def cut_ranges(ranges: Iterable[Range], rows: int) -> list[Range]:
    """Cut ranges into pieces of at most `rows` rows."""
    return [(i, min(i + rows, stop)) for start, stop in ranges for i in range(start, stop, rows)]


def are_in(numbers: IntArray, ranges: Iterable[Range]) -> NDArray[np.bool_]:
    """Return which row numbers are in the ranges."""
    found = np.zeros(len(numbers), bool)
    for start, stop in ranges:
        found |= (numbers >= start) & (numbers < stop)
    return found
