"""Kernels that are not functions of x - y: linear, polynomial, min.

Points go in; Gram matrices come out. These kernels have no spectral measure to draw
frequencies from, so `features/explicit.py` has a feature map for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.checks import check_count, is_number
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.kernels import base
from rff_dist.typing import FloatArray


@dataclass(frozen=True, repr=False)
class Linear(base.Kernel):
    """x·y, as `sklearn.metrics.pairwise.linear_kernel`.

    Its features are the inputs themselves, so they are exact. A column of categories
    adds 1 where levels are equal, as its one-hot vectors do.
    """

    #: tuple of int. Which columns are categories; estimators fill it in.
    categories: tuple[int, ...] = field(default=(), kw_only=True)

    name = "linear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))

    def __repr__(self) -> str:
        shown = f"categories={self.categories}" if self.categories else ""
        return f"Linear({shown})"

    def with_categories(self, columns: Sequence[int]) -> base.Kernel:
        return replace(self, categories=tuple(columns))

    def of_columns(self, n_features: int) -> tuple[dict[int, base.Kernel], bool]:
        parts: dict[int, base.Kernel] = {}
        for column in range(n_features):
            categories = (0,) if column in self.categories else ()
            parts[column] = Linear(categories=categories).on([column])
        return parts, False  # no others: these sum to the kernel

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = self._numbers(left) @ self._numbers(right).T
        for column in self.categories:
            gram += np.equal.outer(left[:, column], right[:, column])
        return gram

    def diagonal(self, X: FloatArray) -> FloatArray:
        squares = (self._numbers(X) ** 2).sum(axis=1)
        return squares + len(self.categories)

    def _numbers(self, X: FloatArray) -> FloatArray:
        if not self.categories:
            return X
        return np.delete(X, list(self.categories), axis=1)


@dataclass(frozen=True)
class Polynomial(base.Kernel):
    """(x·y + offset)^degree.

    It is `sklearn.metrics.pairwise.polynomial_kernel` with gamma=1 and coef0=offset.

    Parameters
    ----------
    degree : int
        At least 1.
    offset : float
        0 or more. With 0 the kernel has products of exactly `degree` inputs, otherwise
        products of fewer inputs too.
    """

    degree: int = 2
    offset: float = 1.0

    name = "polynomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", check_count(self.degree, "degree"))
        offset = self.offset
        if not is_number(offset) or not 0 <= offset < np.inf:
            raise InvalidParameterError(
                f"`offset` is {offset!r}; expected a finite number of at least 0"
            )
        object.__setattr__(self, "offset", float(offset))

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return (left @ right.T + self.offset) ** self.degree

    def diagonal(self, X: FloatArray) -> FloatArray:
        return ((X * X).sum(axis=1) + self.offset) ** self.degree


@dataclass(frozen=True)
class Min(base.Kernel):
    """Σ_d min(x_d, y_d) - lower_d, the kernel of Brownian motion.

    Its functions are sums of one function per column, continuous but rough.
    `1 + Min()` on one column is the first-order Sobolev space of the interval.

    Parameters
    ----------
    lower, upper : float, or None
        The interval; inputs beyond it count as its ends. If an end is None, estimators
        take it from the data; called directly, the kernel takes 0 as `lower`, and has
        no upper end.
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
            is_real = numbers.dtype.kind in "iuf"
            is_list = numbers.ndim <= 1 and numbers.size > 0
            if not is_real or not is_list or not np.isfinite(numbers).all():
                raise InvalidParameterError(
                    f"`{side}` is {value!r}; expected a finite number, or one per"
                    " column"
                )
            plain = numbers.astype(np.float64).tolist()
            object.__setattr__(self, side, tuple(plain) if numbers.ndim else plain)
        lower = self.lower
        upper = self.upper
        if lower is None or upper is None:
            return
        if np.ndim(lower) and np.ndim(upper) and np.size(lower) != np.size(upper):
            raise InvalidParameterError(
                f"`lower` has {np.size(lower)} entries and `upper` {np.size(upper)};"
                " expected as many of each"
            )
        _check_above(lower, upper)

    def interval(self, n_features: int) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper ends, each of shape (n_features,)."""
        self.check_columns(n_features)
        lower = 0.0 if self.lower is None else self.lower
        upper = np.inf if self.upper is None else self.upper
        _check_above(lower, upper)
        return np.broadcast_to(lower, n_features), np.broadcast_to(upper, n_features)

    def of_columns(self, n_features: int) -> tuple[dict[int, base.Kernel], bool]:
        parts: dict[int, base.Kernel] = {}
        for column in range(n_features):
            sides = (self.lower, self.upper)
            own = [side[column] if isinstance(side, tuple) else side for side in sides]
            parts[column] = Min(*own).on([column])
        return parts, False  # no others: these sum to the kernel

    def check_columns(self, n_features: int) -> None:
        for side in (self.lower, self.upper):
            if isinstance(side, tuple) and len(side) != n_features:
                raise InvalidParameterError(
                    f"the min kernel has {len(side)} intervals but the data have"
                    f" {n_features} columns"
                )

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.zeros((len(left), len(right)))
        for a, b in zip(self._lengths(left), self._lengths(right), strict=True):
            gram += np.minimum.outer(a, b)
        return gram

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.sum(list(self._lengths(X)), axis=0)

    def _lengths(self, X: FloatArray) -> FloatArray:
        """Return x_d − lower_d, of shape (n_features, n_samples).

        Inputs beyond the ends count as the ends, since new rows may lie beyond the rows
        that gave the ends. If no lower end was given, it is 0, and a negative input is
        probably a mistake, which raises DataError.
        """
        lower, upper = self.interval(X.shape[1])
        if self.lower is None and (X < 0).any():
            raise DataError(
                f"min(x, y) needs inputs of at least 0, but one is {X.min():g}; "
                "give the interval: Min(lower, upper)"
            )
        return (np.clip(X, lower, upper) - lower).T

    def bind(self, smallest: FloatArray, largest: FloatArray) -> base.Kernel:
        """Return the kernel with ends that are None taken from the inputs' range.

        A constant column, or one beyond the given end, would have an empty interval.
        The interval is then widened: at the end that was not given, or at the upper end
        if none was.
        """
        if self.is_bound:
            return self
        if self.upper is not None:
            end = np.broadcast_to(np.asarray(self.upper), smallest.shape)
            lower = np.where(smallest < end, smallest, end - _some_width(end))
            return Min(lower, self.upper)
        given = smallest if self.lower is None else self.lower
        end = np.broadcast_to(np.asarray(given), largest.shape)
        return Min(given, np.where(largest > end, largest, end + _some_width(end)))

    @property
    def is_bound(self) -> bool:
        return self.lower is not None and self.upper is not None


def _check_above(lower: ArrayLike, upper: ArrayLike) -> None:
    if not np.all(np.asarray(upper) > np.asarray(lower)):
        raise InvalidParameterError(
            f"`upper` is {upper!r}; expected numbers above `lower`, {lower!r}"
        )


def _some_width(end: FloatArray) -> FloatArray:
    """Return widths above 0 for intervals with these ends."""
    # adding 1 to an end of 2**53 or more would be lost in rounding
    return np.maximum(1.0, np.abs(end))
