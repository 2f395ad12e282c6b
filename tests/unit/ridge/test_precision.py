"""Features of 15 bits: sums without rounding, and a warning if coefficients are large
enough to see it.
"""

import warnings

import numpy as np
import pytest

from rff_dist import Gaussian, Linear, Min, accumulate, draw_feature_map, write_dataset
from rff_dist.errors import DataError
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refusals import refuses

RNG = np.random.default_rng(5)
X = RNG.standard_normal((400, 4))
Y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
NOISE = 0.1 * RNG.standard_normal(400)


@pytest.mark.parametrize("kernel", [Gaussian(1.0) + 0.1 * Linear(), Min(-4.0, 4.0)])
def test_features_that_are_no_cosines_have_high_precision(kernel):
    feature_map = draw_feature_map(kernel, n_features=4, n_components=64)
    assert not feature_map.fixed_point
    assert feature_map.spec.precision == "high"


def test_weights_do_not_enter_sums_without_a_grid():
    feature_map = draw_feature_map("gaussian", n_features=4, n_components=8)
    plain = write_dataset(scratch("precision-plain"), X, Y)
    weighted = write_dataset(
        scratch("precision-weighted"), X, Y, sample_weight=RNG.uniform(0.1, 1.0, 400)
    )
    spec = accumulate(plain, feature_map).spec
    assert spec.fixed_point
    assert not accumulate(weighted, feature_map).spec.fixed_point
    with refuses(DataError, "sums are for rows without"):
        accumulate(weighted, feature_map, spec=spec)


@pytest.mark.parametrize(
    ("alpha", "precision", "noise", "warned"),
    [
        (1e-9, "standard", 1.0, True),
        # predictions move little, but the error of the rows is small too
        (1e-9, "standard", 0.1, True),
        (1e-9, "high", 1.0, False),
        (1e-2, "standard", 1.0, False),
    ],
)
def test_coefficients_that_see_the_rounding_are_warned_of(
    alpha, precision, noise, warned
):
    model = plain_ridge(n_components=512, alpha=alpha, precision=precision)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y + noise * NOISE)
    assert any("precision='high'" in str(one.message) for one in caught) == warned


@pytest.mark.parametrize("alpha", [1e-9, [1e-10, 1e-9]])
def test_auto_makes_features_again_in_float32_where_rounding_shows(alpha):
    options = {"n_components": 512, "alpha": alpha, "random_state": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        auto = plain_ridge(**options).fit(X, Y + NOISE)
        high = plain_ridge(**options, precision="high").fit(X, Y + NOISE)
    assert not any("15 bits" in str(one.message) for one in caught)
    assert auto.feature_map_.digest() == high.feature_map_.digest()
    np.testing.assert_array_equal(auto.feature_coef_, high.feature_coef_)


def test_auto_keeps_rounded_features_where_rounding_does_not_show():
    assert (
        plain_ridge(n_components=512, alpha=1e-2)
        .fit(X, Y + NOISE)
        .feature_map_.fixed_point
    )
