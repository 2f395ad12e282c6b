"""Kernels of x - y with a length scale and a formula.

Points go in; Gram matrices, their derivatives by length scales, and the distribution of
frequencies come out. scikit-learn's kernels have no such distribution, no categories,
and no length scale that is left to the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import ClassVar, Self, cast

import numpy as np
import scipy

from rff_dist.checks import check_positive
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs, measures
from rff_dist.kernels import base
from rff_dist.typing import FloatArray, IndexArray, frozen

#: From G to derivatives of Σ_ij G_ij·K_ij, see `Stationary.differentiate_points`.
type DerivativesOfPoints = Callable[
    [FloatArray], tuple[FloatArray, FloatArray, FloatArray]
]

FAR = 1e100  # larger distances count as this, since its square does not overflow


def as_length_scale(value: float | Sequence[float] | np.ndarray) -> base.LengthScale:
    """Return a length scale, or a tuple of them, as floats.

    Raises InvalidParameterError if one of them is not a finite number above 0.
    """
    if np.ndim(value) == 0:
        return check_positive(
            value.item() if isinstance(value, np.ndarray) else value, "length_scale"
        )
    if np.ndim(value) != 1 or len(value) == 0:  # type: ignore[arg-type]
        raise InvalidParameterError(
            f"`length_scale` has shape {np.shape(value)}; expected one number, or one"
            " per input column"
        )
    return tuple(check_positive(v, "length_scale") for v in value)  # type: ignore[union-attr]


@frozen(eq=False)
class Points:
    """Rows in the form that stationary kernels compare."""

    #: Columns of numbers over their length scales, shape (n_samples, n_numbers).
    numbers: FloatArray
    #: Columns of categories, shape (n_samples, n_categories).
    codes: FloatArray
    #: 1/ℓ of each column of categories, shape (n_categories,).
    inverse_scales: FloatArray

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def n_columns(self) -> int:
        return int(self.numbers.shape[1] + self.codes.shape[1])

    def __getitem__(self, rows: slice) -> Points:
        return Points(self.numbers[rows], self.codes[rows], self.inverse_scales)

    def mismatches(self, other: Points) -> Iterator[FloatArray]:
        """Yield for each column of categories 1 where rows differ, else 0.

        The shape is (n_samples, n_others).
        """
        for mine, others in zip(self.codes.T, other.codes.T, strict=True):
            yield np.not_equal.outer(mine, others).astype(np.float64)

    def distances(self, other: Points, metric: str) -> FloatArray:
        """Return the distances to other points, shape (n_samples, n_others)."""
        distance: FloatArray = scipy.spatial.distance.cdist(
            self.numbers, other.numbers, metric
        )
        if self.codes.shape[1]:
            distance = self._with_categories(distance, self.mismatches(other), metric)
        return np.minimum(distance, FAR, out=distance)

    def distances_between(self, metric: str) -> FloatArray:
        """Return the distance of each pair, as SciPy's `pdist` orders them."""
        distance: FloatArray = scipy.spatial.distance.pdist(self.numbers, metric)
        if self.codes.shape[1]:
            above = np.triu_indices(len(self), 1)
            mismatches = (mismatch[above] for mismatch in self.mismatches(self))
            distance = self._with_categories(distance, mismatches, metric)
        return np.minimum(distance, FAR, out=distance)

    def _with_categories(
        self, distance: FloatArray, mismatches: Iterable[FloatArray], metric: str
    ) -> FloatArray:
        """Return distances of numbers and categories together."""
        is_euclidean = metric == "euclidean"
        power = 2 if is_euclidean else 1
        total = distance**power
        for mismatch, inverse in zip(mismatches, self.inverse_scales, strict=True):
            # one-hot vectors of different levels differ in two coordinates
            total += (2.0 * inverse**power) * mismatch
        return np.sqrt(total) if is_euclidean else total


def as_points(X: FloatArray, scales: FloatArray, categories: Sequence[int]) -> Points:
    """Return rows as points, by length scales of shape (n_features,)."""
    if not categories:
        return Points(X / scales, X[:, :0], scales[:0])
    numbers = np.setdiff1d(np.arange(X.shape[1]), categories)
    codes = list(categories)
    return Points(X[:, numbers] / scales[numbers], X[:, codes], 1.0 / scales[codes])


