"""Exact kernel k-means: against all partitions, scikit-learn's KMeans and the formula
itself.
"""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from rff_dist import Gaussian, KernelKMeans, Linear, Min, RFFKMeans
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, PlanError
from rff_dist.kmeans.exact import choose_rows, cluster, labels_from_rows
from tests.refusals import refuses


def squared_distances(gram, weights, labels, n_clusters):
    """Return NUMERICS' formula term by term, with weights."""
    found = np.full((len(gram), n_clusters), np.inf)
    for j in range(n_clusters):
        own = np.flatnonzero((labels == j) & (weights > 0))
        if len(own):
            w = weights[own]
            m = weights[own].sum()
            within = (np.outer(w, w) * gram[np.ix_(own, own)]).sum() / m**2
            found[:, j] = (
                np.diagonal(gram) - 2 / m * (gram[:, own] * w).sum(axis=1) + within
            )
    return found


def objective(gram, weights, labels, n_clusters):
    distances = squared_distances(gram, weights, labels, n_clusters)[
        np.arange(len(gram)), labels
    ]
    return float(weights[weights > 0] @ distances[weights > 0])


def draw(n_samples, n_features=2, *, seed=0):
    return np.random.default_rng(seed).normal(size=(n_samples, n_features))


# -- the optimum, and the way there
# ----------------------------------------------------------------


@st.composite
def problems(draw_from):
    seed = draw_from(st.integers(0, 2**32 - 1))
    n_samples = draw_from(st.integers(2, 40))
    n_clusters = draw_from(st.integers(1, min(6, n_samples)))
    rng = np.random.default_rng(seed)
    # rows on a coarse grid repeat each other, and tie
    X = (
        rng.integers(0, 4, (n_samples, 2))
        if draw_from(st.booleans())
        else rng.normal(size=(n_samples, 2))
    )
    weights = rng.integers(0, 3, n_samples) + 1.0 * (np.arange(n_samples) == 0)
    labels = rng.integers(0, n_clusters, n_samples)
    return Gaussian(1.0)(X), weights.astype(float), labels, n_clusters


@settings(max_examples=60)
@given(problem=problems())
def test_the_objective_never_rises_and_is_the_formulas(problem):
    gram, weights, labels, n_clusters = problem
    found = cluster(gram, weights, labels, n_clusters=n_clusters, max_iter=100)
    assert found.converged
    # sums of 40 terms of about 1 round by 1e-15 or so
    assert (np.diff(found.objectives) <= 1e-12).all()
    assert found.objectives[0] <= objective(gram, weights, labels, n_clusters) + 1e-12
    last = objective(gram, weights, found.labels, n_clusters)
    assert last == pytest.approx(found.objectives[-1], abs=1e-12)
    assert found.inertia <= last + 1e-12
    distances = squared_distances(gram, weights, found.labels, n_clusters)
    own = distances[np.arange(len(labels)), found.labels]
    counts = weights > 0
    # no row has a nearer centre
    assert (own[counts] <= distances[counts].min(axis=1) + 1e-12).all()


def test_an_empty_cluster_takes_the_row_farthest_from_its_own_centre():
    x = np.array([[0.0], [1.0], [2.0], [10.0], [-7.5]])
    # mean 1.1: rows 3 and 4 are 8.9 and 8.6 away
    found = cluster(
        x @ x.T, np.ones(5), np.zeros(5, np.intp), n_clusters=3, max_iter=10
    )
    assert_array_equal(found.labels, [0, 0, 0, 1, 2])
    assert found.objectives[0] == pytest.approx(2.0)


# -- against scikit-learn
# --------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_kernel_from_the_same_rows_is_kmeans(weighted, seed):
    X = make_blobs(150, n_features=3, centers=5, cluster_std=2.5, random_state=seed)[0]
    weights = np.random.default_rng(seed).uniform(0.1, 2.0, 150) if weighted else None
    start = np.random.default_rng(seed).choice(150, 5, replace=False)
    kernel = Linear()
    gram = kernel(X)
    counts = np.ones(150) if weights is None else weights
    labels = labels_from_rows(gram, counts, start)
    ours = cluster(gram, counts, labels, n_clusters=5, max_iter=300)
    plain = KMeans(5, init=X[start], n_init=1, tol=0.0, max_iter=300).fit(
        X, sample_weight=weights
    )
    assert_array_equal(ours.labels, plain.labels_)
    # float64 sums of 1e2 in squares of 1e3
    assert ours.inertia == pytest.approx(plain.inertia_, rel=1e-10)
    new = draw(60, 3, seed=9) * 8
    assert_array_equal(ours.nearest(kernel(new, X)), plain.predict(new))
    squared = ours.scores(kernel(new, X)) + kernel.diagonal(new)[:, np.newaxis]
    assert_allclose(np.sqrt(squared), plain.transform(new), atol=1e-6)


