"""Additive kernels: functions of one column each, of two columns each, and of all columns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import scipy

from rff_dist.checks import is_number
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs
from rff_dist.kernels import stationary
from rff_dist.typing import FloatArray


@dataclass(frozen=True, repr=False)
class Additive(stationary.Stationary):
    """w₁·mean of k_j + w₂·mean of k_i·k_j over pairs + w₃·k: effects of columns, of pairs, and of all.

    k_j is the kernel of column j alone. Additive functions need far fewer rows than functions of all columns,
    and the three weights say how much of each kind is expected. O(n_samples_X · n_samples_Y · n_features),
    since the sum over pairs is an elementary symmetric polynomial.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        Those of `kernel`, where all columns act together; in the inputs' units, and a sequence gives one per
        column. k_j has the length scale of column j divided by √n_features: rows that are ℓ apart over all
        columns are about that far apart in each. So the same number, such as the median distance between
        rows, suits all three parts. Without it, see `Stationary`.
    kernel : Gaussian, Matern or RationalQuadratic
        Without a length scale. Matérn-3/2 by default.
    order_1, order_2, dense : float
        Weights of the three parts, 0 or more. They are divided by their sum, so that k(x, x) = 1. In a single
        column the parts are the same, and so is the kernel.

    Raises
    ------
    InvalidParameterError
        If `kernel` is another one or has a length scale, a weight is below 0, or all are 0.

    References
    ----------
    Duvenaud, Nickisch & Rasmussen (2011), "Additive Gaussian processes", eq. 7 to 9, and Sec. 2.3.

    Examples
    --------
    >>> from rff_dist import Additive, Gaussian
    >>> kernel = Additive(1.0, kernel=Gaussian(), order_1=1, order_2=0, dense=0)
    >>> one_by_one = [Gaussian(2**-0.5).on([j]) for j in range(2)]
    >>> x, y = [[0.0, 0.0]], [[1.0, 3.0]]
    >>> abs(float(kernel(x, y)[0, 0] - (0.5 * sum(one_by_one))(x, y)[0, 0])) < 1e-15
    True
    """

    kernel: stationary.OfDistance = stationary.Matern()  # noqa: RUF009  frozen, so shared safely
    order_1: float = 1.0
    order_2: float = 1.0
    dense: float = 1.0

    name = "additive"
    # spreads evenly which columns frequencies see: half the variance for 8 and 26 columns and 2,048 features
    other_design = "quasi-monte-carlo"

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel: object = self.kernel
        if not isinstance(kernel, stationary.OfDistance) or not kernel.isotropic or kernel.length_scale:
            raise InvalidParameterError(
                f"an additive kernel of {kernel!r} is not known; expected Gaussian(), Matern() or "
                "RationalQuadratic(), without a length scale, which belongs to the additive kernel"
            )
        weights = self._given
        if not all(is_number(w) and 0 <= w < np.inf for w in weights) or not 0 < sum(weights) < np.inf:
            raise InvalidParameterError(
                f"`order_1`, `order_2` and `dense` are {weights}; expected finite numbers of at least 0, not "
                "all of them 0"
            )
        for name, weight in zip(("order_1", "order_2", "dense"), weights, strict=True):
            object.__setattr__(self, name, float(weight))

    def weights(self, n_features: int) -> FloatArray:
        """Return the parts' weights, shape (3,), whose sum is 1; a single column counts as all columns."""
        if n_features == 1:
            return np.array([0.0, 0.0, 1.0])
        weights = np.array(self._given)
        return np.asarray(weights / weights.sum())

    def spectral_measure(self) -> designs.SpectralMeasure:
        inner = self.kernel.spectral_measure()
        assert isinstance(inner, designs.GaussianMixture)  # the kernel is isotropic
        return designs.FewColumns(inner, tuple(self.weights(2).tolist()))

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.empty((len(left), len(right)))
        weights = self.weights(left.shape[1])
        for rows in _strips(*gram.shape):
            columns = slice(rows.start if left is right else 0, None)  # the rest is known by symmetry
            each = map(self.kernel.of_distance, _distances(left[rows], right[columns]))
            dense = self.kernel.of_scaled(left[rows], right[columns]) if weights[2] else 0.0
            parts = zip(weights, (*_orders(each, weights, left.shape[1]), dense), strict=True)
            *others, (_, last) = [(weight, part) for weight, part in parts if weight]
            # written so that k(x, x) is 1 without rounding
            gram[rows, columns] = sum((weight * (part - last) for weight, part in others), last)
            if left is right:
                gram[columns, rows] = gram[rows, columns].T
        return gram

    @property
    def differentiable(self) -> bool:
        return self.kernel.differentiable

    @property
    def logits(self) -> FloatArray:
        return np.log([weight for weight in self._given if weight > 0])

    def with_logits(self, logits: FloatArray) -> Self:
        weights = np.array(self._given)
        weights[weights > 0] = np.exp(logits - logits.max())
        one, two, dense = (weights / weights.sum()).tolist()
        return replace(self, order_1=one, order_2=two, dense=dense)

    def without_parts_below(self, share: float) -> Self:
        """Return the kernel without parts whose share of the weights is smaller."""
        weights = self.weights(2)
        one, two, dense = np.where(weights < share, 0.0, weights).tolist()
        return replace(self, order_1=one, order_2=two, dense=dense)

    @property
    def _given(self) -> tuple[float, float, float]:
        return self.order_1, self.order_2, self.dense

    def differentiate(self, X: FloatArray) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        if not self.differentiable:
            return super().differentiate(X)
        scaled = X / self.length_scales(X.shape[1])
        return self.of_scaled(scaled, scaled), partial(self._derivatives, scaled)

    def _derivatives(self, scaled: FloatArray, G: FloatArray) -> FloatArray:
        """Return the derivatives; all columns' matrices are made again, since no cache holds them."""
        n, kernel = scaled.shape[1], self.kernel
        weights = self.weights(n)
        # of S = Σ_ij G_ij·k(x_i, x_j): by log ℓ_j of each column, and by the weight of each part
        by_log_scales, by_weights = np.zeros(n), np.zeros(3)
        for rows in _strips(*G.shape):
            # each pair of rows once, with both of its places in G
            right, pairs = scaled[rows.start :], G[rows, rows.start :].copy()
            pairs[:, rows.stop - rows.start :] += G[rows.stop :, rows].T
            distances = list(_distances(scaled[rows], right))
            each, steep = zip(*map(kernel.with_steepness, distances), strict=True)
            one, two = _orders(each, weights, n)
            dense: Any = 0.0
            together: Any = 0.0
            if weights[2]:
                dense, together = kernel.with_steepness(scipy.spatial.distance.cdist(scaled[rows], right))
                # columns' squared distances are n times those of the dense kernel
                together = pairs * together * (weights[2] / n)
            # the kernel is linear in the weights, so its derivative by one is that part's Gram
            parts = zip(weights, (one, two, dense), strict=True)
            by_weights += [np.vdot(pairs, part) if weight else 0.0 for weight, part in parts]
            for j, distance in enumerate(distances):
                by_column: Any = weights[0] / n  # ∂k/∂k_j
                if weights[1]:
                    # the derivative of Σ_{i<j} k_i·k_j by one factor is the sum of the others
                    by_column += (n * one - each[j]) * (weights[1] / _n_pairs(n))
                by_column = pairs * steep[j] * by_column
                by_column += together
                distance *= distance
                by_log_scales[j] += np.vdot(by_column, distance)
        # weights are the softmax of the logits: ∂w_a/∂logit_b = w_a·(1[a = b] − w_b)
        by_logits = weights * (by_weights - weights @ by_weights)
        return np.append(by_log_scales, by_logits[np.array(self._given) > 0])