@dataclass(frozen=True)
class Stationary(base.ShiftInvariant):
    """A shift-invariant kernel with a length scale.

    In a column of categories, two different levels have the distance of their one-hot
    vectors over the column's length scale.
    """

    #: The length scale, in the inputs' units, or one per input column. Without it,
    #: estimators, searches and pipelines take one from the data; calls on points and
    #: draws of features take 1.
    length_scale: float | Sequence[float] | np.ndarray | None = None
    #: Which columns are categories; estimators fill it in.
    categories: tuple[int, ...] = field(default=(), kw_only=True)

    metric: ClassVar[str] = "euclidean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        if self.length_scale is not None:
            object.__setattr__(self, "length_scale", as_length_scale(self.length_scale))

    def __repr__(self) -> str:
        values = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = ", ".join(
            f"{name}={_shown(value)}"
            for name, value in values
            if value is not None and value != ()
        )
        return f"{type(self).__name__}({shown})"

    @abstractmethod
    def spectral_measure(self) -> measures.SpectralMeasure:
        """Return the distribution of the frequencies for a unit length scale."""

    @abstractmethod
    def of_scaled(self, left: Points, right: Points) -> FloatArray:
        """Return the Gram matrix of points.

        If both are one object, only half of the matrix may be computed.
        """

    def points(self, X: FloatArray) -> Points:
        """Return rows in the form that this kernel compares."""
        return as_points(X, self.length_scales(X.shape[1]), self.categories)

    def _columns_of_numbers(self, n_features: int) -> IndexArray:
        return np.setdiff1d(np.arange(n_features), self.categories)

    def order_of_points(self, n_features: int) -> IndexArray:
        """Return the columns in the order of `Points`: numbers, then categories."""
        numbers = self._columns_of_numbers(n_features)
        return np.concatenate([numbers, np.array(self.categories, int)])

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        points = self.points(left)
        others = points if right is left else self.points(right)
        return self.of_scaled(points, others)

    def length_scales(self, n_features: int) -> FloatArray:
        """Return one length scale per input column; 1 if none was given.

        Raises InvalidParameterError if the kernel has length scales for another number
        of columns.
        """
        given = 1.0 if self.length_scale is None else self.length_scale
        scales = np.asarray(given, np.float64)
        if scales.ndim and len(scales) != n_features:
            raise InvalidParameterError(
                f"`length_scale` has {len(scales)} entries but the data have"
                f" {n_features} columns; give one number, or one per column"
            )
        return np.broadcast_to(scales, n_features)

    def check_columns(self, n_features: int) -> None:
        self.length_scales(n_features)

    def n_uniforms(self, n_features: int) -> int:
        return self.spectral_measure().n_uniforms(n_features)

    @property
    def isotropic(self) -> bool:
        return isinstance(self.spectral_measure(), measures.GaussianMixture)

    def draw(self, draw: designs.Draw) -> FloatArray:
        columns = self._drawn_columns(draw.n_features)
        frequencies = np.zeros(draw.shape)
        if len(columns):
            together = replace(draw, n_features=len(columns))
            frequencies[columns] = draw.design.frequencies(
                self.spectral_measure(), together
            )
        # levels add angles instead, see `level_angles`
        frequencies[list(self.categories)] = 0.0
        return frequencies / self.length_scales(draw.n_features)[:, np.newaxis]

    def _drawn_columns(self, n_features: int) -> IndexArray:
        """Return the columns that a draw arranges together."""
        return self._columns_of_numbers(n_features)

    def level_angles(self, column: int, draw: designs.Draw) -> list[base.LevelAngles]:
        # The spectral measure is a normal distribution with a random scale. All
        # coordinates of a frequency share its scale, so levels take the drawn scale
        # too.
        measure = cast("measures.CoordinateMeasure", self.spectral_measure())
        n_drawn = len(self._drawn_columns(draw.n_features))
        together = replace(draw, n_features=max(n_drawn, 1))
        scales = draw.design.scales(measure, together)
        # `scales` has a row per drawn column; if categories are not drawn, rows are
        # equal
        row_of_scales = column if n_drawn == draw.n_features else 0
        factors = scales[row_of_scales] / self.length_scales(draw.n_features)[column]
        stream = f"{draw.first} {column}"
        return [base.LevelAngles(measure, factors, draw.seed, stream)]

    def with_categories(self, columns: Sequence[int]) -> Self:
        return replace(self, categories=tuple(columns))

    def with_length_scale(
        self, length_scale: float | Sequence[float] | np.ndarray | None
    ) -> Self:
        """Return the kernel with another length scale; None leaves it to the data."""
        return replace(self, length_scale=length_scale)

    def with_default_length_scales(
        self, fill: base.LengthScaleFor, columns: base.Columns = None
    ) -> Self:
        if self.length_scale is not None:
            return self
        return self.with_length_scale(fill(self, columns))

    @property
    def differentiable(self) -> bool:
        """Whether `differentiate` can be called."""
        return False

    def differentiate(
        self, X: FloatArray
    ) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        """Return the Gram matrix K of rows, and a function that returns derivatives.

        From G, of K's shape, the function returns the derivatives of Σ_ij G_ij·K_ij,
        shape (n_features + n_logits,): by the logarithms of the length scales, then by
        `logits`. Both take O(n_samples² · n_features). Raises InvalidParameterError if
        the kernel is not `differentiable`.
        """
        points = self.points(X)
        gram, derivatives = self.differentiate_points(points)
        order = self.order_of_points(X.shape[1])

        def by_parameters(G: FloatArray) -> FloatArray:
            by_numbers, by_categories, by_logits = derivatives(G)
            by_columns = np.empty(X.shape[1])
            of_numbers = self.by_log_scales(by_numbers, points, X)
            by_columns[order] = np.concatenate([of_numbers, by_categories])
            return np.concatenate([by_columns, by_logits])

        return gram, by_parameters

    def by_log_scales(
        self, by_numbers: FloatArray, points: Points, X: FloatArray
    ) -> FloatArray:
        """Return derivatives by the logarithms of the length scales of numbers.

        They are minus the derivatives by scaled numbers, times these numbers, summed
        over rows.
        """
        return (by_numbers * points.numbers).sum(axis=0)

    def differentiate_points(
        self, points: Points
    ) -> tuple[FloatArray, DerivativesOfPoints]:
        """Like `differentiate`, but of points.

        The function returns three arrays: minus the derivatives by the scaled numbers,
        shape (n_samples, n_numbers), see `by_log_scales`; the derivatives by the
        logarithms of the categories' length scales; and the derivatives by `logits`.
        """
        raise InvalidParameterError(f"{self!r} has no derivative here")

    @property
    def logits(self) -> FloatArray:
        """The logarithms of the parts' weights above 0; empty for a single part."""
        return np.empty(0)

    @property
    def dense_part(self) -> Self:
        """The part of all columns together; the kernel itself without such a part."""
        return self

    def with_logits(self, logits: FloatArray) -> Self:
        """Return the kernel with other `logits`.

        Up to a factor, weights are their exponentials.
        """
        return self


