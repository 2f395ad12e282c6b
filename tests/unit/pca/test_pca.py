"""Kernel PCA: against scikit-learn's PCA of the explicit features, and its
KernelPCA.
"""

import logging

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.decomposition import PCA, KernelPCA

from rff_dist import RFFPCA, Gaussian, Linear, SerialEngine, open_dataset, write_dataset
from rff_dist.errors import DataError, OutputExistsError, StatisticsError
from rff_dist.pca import fit as pca
from tests.refusals import refuses

ENGINE = SerialEngine(1)
FEATURES = ("fourier", "nystrom")


def draw_rows(n_samples=200, *, seed=0):
    return (
        np.random.default_rng(seed).normal(size=(n_samples, 3)) * [1.0, 2.0, 3.0] + 5.0
    )


@pytest.fixture(scope="module")
def X():
    return draw_rows()


def small(**parameters):
    defaults = {
        "n_components": 4,
        "length_scale": 1.5,
        "n_random_features": 64,
        "random_state": 0,
    }
    return RFFPCA(**{**defaults, "engine": ENGINE, **parameters})


# -- against scikit-learn
# --------------------------------------------------------------------------


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("whiten", [False, True])
def test_components_and_scores_are_those_of_pca_on_explicit_features(
    X, features, whiten
):
    ours = small(features=features, whiten=whiten).fit(X)
    explicit = PCA(4, whiten=whiten, svd_solver="full")
    Z = ours.feature_map_.transform(X)
    # its signs are ours: the largest coefficient is positive
    expected = explicit.fit_transform(Z)
    # rounding of the sums, over the gaps between the leading eigenvalues (here a few
    # per cent)
    tolerance = {"rtol": 0, "atol": 1e-8}
    assert_allclose(ours.feature_components_, explicit.components_, **tolerance)
    assert_allclose(ours.explained_variance_, explicit.explained_variance_, **tolerance)
    assert_allclose(
        ours.explained_variance_ratio_, explicit.explained_variance_ratio_, **tolerance
    )
    assert_allclose(ours.feature_mean_, explicit.mean_, **tolerance)
    assert_allclose(ours.transform(X), expected, **tolerance)
    new = draw_rows(50, seed=1)
    assert_allclose(
        ours.transform(new),
        explicit.transform(ours.feature_map_.transform(new)),
        **tolerance,
    )
    assert_allclose(ours.eigenvalues_, explicit.singular_values_**2, rtol=1e-8)


def test_nystrom_features_of_all_rows_are_kernel_pca(X):
    kernel = Gaussian(2.0)
    ours = RFFPCA(
        3,
        kernel=kernel,
        features="nystrom",
        n_random_features=500,
        standardize=False,
        random_state=0,
    ).fit(X)
    exact = KernelPCA(3, kernel="precomputed").fit(kernel(X))
    # the jitter of 1e-5 on the centres' Gram takes about as much of each eigenvalue
    assert_allclose(ours.eigenvalues_, exact.eigenvalues_, rtol=1e-4)
    assert_allclose(
        np.abs(ours.transform(draw_rows(20, seed=2))),
        np.abs(exact.transform(kernel(draw_rows(20, seed=2), X))),
        atol=1e-3,
    )


def test_a_linear_kernel_gives_plain_pca(X):
    ours = RFFPCA(
        2, kernel=Linear(), n_random_features=3, design="iid", standardize=False
    ).fit(X)
    plain = PCA(2).fit(X)
    # inputs are float32 in features: 6e-8 of their size
    assert_allclose(ours.explained_variance_, plain.explained_variance_, rtol=1e-6)
    assert_allclose(np.abs(ours.transform(X)), np.abs(plain.transform(X)), atol=1e-5)


# -- weights
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("normalize", [None, "degree"])
def test_whole_weights_score_as_repetitions_do(X, features, normalize):
    weights = np.random.default_rng(3).integers(0, 4, len(X))
    model = small(features=features, normalize=normalize)
    weighted = clone(model).fit(X, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(X, weights, axis=0))
    # divisors: n − 1 for n rows with weights, N − 1 for the N repeated rows
    n = np.count_nonzero(weights)
    N = weights.sum()
    one_less = 1.0 if normalize else (1 - 1 / n) / (1 - 1 / N)
    assert_allclose(
        weighted.explained_variance_ * one_less, repeated.explained_variance_, rtol=1e-9
    )
    # float32 standardisation of the inputs rounds a mean that differs in its last bit
    assert_allclose(weighted.transform(X), repeated.transform(X), rtol=0, atol=1e-5)


