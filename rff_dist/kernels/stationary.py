"""Kernels of x − y: with a length scale, or given by the distribution of their frequencies (Bochner)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.checks import check_positive
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs
from rff_dist.kernels import base, characteristic
from rff_dist.typing import Facts, FloatArray, Summary

FAR = 1e100  # larger distances count as this one, whose square does not overflow


def as_length_scale(value: float | Sequence[float] | np.ndarray) -> base.LengthScale:
    """Return a length scale, or a tuple of them, as floats.

    Raises InvalidParameterError if one of them is not a finite number above 0.
    """
    if np.ndim(value) == 0:
        return check_positive(value.item() if isinstance(value, np.ndarray) else value, "length_scale")
    if np.ndim(value) != 1 or len(value) == 0:  # type: ignore[arg-type]
        raise InvalidParameterError(
            f"`length_scale` has shape {np.shape(value)}; expected one number, or one per input column"
        )
    return tuple(check_positive(v, "length_scale") for v in value)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Stationary(base.ShiftInvariant):
    """A shift-invariant kernel with a length scale.

    `length_scale`: float or sequence of float of shape (n_features,). The length scale, in the inputs' units;
      a sequence gives one per input column. Without it, estimators, searches and pipelines take one from the
      data; calls on points and draws of features take 1.
    """

    length_scale: float | Sequence[float] | np.ndarray | None = None

    metric: ClassVar[str] = "euclidean"

    def __post_init__(self) -> None:
        if self.length_scale is not None:
            object.__setattr__(self, "length_scale", as_length_scale(self.length_scale))

    def __repr__(self) -> str:
        values = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in values if value is not None)
        return f"{type(self).__name__}({shown})"

    @abstractmethod
    def spectral_measure(self) -> designs.SpectralMeasure:
        """Return the distribution of the frequencies for a unit length scale (Bochner's theorem)."""

    @abstractmethod
    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the Gram matrix of points divided by their length scales.

        If both are one array, only half of the matrix may be computed.
        """

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        scales = self.length_scales(left.shape[1])
        scaled = left / scales
        return self.of_scaled(scaled, scaled if right is left else right / scales)

    def length_scales(self, n_features: int) -> FloatArray:
        """Return one length scale per input column, shape (n_features,); ones where none was given.

        Raises InvalidParameterError if the kernel has length scales for another number of columns.
        """
        scales = np.asarray(1.0 if self.length_scale is None else self.length_scale, np.float64)
        if scales.ndim and len(scales) != n_features:
            raise InvalidParameterError(
                f"`length_scale` has {len(scales)} entries but the data have {n_features} columns; "
                "give one number, or one per column"
            )
        return np.broadcast_to(scales, n_features)

    def check_columns(self, n_features: int) -> None:
        self.length_scales(n_features)

    def n_uniforms(self, n_features: int) -> int:
        return self.spectral_measure().n_uniforms(n_features)

    @property
    def isotropic(self) -> bool:
        return isinstance(self.spectral_measure(), designs.GaussianMixture)

    def draw(self, design: designs.Design, shape: tuple[int, int], seed: int, *, first: int) -> FloatArray:
        unit = design.draw(self.spectral_measure(), *shape, seed, first=first)
        return unit / self.length_scales(shape[0])[:, np.newaxis]

    def with_length_scale(self, length_scale: float | Sequence[float] | np.ndarray | None) -> Self:
        """Return the same kernel with another length scale; None leaves it to the data."""
        return replace(self, length_scale=length_scale)

    def with_default_length_scales(self, fill: base.LengthScaleFor, columns: base.Columns = None) -> Self:
        return self if self.length_scale is not None else self.with_length_scale(fill(self, columns))

    @property
    def differentiable(self) -> bool:
        """Whether `differentiate` can be called."""
        return False

    def differentiate(self, X: FloatArray) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        """Return the Gram matrix K of rows, and a function from G to the derivatives of Σ_ij G_ij·K_ij.

        Each takes O(n_samples² · n_features). G is a float64 array of shape (n_samples, n_samples). The
        derivatives have shape (n_features + n_logits,): with respect to the logarithms of the length scales,
        then to `logits`.

        `X`: float64 array of shape (n_samples, n_features).
        Raises InvalidParameterError if the kernel is not `differentiable`.
        """
        raise InvalidParameterError(f"{self!r} has no derivative here")

    @property
    def logits(self) -> FloatArray:
        """The logarithms of the weights of its parts that are above 0; none for a kernel without parts."""
        return np.empty(0)

    def with_logits(self, logits: FloatArray) -> Self:
        """Return the same kernel with other `logits`: up to a factor, weights are their exponentials."""
        return self


def _shown(value: object) -> str:
    if not isinstance(value, tuple) or len(value) <= 16:
        return repr(value)
    return f"({', '.join(map(repr, value[:3]))}, … {len(value)} numbers)"


def _square(values: FloatArray) -> FloatArray:
    """Return the Gram matrix of the values of k for each pair of points, as SciPy's `pdist` orders them."""
    gram: FloatArray = scipy.spatial.distance.squareform(values)  # which leaves 0 on the diagonal
    np.fill_diagonal(gram, 1.0)
    return gram


class OfDistance(Stationary):
    """A stationary kernel of the distance alone."""

    @abstractmethod
    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k for distances, in `metric`, between scaled points."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        if left is right:
            return _square(self.of_distance(self._between(left)))  # each pair once: half the time
        distance = scipy.spatial.distance.cdist(left, right, self.metric)
        return self.of_distance(np.minimum(distance, FAR, out=distance))

    def _between(self, points: FloatArray) -> FloatArray:
        """Return the distance of each pair of points, as SciPy's `pdist` orders them."""
        distance: FloatArray = scipy.spatial.distance.pdist(points, self.metric)
        np.minimum(distance, FAR, out=distance)
        return distance

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return k and -k'(r)/r: times δ_j², the derivative by the logarithm of column j's length scale.

        Raises InvalidParameterError if the kernel is not `differentiable`.
        """
        raise InvalidParameterError(f"{self!r} has no derivative here")

    def differentiate(self, X: FloatArray) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        scaled = X / self.length_scales(X.shape[1])
        gram, by_scaled = self.differentiate_scaled(scaled)
        return gram, lambda G: (by_scaled(G) * scaled).sum(axis=0)

    def differentiate_scaled(
        self, scaled: FloatArray
    ) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        """Like `differentiate`, but of rows that are divided by their length scales already, and by these.

        The derivatives are by the scaled rows, with the sign reversed, shape (n_samples, n_features). Times
        the rows, and added up, they are those by the logarithms of length scales.
        """
        values, steepness = self.with_steepness(self._between(scaled))

        def derivatives(G: FloatArray) -> FloatArray:
            # 0 on the diagonal: a row far from all others then cancels nothing
            M: FloatArray = scipy.spatial.distance.squareform(steepness)
            M *= G
            M += M.T
            # Σ_j M_ij·(x_i − x_j), multiplied out: an array of (n, n, n_features) is never made
            return M.sum(axis=0)[:, np.newaxis] * scaled - M @ scaled

        return _square(values), derivatives


class OfCoordinates(Stationary):
    """A stationary kernel that is a product over the coordinates' differences."""

    @abstractmethod
    def of_difference(self, difference: FloatArray) -> FloatArray:
        """Return one coordinate's factor for its scaled differences."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.ones((len(left), len(right)))
        for a, b in zip(left.T, right.T, strict=True):
            # column by column: two arrays of the Gram's size, not n_features of them
            gram *= self.of_difference(np.clip(np.subtract.outer(a, b), -FAR, FAR))
        return gram


def with_length_scale(kernel: base.Kernel, length_scale: base.LengthScale) -> base.Kernel:
    """Return the kernel with another length scale. In sums and products, only parts without one get it.

    Raises InvalidParameterError if no part can take it, or it is not a number above 0.
    """
    if isinstance(kernel, Stationary):
        return kernel.with_length_scale(length_scale)
    if not parts_without_length_scale(kernel):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}, but {kernel} has no part without a length scale; "
            "leave it out"
        )
    return kernel.with_default_length_scales(lambda part, columns: length_scale)


def own_length_scale(kernel: base.Kernel | None) -> base.LengthScale | None:
    """Return a kernel's length scale; None if it has none of its own, as sums and products, or is unknown."""
    return cast("base.LengthScale | None", kernel.length_scale) if isinstance(kernel, Stationary) else None


def parts_without_length_scale(kernel: base.Kernel) -> list[Stationary]:
    """Return the parts of a kernel that were made without a length scale."""
    parts: list[Stationary] = []

    def note(part: Stationary, columns: base.Columns) -> base.LengthScale:
        parts.append(part)
        return 1.0

    kernel.with_default_length_scales(note)
    return parts


@dataclass(frozen=True, repr=False)
class Gaussian(OfDistance):
    """exp(-|x - y|² / 2ℓ²), `sklearn.metrics.pairwise.rbf_kernel`: infinitely smooth functions."""

    name = "gaussian"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return exp(-gamma·|x - y|²), as scikit-learn writes it: gamma = 1 / (2ℓ²)."""
        return cls(length_scale=float(np.sqrt(0.5 / check_positive(gamma, "gamma"))))

    differentiable = True

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-0.5 * distance**2)

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = self.of_distance(distance)
        # k' = −r·k
        return value, value

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.GaussianMixture()


@dataclass(frozen=True, repr=False)
class Laplacian(OfDistance):
    """exp(-|x - y|₁ / ℓ), `sklearn.metrics.pairwise.laplacian_kernel`; the L2 form is `Matern(nu=0.5)`."""

    name = "laplacian"
    metric = "cityblock"

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-distance)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.ProductMeasure(_cauchy_quantile)


@dataclass(frozen=True, repr=False)
class Matern(OfDistance):
    """`sklearn.gaussian_process.kernels.Matern`: functions with derivatives up to order ceil(nu) - 1.

    nu → ∞ is the Gaussian.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        In the inputs' units; a sequence gives one per input column. Without it, see `Stationary`.
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
        # one exponential and a polynomial instead of the Bessel function, which takes far longer
        # these orders need no Bessel function (Rasmussen & Williams 2006, Sec. 4.2.1)
        if self.nu == 0.5:
            return np.exp(-distance)
        if self.nu == 1.5:
            return self._of_order_1(distance)[0]
        if self.nu == 2.5:
            scaled = np.sqrt(5.0) * distance
            return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
        return characteristic.matern_bessel(np.sqrt(2 * self.nu) * distance, self.nu)

    @property
    def differentiable(self) -> bool:
        # up to nu = 1, −k'(r)/r is infinite at 0
        return self.nu > 1

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        if not self.differentiable:
            return super().with_steepness(distance)
        if self.nu == 1.5:
            value, decay = self._of_order_1(distance)
            # k' = −3r·exp(−√3·r)
            decay *= 3.0
            return value, decay
        # d/ds s^ν·K_ν(s) = −s^ν·K_{ν−1}(s) (DLMF 10.29.4): the derivative is a Matérn kernel of order ν − 1
        ratio = self.nu / (self.nu - 1)
        steepness = ratio * Matern(nu=self.nu - 1).of_distance(np.sqrt(ratio) * distance)
        return self.of_distance(distance), steepness

    @staticmethod
    def _of_order_1(distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return k of order 3/2, and exp(-√3·r), which takes most of the time and serves the gradient too."""
        scaled = np.sqrt(3.0) * distance
        decay = np.exp(-scaled)
        scaled += 1.0
        scaled *= decay
        return scaled, decay

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.GaussianMixture(partial(_matern_scales, self.nu))


@dataclass(frozen=True, repr=False)
class RationalQuadratic(OfDistance):
    """(1 + |x - y|²/2aℓ²)^(-a), `sklearn.gaussian_process.kernels.RationalQuadratic` with a as `alpha`.

    A mixture of Gaussians of all length scales; a → ∞ is the Gaussian.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,), optional
        In the inputs' units; a sequence gives one per input column. Without it, see `Stationary`.
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
        return np.asarray(np.exp(-self.shape * np.log1p(distance**2 / (2 * self.shape))))

    def with_steepness(self, distance: FloatArray) -> tuple[FloatArray, FloatArray]:
        # −k'(r)/r = (1 + r²/2a)^(−a−1), a kernel of shape a + 1 at a distance √((a + 1)/a) times as large
        ratio = (self.shape + 1) / self.shape
        steeper = RationalQuadratic(shape=self.shape + 1)
        return self.of_distance(distance), steeper.of_distance(np.sqrt(ratio) * distance)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.GaussianMixture(partial(_gamma_scales, self.shape))


@dataclass(frozen=True, repr=False)
class Cauchy(OfCoordinates):
    """Π_d 1 / (1 + (x_d - y_d)²/ℓ²), a product over columns; some libraries mean 1 / (1 + |x - y|²)."""

    name = "cauchy"

    def of_difference(self, difference: FloatArray) -> FloatArray:
        return 1 / (1 + difference**2)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.ProductMeasure(_laplace_quantile)


@dataclass(frozen=True, repr=False)
class Sinc(OfCoordinates):
    """Π_d sin(δ_d)/δ_d with δ = (x - y)/ℓ: functions without frequencies above 1/ℓ."""

    name = "sinc"

    def of_difference(self, difference: FloatArray) -> FloatArray:
        return np.sinc(difference / np.pi)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.ProductMeasure(_uniform_quantile)


# -- inverse distribution functions of scales, and of coordinates ----------------------------------------


def _matern_scales(nu: float, uniforms: FloatArray) -> FloatArray:
    # Matérn's frequencies follow Student's t distribution: g·√(2ν/χ²), where χ²_2ν/2 follows Gamma(ν)
    with np.errstate(divide="ignore", over="ignore"):  # tiny nu may give infinite scales, which draws refuse
        return np.asarray(np.sqrt(nu / scipy.special.gammaincinv(nu, uniforms)))


def _cauchy_quantile(uniforms: FloatArray) -> FloatArray:
    # exp(−|Δ|) is the characteristic function of Cauchy's distribution
    return np.asarray(np.tan(np.pi * (uniforms - 0.5)))


def _gamma_scales(shape: float, uniforms: FloatArray) -> FloatArray:
    # (1 + r²/2a)^(-a) is the mean of exp(-τr²/2) for τ that follow Gamma(a, rate a)
    return np.asarray(np.sqrt(scipy.special.gammaincinv(shape, uniforms) / shape))


def _laplace_quantile(uniforms: FloatArray) -> FloatArray:
    # 1/(1 + Δ²) is the characteristic function of Laplace's distribution; log1p keeps digits in its middle
    centred = uniforms - 0.5
    return np.asarray(-np.sign(centred) * np.log1p(-2 * np.abs(centred)))


def _uniform_quantile(uniforms: FloatArray) -> FloatArray:
    # sin(Δ)/Δ is the characteristic function of the uniform distribution on [−1, 1]
    return np.asarray(2 * uniforms - 1)


# -- kernels given by the distribution of their frequencies, by Bochner's theorem ---------------------------


@dataclass(frozen=True, init=False, repr=False)
class SpectralKernel(Stationary):
    """k(Δ) = E cos(ω'Δ/ℓ) for frequencies ω of any distribution: every shift-invariant kernel with k(0) = 1.

    The kernel is the real part of the distribution's characteristic function, exact to about 1e-10. A
    distribution that is not symmetric about 0 gives the same kernel as its symmetrised form.

    Parameters
    ----------
    distribution : frozen distribution of scipy.stats
        In radians per unit of the scaled inputs. A distribution of one number, continuous or discrete, is
        the distribution of each coordinate of ω, and coordinates are independent; whole numbers give a kernel
        of period 2πℓ. `multivariate_normal` is the distribution of ω itself, with one dimension per input
        column.
    length_scale : float or sequence of float of shape (n_features,)
        Inputs are divided by it; a sequence gives one per input column. 1 by default, since the distribution
        has a scale of its own.

    Raises
    ------
    InvalidParameterError
        If `distribution` is none of these.

    References
    ----------
    Rahimi & Recht (2007), Thm. 1 (Bochner).

    Examples
    --------
    >>> from scipy import stats
    >>> from rff_dist import Laplacian, SpectralKernel
    >>> kernel = SpectralKernel(stats.cauchy(), length_scale=2.0)
    >>> float(kernel([[0.0]], [[1.0]])[0, 0]) == float(Laplacian(2.0)([[0.0]], [[1.0]])[0, 0])
    True
    >>> periodic = SpectralKernel(stats.poisson(3.0))
    >>> bool(abs(periodic([[0.0]], [[2 * 3.141592653589793]]) - 1) < 1e-12)
    True
    """

    distribution: Any = field(default=None, compare=False)  # as `_law` it is compared
    _law: characteristic.Law | Mixture = field(init=False)

    name = "spectral"

    def __init__(self, distribution: Any, length_scale: Any = 1.0) -> None:
        object.__setattr__(self, "distribution", distribution)
        object.__setattr__(self, "length_scale", length_scale)
        object.__setattr__(self, "_law", _law_of(distribution))
        self.__post_init__()

    @classmethod
    def mixture(
        cls, weights: ArrayLike, means: ArrayLike, scales: ArrayLike, length_scale: base.LengthScale = 1.0
    ) -> Self:
        """Return a spectral mixture, Σ_c w_c · cos(μ_c'Δ) · exp(-|S_c'Δ|²/2), which can learn any spectrum.

        Parameters
        ----------
        weights : array-like of shape (n_mixtures,)
            Above 0; they are divided by their sum.
        means : array-like of shape (n_mixtures, n_features), or (n_mixtures,) for one column
            The components' centres, in radians per unit of the scaled inputs.
        scales : array-like of the shape of `means`, or (n_mixtures, n_features, n_features)
            The coordinates' standard deviations, 0 or more, in the same units; or matrices S_c, for the
            covariances S_c·S_c'.
        length_scale : float or sequence of float of shape (n_features,)
            Inputs are divided by it.

        Raises
        ------
        InvalidParameterError
            If shapes or values do not fit.

        References
        ----------
        Wilson & Adams (2013), eq. 12, who measure frequencies in cycles, not radians, and multiply the
        columns' cosines.

        Examples
        --------
        >>> from rff_dist import SpectralKernel
        >>> kernel = SpectralKernel.mixture(weights=[3, 1], means=[0.0, 6.28], scales=[0.5, 0.1])
        >>> float(kernel([[0.0]], [[0.0]])[0, 0])
        1.0
        """
        return cls(Mixture.of(weights, means, scales), length_scale)

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self._law.gram(left, right)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return self._law.measure()

    def check_columns(self, n_features: int) -> None:
        super().check_columns(n_features)
        if self._law.n_features not in (None, n_features):
            raise InvalidParameterError(
                f"the distribution of the frequencies has {self._law.n_features} dimensions but the data "
                f"have {n_features} columns"
            )

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        self.check_columns(left.shape[1])
        return super().gram(left, right)

    def to_dict(self) -> Summary:
        parameters = super().to_dict()
        del parameters["_law"]
        return {**parameters, "distribution": self._law.to_dict()}

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Self:
        values = parameters["distribution"]
        named = "scipy" in values
        law = characteristic.Law.from_dict(values).distribution if named else Mixture.of(**values)
        return cls(law, parameters["length_scale"])

    def __repr__(self) -> str:
        made_by = ".mixture" if isinstance(self._law, Mixture) else ""
        return f"SpectralKernel{made_by}({self._law}, length_scale={self.length_scale!r})"


def _law_of(distribution: Any) -> characteristic.Law | Mixture:
    from scipy import stats  # takes tens of MiB, which no other kernel needs

    if isinstance(distribution, Mixture):
        return distribution
    if isinstance(distribution, type(stats.multivariate_normal())):
        mean, covariance = np.atleast_1d(distribution.mean), np.atleast_2d(distribution.cov)
        return Mixture.of([1.0], mean[np.newaxis], _root(covariance)[np.newaxis])
    return characteristic.Law.of(distribution)


def _root(covariance: FloatArray) -> FloatArray:
    """Return S with S·S' = `covariance`, which may be singular."""
    try:
        return np.asarray(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        # Cholesky refuses a singular matrix; rounding may make its zero eigenvalues negative
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal distributions of the frequencies; see `SpectralKernel.mixture`."""

    weights: tuple[float, ...]
    means: tuple[Any, ...]
    scales: tuple[Any, ...]

    @classmethod
    def of(cls, weights: ArrayLike, means: ArrayLike, scales: ArrayLike) -> Self:
        """Return the mixture, its parameters checked.

        Raises InvalidParameterError if shapes or values do not fit.
        """
        w, mu, s = _numbers(weights, "weights"), _numbers(means, "means"), _numbers(scales, "scales")
        if mu.ndim == s.ndim == 1:
            mu, s = mu[:, np.newaxis], s[:, np.newaxis]
        fits = mu.ndim == 2 and w.shape == mu.shape[:1] and s.shape in (mu.shape, (*mu.shape, mu.shape[1]))
        if not fits or not mu.size:
            raise InvalidParameterError(
                f"`weights`, `means` and `scales` have the shapes {w.shape}, {mu.shape} and {s.shape}; "
                "expected (n_mixtures,), (n_mixtures, n_features) and (n_mixtures, n_features)"
            )
        if not (w > 0).all():
            raise InvalidParameterError(f"`weights` has the entry {w.min():g}; expected numbers above 0")
        if s.ndim == 2 and not (s >= 0).all():
            raise InvalidParameterError(f"`scales` has the entry {s.min():g}; expected numbers of at least 0")
        # weights that were stored are shares already: dividing again would change their last bits
        shares = w if abs(w.sum() - 1) < 1e-14 * len(w) else w / w.sum()
        return cls(_as_tuples(shares.tolist()), _as_tuples(mu.tolist()), _as_tuples(s.tolist()))

    @property
    def n_features(self) -> int:
        """Dimensions of the frequencies."""
        return len(self.means[0])

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        law = self.measure()
        left, right = left - left[:1], right - left[:1]  # phases of points far from 0 lose digits
        gram = np.zeros((len(left), len(right)))
        for weight, mean, scale in zip(law.weights, law.means, law.scales, strict=True):
            # characteristic function of N(μ, SS'): exp(iμ'Δ − |S'Δ|²/2), of which the real part is the kernel
            a, b = (left * scale, right * scale) if scale.ndim == 1 else (left @ scale, right @ scale)
            waves = np.cos(np.subtract.outer(left @ mean, right @ mean))
            gram += weight * waves * np.exp(-0.5 * scipy.spatial.distance.cdist(a, b, "sqeuclidean"))
        return gram

    def measure(self) -> designs.NormalMixture:
        return designs.NormalMixture(np.array(self.weights), np.array(self.means), np.array(self.scales))

    def to_dict(self) -> Summary:
        law = self.measure()
        return {name: getattr(law, name).tolist() for name in ("weights", "means", "scales")}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.to_dict().items())


def _numbers(values: ArrayLike, name: str) -> FloatArray:
    try:
        numbers = np.asarray(values)
    except ValueError:  # rows of different lengths
        numbers = np.asarray("")
    if numbers.dtype.kind not in "iuf" or numbers.ndim == 0 or not np.isfinite(numbers).all():
        raise InvalidParameterError(f"`{name}` is {values!r}; expected an array of finite numbers")
    return numbers.astype(np.float64)


def _as_tuples(values: Any) -> Any:
    return tuple(_as_tuples(value) for value in values) if isinstance(values, list) else values