# -- what must not matter
# --------------------------------------------------------------------------


def test_the_order_of_rows_does_not_matter():
    X = np.round(draw(120, seed=5), 2)
    weights = np.random.default_rng(1).integers(0, 4, 120)
    model = KernelKMeans(4, n_init=1, random_state=0)
    weighted = clone(model).fit(X, sample_weight=weights)
    shuffled = np.random.default_rng(2).permutation(120)
    moved = clone(model).fit(X[shuffled], sample_weight=weights[shuffled])
    assert_array_equal(moved.labels_, weighted.labels_[shuffled])


def test_predictions_of_the_rows_are_their_labels_and_the_nearest_distances():
    X = draw(150, seed=8)
    for options in ({}, {"max_iter": 1, "n_init": 1}):
        model = KernelKMeans(5, random_state=0, **options)
        told = (
            pytest.warns(ConvergenceWarning, match="max_iter=1")
            if options
            else nullcontext()
        )
        with told:
            model.fit(X)
        assert_array_equal(model.predict(X), model.labels_)
        distances = model.transform(X)
        assert_array_equal(distances.argmin(axis=1), model.labels_)
        assert (distances.min(axis=1) ** 2).sum() == pytest.approx(
            model.inertia_, rel=1e-9
        )


def test_starts_are_drawn_by_squared_distance():
    # two clusters far apart: the second row of a start is in the other one, for any
    # seed
    X = np.concatenate([draw(50) * 1e-3, draw(50) * 1e-3 + 10])
    gram = Linear()(X - X.mean(axis=0))
    for seed in range(20):
        first, second = choose_rows(gram, np.ones(100), 2, seed=seed)
        assert (first < 50) != (second < 50)


def test_a_kernel_that_waits_for_the_range_of_inputs_gets_it():
    model = KernelKMeans(2, kernel=Min(), random_state=0).fit(draw(40))
    assert model.kernel_.is_bound
    assert set(model.labels_) == {0, 1}


# -- bad input
# -------------------------------------------------------------------------------------


def test_distances_beyond_a_kernels_reach_are_refused():
    X = np.random.default_rng(0).normal(size=(50, 2))
    with refuses(DataError, "median distance", "1e+100", "scale X"):
        KernelKMeans(2).fit(X * 1e140)


def test_bad_rows_of_a_dataset_are_refused():
    X = draw(20)
    damaged = X.copy()
    damaged[7, 1] = np.nan
    with refuses(DataError, "NaN", "row 7", "column 1"):
        KernelKMeans(3).fit(ArrayDataset(damaged))
    with refuses(DataError, "NaN", "row 7", "column 1"):
        KernelKMeans(3).fit(X).predict(ArrayDataset(damaged))
    with refuses(DataError, "all sample weights are zero"):
        KernelKMeans(3).fit(ArrayDataset(X, sample_weight=np.zeros(20)))


def test_more_rows_than_memory_holds_a_gram_of_are_refused(monkeypatch):
    monkeypatch.setattr("rff_dist.numerics.machine.available_memory", lambda: 1000)
    with refuses(PlanError, "20 rows", "3.1 KiB", "1000", "RFFKMeans"):
        KernelKMeans(3).fit(draw(20))


@pytest.mark.parametrize("estimator", [KernelKMeans, RFFKMeans])
def test_clusters_that_a_far_row_hides_are_explained(estimator):
    X, _ = make_blobs(90, centers=3, random_state=0)
    far = np.append(X, [[1e10, 1e10]], axis=0)
    with pytest.warns(ConvergenceWarning, match="a row so far out that differences"):
        estimator(n_clusters=4, kernel="linear", random_state=0).fit(far)
