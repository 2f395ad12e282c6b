"""What is approximated: kernels k(x, y), exactly, their algebra, and their spectral measures.

Shift-invariant kernels have random Fourier features of their spectral measure: those with a formula are in
`stationary`, those given by the law of their frequencies in `spectral`. Linear, polynomial and min kernels
(`explicit`) have features of their own. Sums, products, multiples and kernels on some columns (`algebra`) are
kernels again. `check_positive_definite` says whether a function of the distance is a kernel at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rff_dist.errors import InvalidParameterError
from rff_dist.kernels.algebra import (
    Constant,
    OnColumns,
    Product,
    Scaled,
    ShiftInvariantProduct,
    Sum,
    product_of,
)
from rff_dist.kernels.base import (
    Kernel,
    LengthScale,
    OfDistance,
    ShiftInvariant,
    Stationary,
    Term,
    as_length_scale,
    check_design,
    check_positive,
    default_design,
    find_design,
    parts_without_length_scale,
    with_length_scale,
)
from rff_dist.kernels.explicit import Linear, Min, Polynomial
from rff_dist.kernels.positive_definite import PositiveDefiniteness, check_positive_definite
from rff_dist.kernels.spectral import SpectralKernel
from rff_dist.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern, RationalQuadratic, Sinc
from rff_dist.kernels.text import parse_kernel
from rff_dist.names import find_by_name

__all__ = [
    "KERNELS",
    "Cauchy",
    "Constant",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "LengthScale",
    "Linear",
    "Matern",
    "Min",
    "OfDistance",
    "OnColumns",
    "Polynomial",
    "PositiveDefiniteness",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "ShiftInvariant",
    "ShiftInvariantProduct",
    "Sinc",
    "SpectralKernel",
    "Stationary",
    "Sum",
    "Term",
    "as_length_scale",
    "check_design",
    "check_positive",
    "check_positive_definite",
    "default_design",
    "find_design",
    "find_kernel",
    "kernel_from_dict",
    "parts_without_length_scale",
    "product_of",
    "with_length_scale",
]

KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel
    for kernel in (
        Gaussian, Laplacian, Cauchy, Sinc, Matern, RationalQuadratic, Linear, Polynomial, Min
    )
}  # fmt: skip
_WITH_PARTS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (Constant, Scaled, Sum, Product, OnColumns, SpectralKernel)
}


def find_kernel(kernel: str | Kernel) -> Kernel:
    """Return the kernel that a text describes, or the object itself.

    Parts of a text have no length scale unless it gives them one: it then comes from the data.

    Parameters
    ----------
    kernel : str or Kernel
        A name; with parameters, "matern:nu=2.5"; sums and products, "gaussian + 0.1 * linear"; see
        `rff_dist.kernels.text`.

    Raises
    ------
    InvalidParameterError
        If no kernel has that name, with the nearest one, or it has no such parameters.

    Examples
    --------
    >>> find_kernel("0.5 + 2 * matern:nu=2.5")
    0.5 + 2.0 * Matern(nu=2.5)
    """
    return kernel if isinstance(kernel, Kernel) else parse_kernel(kernel, KERNELS)


def kernel_from_dict(values: Mapping[str, Any]) -> Kernel:
    """Build a kernel from what `Kernel.to_dict` returned.

    Raises
    ------
    InvalidParameterError
        If the name or a parameter is unknown.
    """
    if not isinstance(values, Mapping):
        raise InvalidParameterError(f"a kernel is described by {values!r}; expected a dictionary")
    parameters = dict(values)
    kernel = find_by_name({**KERNELS, **_WITH_PARTS}, parameters.pop("name", None), "kernel")
    try:
        return kernel.from_parameters(parameters)
    except (TypeError, KeyError) as error:
        raise InvalidParameterError(
            f"the kernel {kernel.name!r} cannot be made of {sorted(parameters)}: {error}"
        ) from error
