"""Products of bytes by JAX: for NVIDIA GPUs, whose int8 tensor cores are much faster than their float64.

Nothing else in the library imports JAX. On processors ONNX Runtime is faster; there JAX serves tests only.
"""

from __future__ import annotations

import time
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from rff_dist.products.protocol import Products, Tile
from rff_dist.products.split import combine, signed, split
from rff_dist.typing import FloatArray


class JaxTile(Tile):
    """Features as bytes, one component per line. They are copied to the device before the first product."""

    def __init__(self, n_components: int, n_rows: int) -> None:
        self.n_components = n_components
        self._travel = Lock()
        self.clear(n_rows)

    def clear(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._planes = np.empty((2, self.n_components, n_rows), np.int8)
        self._on_device: Any = None

    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        return np.empty((stop - start, rows.stop - rows.start))

    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        self._planes[:, start : start + len(panel), rows] = signed(split(panel))

    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        with self._travel:
            if self._on_device is None:
                self._on_device = _jax().device_put(self._planes)
            planes = self._on_device
        high, middle, low = _products()(planes[:, left], planes[:, right])
        combine(np.asarray(high), np.asarray(middle), np.asarray(low), out)


class JaxProducts(Products):
    """Products on JAX's default device."""

    name = "jax"
    region = 2048  # the device's time for a call matters, its caches do not
    clock = staticmethod(time.perf_counter)

    def tile(self, n_components: int, n_rows: int) -> JaxTile:
        return JaxTile(n_components, n_rows)


def on_accelerator() -> bool:
    """Tell whether JAX is installed and finds a device other than the processor."""
    try:
        return bool(_jax().default_backend() != "cpu")
    except (ImportError, RuntimeError):  # RuntimeError: it finds a device that it cannot use
        return False


def _jax() -> Any:
    import jax

    return jax


@lru_cache
def _products() -> Any:
    """Return the compiled function that makes the three sums for `combine` from two pairs of planes."""
    jax = _jax()

    def dot(left: Any, right: Any) -> Any:
        last = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(left, right, last, preferred_element_type=jax.numpy.int32)

    def products(left: Any, right: Any) -> Any:
        (high, low), (right_high, right_low) = left, right
        return dot(high, right_high), dot(high, right_low) + dot(low, right_high), dot(low, right_low)

    return jax.jit(products)