def _shown(value: object) -> str:
    if not isinstance(value, tuple) or len(value) <= 16:
        return repr(value)
    return f"({', '.join(map(repr, value[:3]))}, … {len(value)} numbers)"


def _gram_of_pairs(values: FloatArray) -> FloatArray:
    """Return the Gram matrix of values of k in the order of SciPy's `pdist`."""
    # squareform leaves 0 on the diagonal, and k is 1 there
    gram: FloatArray = scipy.spatial.distance.squareform(values)
    np.fill_diagonal(gram, 1.0)
    return gram


class DistanceKernel(Stationary):
    """A stationary kernel of the distance alone."""

    @abstractmethod
    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k for distances, in `metric`, between scaled points."""

    def of_scaled(self, left: Points, right: Points) -> FloatArray:
        if left is right:
            # each pair is computed once, in half the time
            return _gram_of_pairs(self.of_distance(left.distances_between(self.metric)))
        return self.of_distance(left.distances(right, self.metric))

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return k, and its steepness -k'(r)/r.

        Steepness times δ_j² is the derivative by the logarithm of column j's length
        scale, where δ_j is the column's scaled difference.
        Raises InvalidParameterError if the kernel is not `differentiable`.
        """
        raise InvalidParameterError(f"{self!r} has no derivative here")

    def differentiate_points(
        self, points: Points
    ) -> tuple[FloatArray, DerivativesOfPoints]:
        values, steepness = self.with_steepness(points.distances_between(self.metric))

        def derivatives(G: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
            # squareform leaves 0 on the diagonal, so that nothing cancels for a row far
            # from all others
            M: FloatArray = scipy.spatial.distance.squareform(steepness)
            M *= G
            M += M.T
            scaled = points.numbers
            # Σ_j M_ij·(x_i − x_j), multiplied out: an array of (n, n, n_features) is
            # never made
            by_numbers = M.sum(axis=0)[:, np.newaxis] * scaled - M @ scaled
            # each pair is twice in M, and its squared distance is 2/ℓ²
            sums = [np.vdot(M, mismatch) for mismatch in points.mismatches(points)]
            by_categories = np.array(sums) * points.inverse_scales**2
            return by_numbers, by_categories, np.empty(0)

        return _gram_of_pairs(values), derivatives


class CoordinateKernel(Stationary):
    """A stationary kernel that is a product over the coordinates' differences."""

    @abstractmethod
    def of_difference(self, difference: FloatArray) -> FloatArray:
        """Return one coordinate's factor for its scaled differences."""

    def of_scaled(self, left: Points, right: Points) -> FloatArray:
        gram = np.ones((len(left), len(right)))
        for a, b in zip(left.numbers.T, right.numbers.T, strict=True):
            # column by column, so that memory holds two arrays of the Gram's size
            gram *= self.of_difference(np.clip(np.subtract.outer(a, b), -FAR, FAR))
        # one-hot vectors of different levels differ by 1/ℓ in two coordinates
        factors = self.of_difference(left.inverse_scales) ** 2
        for mismatch, factor in zip(left.mismatches(right), factors, strict=True):
            gram *= np.where(mismatch, factor, 1.0)
        return gram


def with_length_scale(
    kernel: base.Kernel, length_scale: base.LengthScale
) -> base.Kernel:
    """Return the kernel with another length scale.

    In sums and products, only parts without one get it.

    Raises InvalidParameterError if no part can take it, or it is not a number above 0.
    """
    if isinstance(kernel, Stationary):
        return kernel.with_length_scale(length_scale)
    if not parts_without_length_scale(kernel):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}, but {kernel} has no part without a"
            " length scale; leave it out"
        )
    return kernel.with_default_length_scales(lambda part, columns: length_scale)


