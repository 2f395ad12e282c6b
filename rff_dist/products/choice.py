"""Choose the fastest way in which this process multiplies fixed-point features.

The size of the work goes in; a way to multiply, `Products`, comes out. All ways give
the same whole numbers, so no result depends on the choice, and a cluster may mix
machines. A process measures the ways once, if the work is worth it, after a self-test:
some processors saturate when they multiply bytes, and give wrong sums.
"""

import logging
import math
import os
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.numerics import machine
from rff_dist.products import bytes as byte_products
from rff_dist.products import protocol
from rff_dist.typing import FloatArray, IntArray

logger = logging.getLogger(__name__)

VARIABLE = "RFF_DIST_PRODUCTS"
# Each imports its library at its first use.
WAYS: Mapping[str, Callable[[], protocol.Products]] = {
    "float64": protocol.Float64Products,
    "bytes": byte_products.ByteProducts,
}
# Operations worth a measurement: half a second of float64; a measurement takes 0.2 s.
WORTH_MEASURING = 2e10
# Below this number of components float64 is as fast: laying features out as bytes costs
# as much as their few products save.
NARROW = 128
# What a measurement multiplies. A region is a block of Z'Z, with this many components
# on each side. A tile holds the features of some rows; a panel is the part of a tile
# that is filled at a time, and `Tile.put` lays it out for the products.
_REGION = 512
_ROWS = 1024
_REPEATS = 3
# Sizes of the self-test: no multiples of the length of a processor's vectors. Products
# that do not lie on the diagonal of Z'Z are of the first components with the others.
_TEST_ROWS = 521
_TEST_COMPONENTS = 262
_FIRST = 256


@dataclass(frozen=True)
class Rate:
    """How fast a way of multiplying is, in one thread."""

    products: protocol.Products
    #: Billions of operations per second, counted as those that float64 would need.
    gflops: float
    #: Seconds to lay out one component of one row.
    put_seconds: float

    def seconds(self, n_components: int) -> float:
        """Return the seconds for a row: half the operations, as Z'Z is symmetric."""
        return n_components * self.put_seconds + n_components**2 / (1e9 * self.gflops)


@dataclass(frozen=True)
class ProductRates:
    """The ways to multiply on this machine."""

    #: The rates of ways that sum exactly.
    rates: tuple[Rate, ...]
    #: The names of ways that do not work here, with the reasons.
    refused: Mapping[str, str]

    def best(self, n_components: int) -> Rate:
        """Return the rate of the fastest way for `n_components`."""
        return min(self.rates, key=lambda rate: rate.seconds(n_components))

    def describe(self, n_components: int) -> str:
        """Say which way is taken for `n_components`, and the rates of all ways."""
        best = self.best(n_components).products.name
        rates = ", ".join(
            f"{rate.products.name} {rate.gflops:.0f}e9" for rate in self.rates
        )
        refusal_words = "".join(
            f"; {name} are not used: {reason}; results are the same, in more time"
            for name, reason in self.refused.items()
        )
        return f"{best} ({rates} operations a second on one thread{refusal_words})"


def products_for(n_rows: int, n_components: int) -> protocol.Products:
    """Return the way to multiply the features of all rows of a pass.

    Up to half a second of work is done by float64 BLAS. For more, a process measures
    all ways at its first such pass, and takes the fastest. `RFF_DIST_PRODUCTS` may name
    a way instead. Raises InvalidParameterError if that does not work here.
    """
    return _choose(n_components, float(n_rows) * n_components**2)


def rate_for(n_components: int, operations: float = math.inf) -> Rate:
    """Return the rate of the way that `products_for` chooses for so many operations."""
    return _measure_rate(_choose(n_components, operations))


def _choose(n_components: int, operations: float) -> protocol.Products:
    forced = os.environ.get(VARIABLE)
    if forced:
        return _forced(forced)
    if n_components < NARROW or operations < WORTH_MEASURING:
        return protocol.Float64Products()
    return measure().best(n_components).products


def check_environment() -> None:
    """Raise InvalidParameterError if the environment names an unknown way."""
    forced = os.environ.get(VARIABLE)
    if forced and forced not in WAYS:
        raise InvalidParameterError(
            f"{VARIABLE} is {forced!r}; expected one of {', '.join(WAYS)}, or nothing"
            " for the fastest"
        )


@lru_cache
def _forced(name: str) -> protocol.Products:
    check_environment()
    products = WAYS[name]()
    reason = _reason_against(products)
    if reason is not None:
        raise InvalidParameterError(
            f"{VARIABLE} is {name!r}, which does not work here: {reason}; unset it"
        )
    logger.debug("products of features by %s, as %s says", name, VARIABLE)
    return products


