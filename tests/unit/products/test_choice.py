"""Which way of multiplying a process takes, and which it refuses."""

import logging
import sys

import numpy as np
import pytest

from rff_dist.errors import InvalidParameterError
from rff_dist.products import bytes as byte_products
from rff_dist.products import choice
from rff_dist.products.bytes import ByteProducts
from rff_dist.products.choice import ProductRates, Rate, find_wrong_sums, products_for
from rff_dist.products.protocol import Float64Products
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("exact_bytes")


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch):
    """Let each test choose as a new process does."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    choice._measure.cache_clear()
    choice._forced.cache_clear()
    yield
    choice._measure.cache_clear()
    choice._forced.cache_clear()


def multiply_with_saturation(left, right):
    """Multiply bytes like processors on which sums of two products saturate at 16 bits
    (vpmaddubsw).
    """
    padded = np.concatenate(
        [left, np.zeros((len(left), left.shape[1] % 2), np.uint8)], axis=1
    ).astype(int)
    below = np.concatenate(
        [right, np.zeros((right.shape[0] % 2, right.shape[1]), np.int8)]
    ).astype(int)
    sums = np.zeros((len(left), right.shape[1]), np.int64)
    for k in range(0, padded.shape[1], 2):
        sums += np.clip(padded[:, k : k + 2] @ below[k : k + 2], -(2**15), 2**15 - 1)
    return (sums - 128 * right.sum(axis=0, dtype=np.int64)).astype(np.int32)


@pytest.mark.parametrize(
    "products", [Float64Products(), ByteProducts()], ids=lambda products: products.name
)
def test_what_sums_exactly_passes_the_self_test(products):
    assert find_wrong_sums(products) is None


def test_saturating_products_are_refused_and_the_log_says_why(monkeypatch, caplog):
    monkeypatch.setattr(byte_products, "multiply", multiply_with_saturation)
    with caplog.at_level(logging.DEBUG, "rff_dist.products.choice"):
        found = choice.measure()
    assert {rate.products.name for rate in found.rates} == {"float64"}
    reason = (
        "this processor has no instruction that sums bytes exactly (tested with all"
        " features +1)"
    )
    assert found.refused == {"bytes": reason}
    assert f"by bytes are refused: {reason}" in caplog.text
    assert (
        f"; bytes are not used: {reason}; results are the same, in more time)"
        in found.describe(512)
    )
    # users see no warning
    assert max(record.levelno for record in caplog.records) == logging.INFO


def test_a_way_that_cannot_be_imported_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    byte_products._session.cache_clear()
    assert choice.measure().refused["bytes"].startswith("ModuleNotFoundError")


def test_the_choice_is_measured_and_logged_once(caplog):
    with caplog.at_level(logging.DEBUG, "rff_dist.products.choice"):
        assert choice.measure() is choice.measure()
    assert len([r for r in caplog.records if r.levelno == logging.DEBUG]) == 1


def test_the_fastest_way_for_so_many_components_is_taken():
    slow = Float64Products()
    fast = ByteProducts()
    found = ProductRates((Rate(slow, 50.0, 1e-10), Rate(fast, 100.0, 2e-9)), {})
    assert found.best(4096).products is fast
    # laying bytes out takes longer than they save
    assert found.best(64).products is slow
    assert (
        found.describe(4096)
        == "bytes (float64 50e9, bytes 100e9 operations a second on one thread)"
    )


def test_small_jobs_stay_with_float64_and_measure_nothing(monkeypatch):
    monkeypatch.setattr(choice, "measure", lambda: pytest.fail("measured"))
    assert choice.rate_for(256, 1e10).products.name == "float64"
    assert choice.rate_for(100, 1e12).products.name == "float64"
    for _ in range(10):
        assert products_for(1000, 256).name == "float64"
    assert products_for(10**6, 100).name == "float64"


def test_the_size_of_the_pass_decides_whatever_the_process_did_before(monkeypatch):
    fast = ByteProducts()
    monkeypatch.setattr(
        choice, "measure", lambda: ProductRates((Rate(fast, 100.0, 0.0),), {})
    )
    names = [
        products_for(n_rows, 512).name for n_rows in (16_384, 163_840, 16_384, 163_840)
    ]
    assert names == ["float64", "bytes", "float64", "bytes"]


@pytest.mark.parametrize("name", ["float64", "bytes"])
def test_the_environment_names_a_way(monkeypatch, name):
    monkeypatch.setenv(choice.VARIABLE, name)
    assert products_for(1, 1).name == name


def test_an_unknown_way_is_refused(monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, "int8")
    with refuses(InvalidParameterError, "RFF_DIST_PRODUCTS", "'int8'"):
        products_for(1, 1)


def test_a_named_way_with_wrong_sums_is_refused(monkeypatch):
    monkeypatch.setattr(byte_products, "multiply", multiply_with_saturation)
    monkeypatch.setenv(choice.VARIABLE, "bytes")
    with refuses(
        InvalidParameterError, "does not work here: this processor has no instruction"
    ):
        products_for(1, 1)
