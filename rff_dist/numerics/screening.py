"""Scores of bytes: most centres are told apart by them, several times as fast as by float32.

A row's features and a centre's weights are rounded to bytes, and the error of a product is bounded by what
rounding left: at most |ρ|·|w| by Hölder's inequality, and ‖z‖·‖ρ‖ by Cauchy's. The nearest centre is among
those whose scores are not above the least by more than both may err. Where these are several, the next bytes,
254ths of the first, tell them apart a hundred times as well, and what is left is compared in float64. No
label depends on the bytes.

References
----------
Bounds of products with rounded vectors: Hölder's inequality. Screening by cheap lower bounds before exact
distances: Bei & Gray (1985), partial distances; Weber, Schek & Blott (1998), the VA-file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rff_dist.typing import FloatArray, IntArray

__all__ = ["BYTE", "FRACTION", "GROUP", "LANES", "LARGEST", "ZERO", "Screen", "screen_of"]


BYTE = 127  # the largest
FRACTION = 2 * BYTE  # parts of a unit that the second bytes count
GROUP = 4  # bytes whose products are summed in a lane
LANES = 16  # columns of a vector
LARGEST = BYTE * (1.0 + 1e-5)  # a feature in units that is rounded
ZERO = 128  # the unsigned byte that stands for it
_SINGLE = 2e-5  # of a unit: what a feature in units may be off as float32
_ROOM = 2**29  # for scores and what they may err; what stands for no centre is beyond
_CENTRES = 256  # rounded at once


class Screen(NamedTuple):
    """What scores of bytes are made of, and how much they may err.

    A start's scores count units of their own. Columns are centres, of each start as many as fill vectors;
    those that stand for none are never near.

    `units`: float32 array of shape (n_components,). What brings features to at most 127.
    `weights`: uint8 array of shape (n_bytes / 4, n_columns, 4). 128 more than a centre's weights. A row's
      bytes are its features' and zeros.
    `offsets`: int32 array of shape (n_columns,). Of scores, raised by what they may be too low.
    `slack`: int32 array of shape (n_columns,). What they are too high then at most.
    `fine_weights`: uint8 array of shape (n_columns, 2, n_bytes). 128 more than 254 times what the weights'
      rounding left, which multiply a row's bytes, and the weights again, which multiply its second ones.
    `fine_offsets`, `fine_slack`: int64 arrays of shape (n_columns,). The same of scores in 254ths of units,
      counted from the raised ones.
    `fractions`: float64 array of shape (n_init,). What these 254ths are.
    `middle_weights`: uint8 array of shape (n_init, 2, 2, n_bytes). Of what is added to all scores of a row:
      as fine ones, and the weights again beside zeros.
    `middle_offsets`, `middle_fractions`: float64 arrays of shape (n_init,). Of that, raised by what it may be
      too low; and what its 254ths are.
    """

    units: NDArray[np.float32]
    weights: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    slack: NDArray[np.int32]
    fine_weights: NDArray[np.uint8]
    fine_offsets: IntArray
    fine_slack: IntArray
    fractions: FloatArray
    middle_weights: NDArray[np.uint8]
    middle_offsets: FloatArray
    middle_fractions: FloatArray


def screen_of(
    weights: FloatArray,
    offsets: FloatArray,
    middle_weights: FloatArray,
    middle_offsets: FloatArray,
    *,
    largest: FloatArray,
    reach: float,
    tolerance: float,
) -> Screen | None:
    """Return what scores z·w + offset are screened with; None where bytes cannot hold them.

    `weights`: float64 array of shape (n_init, n_clusters, n_components).
    `offsets`: float64 array of shape (n_init, n_clusters). Infinity where there is no centre.
    `middle_weights`: float64 array of shape (n_init, n_components).
    `middle_offsets`: float64 array of shape (n_init,). z·w + offset is to be added to all scores of a row.
    `largest`: float64 array of shape (n_components,). What no feature is above in absolute value.
    `reach`: what no ‖z / largest‖ is above but for rounding.
    `tolerance`: scores that differ by no more are all kept.
    """
    n_init, n_clusters, n_components = weights.shape
    n_columns = -(-n_clusters // LANES) * LANES
    n_bytes = -(-n_components // (GROUP * LANES)) * GROUP * LANES
    rounded = np.full((n_init, n_columns, 2, n_bytes), ZERO, np.uint8)
    raised = np.full((n_init, n_columns), 2 * _ROOM, np.int64)
    slack, fine_raised, fine_slack = np.zeros((3, n_init, n_columns), np.int64)
    fractions, middle_fractions, raised_middles = np.zeros((3, n_init))
    middles = np.zeros((n_init, 2, 2, n_bytes), np.uint8)
    scale, room = largest / BYTE, _ROOM - BYTE * (BYTE + ZERO) * n_components
    for start in range(n_init):
        parts = [slice(i, min(i + _CENTRES, n_clusters)) for i in range(0, n_clusters, _CENTRES)]
        unit = max(np.abs(weights[start, part] * scale).max() for part in parts) / BYTE
        if not 0.0 < unit < np.inf:
            return None
        fractions[start] = unit / FRACTION
        for part in parts:
            present = np.isfinite(offsets[start, part])
            own_offsets = np.where(present, offsets[start, part], 0.0) / unit
            found = _round(weights[start, part] * (scale / unit), own_offsets, reach, tolerance / unit)
            if not np.abs(found.offsets).max() + found.slack.max() < room:  # still floats: they may be any
                return None
            rounded[start, part, :, :n_components] = found.bytes_ + ZERO
            raised[start, part][present] = (found.offsets + found.slack)[present]
            slack[start, part] = np.where(present, 2 * found.slack, 0)
            fine_raised[start, part] = found.fine_offsets - FRACTION * found.slack + found.fine_slack
            fine_slack[start, part] = 2 * found.fine_slack
        own = middle_weights[start] * scale
        unit = max(np.abs(own).max() / BYTE, np.finfo(np.float64).tiny)
        found = _round(own[np.newaxis] / unit, np.zeros(1), reach, 0.0)
        middles[start, 0, :, :n_components] = found.bytes_[0] + ZERO
        middles[start, 1, 0, :n_components] = found.bytes_[0, 1] + ZERO
        middle_fractions[start] = unit / FRACTION
        raised_middles[start] = middle_offsets[start] + found.fine_slack[0] * middle_fractions[start]
    by_column = rounded.reshape(n_init * n_columns, 2, n_bytes)
    groups = by_column[:, 1].reshape(n_init * n_columns, n_bytes // GROUP, GROUP)
    return Screen(
        (BYTE / largest).astype(np.float32),
        np.ascontiguousarray(groups.transpose(1, 0, 2)),
        raised.ravel().astype(np.int32),
        slack.ravel().astype(np.int32),
        by_column,
        fine_raised.ravel(),
        fine_slack.ravel(),
        fractions,
        middles,
        raised_middles,
        middle_fractions,
    )


class _Rounded(NamedTuple):
    """Some centres' weights and offsets, and what scores may err with them; whole numbers."""

    bytes_: FloatArray
    offsets: FloatArray
    slack: FloatArray
    fine_offsets: FloatArray
    fine_slack: FloatArray


