"""Additive kernels: sums of kernels of one column, of two, and of all columns.

Points go in; Gram matrices and their derivatives by weights and length scales come out.
Summing over all pairs of columns by `base.Sum` would take n_features² kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from rff_dist.checks import is_number
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import measures
from rff_dist.kernels import base, stationary
from rff_dist.numerics import machine
from rff_dist.typing import FloatArray, IndexArray


@dataclass(frozen=True, repr=False)
class Additive(stationary.Stationary):
    """Σ_j w_j·k_j + w₂·mean of k_i·k_j over pairs + w₀·k.

    k_j is the kernel of column j alone, and k that of all columns together. Additive
    functions need far fewer rows than functions of all columns, and the weights say
    how much of each kind is expected. A category's k_j is a random intercept of each
    level. O(n_samples_X · n_samples_Y · n_features), since the sum over pairs is an
    elementary symmetric polynomial.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        The length scale of the kernel of all columns together, in the inputs' units; a
        sequence gives one per column. k_j has the length scale of column j divided by
        √n_features: rows that are ℓ apart over all columns are about that far apart in
        each. So the same number, such as the median distance between rows, suits all
        three parts. Without it, see `Stationary`.
    kernel : Gaussian, Matern or RationalQuadratic
        Without a length scale. Matérn-3/2 by default.
    order_1 : float or sequence of float of shape (n_features,)
        The weight of single columns: one number, which they share equally, or one
        number per column.
    order_2, dense : float
        The weights of pairs, and of all columns together. All weights are 0 or more,
        and are divided by their sum, so that k(x, x) = 1. In a single column the parts
        are the same, and so is the kernel.

    Raises
    ------
    InvalidParameterError
        If `kernel` is another one or has a length scale, a weight is below 0, all are
        0, or the data have another number of columns than `order_1` has weights.

    References
    ----------
    Duvenaud, Nickisch & Rasmussen (2011), "Additive Gaussian processes", eq. 7 to 9,
    and Sec. 2.3.

    Examples
    --------
    >>> from rff_dist import Additive, Gaussian
    >>> kernel = Additive(1.0, kernel=Gaussian(), order_1=1, order_2=0, dense=0)
    >>> one_by_one = [Gaussian(2**-0.5).on([j]) for j in range(2)]
    >>> x, y = [[0.0, 0.0]], [[1.0, 3.0]]
    >>> abs(float(kernel(x, y)[0, 0] - (0.5 * sum(one_by_one))(x, y)[0, 0])) < 1e-15
    True
    >>> kernel = Additive(1.0, order_1=(0.5, 0), order_2=0, dense=1.5)
    >>> kernel.column_weights(2).tolist()
    [0.25, 0.0]
    """

    kernel: stationary.DistanceKernel = stationary.Matern()  # noqa: RUF009  frozen, so shared safely
    order_1: float | Sequence[float] = 1.0
    order_2: float = 1.0
    dense: float = 1.0

    name = "additive"
    # Instead of orthogonal frequencies. It spreads frequencies evenly over the columns:
    # half the variance of "iid" for 8 and 26 columns and 2,048 features.
    other_design = "quasi-monte-carlo"

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel: object = self.kernel
        if (
            not isinstance(kernel, stationary.DistanceKernel)
            or not kernel.isotropic
            or kernel.length_scale
        ):
            raise InvalidParameterError(
                f"an additive kernel of {kernel!r} is not known; expected Gaussian(),"
                " Matern() or RationalQuadratic(), without a length scale, which"
                " belongs to the additive kernel"
            )
        weights = self._raw_weights()
        if (
            not all(is_number(w) and 0 <= w < np.inf for w in weights)
            or not 0 < sum(weights) < np.inf
        ):
            raise InvalidParameterError(
                f"`order_1`, `order_2` and `dense` are {weights}; expected finite"
                " numbers of at least 0, not all of them 0"
            )
        object.__setattr__(self, "order_1", self._order_1_of(weights))
        object.__setattr__(self, "order_2", float(self.order_2))
        object.__setattr__(self, "dense", float(self.dense))

    def _raw_weights(self) -> list[Any]:
        """Return the weights of single columns, pairs and all, before division."""
        single_weights: list[Any] = [self.order_1]
        if self._has_column_weights:
            single_weights = list(self.order_1)  # type: ignore[arg-type]
        return [*single_weights, self.order_2, self.dense]

    @property
    def _has_column_weights(self) -> bool:
        return np.ndim(self.order_1) == 1

    def _order_1_of(self, weights: Sequence[Any]) -> float | tuple[float, ...]:
        single_weights = tuple(map(float, weights[:-2]))
        return single_weights if self._has_column_weights else single_weights[0]

    def with_weights(self, weights: FloatArray) -> Self:
        """Return the kernel with other weights, in the order of `order_1`, `order_2`
        and `dense`.
        """
        *_, order_2, dense = weights.tolist()
        order_1 = self._order_1_of(weights.tolist())
        return replace(self, order_1=order_1, order_2=order_2, dense=dense)

    def with_columns(self, order: Sequence[int] | IndexArray) -> Self:
        """Return the kernel for points whose columns are reordered: `X[:, order]`."""
        if not self._has_column_weights:
            return self
        weights = np.array(self._raw_weights())
        weights[:-2] = weights[:-2][order]
        return self.with_weights(weights)

    def check_columns(self, n_features: int) -> None:
        super().check_columns(n_features)
        n_weights = len(self._raw_weights()) - 2
        if self._has_column_weights and n_weights != n_features:
            raise InvalidParameterError(
                f"`order_1` has {n_weights} weights but the data have {n_features}"
                " columns; give one number, or one per column"
            )

    def weights(self, n_features: int) -> FloatArray:
        """Return the weights of the three parts, of shape (3,); their sum is 1."""
        # with a single column all parts are the same, and `dense` is the cheapest
        if n_features == 1:
            return np.array([0.0, 0.0, 1.0])
        *single_weights, order_2, dense = self._raw_weights()
        weights = np.array([sum(single_weights), order_2, dense])
        return np.asarray(weights / weights.sum())

    def column_weights(self, n_features: int) -> FloatArray:
        """Return the weight of each column alone, shape (n_features,)."""
        self.check_columns(n_features)
        weight = self.weights(n_features)[0]
        single_weights = np.array(self._raw_weights()[:-2])
        if weight == 0:
            return np.zeros(n_features)
        shares = np.broadcast_to(single_weights / single_weights.sum(), n_features)
        return np.asarray(weight * shares / shares.sum())

    def of_columns(self, n_features: int) -> tuple[dict[int, base.Kernel], bool]:
        parts: dict[int, base.Kernel] = {}
        scales = self.length_scales(n_features) / np.sqrt(n_features)
        for column, weight in enumerate(self.column_weights(n_features).tolist()):
            if weight:
                column_kernel = self.kernel.with_length_scale(float(scales[column]))
                if column in self.categories:
                    column_kernel = column_kernel.with_categories((0,))
                parts[column] = weight * column_kernel.on([column])
        has_others = bool(self.weights(n_features)[1:].any())
        return parts, has_others

    def spectral_measure(self) -> measures.SpectralMeasure:
        inner = self.kernel.spectral_measure()
        assert isinstance(inner, measures.GaussianMixture)  # the kernel is isotropic
        # weights are the same for any number of columns above 1, so ask for 2;
        # `FewColumns` handles a single column
        weights = self.weights(2)
        shares = None
        if self._has_column_weights and weights[0]:
            single_weights = np.array(self._raw_weights()[:-2])
            shares = tuple((single_weights / single_weights.sum()).tolist())
        return measures.FewColumns(inner, tuple(weights.tolist()), shares)

    def _drawn_columns(self, n_features: int) -> IndexArray:
        # a frequency's columns are drawn among all, categories too
        return np.arange(n_features)

    def of_scaled(
        self, left: stationary.Points, right: stationary.Points
    ) -> FloatArray:
        gram = np.empty((len(left), len(right)))
        is_symmetric = left is right
        # weights are computed once, since they take as long as a strip of a small
        # matrix
        w_columns = self._point_weights(left.n_columns)
        _, w_pairs, w_dense = self.weights(left.n_columns)
        for rows in _strips(*gram.shape):
            # a symmetric matrix needs only the columns from the diagonal on
            columns = slice(rows.start if is_symmetric else 0, None)
            parts = self._parts(left[rows], right[columns], w_columns, w_pairs, w_dense)
            # Σ w·part, with the first weight as 1 minus the others: if all parts are 1,
            # as on the diagonal, the sum is exactly 1
            _, first = next(parts)
            total = first
            for weight, part in parts:
                total = total + weight * (part - first)
            gram[rows, columns] = total
            if is_symmetric:
                gram[columns, rows] = gram[rows, columns].T
        return gram

    def _parts(
        self,
        left: stationary.Points,
        right: stationary.Points,
        w_columns: FloatArray,
        w_pairs: float,
        w_dense: float,
    ) -> Iterator[tuple[float, FloatArray]]:
        """Yield weight and Gram matrix of each part with a weight above 0."""
        if w_dense:
            yield w_dense, self.kernel.of_scaled(left, right)
        before: Any = 0.0
        pairs: Any = 0.0
        for j, weight in enumerate(w_columns):
            if not weight and not w_pairs:
                continue
            gram = self.kernel.of_distance(_distance(left, right, j))
            if w_pairs:
                # adds the column's products with earlier columns, since the formula
                # (e₁² − Σ k_j²)/2 would lose digits
                pairs = pairs + before * gram
                before = before + gram
            if weight:
                yield weight, gram
        if w_pairs:
            yield w_pairs, pairs / _n_pairs(left.n_columns)

    def _point_weights(self, n_features: int) -> FloatArray:
        """Return `column_weights` in the order of points: columns of numbers first."""
        return self.column_weights(n_features)[self.order_of_points(n_features)]

    @property
    def differentiable(self) -> bool:
        return self.kernel.differentiable

    @property
    def logits(self) -> FloatArray:
        weights = [weight for weight in self._raw_weights() if weight > 0]
        if len(weights) == 1:  # its share is 1
            return np.empty(0)
        return np.log(weights)

    @property
    def dense_part(self) -> Self:
        weights = np.array(self._raw_weights())
        if weights[-1] == 0:
            return self
        weights[:-1] = 0.0
        return self.with_weights(weights)

    def with_logits(self, logits: FloatArray) -> Self:
        if not len(logits):
            return self
        weights = np.array(self._raw_weights())
        weights[weights > 0] = np.exp(logits - logits.max())
        return self.with_weights(weights / weights.sum())

    def without_parts_below(
        self, share: float, smallest_weight: float, X: FloatArray
    ) -> Self:
        """Return the kernel without parts of less than the smallest weight, or whose
        functions have less than this share of the variance over rows.
        """
        parts, _ = self.of_columns(X.shape[1])
        whole = _variance(self, X)
        column_variances = np.zeros(X.shape[1])
        for column, part in parts.items():
            column_variances[column] = _variance(part, X)
        weights = np.array(self._raw_weights())
        if self._has_column_weights:
            weights[:-2][column_variances < share * whole] = 0.0
        elif column_variances.sum() < share * whole:
            weights[0] = 0.0
        if whole - column_variances.sum() < share * whole:
            weights[-2:] = 0.0
        is_small = weights < smallest_weight * np.sum(self._raw_weights())
        return self.with_weights(np.where(is_small, 0.0, weights))

    def differentiate_points(
        self, points: stationary.Points
    ) -> tuple[FloatArray, stationary.DerivativesOfPoints]:
        if not self.differentiable:
            return super().differentiate_points(points)
        if self.weights(points.n_columns)[2] == 1:
            gram, dense_derivatives = self.kernel.differentiate_points(points)
            no_logits = np.zeros(len(self.logits))
            return gram, lambda G: (*dense_derivatives(G)[:2], no_logits)

        def derivatives(G: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
            return self._derivatives(points, G)

        return self.of_scaled(points, points), derivatives

    def _derivatives(
        self, points: stationary.Points, G: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the derivatives of S = Σ_ij G_ij·k(x_i, x_j): see
        `Stationary.differentiate_points`.

        The columns' matrices are computed again, because no cache holds all of them.
        """
        n = points.n_columns
        n_numbers = points.numbers.shape[1]
        kernel = self.kernel
        _, w_pairs, w_dense = self.weights(n)
        w_columns = self._point_weights(n)
        by_numbers = np.zeros_like(points.numbers)
        by_categories = np.zeros(n - n_numbers)
        # the kernel is linear in the weights, so its derivative by a weight is the part
        column_sums = np.zeros(n)
        pair_sum: Any = 0.0
        dense_sum: Any = 0.0
        for rows in _strips(*G.shape):
            # k is symmetric, so each pair of rows is visited once, in the upper
            # triangle, with the factor G_ij + G_ji
            right = points[rows.start :]
            pairs = G[rows, rows.start :].copy()
            pairs[:, rows.stop - rows.start :] += G[rows.stop :, rows].T
            by_dense: Any = 0.0
            if w_dense:
                gram, slopes = kernel.with_steepness(
                    points[rows].distances(right, kernel.metric)
                )
                dense_sum += np.vdot(pairs, gram)
                by_dense = pairs * slopes * w_dense
            grams: list[Any] = []
            column_slopes: list[Any] = []  # −k'(r)/r, see `with_steepness`
            total: Any = 0.0
            for j in range(n):
                if not w_columns[j] and not w_pairs:
                    grams.append(0.0)
                    column_slopes.append(0.0)
                    continue
                gram, slopes = kernel.with_steepness(_distance(points[rows], right, j))
                column_sums[j] += np.vdot(pairs, gram)
                if w_pairs:
                    pair_sum += np.vdot(pairs, gram * total)
                    total = total + gram
                grams.append(gram)
                column_slopes.append(slopes)
            for j in range(n):
                by_column: Any = w_columns[j]  # ∂k/∂k_j
                if w_pairs:
                    # the derivative of Σ_{i<j} k_i·k_j by k_j is the sum of the other
                    # columns' kernels
                    by_column = by_column + (total - grams[j]) * (w_pairs / _n_pairs(n))
                # a column's squared distances are n times those of the dense kernel
                by_square = pairs * column_slopes[j] * (n * by_column) + by_dense
                if j >= n_numbers:
                    place = j - n_numbers
                    differs = _differ(points[rows], right, place)
                    by_categories[place] += np.vdot(by_square, differs)
                    continue
                x = points.numbers[:, j]
                by_numbers[rows, j] += by_square.sum(axis=1) * x[rows]
                by_numbers[rows, j] -= by_square @ x[rows.start :]
                by_numbers[rows.start :, j] += by_square.sum(axis=0) * x[rows.start :]
                by_numbers[rows.start :, j] -= x[rows] @ by_square
        # each squared distance of two levels is 2/ℓ²
        by_categories *= 2.0 * points.inverse_scales**2

        own = np.empty(n)
        own[self.order_of_points(n)] = column_sums
        sums = np.append(
            own if self._has_column_weights else own.mean(),
            [pair_sum / max(_n_pairs(n), 1), dense_sum],
        )
        raw = np.array(self._raw_weights())
        weights = raw / raw.sum() if n > 1 else np.zeros_like(raw)
        # weights are the softmax of the logits: ∂w_a/∂logit_b = w_a·(1[a = b] − w_b)
        by_weights = weights * (sums - weights @ sums)
        by_logits = by_weights[raw > 0][: len(self.logits)]
        return by_numbers, by_categories, by_logits


