"""Sums without rounding: integers that add up to the same bits in any order.

Float64 values go in; their exact sum comes out, and `value` reads it as float64.
`math.fsum` is as exact, but its state cannot be stored, subtracted from, or merged with
another worker's. `ExactSum` holds float64 values of any size, as a few arrays of 32-bit
digits. The D × D Gram is too large for that; `ridge_statistics` keeps it on a
fixed-point grid, which is possible because its values are bounded.

References
----------
Demmel & Nguyen (2015) on reproducible sums; Kulisch (2013) on long accumulators.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import DataError, StatisticsError
from rff_dist.typing import (
    AnyArray,
    Arrays,
    EqualByFields,
    FloatArray,
    IntArray,
    frozen,
)

_BITS = 32
_MASK = (1 << _BITS) - 1


@frozen(eq=False)
class ExactSum(EqualByFields):
    """Like `math.fsum`, for arrays: exact sums, in base 2**32, in canonical form."""

    #: The first digit counts multiples of 2**(32 * lowest).
    lowest: int
    #: Digits from 0 to 2**32 - 1, least significant first, then a last one of 0 or -1
    #: for the sign; of shape (n_digits + 1, ...).
    digits: IntArray

    @classmethod
    def of(cls, values: FloatArray) -> Self:
        """Return `values` themselves as exact sums.

        Raises DataError if a value is NaN or infinite.
        """
        if not np.isfinite(values).all():
            raise DataError(
                "a sum is not finite: values overflow float64; scale them down"
            )
        mantissas, exponents = np.frexp(values)
        # exact: a float64 has 53 significant bits, so these are whole numbers below
        # 2**53
        integers = (mantissas * 2.0**53).astype(np.int64)
        # value = integer · 2**shift · 2**(32 · position), with a shift from 0 to 31
        position, shift = np.divmod(exponents.astype(np.int64) - 53, _BITS)
        # zeros take the lowest position, so that they do not widen the range
        lowest = int(position[integers != 0].min()) if integers.any() else 0
        position = np.where(integers == 0, lowest, position)
        # a 53-bit integer shifted by up to 31 bits spans three digits; each part stays
        # below 2**63. Integers below 0 stay right: `>>` rounds down and `&` is never
        # negative, so only the top part has a sign.
        low = (integers & _MASK) << shift
        high = (integers >> _BITS) << shift
        parts = (low & _MASK, (low >> _BITS) + (high & _MASK), high >> _BITS)
        spread = int(position.max(initial=lowest)) - lowest
        # three digits from the highest position on, and one for the sign
        digits = np.zeros((spread + 4, *values.shape), np.int64)
        for step in range(spread + 1):
            here = position == lowest + step
            for k, part in enumerate(parts):
                digits[step + k] += np.where(here, part, 0)
        return cls(*_canonical(lowest, digits))

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Self:
        """Return sums of nothing."""
        return cls(0, np.zeros((1, *shape), np.int64))

    @classmethod
    def by_group(cls, values: FloatArray, groups: AnyArray, n_groups: int) -> Self:
        """Return the sums of `values` by group; `groups` has the group of each value.

        Raises DataError if a value is NaN or infinite.
        """
        each = cls.of(values)
        # digit by digit: each is below 2**32, and there are fewer than 2**31 values
        digits = np.zeros((len(each.digits) + 1, n_groups), np.int64)
        for k, row in enumerate(each.digits):
            np.add.at(digits[k], groups, row)
        return cls(*_canonical(each.lowest, digits))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sums."""
        return self.digits.shape[1:]

    def reshape(self, *shape: int) -> Self:
        """Return the same sums in another shape."""
        return type(self)(self.lowest, self.digits.reshape(-1, *shape))

    def leading(self, count: int) -> Self:
        """Return the sums of the first `count` places of the first axis."""
        return type(self)(*_canonical(self.lowest, self.digits[:, :count].copy()))

    def value(self) -> FloatArray:
        """Return the sums in float64, within one unit in the last place.

        Raises DataError if a sum is larger than float64 holds.
        """
        negative = self.digits[-1] < 0
        # a negative number has −1 on top and large digits below, which would cancel in
        # float64; its magnitude does not cancel
        magnitude = np.where(negative, -self.digits, self.digits)
        _carry(magnitude)
        total = np.zeros(self.shape)
        with np.errstate(over="ignore"):
            for k in range(len(magnitude) - 1, -1, -1):
                total += np.ldexp(
                    magnitude[k].astype(np.float64), _BITS * (self.lowest + k)
                )
        if not np.isfinite(total).all():
            raise DataError("a sum is larger than float64 holds; scale the values down")
        return np.where(negative, -total, total)

    def _combined(self, other: ExactSum, sign: int) -> Self:
        if self.shape != other.shape:
            raise StatisticsError(
                f"cannot add sums of shape {self.shape} and {other.shape}"
            )
        lowest = min(self.lowest, other.lowest)
        top = max(self.lowest + len(self.digits), other.lowest + len(other.digits))
        # one digit more for the carry
        digits = np.zeros((top - lowest + 1, *self.shape), np.int64)
        for part, factor in ((self, 1), (other, sign)):
            offset = part.lowest - lowest
            digits[offset : offset + len(part.digits)] += factor * part.digits
        return type(self)(*_canonical(lowest, digits))

    def __add__(self, other: ExactSum) -> Self:
        return self._combined(other, 1)

    def __sub__(self, other: ExactSum) -> Self:
        return self._combined(other, -1)

    def update_digest(self, hasher: hashlib._Hash) -> None:
        """Feed the canonical form to a hash."""
        hasher.update(f"{self.lowest} {self.digits.shape}".encode())
        hasher.update(
            np.ascontiguousarray(self.digits).astype("<i8", copy=False).tobytes()
        )


