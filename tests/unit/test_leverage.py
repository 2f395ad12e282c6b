"""Ridge leverage scores against dense formulas, and what resampling by them is for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Gaussian, accumulate, draw_feature_map
from rff_dist.errors import InvalidParameterError
from rff_dist.feature_map import Nystrom, draw_nystrom, feature_map_class
from rff_dist.leverage import component_leverage_scores, resample_frequencies, row_leverage_scores
from rff_dist.storage import ArrayDataset


def skewed(n_samples: int = 600, *, seed: int = 0) -> np.ndarray:
    """Return rows near a line in four dimensions, and a few off it."""
    rng = np.random.default_rng(seed)
    X = np.outer(3 * rng.standard_normal(n_samples), [1, 1, 0, 0]) + 0.02 * rng.standard_normal(
        (n_samples, 4)
    )
    X[::30] += rng.standard_normal(X[::30].shape)
    return X


def pilot_and_sums(map_name: str = "pairs", n_components: int = 512, *, kernel=None):
    pilot = draw_feature_map(kernel or Gaussian(0.7), n_features=4, n_components=n_components, map=map_name)
    X = skewed()
    return pilot, accumulate(ArrayDataset(X, X[:, 0]), pilot), pilot.transform(X)


@pytest.mark.parametrize("map_name", ["pairs", "phases"])
@pytest.mark.parametrize("alpha", [0.01, 10.0])
def test_scores_are_the_dense_formulas(map_name, alpha):
    pilot, sums, Z = pilot_and_sums(map_name, 300)
    inverse = np.linalg.inv(Z.T @ Z + alpha * np.eye(300))
    rows = row_leverage_scores(skewed(), pilot, sums, alpha=alpha)
    components = component_leverage_scores(sums, alpha=alpha)
    assert_allclose(rows, np.einsum("ij,jk,ik->i", Z, inverse, Z), atol=1e-9)
    assert_allclose(components, np.diagonal(Z.T @ Z @ inverse), atol=1e-9)
    assert rows.sum() == pytest.approx(components.sum())


def test_rows_of_nystrom_features_have_scores_too():
    X = skewed()
    feature_map = draw_nystrom(
        Gaussian(1.0), X.astype(np.float32), n_components=80, nystrom=Nystrom(), seed=0
    )
    sums, Z = accumulate(ArrayDataset(X, X[:, 0]), feature_map), feature_map.transform(X)
    inverse = np.linalg.inv(Z.T @ Z + np.eye(80))
    got = row_leverage_scores(X[:5], feature_map, sums, alpha=1.0)
    assert_allclose(got, np.einsum("ij,jk,ik->i", Z[:5], inverse, Z[:5]), atol=1e-7)


@pytest.mark.parametrize("map_name", ["pairs", "phases"])
def test_the_resampled_kernel_is_the_pilots_on_average(map_name):
    pilot, sums, _ = pilot_and_sums(map_name, 128)
    X, total, n_draws = skewed(6, seed=1), 0.0, 400
    draws = [
        resample_frequencies(pilot, sums, n_components=32, alpha=5.0, random_state=seed).transform(X)
        for seed in range(n_draws)
    ]
    grams = np.array([Z @ Z.T for Z in draws])
    total = grams.mean(axis=0)
    Z = pilot.transform(X)
    assert (np.abs(total - Z @ Z.T) <= 5 * grams.std(axis=0) / np.sqrt(n_draws) + 1e-6).all()


def test_resampled_frequencies_come_nearer_the_kernel_than_as_many_others_on_skewed_data():
    """Spectral error of (K + alpha)^(-1/2) K̃ (K + alpha)^(-1/2), which bounds the regression's risk."""
    kernel, alpha, X = Gaussian(0.7), 1.0, skewed()
    K = kernel(X)
    values, vectors = np.linalg.eigh(K + alpha * np.eye(len(X)))
    root = vectors / np.sqrt(values) @ vectors.T

    def error(feature_map):
        Z = root @ feature_map.transform(X)
        return np.linalg.norm(Z @ Z.T - root @ K @ root, 2)

    ours, plain = [], []
    for seed in range(5):
        pilot = draw_feature_map(kernel, n_features=4, n_components=2048, random_state=seed, design="iid")
        sums = accumulate(ArrayDataset(X, X[:, 0]), pilot)
        ours.append(
            error(resample_frequencies(pilot, sums, n_components=128, alpha=alpha, random_state=seed))
        )
        plain.append(
            error(draw_feature_map(kernel, n_features=4, n_components=128, random_state=seed, design="iid"))
        )
    assert np.mean(ours) < 0.9 * np.mean(plain)


def test_a_resampled_map_is_stored_by_its_record_and_trains():
    pilot, sums, _ = pilot_and_sums()
    few = resample_frequencies(pilot, sums, n_components=64, alpha=1.0)
    facts, arrays = few.record()
    again = feature_map_class("reweighted").from_record(facts, arrays, None)
    assert again.digest() == few.digest()
    X = skewed()
    Z = few.transform(X)
    assert_array_equal(again.transform(X), Z)
    assert_allclose(accumulate(ArrayDataset(X, X[:, 0]), few).ZtZ(), Z.T @ Z, atol=1e-8)


def test_all_of_the_pilot_is_the_pilot():
    pilot, sums, Z = pilot_and_sums(n_components=64)
    assert_allclose(
        resample_frequencies(pilot, sums, n_components=64, alpha=1.0).transform(skewed()), Z, atol=1e-12
    )


def test_what_does_not_fit_is_refused():
    pilot, sums, _ = pilot_and_sums(n_components=64)
    other = draw_feature_map("gaussian", n_features=4, n_components=64)
    for wrong, message in (
        ({"n_components": 66}, "draw a larger pilot"),
        ({"n_components": 7}, "even"),
        ({"alpha": 0.0}, "alpha"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            resample_frequencies(pilot, sums, **{"n_components": 16, "alpha": 1.0, **wrong})
    with pytest.raises(InvalidParameterError, match="other features"):
        resample_frequencies(other, sums, n_components=16, alpha=1.0)
