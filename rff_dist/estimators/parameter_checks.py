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


def choose_kernel(kernel: str | base.Kernel, length_scale: Any) -> base.Kernel:
    """Return the kernel as an object, checked together with the length scale.

    "evidence" and "median" replace the length scale of a kernel object. Raises
    InvalidParameterError if the length scale is None; if it is a number and the object
    has its own; or if it does not suit the kernel. An unknown text passes: what takes
    the text, `for_dataset.resolve_kernel` or the options of a fit, refuses it.
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
    return kernel_object


def map_for(n_components: Any) -> str:
    """Return which map of Fourier features has these numbers of components.

    "pairs": cosine and sine of each frequency, so an even number; "phases": a cosine
    with a random phase for each frequency, with more variance.
    """
    if isinstance(n_components, str):  # "auto" chooses an even number
        return "pairs"
    # smaller numbers take the first components of one draw, which has one map
    is_odd = any(width % 2 for width in np.atleast_1d(n_components))
    return "phases" if is_odd else "pairs"
