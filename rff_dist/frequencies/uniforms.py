"""Uniform numbers: pure functions of (seed, stream, position), and Sobol points.

A seed and positions go in; numbers in (0, 1) come out, the same on every machine and in
every release of NumPy. A stream is one of a seed's independent sequences. A `Generator`
promises its numbers for one version only, and a row's numbers would depend on how many
were drawn before.
"""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import hashlib

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.typing import FloatArray, IndexArray, WordArray

# Numbers of the streams that frequencies use.
FREQUENCY_STREAM, RADIUS_STREAM, PHASE_STREAM, SCRAMBLE_STREAM = range(4)
WORDS = 4  # 64-bit words that Philox4x64 makes in one counter step
# Streams of one set of frequencies; further sets of the same seed start at multiples of
# this.
STREAMS = 8
# The first stream of `derived_seed`, far above the streams of frequencies.
_SEED_STREAM = 2**32


def counter_uniforms(seed: int, stream: int, n_rows: int, n_columns: int) -> FloatArray:
    """Return uniforms in (0, 1), odd multiples of 2**-53; shape (n_rows, n_columns).

    Row i depends on (seed, stream, i) and `n_columns` only; streams are independent.
    NumPy promises the raw bits of Philox for ever, so the map from integers to floats
    is our own (Salmon et al. 2011, Random123).
    """
    # each row starts at its own counter step, so that a longer draw adds rows and
    # changes none
    words_per_row = -(-n_columns // WORDS) * WORDS
    raw = philox(seed, stream).random_raw(n_rows * words_per_row)
    return _uniforms(raw.reshape(n_rows, words_per_row)[:, :n_columns])


def row_uniforms(seed: int, stream: int, start: int, stop: int) -> FloatArray:
    """Return a uniform in (0, 1) for each row, by (seed, stream, row) alone."""
    return _uniforms(row_words(seed, stream, start, stop))


def text_uniforms(seed: int, stream: str, text: str, n: int) -> FloatArray:
    """Return uniforms in (0, 1) that depend on (seed, stream, text) and place alone.

    A longer result begins with a shorter one.
    """
    # a lone surrogate, which another program's file may contain, counts as text too
    label = f"{stream}\n{text}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.sha256(label).digest()[:8], "little")
    # numbered streams do not have this bit
    return _uniforms(philox(seed, key | 2**63).random_raw(n))


def row_words(seed: int, stream: int, start: int, stop: int) -> WordArray:
    """Return 64 random bits for each row; they depend on (seed, stream, row) alone."""
    step, skipped = divmod(start, WORDS)
    return np.asarray(
        philox(seed, stream, step).random_raw(stop - start + skipped)[skipped:]
    )


def _uniforms(words: WordArray) -> FloatArray:
    # middles of intervals are never 0 or 1, where inverse distribution functions are
    # infinite
    return (np.asarray(words >> np.uint64(12), np.float64) + 0.5) * 2.0**-52


def philox(seed: int, stream: int, step: int = 0) -> np.random.Philox:
    """Return the bit generator of a stream, `step` counter steps from its start."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64), counter=step)


def seed_of(rng: object, *, name: str = "rng") -> int:
    """Return an integer unchanged as a seed, or draw a 64-bit seed from a Generator.

    Raises InvalidParameterError, which calls `rng` by `name`, if it is neither a
    Generator nor an integer from 0 to 2**64 - 1.
    """
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(0, 2**64, dtype=np.uint64))
    if (
        isinstance(rng, bool)
        or not isinstance(rng, int | np.integer)
        or not 0 <= rng < 2**64
    ):
        raise InvalidParameterError(
            f"`{name}` is {rng!r}; expected a numpy.random.Generator or an integer from"
            " 0 to 2**64 - 1"
        )
    return int(rng)


def derived_seed(seed: int, index: int) -> int:
    """Return the seed of one of several independent draws; the first has `seed`."""
    if index == 0:
        return seed
    return int(philox(seed, _SEED_STREAM + index).random_raw())


def draw_phases(n_components: int, seed: int) -> FloatArray:
    """Return phases, uniform on [0, 2*pi), of shape (n_components,)."""
    return 2 * np.pi * counter_uniforms(seed, PHASE_STREAM, n_components, 1)[:, 0]


def pick(weights: FloatArray, uniforms: FloatArray) -> IndexArray:
    """Return an index for each uniform: `Generator.choice(p=weights / sum)`."""
    cumulated = np.cumsum(weights)
    places = np.searchsorted(cumulated, uniforms * cumulated[-1], side="right")
    # The product may round up to the total, whose place is behind the last index. An
    # index of weight 0 is never returned.
    return np.asarray(np.minimum(places, np.flatnonzero(weights)[-1]), np.intp)


# -- scrambled Sobol points


# Dimensions with direction numbers by Joe & Kuo (2008), which SciPy uses.
N_DIMENSIONS = 21_201
_DIGITS = 30  # binary digits of SciPy's points: there are 2**30 different ones
# Binary digits of the points here: the middle of each interval of width 2**-52 is still
# a float64.
_BITS = 52
# Random words of a dimension: a column for each digit, a shift, and a spare one.
_WORDS = 32


def scrambled_sobol(
    seed: int, first: int, n_points: int, n_dimensions: int
) -> FloatArray:
    """Like `scipy.stats.qmc.Sobol(scramble=True)`, with dimensions from `first` on.

    Bits do not depend on SciPy's version, nor a scramble on the number of dimensions.
    Each dimension's binary digits are multiplied by a random lower triangular matrix
    and shifted by random digits: every point is exactly uniform, and the points of one
    scramble fill the cube as evenly as before. The scramble of a dimension depends on
    (seed, dimension) alone. O(n_points · n_dimensions · log n_points). A longer result
    begins with a shorter one. It has the shape (n_points, n_dimensions), and odd
    multiples of 2**-53: never 0, never 1.

    Raises InvalidParameterError if the sequence has too few dimensions or points.

    Source: Matoušek (1998), "On the L2-discrepancy for anchored boxes", Sec. 2; Owen
    (2003), "Variance with alternative scramblings of digital nets"; Joe & Kuo (2008)
    for the direction numbers.
    """
    if first + n_dimensions > N_DIMENSIONS or n_points > 2**_DIGITS:
        raise InvalidParameterError(
            f"the quasi-monte-carlo design would need {n_points:_} points in"
            f" {first + n_dimensions:_} dimensions; the Sobol sequence has 2**{_DIGITS}"
            f" points in {N_DIMENSIONS:_}: use design='orthogonal', or 'iid'"
        )
    from scipy.stats import qmc  # takes 50 MiB, which no other design needs

    log2_points = (n_points - 1).bit_length()
    sobol = qmc.Sobol(first + n_dimensions, scramble=False, bits=_DIGITS)
    points = sobol.random_base2(log2_points)[:n_points, first:]
    # exact, since points are multiples of 2**-30
    digits = (points * 2.0**_DIGITS).astype(np.uint64)
    columns, shifts = _scrambles(seed, first, n_dimensions)
    scrambled = np.repeat(shifts[np.newaxis], n_points, axis=0)
    for place in range(log2_points):  # the first 2**k points have k digits
        bit = digits >> np.uint64(_DIGITS - 1 - place) & np.uint64(1)
        scrambled ^= bit * columns[:, place]
    return (scrambled.astype(np.float64) + 0.5) * 2.0**-_BITS


def _scrambles(seed: int, first: int, n_dimensions: int) -> tuple[WordArray, WordArray]:
    """Return each dimension's matrix and its shift.

    A matrix is one integer per column, whose bits are its entries.
    """
    first_step = first * (_WORDS // WORDS)
    generator = philox(seed, SCRAMBLE_STREAM, first_step)
    raw = generator.random_raw(n_dimensions * _WORDS)
    words = raw.reshape(n_dimensions, _WORDS) >> np.uint64(64 - _BITS)
    # ones on the diagonal and nothing above: such a matrix has an inverse, so points
    # that differ stay apart
    places = np.arange(_BITS - 1, _BITS - 1 - _DIGITS, -1, dtype=np.uint64)
    diagonal = np.uint64(1) << places
    below = words[:, :_DIGITS] & (diagonal - np.uint64(1))
    return below | diagonal, words[:, _DIGITS]
