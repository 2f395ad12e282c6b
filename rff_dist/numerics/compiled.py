"""Loops over a tile's rows that NumPy needs several sweeps for, compiled by Numba.

Nothing here decides anything: each function is a few lines of NumPy, written out in the tests, in one sweep.
All release the GIL. The module is imported where it is first used, since Numba takes 0.2 s and 105 MiB.
Machine code is kept in `__pycache__`, or in `NUMBA_CACHE_DIR`; it is compiled anew, in some ten seconds, for
another processor.

No operation is reordered, and what is fused says so (`fma`): a row has the same bits in whatever company, on
any processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rff_dist.numerics.screening import FRACTION, LANES, LARGEST, ZERO, Screen
from rff_dist.numerics.vector_code import (
    ROWS,
    bits_of,
    find_least_others,
    find_near,
    fma,
    four_vectors_of_products,
    has_byte_products,
    lowest_bit,
    one_vector_of_products,
    round_to_bytes,
    sum_byte_products,
    sum_products,
    three_vectors_of_products,
    two_vectors_of_products,
)
from rff_dist.typing import Float32Array, FloatArray, IntArray

__all__ = [
    "add_rows",
    "fill_cosines",
    "fill_pairs",
    "find_certain",
    "find_least",
    "find_margins",
    "find_nearest",
    "find_nearest_by_bytes",
    "has_byte_products",
    "label_rows",
    "label_rows_by_bytes",
    "note_margins",
    "project_cosines",
    "project_pairs",
]


_PANEL_ROWS = 64  # whose angles one product makes, always of the same shape
_LARGEST_CODE = int(np.iinfo(np.uint16).max)  # of a margin
_BYTE_ROWS = 8 * ROWS  # whose scores of bytes stay in the nearest cache
_STRIP = 64  # rows that are compared with all centres at once: their lanes

# Chebyshev interpolation in x = t² on [0, 1/4] of sin(πt)/t and cos(πt), off by at most 7e-9 and 3e-10
_SINE = tuple(map(np.float32, (3.14159264, -5.167710077, 2.550077387, -0.5982904113, 0.07765591224)))
_COSINE = tuple(map(np.float32, (1.0, -4.934802137, 4.058709155, -1.335211949, 0.2349370685, -0.02439593196)))
_TURNS = 0.15915494309189535  # 1/2π


def _compiled[F: Callable[..., Any]](function: F) -> F:
    try:
        return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to keep machine code, as for a user without a home: it is made anew
        return njit(nogil=True)(function)  # type: ignore[no-any-return]


@_compiled
def _panel_of(frequencies: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return a panel of zeros, shape (64, n_features), and room for its angles, (64, n_frequencies)."""
    n_features, n_frequencies = frequencies.shape
    panel = np.zeros((_PANEL_ROWS, n_features), np.float32)
    return panel, np.empty((_PANEL_ROWS, n_frequencies), np.float32)


@_compiled
def _project_panel(
    inputs: Float32Array, start: int, frequencies: Float32Array, panel: Float32Array, angles: Float32Array
) -> int:
    """Write the products of rows from `start` on to `angles`, and return of how many."""
    n_rows = min(_PANEL_ROWS, len(inputs) - start)
    if n_rows == _PANEL_ROWS:
        np.dot(inputs[start : start + _PANEL_ROWS], frequencies, angles)
    else:
        for i in range(n_rows):  # assigning a slice compiles its error messages too, which takes seconds
            for j in range(panel.shape[1]):
                panel[i, j] = inputs[start + i, j]
        np.dot(panel, frequencies, angles)
    return n_rows


# -- features --------------------------------------------------------------------------------------


