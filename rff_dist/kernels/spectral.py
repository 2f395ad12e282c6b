"""Kernels given by the distribution of their frequencies, any of SciPy's.

A frozen distribution of scipy.stats goes in; a kernel comes out: by Bochner's theorem
the real part of the distribution's characteristic function E exp(i·ω'Δ). Five
distributions have a closed form here; all others are a mean over their quantiles, since
an integral by quadrature would give Gram matrices with negative eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from rff_dist.checks import is_number
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import measures
from rff_dist.kernels import base, stationary
from rff_dist.typing import ComplexArray, Facts, FloatArray, Summary

# Measured against closed forms, for differences of up to 100 scales: within 2e-3 for
# densities that are smooth or have steps and for discrete distributions, and 2e-2 for
# Lévy's, whose mean is infinite. Features of the kernel have errors of 1/√D, 1e-2 and
# more.
_N_QUANTILES = 2**12
_N_QUANTILES_AT_ONCE = 512  # their waves take 8 KiB a row


@dataclass(frozen=True, init=False, repr=False)
class SpectralKernel(stationary.Stationary):
    """k(Δ) = E cos(ω'Δ/ℓ), ω of independent coordinates of any distribution.

    The kernel is the real part of the distribution's characteristic function. It is
    exact for the normal, Cauchy's, Laplace's, the uniform and Student's t distribution.
    Others are averaged over 4,096 quantiles: within 2e-3, and 2e-2 if the mean is
    infinite. A distribution that is not symmetric about 0 gives the same kernel as its
    symmetrised form. O(n_samples_X · n_samples_Y · n_features · 4,096) without a closed
    form. Sums of these kernels, such as ``3 * slow + fast``, have spectra with several
    peaks.

    Parameters
    ----------
    distribution : frozen distribution of scipy.stats
        The distribution of each coordinate of ω, in radians per unit of the scaled
        inputs; continuous or discrete. Whole numbers give a kernel of period 2πℓ.
    length_scale : float or sequence of float of shape (n_features,)
        Inputs are divided by it; a sequence gives one per input column. 1 by default,
        since the distribution has its own scale.

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
    >>> laplacian = Laplacian(2.0)
    >>> bool(kernel([[0.0]], [[1.0]]) == laplacian([[0.0]], [[1.0]]))
    True
    >>> periodic = SpectralKernel(stats.poisson(3.0))
    >>> bool(abs(periodic([[0.0]], [[2 * 3.141592653589793]]) - 1) < 1e-12)
    True
    """

    # not compared, since `measure` holds it
    distribution: Any = field(default=None, compare=False)
    measure: ScipyMeasure = field(init=False)
    # always empty: `with_categories` refuses any
    categories: tuple[int, ...] = field(default=(), init=False)

    name = "spectral"

    # written out, since `distribution` comes before the inherited field `length_scale`
    def __init__(self, distribution: Any, length_scale: Any = 1.0) -> None:
        object.__setattr__(self, "distribution", distribution)
        object.__setattr__(self, "length_scale", length_scale)
        object.__setattr__(self, "measure", measure_of(distribution))
        self.__post_init__()

    def of_scaled(
        self, left: stationary.Points, right: stationary.Points
    ) -> FloatArray:
        # the product of the real parts would be another kernel if the distribution is
        # not symmetric
        product = np.ones((len(left), len(right)), np.complex128)
        for a, b in zip(left.numbers.T, right.numbers.T, strict=True):
            product *= self.measure.characteristic_function(a, b)
        return np.ascontiguousarray(product.real)

    def with_categories(self, columns: Sequence[int]) -> Self:
        base.Kernel.with_categories(self, columns)  # refuses any
        return self

    def spectral_measure(self) -> measures.SpectralMeasure:
        return self.measure

    def to_dict(self) -> Summary:
        if self.measure.name is None:
            raise InvalidParameterError(
                f"the distribution {self.distribution!r} has no name in scipy.stats, so"
                " its kernel cannot be stored; take a distribution of scipy.stats"
            )
        return {
            "name": self.name,
            "length_scale": base.as_json(self.length_scale),
            "distribution": {
                "scipy": self.measure.name,
                "parameters": dict(self.measure.parameters),
            },
        }

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Self:
        from scipy import stats  # takes tens of MiB, which no other kernel needs

        distribution = parameters["distribution"]
        name = distribution.get("scipy")
        family = getattr(stats, name, None) if isinstance(name, str) else None
        if not isinstance(family, stats.rv_continuous | stats.rv_discrete):
            raise InvalidParameterError(f"scipy.stats has no distribution {name!r}")
        return cls(family(**distribution["parameters"]), parameters["length_scale"])

    def __repr__(self) -> str:
        name = self.measure.name
        distribution = repr(self.distribution)
        if name is not None:
            values = [f"{key}={value!r}" for key, value in self.measure.parameters]
            distribution = f"stats.{name}({', '.join(values)})"
        return f"SpectralKernel({distribution}, length_scale={self.length_scale!r})"


@dataclass(frozen=True)
class ScipyMeasure:
    """A spectral measure whose coordinates follow a distribution of scipy.stats."""

    #: The distribution's name in scipy.stats; None for a user's own distribution.
    name: str | None
    #: Shape parameters, `loc` and `scale`.
    parameters: tuple[tuple[str, float], ...]
    #: A user's own distribution, which no name tells from others; else None.
    own_distribution: Any
    distribution: Any = field(compare=False, repr=False)

    def n_uniforms(self, n_features: int) -> int:
        return n_features

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        return np.asarray(self.distribution.ppf(uniforms[:, :n_features]))

    def characteristic_function(
        self, left: FloatArray, right: FloatArray
    ) -> FloatArray | ComplexArray:
        """Return E exp(i·ω·(a - b)) for all pairs of numbers a, b."""
        if self.name not in _CLOSED_FORMS:
            return self._mean_over_quantiles(left, right)
        difference = np.subtract.outer(left, right)
        parameters = dict(self.parameters)
        loc = parameters.pop("loc")
        scale = parameters.pop("scale")
        values: FloatArray = _CLOSED_FORMS[self.name](difference * scale, **parameters)
        return values if loc == 0 else values * np.exp(1j * loc * difference)

    def _mean_over_quantiles(self, left: FloatArray, right: FloatArray) -> ComplexArray:
        probabilities = (np.arange(_N_QUANTILES) + 0.5) / _N_QUANTILES
        quantiles = self.distribution.ppf(probabilities)
        # subtract a point, since phases of points far from 0 would lose digits
        a = np.clip(left - left[0], -stationary.FAR, stationary.FAR)
        b = np.clip(right - left[0], -stationary.FAR, stationary.FAR)
        total = np.zeros((len(a), len(b)), np.complex128)
        for part in np.split(quantiles, _N_QUANTILES // _N_QUANTILES_AT_ONCE):
            waves = np.exp(1j * np.multiply.outer(a, part))
            total += waves @ np.exp(-1j * np.multiply.outer(part, b))
        return total / _N_QUANTILES


# characteristic functions for loc = 0 and scale = 1
_CLOSED_FORMS: dict[str | None, Callable[..., Any]] = {
    "norm": lambda t: np.exp(-0.5 * t**2),
    "cauchy": lambda t: np.exp(-np.abs(t)),
    "laplace": lambda t: 1 / (1 + t**2),
    # SciPy's uniform distribution is that on [0, 1], hence exp(it/2)
    "uniform": lambda t: np.sinc(t / (2 * np.pi)) * np.exp(0.5j * t),
    # Student's t distribution and the Matérn kernel are a Fourier pair (Rasmussen &
    # Williams 2006, eq. 4.15)
    "t": lambda t, df: stationary.matern_bessel(np.sqrt(df) * np.abs(t), df / 2),
}


def measure_of(distribution: Any) -> ScipyMeasure:
    """Return the measure of a frozen distribution of scipy.stats.

    Raises InvalidParameterError if its parameters do not suit it.
    """
    from scipy import stats

    family = getattr(distribution, "dist", None)
    if not isinstance(family, stats.rv_continuous | stats.rv_discrete):
        raise InvalidParameterError(
            f"`distribution` is {distribution!r}; expected a frozen distribution of one"
            " number of scipy.stats, such as stats.norm(scale=2.0) or stats.t(df=3)"
        )
    parameters: Summary = {"loc": 0.0}
    if isinstance(family, stats.rv_continuous):
        parameters["scale"] = 1.0
    shapes = family.shapes.split(", ") if family.shapes else []
    names = [*shapes, *parameters]
    parameters |= dict(zip(names, distribution.args, strict=False))
    parameters |= distribution.kwds
    for name, value in parameters.items():
        if isinstance(value, np.ndarray | np.generic) and value.size == 1:
            parameters[name] = value.item()
    if not all(is_number(v) and np.isfinite(v) for v in parameters.values()):
        raise InvalidParameterError(
            f"`distribution` has the parameters {parameters}; expected one finite"
            " number for each"
        )
    if not np.isfinite(distribution.ppf(0.5)):  # NaN for parameters out of range
        raise InvalidParameterError(
            f"`distribution` has the parameters {parameters}, for which"
            f" scipy.stats.{family.name} is not defined"
        )

    # a distribution of a user's own values has `xk`, and no name in scipy.stats
    namesake = getattr(stats, str(family.name), None)
    has_name = type(namesake) is type(family) and not hasattr(family, "xk")
    return ScipyMeasure(
        name=family.name if has_name else None,
        parameters=tuple(sorted(parameters.items())),
        own_distribution=None if has_name else distribution,
        distribution=distribution,
    )
