"""What is approximated: shift-invariant kernels k(x, y), exactly, and their spectral measures."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.spatial.distance import cdist

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.frequencies import (
    DESIGNS,
    Design,
    FloatArray,
    GaussianMixture,
    ProductMeasure,
    SpectralMeasure,
    seed_of,
)

type LengthScale = float | tuple[float, ...]

_FAR = 1e100  # all kernels are 0 long before, and the squares of larger distances overflow


def check_positive(value: object, name: str) -> float:
    """Return `value` as a float if it is a finite number above 0.

    Raises
    ------
    InvalidParameterError
        Otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise InvalidParameterError(f"`{name}` is {value!r}; expected a finite number above 0")
    return float(value)


def _as_length_scale(value: float | Sequence[float] | np.ndarray) -> LengthScale:
    if np.ndim(value) == 0:
        return check_positive(value.item() if isinstance(value, np.ndarray) else value, "length_scale")
    if np.ndim(value) != 1 or len(value) == 0:  # type: ignore[arg-type]
        raise InvalidParameterError(
            f"`length_scale` has shape {np.shape(value)}; expected one number, or one per input column"
        )
    return tuple(check_positive(v, "length_scale") for v in value)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Kernel(ABC):
    """A positive definite function of the difference of two points, with k(x, x) = 1.

    Call it on two sets of points for the exact Gram matrix; draw frequencies from its spectral
    measure for random features.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,)
        The kernel's width, in the inputs' units; a sequence gives one width per input column.
    """

    length_scale: float | Sequence[float] | np.ndarray = 1.0

    name: ClassVar[str]
    metric: ClassVar[str] = "euclidean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_scale", _as_length_scale(self.length_scale))

    @abstractmethod
    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k as a function of the distance (in `metric`) between scaled points."""

    @abstractmethod
    def spectral_measure(self) -> SpectralMeasure:
        """Return the law of the frequencies for a unit length scale (Bochner's theorem)."""

    def length_scales(self, n_features: int) -> FloatArray:
        """Return one length scale per input column, shape (n_features,).

        Raises
        ------
        InvalidParameterError
            If the kernel has another number of length scales than there are columns.
        """
        scales = np.asarray(self.length_scale, np.float64)
        if scales.ndim and len(scales) != n_features:
            raise InvalidParameterError(
                f"`length_scale` has {len(scales)} entries but the data have {n_features} columns; "
                "give one number, or one per column"
            )
        return np.broadcast_to(scales, n_features)

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> FloatArray:
        """Return the Gram matrix k(x_i, y_j), O(n_samples_X * n_samples_Y * n_features).

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
        Y : array-like of shape (n_samples_Y, n_features), optional
            X itself where it is left out.

        Returns
        -------
        gram : float64 array of shape (n_samples_X, n_samples_Y)

        Raises
        ------
        DataError
            If X and Y have different numbers of columns.
        """
        left = np.atleast_2d(np.asarray(X, np.float64))
        right = left if Y is None else np.atleast_2d(np.asarray(Y, np.float64))
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise DataError(
                f"X has shape {left.shape} and Y {right.shape}; expected the same number of columns"
            )
        scales = self.length_scales(left.shape[1])
        distance = cdist(left / scales, right / scales, self.metric)
        return self.of_distance(np.minimum(distance, _FAR, out=distance))

    def sample_frequencies(
        self,
        n_features: int,
        n_frequencies: int,
        *,
        design: str | Design = "iid",
        rng: int | np.random.Generator,
    ) -> FloatArray:
        """Draw frequencies from the kernel's spectral measure.

        Parameters
        ----------
        n_features : int
            Columns of the inputs.
        n_frequencies : int
            How many to draw. The first m of a longer draw with the same seed are the draw of m.
        design : {"iid", "orthogonal"} or Design
            How they are arranged; orthogonal has less variance and needs an isotropic kernel.
        rng : int or numpy.random.Generator
            The seed; a Generator is asked for one.

        Returns
        -------
        frequencies : float64 array of shape (n_features, n_frequencies)
            In radians per unit of the inputs.

        References
        ----------
        Rahimi & Recht (2007), Alg. 1; Yu et al. (2016), Sec. 3.
        """
        counts: dict[str, Any] = {"n_features": n_features, "n_frequencies": n_frequencies}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InvalidParameterError(f"`{name}` is {value!r}; expected an integer of at least 1")
        arrange = find_design(design)
        unit = arrange.draw(self.spectral_measure(), n_features, n_frequencies, seed_of(rng))
        return unit / self.length_scales(n_features)[:, np.newaxis]

    def with_length_scale(self, length_scale: float | Sequence[float] | np.ndarray) -> Self:
        """Return the same kernel with another width."""
        return replace(self, length_scale=length_scale)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and parameters as JSON-able values; `kernel_from_dict` is the way back."""
        scale = self.length_scale
        return {"name": self.name, "length_scale": list(scale) if isinstance(scale, tuple) else scale}


@dataclass(frozen=True)
class Gaussian(Kernel):
    """exp(-|x - y|² / 2ℓ²): infinitely smooth functions."""

    name = "gaussian"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return exp(-gamma·|x - y|²), scikit-learn's way to write it: gamma = 1 / (2ℓ²)."""
        return cls(length_scale=float(np.sqrt(0.5 / check_positive(gamma, "gamma"))))

    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k as a function of the scaled Euclidean distance."""
        return np.exp(-0.5 * distance**2)

    def spectral_measure(self) -> SpectralMeasure:
        """Return N(0, I)."""
        return GaussianMixture()


@dataclass(frozen=True)
class Laplacian(Kernel):
    """exp(-|x - y|₁ / ℓ), with the L1 distance (scikit-learn's); the L2 form is `Matern(nu=0.5)`."""

    name = "laplacian"
    metric = "cityblock"

    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k as a function of the scaled L1 distance."""
        return np.exp(-distance)

    def spectral_measure(self) -> SpectralMeasure:
        """Return independent standard Cauchy coordinates."""
        return ProductMeasure(_cauchy_quantile)


@dataclass(frozen=True)
class Matern(Kernel):
    """Matérn kernel: functions with derivatives up to order ceil(nu) - 1; nu → ∞ is the Gaussian.

    Parameters
    ----------
    length_scale : float or sequence of float of shape (n_features,)
        The kernel's width, in the inputs' units; a sequence gives one width per input column.
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
        """Return k as a function of the scaled Euclidean distance."""
        if self.nu == 0.5:
            return np.exp(-distance)
        if self.nu == 1.5:
            scaled = np.sqrt(3.0) * distance
            return np.asarray((1 + scaled) * np.exp(-scaled))
        if self.nu == 2.5:
            scaled = np.sqrt(5.0) * distance
            return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
        return _matern_bessel(np.sqrt(2 * self.nu) * distance, self.nu)

    def spectral_measure(self) -> SpectralMeasure:
        """Return g·√(2ν/χ²_{2ν}), a multivariate Student t: one χ² per vector, not per coordinate."""
        return GaussianMixture(_MaternScale(self.nu))

    def to_dict(self) -> dict[str, Any]:
        """Return the name and parameters as JSON-able values."""
        return {**super().to_dict(), "nu": self.nu}


def _matern_bessel(scaled: FloatArray, nu: float) -> FloatArray:
    """Return 2^(1-ν)/Γ(ν)·s^ν·K_ν(s), by logarithms, since each factor alone overflows."""
    gram = np.ones_like(scaled)
    positive = scaled > 0
    s = scaled[positive]
    with np.errstate(divide="ignore", over="ignore"):
        log_bessel = np.log(special.kve(nu, s)) - s
    log_value = (1 - nu) * np.log(2.0) - special.gammaln(nu) + nu * np.log(s) + log_bessel
    values = np.exp(np.minimum(log_value, 0.0))
    beyond = ~np.isfinite(log_value)
    values[beyond] = _matern_debye(s[beyond], nu)
    gram[positive] = values
    return gram


def _matern_debye(s: FloatArray, nu: float) -> FloatArray:
    """Return the Matérn kernel where K_ν overflows (s small beside ν) or underflows (huge s: 0).

    The expansion for large orders, DLMF 10.41.4, divided by its value at s = 0, in a form that cancels
    nothing: within 1e-12 wherever K_ν overflows.
    """
    ratio = s / nu
    excess = ratio * (ratio / (1 + np.hypot(1, ratio)))  # √(1 + (s/ν)²) - 1
    t = 1 / (1 + excess)
    terms = (  # of the logarithm of the series; each is a polynomial in t, less its value at t = 1
        (3 * t - 5 * t**3 + 2) / 24,
        (t**2 - 6 * t**4 + 5 * t**6) / 16,
        (375 * t**3 - 4779 * t**5 + 9945 * t**7 - 5525 * t**9 - 16) / 5760,
    )
    log_value = -nu * (excess - np.log1p(excess / 2)) - np.log1p(excess) / 2
    log_value += -terms[0] / nu + terms[1] / nu**2 - terms[2] / nu**3
    return np.asarray(np.exp(np.minimum(log_value, 0.0)))


@dataclass(frozen=True, slots=True)
class _MaternScale:
    nu: float

    def __call__(self, uniforms: FloatArray) -> FloatArray:
        with np.errstate(
            divide="ignore", over="ignore"
        ):  # a tiny nu may give an infinite scale, which drawing refuses
            return np.asarray(np.sqrt(self.nu / special.gammaincinv(self.nu, uniforms)))


def _cauchy_quantile(uniforms: FloatArray) -> FloatArray:
    return np.asarray(np.tan(np.pi * (uniforms - 0.5)))


KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (Gaussian, Laplacian, Matern)}


def _find[T](table: Mapping[str, T], name: object, what: str) -> T:
    if isinstance(name, str) and name in table:
        return table[name]
    close = difflib.get_close_matches(str(name), table, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise InvalidParameterError(
        f"unknown `{what}` {name!r}{hint}; expected one of {sorted(table)} or an object"
    )


def find_kernel(kernel: str | Kernel) -> Kernel:
    """Return the kernel of that name (with a unit length scale), or the object itself.

    Raises
    ------
    InvalidParameterError
        If no kernel has that name; the message gives the nearest one.
    """
    return kernel if isinstance(kernel, Kernel) else _find(KERNELS, kernel, "kernel")()


def find_design(design: str | Design) -> Design:
    """Return the design of that name, or the object itself.

    Raises
    ------
    InvalidParameterError
        If no design has that name; the message gives the nearest one.
    """
    return _find(DESIGNS, design, "design") if not hasattr(design, "draw") else design  # type: ignore[return-value]


def kernel_from_dict(values: Mapping[str, Any]) -> Kernel:
    """Build a kernel from what `Kernel.to_dict` returned.

    Raises
    ------
    InvalidParameterError
        If the name or a parameter is unknown.
    """
    parameters = dict(values)
    kernel = _find(KERNELS, parameters.pop("name", None), "kernel")
    try:
        return kernel(**parameters)
    except TypeError as error:
        raise InvalidParameterError(f"kernel {kernel.name!r} does not take {sorted(parameters)}") from error