@_compiled
def fill_pairs(angles: Float32Array, out: Float32Array, first: int) -> None:
    """Write cosines and sines in turns, within 2.5e-7 of those of the angles, however large.

    Parameters
    ----------
    angles : float32 array of shape (n_rows, n_frequencies)
        In radians; overwritten.
    out : float32 array of shape (n_rows, first + 2 · n_frequencies or more)
        Columns from `first` on are overwritten.
    first : int
    """
    s0, s1, s2, s3, s4 = _SINE
    c0, c1, c2, c3, c4, c5 = _COSINE
    one, two = np.float32(1.0), np.float32(2.0)
    n_rows, n_frequencies = angles.shape
    for i in range(n_rows):
        line = out[i, first : first + 2 * n_frequencies]
        for j in range(n_frequencies):  # in turns of [-1/2, 1/2]: two loops of one width each are vectors
            turns = np.float64(angles[i, j]) * _TURNS
            angles[i, j] = np.float32(turns - np.rint(turns))
        for j in range(n_frequencies):
            halves = two * angles[i, j]
            nearest = np.rint(halves)
            t = halves - nearest
            sign = one - two * abs(nearest)
            x = t * t
            sine = fma(fma(fma(fma(s4, x, s3), x, s2), x, s1), x, s0) * t
            cosine = fma(fma(fma(fma(fma(c5, x, c4), x, c3), x, c2), x, c1), x, c0)
            line[2 * j] = cosine * sign
            line[2 * j + 1] = sine * sign


@_compiled
def fill_cosines(angles: Float32Array, phases: Float32Array, out: Float32Array, first: int) -> None:
    """Write cosines of angles and phases together, as `fill_pairs` makes them.

    Parameters
    ----------
    angles : float32 array of shape (n_rows, n_frequencies)
        In radians; overwritten.
    phases : float32 array of shape (n_frequencies,)
    out : float32 array of shape (n_rows, first + n_frequencies or more)
        Columns from `first` on are overwritten.
    first : int
    """
    c0, c1, c2, c3, c4, c5 = _COSINE
    one, two = np.float32(1.0), np.float32(2.0)
    n_rows, n_frequencies = angles.shape
    for i in range(n_rows):
        line = out[i, first : first + n_frequencies]
        for j in range(n_frequencies):
            turns = (np.float64(angles[i, j]) + np.float64(phases[j])) * _TURNS
            angles[i, j] = np.float32(turns - np.rint(turns))
        for j in range(n_frequencies):
            halves = two * angles[i, j]
            nearest = np.rint(halves)
            t = halves - nearest
            x = t * t
            cosine = fma(fma(fma(fma(fma(c5, x, c4), x, c3), x, c2), x, c1), x, c0)
            line[j] = cosine * (one - two * abs(nearest))


@_compiled
def project_pairs(inputs: Float32Array, frequencies: Float32Array, out: Float32Array, first: int) -> None:
    """Write cosines and sines of products with frequencies in turns; products are made in float32.

    They are made in panels of 64 rows, the last one padded: a product's rounding depends on its shape.

    Parameters
    ----------
    inputs : float32 array of shape (n_rows, n_features)
    frequencies : float32 array of shape (n_features, n_frequencies)
    out, first
        As for `fill_pairs`.
    """
    panel, angles = _panel_of(frequencies)
    for start in range(0, len(inputs), _PANEL_ROWS):
        n_rows = _project_panel(inputs, start, frequencies, panel, angles)
        fill_pairs(angles[:n_rows], out[start : start + n_rows], first)


@_compiled
def project_cosines(
    inputs: Float32Array, frequencies: Float32Array, phases: Float32Array, out: Float32Array, first: int
) -> None:
    """Write cosines of products with frequencies and phases together, as `project_pairs` does."""
    panel, angles = _panel_of(frequencies)
    for start in range(0, len(inputs), _PANEL_ROWS):
        n_rows = _project_panel(inputs, start, frequencies, panel, angles)
        fill_cosines(angles[:n_rows], phases, out[start : start + n_rows], first)


# -- nearest centres -------------------------------------------------------------------------------


