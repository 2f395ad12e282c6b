"""Parameters that several estimators have, checked before the fit.

A parameter goes in as the user gave it; what the library takes comes out, or an error
that names the parameter.
"""

from typing import Any

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.features import length_scales
from rff_dist.kernels import base, stationary
from rff_dist.kernels.names import find_kernel


def check_flag(value: object, name: str) -> bool:
    """Return `value` as a bool; raise InvalidParameterError if it is no truth value."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidParameterError(f"`{name}` is {value!r}; expected True or False")
    return bool(value)


def choose_kernel(
    kernel: str | base.Kernel, length_scale: Any
) -> tuple[base.Kernel, str | base.LengthScale]:
    """Return the kernel as an object, and the length scale as it is, to draw with.

    "evidence" and "median" replace the length scale of a kernel object. Raises
    InvalidParameterError for numbers if the object has a length scale, for None and
    for a kernel that the length scale does not suit. Unknown texts pass: those that
    take the texts, `for_dataset.resolve_kernel` or the options of a fit, refuse them.
    """
    kernel_object = find_kernel(kernel)
    if length_scale is None:
        raise InvalidParameterError(
            "`length_scale` is None; expected 'auto', 'median', 'evidence' or numbers"
            " above 0"
        )
    if isinstance(length_scale, str):
        if length_scale == "evidence":
            length_scales.check_tunable(kernel_object)
    elif (
        isinstance(kernel_object, stationary.Stationary)
        and kernel_object.length_scale is not None
    ):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r} together with {kernel!r}, which has"
            " its own; give one of them"
        )
    else:
        stationary.with_length_scale(kernel_object, length_scale)  # checks the numbers
    return kernel_object, length_scale


def map_for(n_components: Any) -> str:
    """Return "pairs", or "phases" if some number of components is odd."""
    if isinstance(n_components, str):
        return "pairs"  # which have less variance than phases
    # all widths are prefixes of one draw, so one odd number makes all of them phases
    is_odd = any(width % 2 for width in np.atleast_1d(n_components))
    return "phases" if is_odd else "pairs"