def _strips(n_rows: int, n_columns: int) -> list[slice]:
    """Split the rows of a matrix into strips that fit a core's own cache."""
    step = max(1, 2**14 // max(n_columns, 1))
    return machine.slices(0, n_rows, step)


def _n_pairs(n_features: int) -> int:
    return n_features * (n_features - 1) // 2


def _distance(
    left: stationary.Points, right: stationary.Points, place: int
) -> FloatArray:
    """Return distances in the column at a place; columns of numbers come first."""
    # column j has the length scale ℓ_j/√n_features, see `Additive`
    factor = np.sqrt(left.n_columns)
    n_numbers = left.numbers.shape[1]
    if place >= n_numbers:
        differs = _differ(left, right, place - n_numbers)
        # one-hot vectors of different levels are √2 apart
        inverse = left.inverse_scales[place - n_numbers]
        return np.asarray(np.sqrt(2.0) * factor * inverse * differs)
    distance = np.subtract.outer(left.numbers[:, place], right.numbers[:, place])
    np.abs(distance, out=distance)
    distance *= factor
    return np.minimum(distance, stationary.FAR, out=distance)


def _differ(
    left: stationary.Points, right: stationary.Points, category: int
) -> FloatArray:
    """Return 1 for pairs of points with different levels, else 0."""
    return np.not_equal.outer(left.codes[:, category], right.codes[:, category]).astype(
        np.float64
    )


def _variance(kernel: base.Kernel, X: FloatArray) -> float:
    """Return the expected variance over rows of a random function of the kernel."""
    gram = kernel(X, X)
    return float(np.mean(np.diag(gram)) - np.mean(gram))