def own_length_scale(kernel: base.Kernel | None) -> base.LengthScale | None:
    """Return a kernel's length scale; sums, products and None have none."""
    if not isinstance(kernel, Stationary):
        return None
    return cast("base.LengthScale | None", kernel.length_scale)


def parts_without_length_scale(kernel: base.Kernel) -> list[Stationary]:
    """Return the parts of a kernel that have no length scale."""
    parts: list[Stationary] = []

    def note(part: Stationary, columns: base.Columns) -> base.LengthScale:
        parts.append(part)
        return 1.0

    kernel.with_default_length_scales(note)
    return parts


@dataclass(frozen=True, repr=False)
class Gaussian(DistanceKernel):
    """exp(-|x - y|² / 2ℓ²), `sklearn.metrics.pairwise.rbf_kernel` of gamma = 1 / (2ℓ²).

    Its functions are infinitely smooth.
    """

    name = "gaussian"
    differentiable = True

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-0.5 * distance**2)

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = self.of_distance(distance)
        # k' = −r·k
        return value, value

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.GaussianMixture()


@dataclass(frozen=True, repr=False)
class Laplacian(DistanceKernel):
    """exp(-|x - y|₁ / ℓ), `sklearn.metrics.pairwise.laplacian_kernel`.

    The L2 form is `Matern(nu=0.5)`.
    """

    name = "laplacian"
    metric = "cityblock"

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-distance)

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.ProductMeasure(_cauchy_quantile, self.of_distance)