# -- degrees
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("weighted", [False, True])
def test_degree_normalised_components_are_those_of_the_normalised_kernel(
    X, features, weighted
):
    weights = np.random.default_rng(3).random(len(X)) if weighted else None
    model = small(
        features=features,
        length_scale=2.5,
        n_random_features=256,
        normalize="degree",
        standardize=True,
    )
    scores = model.fit(X, sample_weight=weights).transform(X)
    w = np.ones(len(X)) if weights is None else weights
    K = model.feature_map_.transform(X) @ model.feature_map_.transform(X).T
    degrees = K @ w
    assert model.n_floored_ == 0
    assert degrees.min() > 0.01 * (w @ degrees) / w.sum()
    normalised = K * np.sqrt(np.outer(w / degrees, w / degrees))
    eigenvalues, eigenvectors = np.linalg.eigh(normalised)
    assert eigenvalues[-1] == pytest.approx(1.0, abs=1e-9)
    assert_allclose(model.explained_variance_, eigenvalues[::-1][1:5], atol=1e-8)
    # the scores' mean is 0, and eigenvalues are their variances
    share = w * degrees / (w @ degrees)
    assert_allclose(share @ scores, 0, atol=1e-9)
    assert_allclose(
        (scores.T * share) @ scores, np.diag(model.explained_variance_), atol=1e-8
    )
    functions = eigenvectors[:, ::-1][:, 1:5] * np.sqrt(eigenvalues[::-1][1:5])
    functions /= np.sqrt(share)[:, np.newaxis]
    assert_allclose(np.abs(scores), np.abs(functions), atol=1e-6)


def test_rows_far_from_all_others_count_as_the_floor_and_are_counted(caplog):
    X = np.concatenate(
        [np.random.default_rng(0).normal(size=(500, 2)), [[40.0, 0.0], [0.0, 40.0]]]
    )
    model = RFFPCA(
        2,
        length_scale=1.0,
        features="nystrom",
        n_random_features=100,
        normalize="degree",
    )
    with caplog.at_level(logging.INFO, logger="rff_dist.pca.fit"):
        model.set_params(standardize=False, random_state=0).fit(X)
    degrees = model.feature_map_.transform(X) @ model.feature_map_.transform(X).sum(
        axis=0
    )
    floored = int((degrees < 0.05 * degrees.mean()).sum())
    assert model.n_floored_ == floored >= 1
    assert f"{floored} of 502 rows have a degree below" in caplog.text
    assert np.isfinite(model.transform(X)).all()


def test_features_too_few_for_a_narrow_kernel_are_told(caplog):
    X = make_moons(300, noise=0.04, random_state=0)[0]
    with caplog.at_level(logging.WARNING, logger="rff_dist.pca.fit"):
        RFFPCA(
            1,
            length_scale=0.1,
            n_random_features=256,
            normalize="degree",
            random_state=0,
        ).fit(X)
    assert "an exact one has none above 1" in caplog.text


# -- engines, inputs, outputs
# ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    rng = np.random.default_rng(4)
    X = (rng.normal(size=(40_000, 3)) + 2.0).astype(np.float32)
    url = tmp_path_factory.mktemp("pca") / "data.zarr"
    return write_dataset(url, X, X[:, 0], chunk_rows=4096)


def test_written_scores_open_as_a_dataset_with_names(stored, tmp_path):
    model = small(n_components=2).fit(stored)
    url = tmp_path / "scores.zarr"
    names = list(model.get_feature_names_out())
    pca.project(stored, model.projection_, url, engine=ENGINE, column_names=names)
    scores = open_dataset(url)
    assert scores.X.shape == (40_000, 2)
    assert list(scores.feature_names) == names == ["rffpca0", "rffpca1"]
    assert scores.attributes["projection_digest"] == model.projection_.digest()
    with pytest.raises(OutputExistsError):
        pca.project(stored, model.projection_, url, engine=ENGINE)
    pca.project(stored, model.projection_, url, engine=ENGINE, overwrite=True)
    with refuses(DataError, "2 features", "3"):
        pca.project(scores, model.projection_, tmp_path / "other", engine=ENGINE)


# -- bad input
# -------------------------------------------------------------------------------------


def test_rows_without_variance_are_refused(X):
    with refuses(DataError, "all rows have the same features"):
        small(standardize=False).fit(np.repeat(X[:1], 10, axis=0))
    with refuses(StatisticsError, "1"):
        small().fit(X[:1])
    with refuses(StatisticsError, "n_samples=1", "1"):
        small().fit(X[:2], sample_weight=[1, 0])


def test_fewer_directions_than_asked_are_kept_with_a_warning(X):
    with pytest.warns(
        UserWarning, match=r"2 principal components in place of 4: .* above rounding"
    ):
        model = small().fit(X[:3])
    assert model.n_components_ == 2
    assert model.transform(X).shape == (len(X), 2)
    assert list(model.get_feature_names_out()) == ["rffpca0", "rffpca1"]


def test_kernels_of_negative_similarity_have_no_degrees(X):
    centred = X - X.mean(axis=0)
    with refuses(DataError, "degrees add up to"):
        small(
            n_components=1,
            kernel=Linear(),
            length_scale="median",
            n_random_features=3,
            design="iid",
            standardize=False,
            normalize="degree",
        ).fit(np.concatenate([centred, -centred]) * 0)
