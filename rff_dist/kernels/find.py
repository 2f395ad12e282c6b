"""Kernels found by their text, or rebuilt from what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rff_dist.checks import find_by_name
from rff_dist.errors import InvalidParameterError
from rff_dist.kernels.algebra import Constant, OnColumns, Product, Scaled, Sum
from rff_dist.kernels.base import Kernel
from rff_dist.kernels.explicit import Linear, Min, Polynomial
from rff_dist.kernels.spectral import SpectralKernel
from rff_dist.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern, RationalQuadratic, Sinc
from rff_dist.kernels.text import parse_kernel

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

    Parts that the text gives no length scale take theirs from the data.

    `kernel`: a name, "matern"; with parameters, "matern:nu=2.5"; sums and products, "gaussian + 0.1 *
      linear"; see `rff_dist.kernels.text`.
    Raises InvalidParameterError if no kernel has that name (the message gives the nearest one), or it has no
      such parameters.

    >>> find_kernel("0.5 + 2 * matern:nu=2.5")
    0.5 + 2.0 * Matern(nu=2.5)
    """
    return kernel if isinstance(kernel, Kernel) else parse_kernel(kernel, KERNELS)


def kernel_from_dict(values: Mapping[str, Any]) -> Kernel:
    """Build a kernel from what `Kernel.to_dict` returned.

    Raises InvalidParameterError if the name or a parameter is unknown.
    """
    if not isinstance(values, Mapping):
        raise InvalidParameterError(f"the description of a kernel is {values!r}; expected a dictionary")
    parameters = dict(values)
    kernel = find_by_name({**KERNELS, **_WITH_PARTS}, parameters.pop("name", None), "kernel")
    try:
        if "kernel" in parameters:
            parameters["kernel"] = kernel_from_dict(parameters["kernel"])
        if "kernels" in parameters:
            parameters["kernels"] = [kernel_from_dict(part) for part in parameters["kernels"]]
        return kernel.from_parameters(parameters)
    except (TypeError, KeyError) as error:
        raise InvalidParameterError(
            f"the kernel {kernel.name!r} cannot be made of {sorted(parameters)}: {error}"
        ) from error
