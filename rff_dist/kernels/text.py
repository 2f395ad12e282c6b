"""Kernels written as text, for reports and models: "matern:nu=2.5", "gaussian + 0.1 * linear"."""

from __future__ import annotations

import re
from dataclasses import fields

from rff_dist.kernels.base import Kernel, Scaled, Sum
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.stationary import Stationary


def kernel_text(kernel: Kernel) -> str:
    """Return the text that `find_kernel` reads, without length scales; the repr of kernels without a text.

    >>> from rff_dist.kernels.explicit import Linear
    >>> from rff_dist.kernels.stationary import Matern
    >>> kernel_text(Matern(2.0, nu=1.5) + 0.1 * Linear())
    'matern:nu=1.5 + 0.1 * linear'
    """
    if isinstance(kernel, Sum):
        return " + ".join(map(kernel_text, kernel.kernels))
    if isinstance(kernel, Scaled) and not isinstance(kernel.kernel, Sum):
        return f"{kernel.weight:g} * {kernel_text(kernel.kernel)}"
    if not isinstance(kernel, Stationary | Linear):
        return str(kernel)
    own = {f.name: getattr(kernel, f.name) for f in fields(kernel) if f.name != "length_scale"}
    if not all(isinstance(value, int | float) for value in own.values()):
        return str(kernel)
    parameters = ",".join(f"{name}={value:g}" for name, value in own.items())
    return f"{kernel.name}:{parameters}" if parameters else kernel.name


def shortened_text(text: str) -> str:
    """Round the numbers in a kernel's text to three digits, for people.

    >>> shortened_text("Gaussian(length_scale=1.9087707404331382) + Linear()")
    'Gaussian(length_scale=1.91) + Linear()'
    """
    return re.sub(r"\d+\.\d{3,}(e-?\d+)?", lambda number: f"{float(number[0]):.3g}", text)
