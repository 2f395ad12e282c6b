"""Does a way of multiplying give exact sums on this machine? Some processors' byte products saturate."""

from __future__ import annotations

import numpy as np

from rff_dist.products.float64 import Float64Products
from rff_dist.products.protocol import FIXED_POINT_ONE, ONE, Products
from rff_dist.typing import FloatArray, IntArray

_ROWS, _COMPONENTS = 521, 262  # no multiples of anything, and more than one strip of bytes


def find_wrong_sums(products: Products) -> str | None:
    """Return which features a way sums wrongly, None where all sums are those of float64 BLAS."""
    specification = Float64Products()
    for label, numbers in _cases():
        if not np.array_equal(_gram(products, numbers), _gram(specification, numbers)):
            return label
    return None


def _gram(products: Products, numbers: IntArray) -> FloatArray:
    """Return the products of all features with each other, and a region of them again."""
    tile = products.tile(*numbers.shape)
    n_components, rows = len(numbers), slice(0, numbers.shape[1])
    panel = tile.panel(0, n_components, rows)
    panel[...] = numbers / ONE
    tile.put(0, rows, panel)
    found, region = np.empty((n_components, n_components)), np.empty((256, n_components - 256))
    tile.gram(slice(0, n_components), slice(0, n_components), found)
    tile.gram(slice(0, 256), slice(256, n_components), region)
    return np.append(found, region)


def _cases() -> list[tuple[str, IntArray]]:
    """Return features whose bytes are extreme, and random ones."""
    shape = (_COMPONENTS, _ROWS)
    random = np.random.Generator(np.random.Philox(0))
    signs = np.where(np.arange(_ROWS) % 2, -1, 1) * np.ones(shape, np.int64)
    extremes = np.array(
        [FIXED_POINT_ONE, FIXED_POINT_ONE - 64, -FIXED_POINT_ONE, -FIXED_POINT_ONE + 63]
    )  # with l = 0, -64, 0 and 63
    return [
        ("all features +1", np.full(shape, FIXED_POINT_ONE)),
        ("all features -1", np.full(shape, -FIXED_POINT_ONE)),
        ("features of alternating sign", signs * FIXED_POINT_ONE),
        ("features with extreme bytes", random.choice(extremes, shape)),
        ("random features", random.integers(-FIXED_POINT_ONE, FIXED_POINT_ONE, shape, endpoint=True)),
    ]
