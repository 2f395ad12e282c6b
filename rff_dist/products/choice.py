"""Which way this process multiplies fixed-point features: measured once, where the work is worth it.

All ways give the same whole numbers, so no result depends on the choice, and a cluster may mix machines.
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
from rff_dist.products import bytes, protocol
from rff_dist.typing import FloatArray, IntArray

logger = logging.getLogger(__name__)

VARIABLE = "RFF_DIST_PRODUCTS"
# Each imports its library at its first use.
WAYS: Mapping[str, Callable[[], protocol.Products]] = {
    "float64": protocol.Float64Products,
    "bytes": bytes.ByteProducts,
}
# Measured once per process, after a self-test: processors without VNNI saturate, and give wrong sums.
WORTH_MEASURING = 2e10  # operations, half a second of float64: a measurement takes 0.2 s
NARROW = 128  # components below which float64 is as fast, since little is computed with each feature
_REGION, _ROWS, _REPEATS = 512, 1024, 3
_TEST_ROWS, _TEST_COMPONENTS = 521, 262  # no multiples of vectors' lengths; more than one strip of bytes


@dataclass(frozen=True)
class Rate:
    """How fast a way of multiplying is, in one thread.

    `products`: the way.
    `gflops`: billions of operations a second, counted as float64 would need them.
    `put`: seconds to lay out a feature.
    """

    products: protocol.Products
    gflops: float
    put: float

    def seconds(self, n_components: int) -> float:
        """Return the time for a row's share of the Gram: half the operations, because it is symmetric."""
        return n_components * self.put + n_components**2 / (1e9 * self.gflops)


@dataclass(frozen=True)
class MeasuredWays:
    """The ways to multiply on this machine.

    `rates`: of each way that sums exactly.
    `refused`: the names of ways that do not work here, with the reasons.
    """

    rates: tuple[Rate, ...]
    refused: Mapping[str, str]

    def best(self, n_components: int) -> Rate:
        """Return the rate of the fastest way for `n_components`."""
        return min(self.rates, key=lambda rate: rate.seconds(n_components))

    def describe(self, n_components: int) -> str:
        """Say which way is taken for `n_components`, and the rates of all ways."""
        best = self.best(n_components).products.name
        rates = ", ".join(f"{rate.products.name} {rate.gflops:.0f}e9" for rate in self.rates)
        note = "; {} are not used: {}; results are the same, in more time"
        refused = "".join(note.format(name, reason) for name, reason in self.refused.items())
        return f"{best} ({rates} operations a second on one thread{refused})"