def _carry(digits: IntArray) -> None:
    """Bring all digits but the last into 0 ... 2**32 - 1, in place."""
    for k in range(len(digits) - 1):
        digits[k + 1] += digits[k] >> _BITS
        digits[k] &= _MASK


def _canonical(lowest: int, digits: IntArray) -> tuple[int, IntArray]:
    """Carry, then drop redundant digits, so that equal sums have equal digits.

    The last digit must be 0 or -1 after the carry, so callers append a free one for it.
    """
    _carry(digits)
    # As in two's complement, a digit that repeats the sign is redundant: 0 below a last
    # digit of 0, or 2**32 − 1 below −1.
    while len(digits) > 1 and (digits[-2] == (digits[-1] & _MASK)).all():
        digits = np.concatenate([digits[:-2], digits[-1:]])
    if not digits.any():
        return 0, digits[-1:].copy()
    first = next(k for k, digit in enumerate(digits) if digit.any())
    return lowest + first, np.ascontiguousarray(digits[first:])


def exact_sum_arrays(prefix: str, total: ExactSum) -> dict[str, AnyArray]:
    """Return the arrays that store `total`; `exact_sum_from_arrays` reads them."""
    return {
        f"{prefix}_lowest": np.array(total.lowest, np.int64),
        f"{prefix}_digits": total.digits,
    }


def exact_sum_from_arrays(prefix: str, arrays: Arrays) -> ExactSum:
    """Read what `exact_sum_arrays` returned."""
    return ExactSum(
        int(arrays[f"{prefix}_lowest"]),
        np.asarray(arrays[f"{prefix}_digits"], np.int64),
    )


def add_whole_numbers(numbers: FloatArray, total: IntArray) -> None:
    """Add float64 numbers without a fraction to int64 sums, in place."""
    np.add(total, numbers, out=total, casting="unsafe", dtype=np.int64)


def scales_near(largest: FloatArray) -> AnyArray:
    """Return powers of two near the largest of some values.

    Values divided by them are not rounded, and their squares neither overflow nor all
    vanish.
    """
    return np.ldexp(0.5, np.frexp(largest)[1])


def add_fields[S](left: S, right: S, **values: Any) -> S:
    """Add two dataclasses of sums field by field; `values` replace some sums."""
    record: Any = left  # a dataclass, which `S` does not say
    names = [field.name for field in fields(record) if field.name not in values]
    sums = {name: getattr(left, name) + getattr(right, name) for name in names}
    total: S = replace(record, **sums, **values)
    return total


# -- vectors with long stretches of one value


type Runs = tuple[tuple[int, float], ...]  # of (count, value)


def expand(runs: Runs) -> NDArray[np.float64]:
    """Return runs as an array: `numpy.repeat(values, counts)`."""
    counts, values = zip(*runs, strict=True)
    return np.repeat(np.asarray(values, np.float64), counts)


def as_runs(values: AnyArray) -> Runs:
    """Return a vector as runs."""
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]][: len(values)])
    counts = np.diff(np.r_[starts, len(values)])
    return tuple(zip(counts.tolist(), values[starts].tolist(), strict=True))
