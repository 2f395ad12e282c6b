"""Ridge regression with composite kernels, from the first pass to a stored model."""

import numpy as np
import pytest

from rff_dist import Gaussian, Linear, Min
from rff_dist.errors import DataError
from tests.plain import plain_ridge
from tests.refusals import refuses


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 3, (900, 3))
    y = (
        2 * X[:, 0]
        + np.sin(2 * X[:, 1])
        + 0.3 * X[:, 2] ** 2
        + 0.1 * rng.standard_normal(900)
    )
    return X, y


def ridge(kernel, **options):
    parameters = {
        "n_components": 200,
        "alpha": 0.1,
        "design": "iid",
        "random_state": 0,
    } | options
    return plain_ridge(kernel, **parameters)


class TestHeadRoom:
    def test_rows_far_out_are_refused_with_their_place_where_features_have_no_bound(
        self, rows
    ):
        X, y = rows
        model = ridge(Gaussian() + Linear()).fit(X, y)
        far = X[:10].copy()
        far[7, 2] = 1e6
        with refuses(DataError, "row 7", "1.75e+05"):
            model.partial_fit(far, y[:10])
        assert model.statistics_.n_samples == len(X)

    # at a million length scales
    @pytest.mark.filterwarnings("ignore:angles of Fourier features:UserWarning")
    @pytest.mark.parametrize(
        ("kernel", "factor"),
        [(Gaussian() + Linear(), 1.2), (1 + Min() + Gaussian(), 1e6)],
    )
    def test_rows_a_little_further_out_are_taken_and_any_rows_by_features_with_a_bound(
        self, rows, kernel, factor
    ):
        X, y = rows
        model = ridge(kernel).fit(X, y)
        model.partial_fit(factor * X[:10], y[:10])
        assert model.statistics_.n_samples == len(X) + 10

    def test_predictions_are_made_of_rows_however_far_out(self, rows):
        X, y = rows
        model = ridge(Linear(), alpha=1e-6, standardize=False).fit(X, y)
        far = 1e6 * X[:5]
        slope = model.predict(np.eye(3)) - model.predict(np.zeros((1, 3)))
        np.testing.assert_allclose(
            model.predict(far), far @ slope + model.intercept_, rtol=1e-5
        )
