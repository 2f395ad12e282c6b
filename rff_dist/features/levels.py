"""Levels of categories in Fourier features: a table of angles for each column.

A column of categories holds codes: a code is the place of a level in the column's list
of texts. Lists go in; tables of angles come out. A level's angles are added to those of
the row, and the level's text alone decides them, so that features are the same for any
list that has the level. One-hot columns would need a line of frequencies for each
level, and a product with all of these lines for each row of data.
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
    """The angles that the levels of one column add to a row's: a line for each code."""

    column: int
    #: The level of each code.
    texts: tuple[str, ...]
    #: Seed, column and a level's text decide the level's line.
    seed: int
    #: Shape (n_levels + 1, n_frequencies); the last line is for levels that were never
    #: seen.
    angles: Float32Array
    #: The expected cosine of a level's angle, shape (n_frequencies,); it depends on the
    #: kernel, not on the list of levels.
    expected_cosines: Float32Array

    @cached_property
    def unseen_factors(self) -> Float32Array:
        """Factors by which cosines and sines shrink for a level that was never seen.

        With them and the last line of `angles` the features are the mean over levels.
        """
        return np.abs(_mean_phasor(self.texts, self.angles[:-1])).astype(np.float32)

    def places(self, inputs: AnyArray) -> IndexArray:
        """Return each row's line in `angles`: its code, or the last line if its level
        was never seen.
        """
        codes = inputs[:, self.column]
        is_known = _is_known(codes, self.texts)
        return np.where(is_known, codes, len(self.texts)).astype(np.intp)


def draw_tables(
    kernel: base.ShiftInvariant, draw: designs.Draw, levels: Levels
) -> tuple[LevelTable, ...]:
    """Draw a table for each column of categories that the kernel uses."""
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
    expected_cosines = np.prod(factors, axis=0).astype(np.float32)
    # the cache of feature maps shares them
    angles.setflags(write=False)
    expected_cosines.setflags(write=False)
    return LevelTable(column, texts, seed, angles, expected_cosines)


def _mean_phasor(texts: Sequence[str], angles: Float32Array) -> AnyArray:
    """Return the mean of exp(i·angle) over levels, shape (n_frequencies,)."""
    # at most 1,024 levels, to bound time; the first in sorted order, so that the order
    # of the list changes nothing
    first = np.argsort(texts)[:1024]
    return np.exp(1j * angles[first]).sum(axis=0) / max(1, len(first))


def check_levels(kernel: base.Kernel, levels: Levels) -> None:
    """Check that kernel and `levels` have the same columns of categories.

    Raises InvalidParameterError if they do not.
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
    """Return which codes are places in the list of texts; NaN is none."""
    return (codes >= 0) & (codes < len(texts))


def gram_of(
    kernel: base.Kernel, points: FloatArray, rows: FloatArray, levels: Levels
) -> FloatArray:
    """Return k(points, rows), shape (n_points, n_rows).

    For a row whose level is not in the list, it is the mean of the kernel over all
    levels in the list. The levels of points are all in the lists.
    """
    if not levels:
        return kernel.gram(points, rows)
    (column, texts), *others = levels.items()
    values = gram_of(kernel, points, rows, dict(others))
    is_unseen = ~_is_known(rows[:, column], texts)
    if is_unseen.any():
        # The mean is (1 − s)·k(different) + s·k(same), where s = 1/n_levels: one level
        # is the point's own, and all others differ from it, as the unseen code does. s
        # is 0 for rows with a known level. Equal codes in both give k(same).
        share = is_unseen / len(texts)
        points = points.copy()
        rows = rows.copy()
        points[:, column] = 0.0
        rows[:, column] = 0.0
        values_if_same = gram_of(kernel, points, rows, dict(others))
        values = (1.0 - share) * values
        values += share * values_if_same
    return values


def code_changes(old_levels: Levels, new_levels: Levels) -> dict[int, FloatArray]:
    """Return, for each column, the new code of each old one: an array over old codes.

    A level that is not in the new list gets the code after its last.
    """
    new_codes = {}
    for column, texts in old_levels.items():
        place_of = {text: place for place, text in enumerate(new_levels[column])}
        last = len(place_of)
        codes = [place_of.get(text, last) for text in texts]
        new_codes[column] = np.array([*codes, last], float)
    return new_codes


def recoded[A: np.floating[Any]](
    X: NDArray[A], new_codes: Mapping[int, FloatArray]
) -> NDArray[A]:
    """Return rows with other codes in columns of categories, see `code_changes`.

    Rows without such columns are not copied.
    """
    if not new_codes:
        return X
    changed = X.copy()
    for column, codes in new_codes.items():
        values = X[:, column]
        is_known = (values >= 0) & (values < len(codes))
        places = np.where(is_known, values, len(codes) - 1).astype(np.intp)
        # NaN stays, and is refused later
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
