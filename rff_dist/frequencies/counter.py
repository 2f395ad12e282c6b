"""Random numbers that are a pure function of (seed, stream, position), the same on every machine."""

from __future__ import annotations

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.typing import BitArray, FloatArray, IndexArray

FREQUENCY_STREAM = 0
RADIUS_STREAM = 1
PHASE_STREAM = 2
SCRAMBLE_STREAM = 3
SIGN_STREAM = 4
WORDS = 4  # 64-bit words that Philox4x64 makes in one counter step
STREAMS = 8  # streams of one set of frequencies: other sets of the same seed start at multiples of 8
_SEED_STREAM = 2**32  # the first stream of `derived_seed`, far above those of frequencies


def counter_uniforms(seed: int, stream: int, n_rows: int, n_columns: int) -> FloatArray:
    """Return uniforms in the open interval (0, 1); row i depends on (seed, stream, i) and `n_columns` only.

    NumPy promises the raw bits of Philox for ever, but its `Generator` streams for one version
    only; so the map from integers to floats is our own (Salmon et al. 2011, Random123).

    `seed`: from 0 to 2**64 - 1.
    `stream`: which of the seed's independent streams.
    Returns `uniforms`, float64 array of shape (n_rows, n_columns): odd multiples of 2**-53.
    """
    words_per_row = -(-n_columns // WORDS) * WORDS
    raw = philox(seed, stream).random_raw(n_rows * words_per_row)
    return _uniforms(raw.reshape(n_rows, words_per_row)[:, :n_columns])


def row_uniforms(seed: int, stream: int, start: int, stop: int) -> FloatArray:
    """Return a uniform number in (0, 1) for each row; it depends on (seed, stream, row) alone."""
    step, skipped = divmod(start, WORDS)
    return _uniforms(philox(seed, stream, step).random_raw(stop - start + skipped)[skipped:])


def _uniforms(words: BitArray) -> FloatArray:
    # middles of intervals: never 0 or 1, where inverse distribution functions are infinite
    return (np.asarray(words >> np.uint64(12), np.float64) + 0.5) * 2.0**-52


def philox(seed: int, stream: int, step: int = 0) -> np.random.Philox:
    """Return the bit generator of one stream of a seed, `step` counter steps from its start."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64), counter=step)


def seed_of(rng: object, *, name: str = "rng") -> int:
    """Return an integer as the seed that it is, or draw a 64-bit seed from a Generator.

    `name`: what the error calls `rng`.
    Raises InvalidParameterError if `rng` is neither a Generator nor an integer from 0 to 2**64 - 1.
    """
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(0, 2**64, dtype=np.uint64))
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or not 0 <= rng < 2**64:
        raise InvalidParameterError(
            f"`{name}` is {rng!r}; expected a numpy.random.Generator or an integer from 0 to 2**64 - 1"
        )
    return int(rng)


def derived_seed(seed: int, index: int) -> int:
    """Return the seed of the `index`-th of several independent draws; the first is `seed` itself."""
    if index == 0:
        return seed
    return int(philox(seed, _SEED_STREAM + index).random_raw())


def draw_phases(n_components: int, seed: int) -> FloatArray:
    """Return phases, uniform on [0, 2*pi), of shape (n_components,)."""
    return 2 * np.pi * counter_uniforms(seed, PHASE_STREAM, n_components, 1)[:, 0]


def pick(weights: FloatArray, uniforms: FloatArray) -> IndexArray:
    """Draw an index for each uniform number in [0, 1), with probabilities proportional to `weights`."""
    cumulated = np.cumsum(weights)
    found = np.searchsorted(cumulated, uniforms * cumulated[-1], side="right")
    # the product may round up to the total, which lies behind the last index
    return np.asarray(np.minimum(found, np.flatnonzero(weights)[-1]), np.intp)
