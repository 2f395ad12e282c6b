"""Scrambled Sobol points: uniform numbers that fill the cube more evenly than independent ones."""

from __future__ import annotations

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies.counter import SCRAMBLE_STREAM, WORDS, philox
from rff_dist.typing import BitArray, FloatArray

N_DIMENSIONS = 21_201  # as many as have direction numbers by Joe & Kuo (2008), which SciPy uses
_DIGITS = 30  # binary digits of SciPy's points: 2**30 of them differ
_BITS = 52  # binary digits of ours: the middle of each interval of that width is then a float64
_WORDS = 32  # random words of a dimension: a column for each digit, a shift, and one to spare


def scrambled_sobol(seed: int, first: int, n_points: int, n_dimensions: int) -> FloatArray:
    """Return points of a Sobol sequence, scrambled at random, in `n_dimensions` dimensions from `first` on.

    Each dimension's binary digits are multiplied by a random lower triangular matrix and shifted by random
    digits: every point is exactly uniform, and the points of one scramble fill the cube as evenly as before.
    The scramble of a dimension depends on (seed, dimension) alone. O(n_points · n_dimensions · log n_points).

    `seed`: from 0 to 2**64 - 1.
    `n_points`: more points begin with the same ones.
    Returns `uniforms`, float64 array of shape (n_points, n_dimensions): odd multiples of 2**-53: never 0,
      never 1.
    Raises InvalidParameterError if the sequence has too few dimensions or points.
    Source: Matoušek (1998), "On the L2-discrepancy for anchored boxes", Sec. 2; Owen (2003), "Variance with
      alternative scramblings of digital nets"; Joe & Kuo (2008) for the direction numbers.
    """
    if first + n_dimensions > N_DIMENSIONS or n_points > 2**_DIGITS:
        raise InvalidParameterError(
            f"the quasi-monte-carlo design would need {n_points:_} points in {first + n_dimensions:_} "
            f"dimensions; the Sobol sequence has 2**{_DIGITS} points in {N_DIMENSIONS:_}: use "
            "design='orthogonal', or 'iid'"
        )
    from scipy.stats import qmc  # takes 50 MiB, which no other design needs

    log2_points = (n_points - 1).bit_length()
    sobol = qmc.Sobol(first + n_dimensions, scramble=False, bits=_DIGITS)
    points = sobol.random_base2(log2_points)[:n_points, first:]
    digits = (points * 2.0**_DIGITS).astype(np.uint64)  # exact: points are multiples of 2**-30
    columns, shifts = _scrambles(seed, first, n_dimensions)
    scrambled = np.repeat(shifts[np.newaxis], n_points, axis=0)
    for place in range(log2_points):  # the first 2**k points have k digits
        bit = digits >> np.uint64(_DIGITS - 1 - place) & np.uint64(1)
        scrambled ^= bit * columns[:, place]
    return (scrambled.astype(np.float64) + 0.5) * 2.0**-_BITS


def _scrambles(seed: int, first: int, n_dimensions: int) -> tuple[BitArray, BitArray]:
    """Return each dimension's matrix (one integer per column, whose bits are its entries) and its shift."""
    raw = philox(seed, SCRAMBLE_STREAM, first * (_WORDS // WORDS)).random_raw(n_dimensions * _WORDS)
    words = raw.reshape(n_dimensions, _WORDS) >> np.uint64(64 - _BITS)
    # ones on the diagonal and nothing above: such a matrix has an inverse, so points that differ stay apart
    diagonal = np.uint64(1) << np.arange(_BITS - 1, _BITS - 1 - _DIGITS, -1, dtype=np.uint64)
    return words[:, :_DIGITS] & (diagonal - np.uint64(1)) | diagonal, words[:, _DIGITS]
