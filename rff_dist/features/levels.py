"""Levels of categories in Fourier features: a table of angles for each column.

A column of categories holds codes, the places of levels in a list of texts. Each
level's text decides angles, which are added to those of a row, so that features are the
same for any list that has the level. Simple maps would take one-hot columns, of which
each has a row of frequencies, and each row of data a product with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs
from rff_dist.kernels import base
from rff_dist.typing import (
    AnyArray,
    BoolArray,
    Facts,
    Float32Array,
    FloatArray,
    IndexArray,
    Summary,
)

#: The texts of each column of categories, by the column's number.
type Levels = Mapping[int, tuple[str, ...]]
NO_LEVELS: Levels = {}


@dataclass(frozen=True, eq=False)
class LevelTable:
    """The angles that the levels of one column add: a line for each code."""

    column: int
    #: The level of each code.
    texts: tuple[str, ...]
    #: With the column and a level's text it decides the level's line.
    seed: int
    #: Of shape (n_levels + 1, n_frequencies); the last line is that of levels that were
    #: never seen.
    angles: Float32Array
    #: E cos(angle) of any level, shape (n_frequencies,), which no list changes.
    characteristic: Float32Array

    @cached_property
    def unseen_factors(self) -> Float32Array:
        """The factors of cosines and sines of a level that was never seen."""
        return np.abs(_mean_phasor(self.texts, self.angles[:-1])).astype(np.float32)

    def places(self, inputs: AnyArray) -> IndexArray:
        """Return which line of `angles` each row of inputs has: its code, or the last
        line for a level that was never seen.
        """
        codes = inputs[:, self.column]
        is_known = _is_known(codes, self.texts)
        return np.where(is_known, codes, len(self.texts)).astype(np.intp)


def draw_tables(
    kernel: base.ShiftInvariant, draw: designs.Draw, levels: Levels
) -> tuple[LevelTable, ...]:
    """Draw a table for each column of categories that the kernel sees."""
    tables = []
    for column, texts in sorted(levels.items()):
        parts = kernel.level_angles(column, draw)
        if parts:
            tables.append(_draw_table(column, tuple(texts), draw.seed, parts))
    return tuple(tables)


def _draw_table(
    column: int, texts: tuple[str, ...], seed: int, parts: Sequence[base.LevelAngles]
) -> LevelTable:
    angles = np.zeros((len(texts) + 1, len(parts[0].scales)), np.float32)
    for line, text in zip(angles, texts, strict=False):
        line[:] = sum(part.angles(text) for part in parts)
    angles[-1] = np.angle(_mean_phasor(texts, angles[:-1]))
    factors = [part.characteristic() for part in parts]
    characteristic = np.prod(factors, axis=0).astype(np.float32)
    # the cache of feature maps shares them
    angles.setflags(write=False)
    characteristic.setflags(write=False)
    return LevelTable(column, texts, seed, angles, characteristic)


def _mean_phasor(texts: Sequence[str], angles: Float32Array) -> AnyArray:
    """Return the mean of exp(i·angle) over levels, shape (n_frequencies,)."""
    # of at most 1,024 levels, to bound time; sorted, so that the list's order decides
    # nothing
    first = np.argsort(texts)[:1024]
    return np.exp(1j * angles[first]).sum(axis=0) / max(1, len(first))


def check_levels(kernel: base.Kernel, levels: Levels) -> None:
    """Check that the levels of each column of categories are known.

    Raises InvalidParameterError if a kernel takes other columns for categories.
    """
    if kernel.with_categories(sorted(levels)) != kernel:
        raise InvalidParameterError(
            f"{kernel} has other columns of categories than `levels`, which has those"
            f" of {sorted(levels)}; give the texts of each column's levels"
        )


def never_seen(inputs: AnyArray, levels: Levels) -> BoolArray:
    """Return which rows have a level that is not in the lists, shape (n_samples,)."""
    is_unseen = np.zeros(len(inputs), bool)
    for column, texts in levels.items():
        is_unseen |= ~_is_known(inputs[:, column], texts)
    return is_unseen


def _is_known(codes: AnyArray, texts: Sequence[str]) -> BoolArray:
    """Return which codes are those of levels; NaN is none."""
    return (codes >= 0) & (codes < len(texts))


def gram_of(
    kernel: base.Kernel, points: FloatArray, rows: FloatArray, levels: Levels
) -> FloatArray:
    """Return k(points, rows), of a row's unseen level the mean over the list of levels.

    The levels of points are known.
    """
    if not levels:
        return kernel.gram(points, rows)
    (column, texts), *others = levels.items()
    values = gram_of(kernel, points, rows, dict(others))
    is_unseen = ~_is_known(rows[:, column], texts)
    if is_unseen.any():
        # A share s = 1/n_levels of the levels is the point's own, and all others differ
        # from it as the unseen code does: (1 − s)·k(different) + s·k(same), where s is
        # 0 for rows whose level is known. The same code in both makes levels the same.
        share = is_unseen / len(texts)
        points = points.copy()
        rows = rows.copy()
        points[:, column] = 0.0
        rows[:, column] = 0.0
        values_of_same = gram_of(kernel, points, rows, dict(others))
        values = (1.0 - share) * values
        values += share * values_of_same
    return values


def codes_of(levels: Levels, wanted: Levels) -> dict[int, FloatArray]:
    """Return the new code of each code: from one list of levels to another, by column.

    A level that is not in the other list has the code after its last.
    """
    new_codes = {}
    for column, texts in levels.items():
        place_of = {text: place for place, text in enumerate(wanted[column])}
        last = len(place_of)
        codes = [place_of.get(text, last) for text in texts]
        new_codes[column] = np.array([*codes, last], float)
    return new_codes


def recoded[A: np.floating[Any]](
    X: NDArray[A], new_codes: Mapping[int, FloatArray]
) -> NDArray[A]:
    """Return rows with other codes in columns of categories, see `codes_of`.

    Rows without such columns are not copied.
    """
    if not new_codes:
        return X
    changed = X.copy()
    for column, codes in new_codes.items():
        values = X[:, column]
        is_known = (values >= 0) & (values < len(codes))
        places = np.where(is_known, values, len(codes) - 1).astype(np.intp)
        # what is no number is refused later
        changed[:, column] = np.where(np.isnan(values), values, codes[places])
    return changed


def joined(levels: Levels, others: Mapping[int, Sequence[str]]) -> Levels:
    """Return the levels of both, first those of `levels` in their order."""
    return {
        column: tuple(dict.fromkeys([*texts, *others.get(column, ())]))
        for column, texts in levels.items()
    }


def to_json(levels: Levels) -> Summary:
    """Return levels as JSON values."""
    return {str(column): list(texts) for column, texts in levels.items()}


def from_json(values: Facts) -> Levels:
    """Return the levels that `to_json` wrote."""
    return {int(column): tuple(texts) for column, texts in values.items()}
