"""A 15-bit whole number as two bytes: q = 128·h + l with |h| ≤ 127 and -64 ≤ l ≤ 63.

Then qq' = 2¹⁴·hh' + 2⁷·(hl' + lh') + ll': four products of bytes, with sums of 32 bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rff_dist.products.protocol import ONE
from rff_dist.typing import FloatArray

type Bytes = NDArray[np.uint8]
type SignedBytes = NDArray[np.int8]
type Int32Array = NDArray[np.int32]

SIGN = 128  # an unsigned byte is the signed byte that it stands for, plus this
_PANEL = 64  # lines that are combined at once, so that they stay in the cache


def split(features: FloatArray) -> Bytes:
    """Return the bytes h + 128 and l + 128 of multiples of 2⁻¹⁴, array of shape (2, *features.shape)."""
    numbers = np.empty(features.shape, np.int16)
    np.multiply(features, ONE, out=numbers, casting="unsafe")
    numbers += SIGN * 128 + 64  # q is now 128·(h + 128) + (l + 64), both parts positive
    planes = np.empty((2, *features.shape), np.uint8)
    planes[1] = (numbers & 127) + 64
    planes[0] = np.right_shift(numbers, 7, out=numbers)
    return planes


def signed(unsigned: Bytes) -> SignedBytes:
    """Turn bytes h + 128 into signed bytes h, in the same memory."""
    np.bitwise_xor(unsigned, SIGN, out=unsigned)
    return unsigned.view(np.int8)


def combine(high: Int32Array, middle: Int32Array, low: Int32Array, out: FloatArray) -> None:
    """Write 2⁻²⁸·(2¹⁴·high + 2⁷·middle + low) to a float64 array, in which it is exact."""
    for i in range(0, len(high), _PANEL):
        lines = slice(i, i + _PANEL)
        panel = high[lines] * 128.0
        panel += middle[lines]
        panel *= 128.0
        panel += low[lines]
        np.multiply(panel, ONE**-2, out=out[lines])