def _orders(each: Iterable[FloatArray], weights: FloatArray, n_features: int) -> tuple[Any, Any]:
    """Return the means of the columns' Gram matrices, and of their products over pairs; 0 without weight."""
    one: Any = 0.0
    two: Any = 0.0
    for gram in each if weights[:2].any() else ():
        if weights[1]:
            # with each column its products with those before: (e₁² − Σ k_j²)/2 would lose digits
            two = two + one * gram
        one = one + gram
    return one / n_features, two / max(_n_pairs(n_features), 1)


def _strips(n_rows: int, n_columns: int) -> list[slice]:
    """Return which rows of a matrix are worked on together: few enough for a core's own cache."""
    step = max(1, 2**14 // max(n_columns, 1))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _n_pairs(n_features: int) -> int:
    return n_features * (n_features - 1) // 2


def _distances(left: FloatArray, right: FloatArray) -> Iterator[FloatArray]:
    """Yield the distances in each column, in units of its own length scale, between scaled points."""
    for a, b in zip(left.T, right.T, strict=True):
        distance = np.subtract.outer(a, b)
        np.abs(distance, out=distance)
        # column j has the length scale ℓ_j/√n_features, see `Additive`
        distance *= np.sqrt(left.shape[1])
        yield np.minimum(distance, stationary.FAR, out=distance)