@_compiled
def find_nearest(
    scores: NDArray[Any],
    offsets: NDArray[Any],
    best: NDArray[Any],
    second: NDArray[Any],
    labels: NDArray[np.int32],
    rivals: NDArray[np.int32],
) -> None:
    """Find the least score of each row and the least of the others; of equals the lowest centre's.

    Parameters
    ----------
    scores : float array of shape (n_clusters, n_rows)
        Without their offsets, which are added.
    offsets : float array of shape (n_clusters,)
    best, second : float arrays of shape (n_rows,)
        The two least scores; infinity where there is none, or it is NaN.
    labels, rivals : int32 arrays of shape (n_rows,)
        The centres that have them.
    """
    n_clusters, n_rows = scores.shape
    for first in range(0, n_rows, _STRIP):
        last = min(first + _STRIP, n_rows)
        low, next_low = best[first:last], second[first:last]
        label, rival = labels[first:last], rivals[first:last]
        low[:], next_low[:], label[:], rival[:] = np.inf, np.inf, 0, 0
        for k in range(n_clusters):
            line, offset = scores[k, first:last], offsets[k]
            for i in range(last - first):
                value = line[i] + offset
                line[i] = value
                is_best, is_second = value < low[i], value < next_low[i]
                next_low[i] = low[i] if is_best else (value if is_second else next_low[i])
                rival[i] = label[i] if is_best else (k if is_second else rival[i])
                low[i] = value if is_best else low[i]
                label[i] = k if is_best else label[i]


@_compiled
def find_least(
    products: NDArray[Any], offsets: NDArray[Any], best: NDArray[Any], labels: NDArray[np.int32]
) -> None:
    """Find the least score of each row, and whose it is; of equals the lowest centre's.

    Parameters
    ----------
    products : float array of shape (n_panels, n_clusters or more, n_rows)
        Scores without their offsets.
    offsets : float array of shape (n_clusters,)
    best : float array of shape (n_panels, n_rows)
        Overwritten; infinity where no score is a number.
    labels : int32 array of shape (n_panels, n_rows)
        Overwritten.
    """
    n_rows = products.shape[2]
    for panel in range(len(products)):
        low, label = best[panel], labels[panel]
        low[:], label[:] = np.inf, 0
        for k in range(len(offsets)):
            line, offset = products[panel, k], offsets[k]
            for i in range(n_rows):
                value = line[i] + offset
                is_best = value < low[i]
                low[i] = value if is_best else low[i]
                label[i] = k if is_best else label[i]


@_compiled
def find_margins(
    scores: NDArray[Any],
    best: NDArray[Any],
    labels: NDArray[np.int32],
    rivals: NDArray[np.int32],
    margins: NDArray[Any],
) -> None:
    """Find how far the least score of each group of centres is above the least of all.

    Parameters
    ----------
    scores : float array of shape (n_clusters, n_rows)
    best, labels, rivals
        From `find_nearest`; the two nearest centres count in no group.
    margins : float array of shape (n_groups, n_rows)
        Overwritten; infinity for a group without other centres. Centre k is of group k modulo n_groups.
    """
    n_rows = scores.shape[1]
    for first in range(0, n_rows, _STRIP):
        last = min(first + _STRIP, n_rows)
        low, label, rival = best[first:last], labels[first:last], rivals[first:last]
        for group in range(len(margins)):
            least = margins[group, first:last]
            least[:] = np.inf
            for k in range(group, len(scores), len(margins)):
                line = scores[k, first:last]
                for i in range(last - first):
                    other = (line[i] < least[i]) & (label[i] != k) & (rival[i] != k)
                    least[i] = line[i] if other else least[i]
            for i in range(last - first):
                least[i] -= low[i]


# -- sums over clusters ----------------------------------------------------------------------------


