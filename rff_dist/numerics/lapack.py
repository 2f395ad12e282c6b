"""Routines of the LAPACK that SciPy brings, called without the interpreter's lock."""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.typing import FloatArray


def call(name: str, *arguments: bytes | int | FloatArray) -> None:
    """Call a routine, which writes its results into the given arrays.

    LAPACK takes all arguments as pointers, and returns a status in the last one, which
    is added here. Raises SolveError if the status is not 0.

    SciPy's own wrappers hold the interpreter's lock, so that threads could not solve
    side by side.
    """
    status = ctypes.c_int(0)
    pointers = [_pointer(argument) for argument in (*arguments, status)]
    _routine(name, len(pointers))(*pointers)
    if status.value:
        raise SolveError(f"LAPACK's {name} returned {status.value}; report this")


def _pointer(argument: bytes | int | ctypes.c_int | FloatArray) -> object:
    """Return an argument as the pointer that LAPACK takes.

    `ctypes.cast` would leave reference cycles for Python to collect.
    """
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    if isinstance(argument, bytes):
        return argument
    return ctypes.byref(
        ctypes.c_int(argument) if isinstance(argument, int) else argument
    )


@cache
def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """Return a routine by its name; see `scipy.linalg.cython_lapack`."""
    # a capsule's name is the routine's signature in C, and its pointer the routine
    capsule = scipy.linalg.cython_lapack.__pyx_capi__[name]
    named = ctypes.pythonapi.PyCapsule_GetName
    named.restype = ctypes.c_char_p
    named.argtypes = [ctypes.py_object]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype = ctypes.c_void_p
    address.argtypes = [
        ctypes.py_object,
        ctypes.c_char_p,
    ]
    # functions of this type, unlike PYFUNCTYPE's, release the interpreter's lock while
    # they run
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)
    return kind(address(capsule, named(capsule)))
