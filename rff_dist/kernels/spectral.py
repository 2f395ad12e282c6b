"""Kernels given by the law of their frequencies, by Bochner's theorem: k(Δ) = E cos(ω'Δ)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs
from rff_dist.kernels import base, characteristic, stationary
from rff_dist.typing import FloatArray


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SpectralKernel(stationary.Stationary):
    """k(Δ) = E cos(ω'Δ/ℓ) for frequencies ω of any law: every shift-invariant kernel with k(0) = 1.

    The kernel is the real part of the law's characteristic function, exact to about 1e-10. A law that is not
    symmetric about 0 gives the same kernel as its symmetrised form.

    Parameters
    ----------
    distribution : frozen distribution of scipy.stats
        In radians per unit of the scaled inputs. A distribution of one number, continuous or discrete, is
        the law of each coordinate of ω, and coordinates are independent; whole numbers give a kernel of
        period 2πℓ. `multivariate_normal` is the law of ω itself, with one dimension per input column.
    length_scale : float or sequence of float of shape (n_features,)
        Inputs are divided by it; a sequence gives one per input column. 1 by default, since the law has a
        scale of its own.

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

    distribution: Any = None
    _law: characteristic.Law | Mixture = field(init=False)

    name = "spectral"

    def __init__(self, distribution: Any, length_scale: Any = 1.0) -> None:
        object.__setattr__(self, "distribution", distribution)
        object.__setattr__(self, "length_scale", length_scale)
        object.__setattr__(self, "_law", _law_of(distribution))
        self.__post_init__()

    @classmethod
    def mixture(
        cls,
        weights: ArrayLike,
        means: ArrayLike,
        scales: ArrayLike,
        length_scale: base.LengthScale = 1.0,
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
                f"the law of the frequencies has {self._law.n_features} dimensions but the data have "
                f"{n_features} columns"
            )

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        self.check_columns(left.shape[1])
        return super().gram(left, right)

    def to_dict(self) -> dict[str, Any]:
        parameters = super().to_dict()
        del parameters["_law"]
        return {**parameters, "distribution": self._law.to_dict()}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        values = parameters["distribution"]
        distribution = (
            characteristic.Law.from_dict(values).distribution
            if "scipy" in values
            else Mixture.of(values["weights"], values["means"], values["scales"])
        )
        return cls(distribution, parameters["length_scale"])

    def __repr__(self) -> str:
        made_by = ".mixture" if isinstance(self._law, Mixture) else ""
        return f"SpectralKernel{made_by}({self._law}, length_scale={self.length_scale!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpectralKernel):
            return NotImplemented
        return (self._law, self.length_scale) == (other._law, other.length_scale)

    def __hash__(self) -> int:
        return hash((self._law, self.length_scale))


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
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


type _Nested = tuple[Any, ...]


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal laws of the frequencies; see `SpectralKernel.mixture`."""

    weights: tuple[float, ...]
    means: _Nested
    scales: _Nested

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
            a, b = (left * scale, right * scale) if scale.ndim == 1 else (left @ scale, right @ scale)
            waves = np.cos(np.subtract.outer(left @ mean, right @ mean))
            gram += weight * waves * np.exp(-0.5 * scipy.spatial.distance.cdist(a, b, "sqeuclidean"))
        return gram

    def measure(self) -> designs.NormalMixture:
        return designs.NormalMixture(np.array(self.weights), np.array(self.means), np.array(self.scales))

    def to_dict(self) -> dict[str, Any]:
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