@_compiled
def add_rows(
    lines: NDArray[Any],
    weights: FloatArray,
    units: FloatArray,
    shift: float,
    added: NDArray[np.int32],
    taken: NDArray[np.int32],
    features: IntArray,
    totals: IntArray,
) -> None:
    """Add weighted rows to the sums of one cluster each, and take them from another's, as integers.

    Numbers count multiples of the last bit of `shift`, 1.5 times a power of two: a number below half of it,
    added to it, is rounded to such a multiple, which is the difference of the bits.

    Parameters
    ----------
    lines : float array of shape (n_rows, n_components)
    weights : float64 array of shape (n_rows,)
        At most 1.
    units : float64 array of shape (n_components,)
        What brings each component to at most 1.
    shift : float
    added, taken : int32 arrays of shape (n_init, n_rows)
        Clusters; rows with the same in both are left out, −1 takes from none.
    features : int64 array of shape (n_init, n_clusters, n_components)
        Changed.
    totals : int64 array of shape (n_init, n_clusters)
        Of weights; changed.
    """
    n_rows, n_components = lines.shape
    zero, one = bits_of(shift), bits_of(1.0 + shift) - bits_of(shift)
    plain = (units == 1.0).all()
    for start in range(len(added)):
        for i in range(n_rows):
            new, old, weight, line = added[start, i], taken[start, i], weights[i], lines[i]
            if new == old:
                continue
            total = features[start, new]
            if plain and weight == 1.0:
                count = one
                for j in range(n_components):
                    total[j] += bits_of(np.float64(line[j]) + shift) - zero
            else:
                count = bits_of(weight + shift) - zero
                for j in range(n_components):
                    total[j] += bits_of(np.float64(line[j]) * units[j] * weight + shift) - zero
            totals[start, new] += count
            if old >= 0:
                total = features[start, old]
                for j in range(n_components):
                    total[j] -= bits_of(np.float64(line[j]) * units[j] * weight + shift) - zero
                totals[start, old] -= count


# -- labels ----------------------------------------------------------------------------------------


@_compiled
def _score_exactly(line: NDArray[Any], weights: FloatArray, offset: float) -> float:
    """Return line · weights + offset in float64."""
    score: float = sum_products(line, weights)
    for j in range(len(line) - len(line) % LANES, len(line)):
        score = fma(np.float64(line[j]), weights[j], score)
    return score + offset


@_compiled
def _lowest_within(values: FloatArray, tolerance: float) -> int:
    """Return the first value that is no more than `tolerance` above the least."""
    least = np.inf
    for value in values:
        least = min(least, value)
    for j in range(len(values)):
        if values[j] <= least + tolerance:
            return j
    return 0


@_compiled
def label_rows(
    lines: NDArray[Any],
    products: NDArray[Any],
    offsets: NDArray[Any],
    exact_weights: FloatArray,
    exact_offsets: FloatArray,
    tolerance: float,
    exact_tolerance: float,
    best: NDArray[Any],
    gaps: NDArray[Any],
    labels: NDArray[np.int32],
    rivals: NDArray[np.int32],
    margins: NDArray[Any],
) -> None:
    """Find the nearest centres of each start, and how far away the others are.

    Parameters
    ----------
    lines : float array of shape (n_rows, n_components)
    products : float array of shape (n_init · n_clusters, n_rows)
        Of weights and lines; overwritten by scores.
    offsets : float array of shape (n_init · n_clusters,)
        A score is a product and its offset.
    exact_weights : float64 array of shape (n_init · n_clusters, n_components)
    exact_offsets : float64 array of shape (n_init · n_clusters,)
        What scores are made of, in float64.
    tolerance, exact_tolerance : float
        Centres whose scores are no farther from the least are compared in float64; of those that are no
        farther from the least then, the lowest is taken.
    best, gaps : float arrays of shape (n_init, n_rows)
        The least score, and by how much the second one is larger.
    labels, rivals : int32 arrays of shape (n_init, n_rows)
        The nearest centre, and the one with the second score.
    margins : float array of shape (n_init, n_groups, n_rows)
        As `find_margins` has them.
    """
    n_init, n_rows = labels.shape
    n_clusters = len(offsets) // n_init
    values = np.empty(n_clusters)
    for start in range(n_init):
        first, last = start * n_clusters, (start + 1) * n_clusters
        scores, least, gap, label = products[first:last], best[start], gaps[start], labels[start]
        find_nearest(scores, offsets[first:last], least, gap, label, rivals[start])
        find_margins(scores, least, label, rivals[start], margins[start])
        for i in range(n_rows):
            gap[i] -= least[i]
            if gap[i] <= tolerance:
                for k in range(n_clusters):
                    values[k] = np.inf
                    if scores[k, i] - least[i] <= tolerance:
                        values[k] = _score_exactly(
                            lines[i], exact_weights[first + k], exact_offsets[first + k]
                        )
                label[i] = _lowest_within(values, exact_tolerance)