_measuring = Lock()


def measure() -> ProductRates:
    """Return the ways to multiply on this machine, measured at the first call."""
    with _measuring:  # `lru_cache` alone would let two threads measure at once
        return _measure()


@lru_cache
def _measure() -> ProductRates:
    with machine.single_threaded_blas():
        rates = [_measure_rate(protocol.Float64Products())]
        refused = {}
        # the only other way; float64 needs no self-test, as sums are compared with it
        products = byte_products.ByteProducts()
        reason = _reason_against(products)
        if reason is None:
            rates.append(_measure_rate(products))
        else:
            refused[products.name] = reason
            # No warning: processors without VNNI saturate, and results are the same.
            logger.info(
                "products of features by %s are refused: %s", products.name, reason
            )
    choice = ProductRates(tuple(rates), refused)
    # the choice depends on the number of components: this one is an example
    logger.debug("products of features by %s", choice.describe(_REGION))
    return choice


def _reason_against(products: protocol.Products) -> str | None:
    try:
        wrong = find_wrong_sums(products)
    except Exception as error:
        # of any type, as float64 works without the library
        return f"{type(error).__name__}: {error}"
    if wrong is None:
        return None
    if products.name == "bytes":
        return (
            "this processor has no instruction that sums bytes exactly (tested with"
            f" {wrong})"
        )
    return f"wrong sums of {wrong}"


@lru_cache  # the fastest way is asked for again by `rate_for`
def _measure_rate(products: protocol.Products) -> Rate:
    """Time the products of one region in one thread, and the layout of its features."""
    region = _REGION
    rows = slice(0, _ROWS)
    tile = products.make_tile(2 * region, _ROWS)
    out = np.empty((region, region))
    left = slice(0, region)
    right = slice(region, 2 * region)

    def put() -> None:
        for part in (left, right):
            panel = tile.panel(part.start, part.stop, rows)
            panel.fill(0.0)
            tile.put(part.start, rows, panel)

    with machine.single_threaded_blas():
        # timed first: it writes the features that `gram` multiplies
        seconds_to_put = _seconds(put)
        seconds = _seconds(lambda: tile.gram(left, right, out))
    return Rate(
        products,
        gflops=2 * region**2 * _ROWS / seconds / 1e9,
        put_seconds=seconds_to_put / (2 * region * _ROWS),
    )


def _seconds(function: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread for the shortest of a few runs."""
    return min(
        timeit.repeat(function, timer=time.thread_time, number=1, repeat=_REPEATS)
    )


# -- the self-test


def find_wrong_sums(products: protocol.Products) -> str | None:
    """Name features that a way sums wrongly; None if all sums equal float64's."""
    float64 = protocol.Float64Products()
    for label, numbers in _cases():
        if not np.array_equal(_gram(products, numbers), _gram(float64, numbers)):
            return label
    return None


def _gram(products: protocol.Products, numbers: IntArray) -> FloatArray:
    """Return the products of all features, and a region off the diagonal once more."""
    tile = products.make_tile(*numbers.shape)
    n_components = len(numbers)
    rows = slice(0, numbers.shape[1])
    panel = tile.panel(0, n_components, rows)
    panel[...] = numbers / protocol.UNITS_PER_ONE
    tile.put(0, rows, panel)
    gram = np.empty((n_components, n_components))
    region = np.empty((_FIRST, n_components - _FIRST))
    tile.gram(slice(0, n_components), slice(0, n_components), gram)
    tile.gram(slice(0, _FIRST), slice(_FIRST, n_components), region)
    return np.append(gram, region)


def _cases() -> list[tuple[str, IntArray]]:
    """Return the features of the self-test: extreme bytes, and random ones."""
    shape = (_TEST_COMPONENTS, _TEST_ROWS)
    unit = protocol.COSINE_ONE
    random = np.random.Generator(np.random.Philox(0))
    signs = np.where(np.arange(_TEST_ROWS) % 2, -1, 1) * np.ones(shape, np.int64)
    # with the low bytes 0, -64, 0 and 63, see `protocol.split`
    extremes = np.array([unit, unit - 64, -unit, -unit + 63])
    return [
        ("all features +1", np.full(shape, unit)),
        ("all features -1", np.full(shape, -unit)),
        ("features of alternating sign", signs * unit),
        ("features with extreme bytes", random.choice(extremes, shape)),
        ("random features", random.integers(-unit, unit, shape, endpoint=True)),
    ]
