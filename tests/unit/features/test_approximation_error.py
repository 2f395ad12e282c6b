"""The measured error of a feature map: dense formulas, and which rows are read."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rff_dist import (
    Cauchy,
    Gaussian,
    Linear,
    Min,
    Polynomial,
    approximation_error,
    draw_feature_map,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.maps import Standardizer
from rff_dist.features.nystrom import Nystrom, draw_nystrom

MEASURES = ["mean", "max", "operator_norm", "relative_operator_norm"]


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((400, 3))


def draw(kernel, n_components=128, **options):
    return draw_feature_map(kernel, n_features=3, n_components=n_components, **options)


def dense(kernel, features, rows):
    """Return mean, max, operator norm and relative operator norm of Z Z* - K, by
    NumPy's plain formulas.
    """
    Z = features.transform(rows)
    inputs = rows if features.standardizer is None else features.standardizer(rows)
    K = kernel(inputs.astype(np.float32))
    error = Z @ Z.conj().T - K
    norm = np.linalg.norm(error, 2)
    return [abs(error).mean(), abs(error).max(), norm, norm / np.linalg.norm(K, 2)]


CASES = {
    "pairs": (Gaussian(1.5), {}),
    "phases": (Cauchy(1.5), {"map": "phases", "design": "iid"}),
    "standardised": (
        Gaussian(1.5),
        {"standardizer": Standardizer(np.full(3, 5.0), np.array([1.0, 9, 0.1]))},
    ),
    "sum": (Gaussian(1.5) + 0.3 * Linear(), {}),
    "polynomial": (Polynomial(degree=2), {}),
    "min": (Min(-6.0, 6.0) + 1.0, {}),
    "product": (Gaussian(2.0) * Cauchy(2.0).on([1]), {"design": "iid"}),
}


def draw_centres(X):
    sample = X.astype(np.float32)
    return draw_nystrom(
        Gaussian(2.0), sample, n_components=60, nystrom=Nystrom(), seed=0
    )


@pytest.mark.parametrize("case", [*CASES, "Nyström"])
def test_errors_are_those_of_the_dense_formulas(X, case):
    kernel, options = CASES.get(case, (Gaussian(2.0), {}))
    features = draw(kernel, **options) if case in CASES else draw_centres(X)
    found = approximation_error(kernel, features, X)
    expected = dense(kernel, features, X)
    got = [getattr(found, measure) for measure in MEASURES]
    assert_allclose(got, expected, rtol=1e-9)
    assert (found.n_components, found.n_samples) == (features.n_components, len(X))


class TestDatasets:
    def test_only_the_sampled_rows_are_read(self, X):
        class Counting(ArrayDataset):
            taken = 0

            def take(self, indices):
                Counting.taken += len(indices)
                return super().take(indices)

            def read(self, block):
                raise AssertionError("a whole block was read")

        dataset = Counting(X)
        approximation_error(Gaussian(), draw(Gaussian()), dataset, n_samples=40)
        assert dataset.taken == 40

    def test_rows_without_weight_are_left_out(self, X):
        poisoned = np.vstack([X, np.full((5, 3), np.nan)])
        weights = np.repeat([1.0, 0.0], [len(X), 5])
        dataset = ArrayDataset(poisoned, None, weights)
        found = approximation_error(Gaussian(), draw(Gaussian()), dataset)
        assert found.n_samples == len(X)