# -- the same, where bytes tell most centres apart --------------------------------------------------


@_compiled
def _to_bytes(line: NDArray[Any], units: Float32Array, out: NDArray[np.int8], rest: NDArray[np.int8]) -> bool:
    """Write numbers in units as whole ones and 254ths; return whether none is beyond 127 or NaN."""
    fits: bool = round_to_bytes(line, units, out, rest)
    for j in range(len(line) - len(line) % LANES, len(line)):
        value = np.float32(line[j]) * units[j]
        if not abs(value) < np.float32(LARGEST):
            return False
        whole = np.rint(value)
        out[j], rest[j] = np.int8(whole), np.int8(np.rint((value - whole) * np.float32(FRACTION)))
    return fits


@_compiled
def _multiply_bytes(
    lines: NDArray[np.int8],
    weights: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    out: NDArray[np.int32],
    n_rows: int,
) -> None:
    """Write scores of rows, up to the next multiple of six, for all columns."""
    column, n_columns = 0, out.shape[1]
    while column + 4 * LANES <= n_columns:
        for row in range(0, n_rows, ROWS):
            four_vectors_of_products(lines, weights, offsets, out, row, column)
        column += 4 * LANES
    for row in range(0, n_rows, ROWS):
        if n_columns - column == 3 * LANES:
            three_vectors_of_products(lines, weights, offsets, out, row, column)
        elif n_columns - column == 2 * LANES:
            two_vectors_of_products(lines, weights, offsets, out, row, column)
        elif n_columns - column == LANES:
            one_vector_of_products(lines, weights, offsets, out, row, column)