@dataclass(frozen=True, repr=False)
class Matern(DistanceKernel):
    """`sklearn.gaussian_process.kernels.Matern`; nu → ∞ is the Gaussian.

    Its functions have derivatives up to order ceil(nu) - 1.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        In the inputs' units; a sequence gives one per input column. Without it, see
        `Stationary`.
    nu : float
        Smoothness, any number above 0; 0.5 is exp(-r/ℓ).

    References
    ----------
    Rasmussen & Williams (2006), eq. 4.14 and 4.15.
    """

    nu: float = 1.5

    name = "matern"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "nu", check_positive(self.nu, "nu"))

    def of_distance(self, distance: FloatArray) -> FloatArray:
        # One exponential and a polynomial: the Bessel function takes far longer, and
        # these orders need none (Rasmussen & Williams 2006, Sec. 4.2.1).
        if self.nu == 0.5:
            return np.exp(-distance)
        if self.nu == 1.5:
            return self._of_order_three_halves(distance)[0]
        if self.nu == 2.5:
            scaled = np.sqrt(5.0) * distance
            return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
        return matern_bessel(np.sqrt(2 * self.nu) * distance, self.nu)

    @property
    def differentiable(self) -> bool:
        # up to nu = 1, −k'(r)/r is infinite at 0
        return self.nu > 1

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        if not self.differentiable:
            return super().with_steepness(distance)
        if self.nu == 1.5:
            value, decay = self._of_order_three_halves(distance)
            # k' = −3r·exp(−√3·r)
            decay *= 3.0
            return value, decay
        # d/ds s^ν·K_ν(s) = −s^ν·K_{ν−1}(s) (DLMF 10.29.4): the derivative is a Matérn
        # kernel of order ν − 1
        ratio = self.nu / (self.nu - 1)
        rougher = Matern(nu=self.nu - 1)
        steepness = ratio * rougher.of_distance(np.sqrt(ratio) * distance)
        return self.of_distance(distance), steepness

    @staticmethod
    def _of_order_three_halves(distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return k of order 3/2, and exp(-√3·r), which serves the gradient too.

        The exponential takes most of the time.
        """
        scaled = np.sqrt(3.0) * distance
        decay = np.exp(-scaled)
        scaled += 1.0
        scaled *= decay
        return scaled, decay

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.GaussianMixture(partial(_matern_scales, self.nu))


@dataclass(frozen=True, repr=False)
class RationalQuadratic(DistanceKernel):
    """(1 + |x - y|²/2aℓ²)^(-a), as scikit-learn's RationalQuadratic of alpha = a.

    A mixture of Gaussians of all length scales; a → ∞ is the Gaussian.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        In the inputs' units; a sequence gives one per input column. Without it, see
        `Stationary`.
    shape : float
        a above 0; the smaller, the heavier the tails.

    References
    ----------
    Rasmussen & Williams (2006), eq. 4.19.
    """

    shape: float = 1.0

    name = "rational_quadratic"
    differentiable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shape", check_positive(self.shape, "shape"))

    def of_distance(self, distance: FloatArray) -> FloatArray:
        logarithm = np.log1p(distance**2 / (2 * self.shape))
        return np.exp(-self.shape * logarithm)

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        # −k'(r)/r = (1 + r²/2a)^(−a−1), a kernel of shape a + 1 at a distance √((a +
        # 1)/a) times as large
        ratio = (self.shape + 1) / self.shape
        steeper = RationalQuadratic(shape=self.shape + 1)
        steepness = steeper.of_distance(np.sqrt(ratio) * distance)
        return self.of_distance(distance), steepness

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.GaussianMixture(partial(_gamma_scales, self.shape))


@dataclass(frozen=True, repr=False)
class Cauchy(CoordinateKernel):
    """Π_d 1 / (1 + (x_d - y_d)²/ℓ²), a product over columns.

    Some libraries mean 1 / (1 + |x - y|²).
    """

    name = "cauchy"

    def of_difference(self, difference: FloatArray) -> FloatArray:
        return 1 / (1 + difference**2)

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.ProductMeasure(_laplace_quantile, self.of_difference)


@dataclass(frozen=True, repr=False)
class Sinc(CoordinateKernel):
    """Π_d sin(δ_d)/δ_d with δ = (x - y)/ℓ: functions without frequencies above 1/ℓ."""

    name = "sinc"

    def of_difference(self, difference: FloatArray) -> FloatArray:
        return np.sinc(difference / np.pi)

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.ProductMeasure(_uniform_quantile, self.of_difference)


# -- inverse distribution functions of scales, and of coordinates


def _matern_scales(nu: float, uniforms: FloatArray) -> FloatArray:
    # Matérn's frequencies follow Student's t distribution: g·√(2ν/χ²), where χ²_2ν/2
    # follows Gamma(ν)
    # a tiny nu may give infinite scales, which draws refuse
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.sqrt(nu / scipy.special.gammaincinv(nu, uniforms)))


def _cauchy_quantile(uniforms: FloatArray) -> FloatArray:
    # exp(−|Δ|) is the characteristic function of Cauchy's distribution
    return np.tan(np.pi * (uniforms - 0.5))


def _gamma_scales(shape: float, uniforms: FloatArray) -> FloatArray:
    # (1 + r²/2a)^(-a) is the mean of exp(-τr²/2) for τ that follow Gamma(a, rate a)
    return np.asarray(np.sqrt(scipy.special.gammaincinv(shape, uniforms) / shape))


def _laplace_quantile(uniforms: FloatArray) -> FloatArray:
    # 1/(1 + Δ²) is the characteristic function of Laplace's distribution; log1p keeps
    # digits in its middle
    centred = uniforms - 0.5
    return -np.sign(centred) * np.log1p(-2 * np.abs(centred))


def _uniform_quantile(uniforms: FloatArray) -> FloatArray:
    # sin(Δ)/Δ is the characteristic function of the uniform distribution on [−1, 1]
    return 2 * uniforms - 1


# -- the Matérn kernel of any order


def matern_bessel(scaled: FloatArray, nu: float) -> FloatArray:
    """Return 2^(1-ν)/Γ(ν)·s^ν·K_ν(s), by logarithms, since single factors overflow."""
    gram = np.ones_like(scaled)
    positive = scaled > 0
    s = scaled[positive]
    with np.errstate(divide="ignore", over="ignore"):
        # kve is exp(s)·K_ν, which does not underflow
        log_bessel = np.log(scipy.special.kve(nu, s)) - s
    log_value = (
        (1 - nu) * np.log(2.0) - scipy.special.gammaln(nu) + nu * np.log(s) + log_bessel
    )
    # rounding would give more than k(0) = 1 at tiny s
    values = np.exp(np.minimum(log_value, 0.0))
    # K_ν overflows long before s is small: for nu ≥ 1,000 the kernel was 1 everywhere
    # without this
    beyond = ~np.isfinite(log_value)
    values[beyond] = _matern_debye(s[beyond], nu)
    gram[positive] = values
    return gram


def _matern_debye(s: FloatArray, nu: float) -> FloatArray:
    """Return the Matérn kernel where K_ν overflows, for small s, or underflows to 0.

    This is the expansion for large orders, DLMF 10.41.4, divided by its value at s = 0.
    It is written without cancellation, and is within 1e-12 wherever K_ν overflows.
    """
    ratio = s / nu
    excess = ratio * (ratio / (1 + np.hypot(1, ratio)))  # √(1 + (s/ν)²) - 1
    t = 1 / (1 + excess)
    # terms of the series' logarithm, each a polynomial in t minus its value at t = 1,
    # which is s = 0
    terms = (
        (3 * t - 5 * t**3 + 2) / 24,
        (t**2 - 6 * t**4 + 5 * t**6) / 16,
        (375 * t**3 - 4779 * t**5 + 9945 * t**7 - 5525 * t**9 - 16) / 5760,
    )
    log_value = -nu * (excess - np.log1p(excess / 2)) - np.log1p(excess) / 2
    log_value += -terms[0] / nu + terms[1] / nu**2 - terms[2] / nu**3
    return np.asarray(np.exp(np.minimum(log_value, 0.0)))
