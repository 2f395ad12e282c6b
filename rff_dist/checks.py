"""Checks of single values that users pass: numbers, counts, names and masked arrays.

A value and the parameter's name go in. A wrong value raises an error with the
parameter, the value and the expected values. Checks of numbers return the value as an
int or a float.
"""

import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import DTypeLike

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.text import nearest
from rff_dist.typing import AnyArray


def as_array(values: Any, name: str, dtype: DTypeLike | None = None) -> AnyArray:
    """Return `numpy.asarray(values)`, or raise DataError if a value is masked.

    NumPy ignores masks there.
    """
    check_unmasked(values, name)
    return np.asarray(values, dtype)


def check_unmasked(values: object, name: str) -> None:
    """Raise DataError if `values` is a masked array in which something is masked."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        first = np.argwhere(np.ma.getmaskarray(values))[0].tolist()
        where = ", ".join(
            f"{axis} {place:_}"
            for axis, place in zip(("row", "column"), first, strict=False)
        )
        raise DataError(
            f"{name} is a masked array with {np.ma.count_masked(values):_} masked"
            f" values, the first in {where}; fill them, or drop such rows"
        )


def find_by_name[T](
    table: Mapping[str, T], name: object, what: str, *, also: str = ""
) -> T:
    """Return a name's entry in a table, see `check_name`."""
    check_name(name, table, what, also=also)
    return table[str(name)]


def check_name(
    name: object, known: Iterable[str], what: str, *, also: str = ""
) -> None:
    """Raise InvalidParameterError, with the nearest name, if a name is not known.

    `what` is the parameter's name; `also` is added to the message after the names.
    """
    names = sorted(known)
    if isinstance(name, str) and name in names:
        return
    near = nearest(str(name), names)
    hint = f" (did you mean {near!r}?)" if near else ""
    raise InvalidParameterError(
        f"unknown `{what}` {name!r}{hint}; expected one of {names}{also}"
    )


def check_positive(value: object, name: str) -> float:
    """Return `value` as a float if it is a finite number above 0.

    Raises InvalidParameterError otherwise.
    """
    with suppress(OverflowError):  # an integer may be beyond all floats
        if is_number(value) and 0 < (number := float(value)) < np.inf:
            return number
    raise InvalidParameterError(
        f"`{name}` is {reprlib.repr(value)}; expected a finite number above 0"
    )


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a real number and not a bool."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float | np.integer | np.floating)


def check_share(value: object, name: str) -> float:
    """Return `value` as a float if it is a number above 0 and below 1.

    Raises InvalidParameterError otherwise.
    """
    if not is_number(value) or not 0 < value < 1:
        raise InvalidParameterError(
            f"`{name}` is {value!r}; expected a number between 0 and 1"
        )
    return float(value)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(value: object, name: str, *, least: int = 1) -> int:
    """Return `value` as an int if it is an integer of at least `least`.

    Raises InvalidParameterError otherwise.
    """
    if not is_integer(value) or value < least:
        raise InvalidParameterError(
            f"`{name}` is {value!r}; expected an integer of at least {least}"
        )
    return int(value)
