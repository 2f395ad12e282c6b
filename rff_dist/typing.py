"""Types that many modules use: arrays, JSON values, frozen dataclasses, steps."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, dataclass_transform

import numpy as np
from numpy.typing import NDArray

type FloatArray = NDArray[np.float64]
type Float32Array = NDArray[np.float32]
type ComplexArray = NDArray[np.complex128]
type IntArray = NDArray[np.int64]
type IndexArray = NDArray[np.intp]  # positions in an array
type BoolArray = NDArray[np.bool_]
type AnyIntArray = NDArray[np.integer[Any]]
type AnyArray = NDArray[Any]
type AnyDType = np.dtype[Any]
type WordArray = NDArray[np.uint64]  # each number is a word of 64 bits
type PathLike = str | os.PathLike[str]
# JSON values by name in a new dict, which its caller may change
type Summary = dict[str, Any]
# JSON values by name, only to read: they may be shared, such as a group's attributes
type Facts = Mapping[str, Any]
type Arrays = Mapping[str, AnyArray]

EPS = float(np.finfo(np.float64).eps)  # the distance from 1 to the next float64


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(
    cls: type | None = None, /, *, eq: bool = True, kw_only: bool = False
) -> Any:
    """Make a frozen dataclass with slots; use `eq=False` if it holds arrays."""
    make = dataclass(frozen=True, slots=True, eq=eq, kw_only=kw_only)
    return make if cls is None else make(cls)


class EqualByFields:
    """Equality of dataclasses made with `eq=False`: by fields, arrays by their values.

    Fields with `compare=False` do not count, as in other dataclasses. Arrays with NaN
    are unequal.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        record: Any = self  # a dataclass, which the type does not say
        names = [item.name for item in fields(record) if item.compare]
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )

    __hash__ = None  # type: ignore[assignment]


class Do(Protocol):
    """Calls a step of a job under a name: as it is, with a progress bar in a terminal,
    or as a Prefect task.
    """

    def __call__[**P, R](
        self, name: str, step: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> R:
        """Return what the step returns.

        Steps must be safe to repeat: `Do` may call one twice.
        """


def call_step[**P, R](
    _: str, step: Callable[P, R], /, *args: P.args, **options: P.kwargs
) -> R:
    """Call a step: the default `Do`."""
    return step(*args, **options)