@_compiled
def label_rows_by_bytes(
    lines: NDArray[Any],
    screen: Screen,
    exact_weights: FloatArray,
    exact_offsets: FloatArray,
    exact_tolerance: float,
    labels: NDArray[np.int32],
) -> int:
    """Find the nearest centres of each start as `label_rows` does, by exact scores of those that bytes leave.

    Parameters
    ----------
    lines : float array of shape (n_rows, n_components)
    screen : Screen
    exact_weights, exact_offsets, exact_tolerance
        As for `label_rows`.
    labels : int32 array of shape (n_init, n_rows)
        Overwritten.

    Returns
    -------
    int
        How many centres were compared once more; −1 where a feature is beyond its unit or NaN, and labels
        are not to be used.
    """
    n_init, n_rows = labels.shape
    n_clusters, n_columns = len(exact_offsets) // n_init, len(screen.offsets) // n_init
    panel, scores = _panel_for(screen)
    masks, left = np.empty(n_columns // LANES, np.uint16), np.empty(n_columns, np.int64)
    near, values = np.empty(n_columns, np.int64), np.empty(n_columns, np.int64)
    n_compared = 0
    for start in range(0, n_rows, _BYTE_ROWS):
        tile = lines[start : start + _BYTE_ROWS]
        if not _score_panel(tile, screen, panel, scores):
            return -1
        for init in range(n_init):
            columns = slice(init * n_columns, (init + 1) * n_columns)
            of_start = slice(init * n_clusters, (init + 1) * n_clusters)
            weights, offsets = exact_weights[of_start], exact_offsets[of_start]
            slack, fine_slack = screen.slack[columns], screen.fine_slack[columns]
            for i in range(len(tile)):
                here = scores[i, columns]
                found = find_near(here, slack, masks)
                n_near, label = found >> 32, found & 0xFFFFFFFF
                if n_near > 1:
                    n_compared += n_near
                    _score_finely(masks, here, panel[i], screen, columns.start, near, values)
                    n_left = _leave_near(near[:n_near], values, fine_slack, left)
                    label = _nearest_of(left[:n_left], tile[i], weights, offsets, exact_tolerance)
                labels[init, start + i] = label
    return n_compared


@_compiled
def find_nearest_by_bytes(
    lines: NDArray[Any],
    screen: Screen,
    exact_weights: FloatArray,
    exact_offsets: FloatArray,
    exact_tolerance: float,
    best: NDArray[Any],
    gaps: NDArray[Any],
    labels: NDArray[np.int32],
    rivals: NDArray[np.int32],
    margins: NDArray[Any],
) -> int:
    """Find what `label_rows_by_bytes` does and what is known of the other centres, as bounds.

    Parameters
    ----------
    lines, screen, exact_weights, exact_offsets, exact_tolerance, labels
        As for `label_rows_by_bytes`.
    best : float array of shape (n_init, n_rows)
        No score of the nearest centre is larger, with what is added to all of a row.
    gaps : float array of shape (n_init, n_rows)
        By how much the rival's score is larger at least.
    rivals : int32 array of shape (n_init, n_rows)
        The second centre by scores of bytes.
    margins : float array of shape (n_init, n_rows, n_groups)
        The same of the others of each group; of 16 groups, or as many as centres where these are fewer.

    Returns
    -------
    int
        As `label_rows_by_bytes`.
    """
    n_init, n_rows = labels.shape
    n_clusters, n_columns = len(exact_offsets) // n_init, len(screen.offsets) // n_init
    n_groups = margins.shape[2]
    panel, scores = _panel_for(screen)
    masks, left = np.empty(n_columns // LANES, np.uint16), np.empty(n_columns, np.int64)
    near, values = np.empty(n_columns, np.int64), np.empty(n_columns, np.int64)
    others, ones = np.empty(LANES, np.int32), np.ones((2, 2, panel.shape[2]), np.uint8)
    ones[1, 1] = 0
    shifts, all_shifts = np.empty((2, _BYTE_ROWS), np.int64)
    n_compared = 0
    for start in range(0, n_rows, _BYTE_ROWS):
        tile = lines[start : start + _BYTE_ROWS]
        if not _score_panel(tile, screen, panel, scores):
            return -1
        for i in range(len(tile)):  # scores are of weights that are 128 more than centres'
            shifts[i] = ZERO * sum_byte_products(panel[i], ones[0])
            all_shifts[i] = shifts[i] + FRACTION * ZERO * sum_byte_products(panel[i], ones[1])
        for init in range(n_init):
            columns = slice(init * n_columns, (init + 1) * n_columns)
            of_start = slice(init * n_clusters, (init + 1) * n_clusters)
            weights, offsets = exact_weights[of_start], exact_offsets[of_start]
            slack, fine_slack = screen.slack[columns], screen.fine_slack[columns]
            fraction = screen.fractions[init]
            for i in range(len(tile)):
                here = scores[i, columns]
                n_near = find_near(here, slack, masks) >> 32
                if n_near == 1:  # the next one is the rival
                    other = find_least_others(here, slack, masks, others)
                    masks[other // LANES] |= np.uint16(1 << other % LANES)
                    n_near = 2
                else:
                    n_compared += n_near
                find_least_others(here, slack, masks, others)
                _score_finely(masks, here, panel[i], screen, columns.start, near, values)
                n_left = _leave_near(near[:n_near], values, fine_slack, left)
                label = _nearest_of(left[:n_left], tile[i], weights, offsets, exact_tolerance)
                own, rival, rival_low = np.int64(0), label, np.int64(2**62)
                for j in range(n_near):
                    low = values[j] - fine_slack[near[j]]
                    if near[j] == label:
                        own = values[j]
                    elif low < rival_low:
                        rival, rival_low = near[j], low
                row = start + i
                for group in range(n_groups):
                    margins[init, row, group] = (FRACTION * others[group] + shifts[i] - own) * fraction
                for j in range(n_near):
                    if near[j] != label and near[j] != rival:
                        margin = (values[j] - fine_slack[near[j]] - own) * fraction
                        group = near[j] % n_groups
                        margins[init, row, group] = min(margins[init, row, group], margin)
                labels[init, row], rivals[init, row] = label, rival
                gaps[init, row] = (rival_low - own) * fraction
                middle = sum_byte_products(panel[i], screen.middle_weights[init, 0]) - all_shifts[i]
                middle += FRACTION * np.int64(sum_byte_products(panel[i], screen.middle_weights[init, 1]))
                from_middle = middle * screen.middle_fractions[init] + screen.middle_offsets[init]
                best[init, row] = (own - all_shifts[i]) * fraction + from_middle
    return n_compared


@_compiled
def _panel_for(screen: Screen) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return room for some rows' bytes and second bytes, and for their scores."""
    panel = np.zeros((_BYTE_ROWS, 2, screen.fine_weights.shape[2]), np.int8)
    return panel, np.empty((_BYTE_ROWS, len(screen.offsets)), np.int32)


@_compiled
def _score_panel(
    lines: NDArray[Any], screen: Screen, panel: NDArray[np.int8], scores: NDArray[np.int32]
) -> bool:
    """Write the bytes and scores of up to as many rows as have room; return whether bytes can hold them."""
    for i in range(len(lines)):
        if not _to_bytes(lines[i], screen.units, panel[i, 0], panel[i, 1]):
            return False
    _multiply_bytes(panel, screen.weights, screen.offsets, scores, len(lines))
    return True


@_compiled
def _score_finely(
    masks: NDArray[np.uint16],
    scores: NDArray[np.int32],
    line: NDArray[np.int8],
    screen: Screen,
    first: int,
    near: IntArray,
    values: IntArray,
) -> None:
    """Write which centres' bits are set, and their scores in 254ths, raised by what these may be too low."""
    count = 0
    for part in range(len(masks)):
        mask = np.int64(masks[part])
        while mask != 0:
            k = LANES * part + lowest_bit(mask)
            mask &= mask - 1
            fine = sum_byte_products(line, screen.fine_weights[first + k]) + screen.fine_offsets[first + k]
            near[count], values[count] = k, FRACTION * np.int64(scores[k]) + fine
            count += 1


@_compiled
def _leave_near(near: IntArray, values: IntArray, slack: IntArray, left: IntArray) -> int:
    """Write those that may be the least by their fine scores, and return how many they are."""
    least = values[0]
    for j in range(1, len(near)):
        least = min(least, values[j])
    n_left = 0
    for j in range(len(near)):
        if values[j] - slack[near[j]] <= least:
            left[n_left] = near[j]
            n_left += 1
    return n_left


@_compiled
def _nearest_of(
    near: IntArray, line: NDArray[Any], weights: FloatArray, offsets: FloatArray, tolerance: float
) -> int:
    """Return the centre with the least exact score, of those no farther than `tolerance` the lowest."""
    if len(near) == 1:
        return int(near[0])
    values = np.empty(len(near))
    for j in range(len(near)):
        values[j] = _score_exactly(line, weights[near[j]], offsets[near[j]])
    return int(near[_lowest_within(values, tolerance)])


# -- what is remembered of rows, see skipped_rows.py ------------------------------------------------------


@_compiled
def _code_of(margin: float) -> np.uint16:
    """Return the largest code that stands for no more than a margin in units."""
    return np.uint16(min(max(margin, 0.0), _LARGEST_CODE))


@_compiled
def note_margins(
    rows: NDArray[np.intp],
    number: int,
    found_labels: NDArray[np.int32],
    found_rivals: NDArray[np.int32],
    found_distances: NDArray[Any],
    found_gaps: NDArray[Any],
    found_margins: NDArray[Any],
    tolerance: float,
    scale: float,
    labels: NDArray[Any],
    numbers: NDArray[np.int32],
    distances: NDArray[np.float32],
    rivals: NDArray[Any],
    rival_margins: NDArray[np.uint16],
    margins: NDArray[np.uint16],
) -> None:
    """Note what a pass found of some rows: margins in units, less what scores may err.

    Parameters
    ----------
    rows : int array of shape (n_found,)
        Where the found ones are noted.
    number : int
        Of the pass.
    found_labels, found_rivals : int32 arrays of shape (n_found,)
    found_distances, found_gaps : float arrays of shape (n_found,)
    found_margins : float array of shape (n_groups, n_found)
    tolerance : float
        What two scores may err together.
    scale : float
        Units for 1.
    labels, numbers, distances, rivals, rival_margins : arrays of shape (n_rows,)
    margins : array of shape (n_rows, n_groups)
        Overwritten for the rows.
    """
    for i in range(len(rows)):
        row = rows[i]
        labels[row], rivals[row], numbers[row] = found_labels[i], found_rivals[i], number
        distances[row] = np.float32(found_distances[i] * (1.0 + 1e-6))  # float32 may round it down
        rival_margins[row] = _code_of((found_gaps[i] - tolerance) * scale)
        for group in range(len(found_margins)):
            margins[row, group] = _code_of((found_margins[group, i] - tolerance) * scale)


@_compiled
def find_certain(
    number: int,
    oldest: int,
    n_clusters: int,
    radii: Float32Array,
    moves: Float32Array,
    rival_needed: Float32Array,
    rival_slopes: Float32Array,
    needed: Float32Array,
    slopes: Float32Array,
    labels: NDArray[Any],
    numbers: NDArray[np.int32],
    distances: NDArray[np.float32],
    rivals: NDArray[Any],
    rival_margins: NDArray[np.uint16],
    margins: NDArray[np.uint16],
    certain: NDArray[np.bool_],
) -> None:
    """Find the rows whose label a start's pass cannot change; of the oldest, take the loss off their margins.

    Parameters
    ----------
    number, oldest : int
        Of the pass, and the age whose margins it is the last to know; 0 for none.
    n_clusters : int
    radii, moves : float32 arrays of shape (n_ages · n_clusters,)
        By age, 1 first, and label: the largest distance that what follows holds for, and how far the centre
        has moved since.
    rival_needed, rival_slopes : float32 arrays of shape (n_ages · n_clusters, n_clusters)
        The margin, in units, that the second centre must have had for a row at its centre, and for each unit
        of distance from there.
    needed, slopes : float32 arrays of shape (n_ages · n_clusters, n_groups)
        The same for groups of the others.
    labels, numbers, distances, rivals, rival_margins, margins
        As noted by `note_margins`; changed for certain rows of the oldest age.
    certain : bool array of shape (n_rows,)
        Becomes False for rows that are not.
    """
    for row in range(len(certain)):
        if not certain[row]:  # another start's pass looks at it
            continue
        place = (number - 1 - numbers[row]) * n_clusters + labels[row]
        distance = distances[row]
        # a row that was never seen is of an age that no table has
        if numbers[row] < 0 or place >= len(radii) or not distance <= radii[place]:
            certain[row] = False
            continue
        loss = rival_slopes[place, rivals[row]] * distance + rival_needed[place, rivals[row]]
        stays = rival_margins[row] > loss
        for group in range(margins.shape[1]):
            if not stays:
                break
            stays = margins[row, group] > slopes[place, group] * distance + needed[place, group]
        if not stays:
            certain[row] = False
        elif oldest > 0 and number - numbers[row] == oldest:
            rival_margins[row] = _code_of(rival_margins[row] - loss)
            for group in range(margins.shape[1]):
                lost = slopes[place, group] * distance + needed[place, group]
                margins[row, group] = _code_of(margins[row, group] - lost)
            distances[row] = np.float32((distance + moves[place]) * (1.0 + 1e-6))
            numbers[row] = number
