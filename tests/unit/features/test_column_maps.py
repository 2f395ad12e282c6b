"""Increasing maps of columns that the evidence chooses with the length scales."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Gaussian, Matern, RFFClassifier, RFFRidge, load_model, save_model
from rff_dist.features.column_maps import N_BASES, Bases, SumsOfColumnsKernel
from rff_dist.features.maps import Standardizer
from rff_dist.frequencies.designs import Draw, find_design
from tests.places import scratch

KERNELS = [Gaussian(), Matern(nu=1.5), Matern(nu=2.5)]


def rows(n_samples=40, n_features=3, seed=0):
    """Rows with a skew column, one of few values, and one far from 0."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.lognormal(0, 1.5, n_samples),
        rng.integers(3, size=n_samples),
        1e6 + rng.random(n_samples),
    ]
    return np.column_stack(columns)[:, :n_features].astype(float)


def bases_of(X):
    return Bases(
        X, Standardizer(X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0))
    )


def skewed(n_samples, seed=0):
    """A target that is smooth in the logarithms of its inputs."""
    rng = np.random.default_rng(seed)
    logs = rng.uniform(-3, 3, (n_samples, 3))
    return np.exp(logs), np.sin(2 * logs[:, 0]) + logs[:, 1] * logs[
        :, 2
    ] / 3 + 0.1 * rng.standard_normal(n_samples)


class TestOfSums:
    @pytest.mark.parametrize("kernel", KERNELS, ids=str)
    def test_it_is_the_kernel_of_sums_of_columns(self, kernel):
        X = bases_of(rows()).values()
        scales = np.linspace(0.5, 3.0, 9)
        sums = sum((X / scales)[:, 3 * i : 3 * i + 3] for i in range(N_BASES))
        assert_allclose(
            SumsOfColumnsKernel(scales, kernel=kernel)(X),
            kernel.with_length_scale(1.0)(sums),
            atol=1e-12,
        )
        assert_allclose(
            SumsOfColumnsKernel(scales, kernel=kernel)(X[:5], X),
            kernel(sums[:5], sums),
            atol=1e-12,
        )

    @pytest.mark.parametrize("kernel", KERNELS, ids=str)
    def test_derivatives_are_finite_differences(self, kernel):
        X = bases_of(rows(12)).values()
        rng = np.random.default_rng(1)
        G = rng.standard_normal((12, 12))
        at = rng.uniform(0.0, 1.0, 9)
        step = 1e-5

        def value(logarithms):
            return np.vdot(G, SumsOfColumnsKernel(np.exp(logarithms), kernel=kernel)(X))

        expected = [
            (value(at + e) - value(at - e)) / (2 * step) for e in step * np.eye(9)
        ]
        found = SumsOfColumnsKernel(np.exp(at), kernel=kernel).differentiate(X)[1](G)
        assert_allclose(found, expected, rtol=1e-6, atol=1e-7)

    def test_frequencies_have_its_gram_matrix(self):
        X = bases_of(rows(10)).values()
        kernel = SumsOfColumnsKernel(np.linspace(1.0, 3.0, 9), kernel=Matern(nu=1.5))
        angles = X @ kernel.draw(Draw(find_design("orthogonal"), 9, 20_000, seed=0))
        features = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(20_000)
        assert_allclose(features @ features.T, kernel(X), atol=0.03)


class TestBases:
    @given(st.integers(0, 10_000), st.sampled_from([2, 7, 60]))
    def test_mapped_columns_have_the_kernel_of_the_sums(self, seed, n_samples):
        X = rows(n_samples, seed=seed)
        rng = np.random.default_rng(seed)
        bases = bases_of(X)
        scales = np.exp(rng.uniform(-2, 3, 9))
        standardizer, length_scales = bases.summed(scales)
        found = Matern(length_scales, nu=1.5)(standardizer(X))
        assert_allclose(
            found,
            SumsOfColumnsKernel(scales, kernel=Matern(nu=1.5))(bases.values()),
            atol=1e-9,
        )
        deviations = standardizer(X).std(axis=0)
        assert_allclose(deviations[X.std(axis=0) > 0], 1.0, rtol=1e-9)

    def test_maps_increase_and_go_on_beyond_the_rows(self):
        X = rows(200)
        standardizer = bases_of(X).summed(np.ones(9))[0]
        ends = np.linspace(
            X.min(axis=0) - 3 * X.std(axis=0), X.max(axis=0) + 3 * X.std(axis=0), 500
        )
        assert (np.diff(standardizer(ends), axis=0) > 0).all()
        assert not np.isfinite(
            standardizer(np.array([[np.inf, np.nan, -np.inf]]))
        ).any()

    def test_a_constant_column_is_only_standardised(self):
        X = rows()
        X[:, 1] = 7.0
        standardizer, length_scales = bases_of(X).summed(np.full(9, 2.0))
        assert standardizer.mapped_columns == (0, 2)
        assert length_scales[1] == 2.0
        assert (standardizer(X)[:, 1] == 0).all()


@pytest.fixture(scope="module")
def mapped():
    X, y = skewed(1_000)
    return X, y, RFFRidge(random_state=0).fit(X[:400], y[:400])


class TestFits:
    def test_a_fit_maps_columns_where_that_helps(self, mapped):
        X, y, model = mapped
        plain = RFFRidge(standardize=True, random_state=0).fit(X[:400], y[:400])
        assert model.mapped_columns_ == (0, 1, 2)
        assert plain.mapped_columns_ == ()
        errors = [
            np.mean((fitted.predict(X[400:]) - y[400:]) ** 2)
            for fitted in (model, plain)
        ]
        assert errors[0] < 0.7 * errors[1]
        kernels = [
            row["kernel"] for row in model.selection_["candidates"] if row["mapped"]
        ]
        assert {kernel.partition(":")[0] for kernel in kernels} == {"additive"}

    def test_a_classifier_does_so_too(self):
        X, y = skewed(600)
        assert RFFClassifier(random_state=0).fit(X, y > 0).mapped_columns_ == (0, 1, 2)

    def test_maps_of_columns_that_need_none_do_no_harm(self):
        X = np.random.default_rng(0).standard_normal((600, 3))
        y = np.sin(X[:, 0]) + X[:, 1]
        noise = 0.3 * np.random.default_rng(1).standard_normal(300)
        errors = []
        for options in ({}, {"standardize": True}):
            model = RFFRidge(random_state=0, **options).fit(X[:300], y[:300] + noise)
            errors.append(np.mean((model.predict(X[300:]) - y[300:]) ** 2))
        # both err by a few percent of the noise
        assert errors[0] < errors[1] + 0.02 * 0.3**2

    def test_a_model_keeps_its_maps_adds_rows_by_them_and_another_fit_finds_others(
        self, mapped
    ):
        X, y, model = mapped
        save_model(model, scratch("column-maps"))
        loaded = load_model(scratch("column-maps"))
        before = model.predict(X)
        assert_array_equal(loaded.predict(X), before)
        assert loaded.partial_fit(X[400:], y[400:]).mapped_columns_ == (0, 1, 2)
        assert np.mean((loaded.predict(X) - y) ** 2) < np.mean((before - y) ** 2)
        logs = np.log(X[:200])
        assert loaded.fit(logs, y[:200]).score(logs, y[:200]) > 0.9