def _round(weights: FloatArray, offsets: FloatArray, reach: float, tolerance: float) -> _Rounded:
    n_components = weights.shape[1]
    lengths = np.abs(weights).sum(axis=1)

    def errors(left: FloatArray, share: float) -> FloatArray:
        """Return what scores may err if this is left of weights, and a share of a unit of features."""
        by_sum = (LARGEST + share) * np.abs(left).sum(axis=1)
        norm = LARGEST * reach + share * np.sqrt(n_components)
        by_norm = norm * np.linalg.norm(left, axis=1)
        return np.asarray(share * lengths + np.minimum(by_sum, by_norm) + tolerance)

    coarse = np.rint(weights)
    left = weights - coarse
    fine = np.rint(left * FRACTION)
    slack = errors(left, 0.5 + _SINGLE) + 1.0
    # second bytes are not multiplied by second bytes: up to a quarter of a unit for each component
    fine_slack = errors(left - fine / FRACTION, 0.5 / FRACTION + _SINGLE) + 0.25 * n_components + 1.0
    whole = np.rint(offsets)
    return _Rounded(
        np.stack([fine, coarse], axis=1),
        whole,
        np.ceil(slack),
        np.rint((offsets - whole) * FRACTION),
        np.ceil(fine_slack * FRACTION),
    )
