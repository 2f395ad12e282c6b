"""Kernels with a length scale: k(x, y) exactly, and the law of their frequencies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar, Self, cast

import numpy as np
import scipy

from rff_dist.checks import check_positive
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import designs
from rff_dist.kernels import base, characteristic
from rff_dist.typing import FloatArray

_FAR = 1e100  # larger distances count as this one, whose square does not overflow


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
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in given if value is not None)
        return f"{type(self).__name__}({shown})"

    @abstractmethod
    def spectral_measure(self) -> designs.SpectralMeasure:
        """Return the law of the frequencies for a unit length scale (Bochner's theorem)."""

    @abstractmethod
    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the Gram matrix of points divided by their length scales."""

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        scales = self.length_scales(left.shape[1])
        return self.of_scaled(left / scales, right / scales)

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

    def draw(
        self, design: designs.Design, n_features: int, n_frequencies: int, seed: int, *, first: int
    ) -> FloatArray:
        unit = design.draw(self.spectral_measure(), n_features, n_frequencies, seed, first=first)
        return unit / self.length_scales(n_features)[:, np.newaxis]

    def with_length_scale(self, length_scale: float | Sequence[float] | np.ndarray | None) -> Self:
        """Return the same kernel with another length scale; None leaves it to the data."""
        return replace(self, length_scale=length_scale)

    def with_default_length_scales(
        self, fill: base.LengthScaleFor, columns: base.Columns = None
    ) -> base.Kernel:
        return self if self.length_scale is not None else self.with_length_scale(fill(self, columns))


def _shown(value: object) -> str:
    if not isinstance(value, tuple) or len(value) <= 16:
        return repr(value)
    return f"({', '.join(map(repr, value[:3]))}, … {len(value)} numbers)"


class OfDistance(Stationary):
    """A stationary kernel of the distance alone."""

    @abstractmethod
    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k for distances, in `metric`, between scaled points."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        distance = scipy.spatial.distance.cdist(left, right, self.metric)
        return self.of_distance(np.minimum(distance, _FAR, out=distance))


class OfCoordinates(Stationary):
    """A stationary kernel that is a product over the coordinates' differences."""

    @abstractmethod
    def of_difference(self, difference: FloatArray) -> FloatArray:
        """Return one coordinate's factor for its scaled differences."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.ones((len(left), len(right)))
        for a, b in zip(left.T, right.T, strict=True):
            gram *= self.of_difference(np.clip(np.subtract.outer(a, b), -_FAR, _FAR))
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
    found: list[Stationary] = []

    def note(part: Stationary, columns: base.Columns) -> base.LengthScale:
        found.append(part)
        return 1.0

    kernel.with_default_length_scales(note)
    return found


@dataclass(frozen=True, repr=False)
class Gaussian(OfDistance):
    """exp(-|x - y|² / 2ℓ²): infinitely smooth functions."""

    name = "gaussian"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return exp(-gamma·|x - y|²), as scikit-learn writes it: gamma = 1 / (2ℓ²)."""
        return cls(length_scale=float(np.sqrt(0.5 / check_positive(gamma, "gamma"))))

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-0.5 * distance**2)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.GaussianMixture()


@dataclass(frozen=True, repr=False)
class Laplacian(OfDistance):
    """exp(-|x - y|₁ / ℓ), with the L1 distance as in scikit-learn; the L2 form is `Matern(nu=0.5)`."""

    name = "laplacian"
    metric = "cityblock"

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.exp(-distance)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.ProductMeasure(_cauchy_quantile)


@dataclass(frozen=True, repr=False)
class Matern(OfDistance):
    """Matérn kernel: functions with derivatives up to order ceil(nu) - 1; nu → ∞ is the Gaussian.

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
        # these orders need no Bessel function (Rasmussen & Williams 2006, Sec. 4.2.1)
        if self.nu == 0.5:
            return np.exp(-distance)
        if self.nu == 1.5:
            scaled = np.sqrt(3.0) * distance
            return np.asarray((1 + scaled) * np.exp(-scaled))
        if self.nu == 2.5:
            scaled = np.sqrt(5.0) * distance
            return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
        return characteristic.matern_bessel(np.sqrt(2 * self.nu) * distance, self.nu)

    def spectral_measure(self) -> designs.SpectralMeasure:
        return designs.GaussianMixture(partial(_matern_scales, self.nu))


@dataclass(frozen=True, repr=False)
class RationalQuadratic(OfDistance):
    """(1 + |x - y|²/2aℓ²)^(-a): a mixture of Gaussians of all length scales; a → ∞ is the Gaussian.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shape", check_positive(self.shape, "shape"))

    def of_distance(self, distance: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-self.shape * np.log1p(distance**2 / (2 * self.shape))))

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
    # Matérn's frequencies follow Student's t law: g·√(2ν/χ²), where χ²_2ν/2 follows Gamma(ν)
    with np.errstate(divide="ignore", over="ignore"):  # tiny nu may give infinite scales, which draws refuse
        return np.asarray(np.sqrt(nu / scipy.special.gammaincinv(nu, uniforms)))


def _cauchy_quantile(uniforms: FloatArray) -> FloatArray:
    return np.asarray(np.tan(np.pi * (uniforms - 0.5)))


def _gamma_scales(shape: float, uniforms: FloatArray) -> FloatArray:
    # (1 + r²/2a)^(-a) is the mean of exp(-τr²/2) for τ that follow Gamma(a, rate a)
    return np.asarray(np.sqrt(scipy.special.gammaincinv(shape, uniforms) / shape))


def _laplace_quantile(uniforms: FloatArray) -> FloatArray:
    centred = uniforms - 0.5
    return np.asarray(-np.sign(centred) * np.log1p(-2 * np.abs(centred)))


def _uniform_quantile(uniforms: FloatArray) -> FloatArray:
    return np.asarray(2 * uniforms - 1)