def products_for(n_rows: int, n_components: int) -> protocol.Products:
    """Return the way to multiply the features of all rows of a pass.

    Up to half a second of work is done by float64 BLAS. For more, a process measures all ways at its first
    such pass, and takes the fastest. If `RFF_DIST_PRODUCTS` names a way, that one is taken.

    Raises InvalidParameterError if the environment names a way that does not exist or does not work here.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        return _forced(forced)
    operations = float(n_rows) * n_components**2
    if n_components < NARROW or operations < WORTH_MEASURING:
        return protocol.Float64Products()
    return measure().best(n_components).products


def rate_for(n_components: int, operations: float = math.inf) -> Rate:
    """Return the way that `products_for` gives a process with `operations` to do, and its rate here."""
    forced = os.environ.get(VARIABLE)
    if forced or n_components < NARROW or operations < WORTH_MEASURING:
        with machine.single_threaded_blas():
            return rate_of(_forced(forced) if forced else protocol.Float64Products())
    return measure().best(n_components)


def check_environment() -> None:
    """Raise InvalidParameterError if the environment names a way that does not exist."""
    forced = os.environ.get(VARIABLE)
    if forced and forced not in WAYS:
        raise InvalidParameterError(
            f"{VARIABLE} is {forced!r}; expected one of {', '.join(WAYS)}, or nothing for the fastest"
        )


@lru_cache
def _forced(name: str) -> protocol.Products:
    check_environment()
    products = WAYS[name]()
    if (reason := _reason_against(products)) is not None:
        raise InvalidParameterError(f"{VARIABLE} is {name!r}, which does not work here: {reason}; unset it")
    logger.debug("products of features by %s, as %s says", name, VARIABLE)
    return products


_measuring = Lock()


def measure() -> MeasuredWays:
    """Return the ways to multiply on this machine, measured and logged at the first call."""
    with _measuring:  # `lru_cache` alone would let two threads measure at once
        return _measure()


@lru_cache
def _measure() -> MeasuredWays:
    with machine.single_threaded_blas():
        rates, refused = [rate_of(protocol.Float64Products())], {}
        products = bytes.ByteProducts()
        if (reason := _reason_against(products)) is None:
            rates.append(rate_of(products))
        else:
            refused[products.name] = reason
            # processors without VNNI saturate: their user need not hear of it
            logger.info("products of features by %s are refused: %s", products.name, reason)
    choice = MeasuredWays(tuple(rates), refused)
    logger.debug("products of features by %s", choice.describe(_REGION))
    return choice


def _reason_against(products: protocol.Products) -> str | None:
    try:
        wrong = find_wrong_sums(products)
    except Exception as error:  # whatever a library or a driver raises, float64 is always there
        return f"{type(error).__name__}: {error}"
    if wrong is None:
        return None
    if products.name == "bytes":
        return f"this processor has no instruction that sums bytes exactly (tested with {wrong})"
    return f"wrong sums of {wrong}"


def rate_of(products: protocol.Products) -> Rate:
    """Time the products of one region in one thread, and the layout of its features."""
    region, rows = _REGION, slice(0, _ROWS)
    tile, out = products.tile(2 * region, _ROWS), np.empty((region, region))
    left, right = slice(0, region), slice(region, 2 * region)

    def put() -> None:
        for part in (left, right):
            panel = tile.panel(part.start, part.stop, rows)
            panel.fill(0.0)
            tile.put(part.start, rows, panel)

    laid_out = _seconds(put)
    multiplied = _seconds(lambda: tile.gram(left, right, out))
    return Rate(products, 2 * region**2 * _ROWS / multiplied / 1e9, laid_out / (2 * region * _ROWS))


def _seconds(function: Callable[[], object]) -> float:
    """Return the shortest of a few runs, by this thread's clock, which others do not disturb."""
    return min(timeit.repeat(function, timer=time.thread_time, number=1, repeat=_REPEATS))


# -- does a way give exact sums on this machine? Some processors' byte products saturate ---------------


def find_wrong_sums(products: protocol.Products) -> str | None:
    """Name the features that a way sums wrongly; None where all sums are those of float64 BLAS."""
    specification = protocol.Float64Products()
    for label, numbers in _cases():
        if not np.array_equal(_gram(products, numbers), _gram(specification, numbers)):
            return label
    return None


def _gram(products: protocol.Products, numbers: IntArray) -> FloatArray:
    """Return the products of all features with each other, and a region next to the diagonal once more."""
    tile = products.tile(*numbers.shape)
    n_components, rows = len(numbers), slice(0, numbers.shape[1])
    panel = tile.panel(0, n_components, rows)
    panel[...] = numbers / protocol.ONE
    tile.put(0, rows, panel)
    gram, region = np.empty((n_components, n_components)), np.empty((256, n_components - 256))
    tile.gram(slice(0, n_components), slice(0, n_components), gram)
    tile.gram(slice(0, 256), slice(256, n_components), region)
    return np.append(gram, region)


def _cases() -> list[tuple[str, IntArray]]:
    """Return the features of the self-test, each set with its name: extreme bytes, and random ones."""
    shape, unit = (_TEST_COMPONENTS, _TEST_ROWS), protocol.FIXED_POINT_ONE
    random = np.random.Generator(np.random.Philox(0))
    signs = np.where(np.arange(_TEST_ROWS) % 2, -1, 1) * np.ones(shape, np.int64)
    extremes = np.array([unit, unit - 64, -unit, -unit + 63])  # their low bytes l are 0, -64, 0 and 63
    return [
        ("all features +1", np.full(shape, unit)),
        ("all features -1", np.full(shape, -unit)),
        ("features of alternating sign", signs * unit),
        ("features with extreme bytes", random.choice(extremes, shape)),
        ("random features", random.integers(-unit, unit, shape, endpoint=True)),
    ]
