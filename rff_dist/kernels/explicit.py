"""Kernels that are not functions of x - y, and have features of their own: linear, polynomial, min."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.checks import check_count, is_number
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.kernels import base
from rff_dist.typing import FloatArray


@dataclass(frozen=True)
class Linear(base.Kernel):
    """x·y, `sklearn.metrics.pairwise.linear_kernel`: its features are the inputs themselves, so exact."""

    name = "linear"

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return left @ right.T

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.asarray((X * X).sum(axis=1))


@dataclass(frozen=True)
class Polynomial(base.Kernel):
    """(x·y + offset)^degree, `sklearn.metrics.pairwise.polynomial_kernel` with gamma=1 and coef0=offset.

    Parameters
    ----------
    degree : int
        At least 1.
    offset : float
        0 or more; 0 leaves out all degrees below `degree`.
    """

    degree: int = 2
    offset: float = 1.0

    name = "polynomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", check_count(self.degree, "degree"))
        offset = self.offset
        if not is_number(offset) or not 0 <= offset < np.inf:
            raise InvalidParameterError(f"`offset` is {offset!r}; expected a finite number of at least 0")
        object.__setattr__(self, "offset", float(offset))

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return np.asarray((left @ right.T + self.offset) ** self.degree)

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.asarray(((X * X).sum(axis=1) + self.offset) ** self.degree)


@dataclass(frozen=True)
class Min(base.Kernel):
    """Σ_d min(x_d, y_d) - lower_d, the kernel of Brownian motion: sums of a rough function of each column.

    `1 + Min()` on one column is the first-order Sobolev space of the interval.

    Parameters
    ----------
    lower, upper : float, or None
        The interval; inputs beyond it count as its ends. Estimators take an end that is None from the data;
        a kernel that is called by itself takes 0 for `lower`, and has no upper end.
    """

    lower: float | Sequence[float] | np.ndarray | None = None
    upper: float | Sequence[float] | np.ndarray | None = None

    name = "min"

    def __post_init__(self) -> None:
        for side in ("lower", "upper"):
            value = getattr(self, side)
            if value is None:
                continue
            numbers = np.asarray(value)
            real = numbers.dtype.kind in "iuf" and numbers.ndim <= 1 and numbers.size > 0
            if not real or not np.isfinite(numbers).all():
                raise InvalidParameterError(
                    f"`{side}` is {value!r}; expected a finite number, or one per column"
                )
            plain = numbers.astype(np.float64).tolist()
            object.__setattr__(self, side, tuple(plain) if numbers.ndim else plain)
        lower, upper = self.lower, self.upper
        if lower is None or upper is None:
            return
        if np.ndim(lower) and np.ndim(upper) and np.size(lower) != np.size(upper):
            raise InvalidParameterError(
                f"`lower` has {np.size(lower)} entries and `upper` {np.size(upper)}; expected as many of each"
            )
        _check_above(lower, upper)

    def interval(self, n_features: int) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper ends, each of shape (n_features,)."""
        self.check_columns(n_features)
        lower = 0.0 if self.lower is None else self.lower
        upper = np.inf if self.upper is None else self.upper
        _check_above(lower, upper)
        return np.broadcast_to(lower, n_features), np.broadcast_to(upper, n_features)

    def check_columns(self, n_features: int) -> None:
        for side in (self.lower, self.upper):
            if isinstance(side, tuple) and len(side) != n_features:
                raise InvalidParameterError(
                    f"the min kernel has {len(side)} intervals but the data have {n_features} columns"
                )

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.zeros((len(left), len(right)))
        for a, b in zip(self._lengths(left), self._lengths(right), strict=True):
            gram += np.minimum.outer(a, b)
        return gram

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.sum(list(self._lengths(X)), axis=0)

    def _lengths(self, X: FloatArray) -> FloatArray:
        """Return the entries' distances from their lower ends, shape (n_features, n_samples)."""
        lower, upper = self.interval(X.shape[1])
        if self.lower is None and (X < 0).any():
            raise DataError(
                f"min(x, y) needs inputs of at least 0, but one is {X.min():g}; "
                "give the interval: Min(lower, upper)"
            )
        return (np.clip(X, lower, upper) - lower).T

    def bind(self, lower: FloatArray, upper: FloatArray) -> base.Kernel:
        # a constant column, or one beyond the end that was given, would have an empty interval
        if self.lower is None and self.upper is None:
            return Min(lower, np.where(upper > lower, upper, lower + _some_width(lower)))
        if self.lower is None:
            end = np.broadcast_to(np.asarray(self.upper), lower.shape)
            return Min(np.where(lower < end, lower, end - _some_width(end)), self.upper)
        if self.upper is None:
            end = np.broadcast_to(np.asarray(self.lower), upper.shape)
            return Min(self.lower, np.where(upper > end, upper, end + _some_width(end)))
        return self

    @property
    def is_bound(self) -> bool:
        return self.lower is not None and self.upper is not None


def _check_above(lower: ArrayLike, upper: ArrayLike) -> None:
    if not np.all(np.asarray(upper) > np.asarray(lower)):
        raise InvalidParameterError(f"`upper` is {upper!r}; expected numbers above `lower`, {lower!r}")


def _some_width(end: FloatArray) -> FloatArray:
    # 1 alone would vanish next to ends of 2**53 and more
    return np.maximum(1.0, np.abs(end))
