"""Thresholds of the min kernel, and monomials next to scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.preprocessing import PolynomialFeatures

from rff_dist import Min, Polynomial, draw_feature_map
from rff_dist.errors import InvalidParameterError
from rff_dist.features.explicit import MonomialFeatureMap, ThresholdFeatureMap
from tests.covering import covering
from tests.refusals import refuses


def draw(kernel, n_components, *, n_features=1, seed=0):
    return draw_feature_map(
        kernel,
        n_features=n_features,
        n_components=n_components,
        map="phases",
        random_state=seed,
    ).parts[0]


class TestThresholds:
    @pytest.mark.parametrize("n_components", [2, 8, 64, 256])
    def test_each_of_as_many_equal_parts_of_the_interval_has_one(self, n_components):
        features = draw(Min(-1, 3), n_components, seed=3)
        assert isinstance(features, ThresholdFeatureMap)
        places = (features.thresholds.astype(np.float64) + 1) / 4
        part = np.sort(((places - places[0]) % 1.0) * n_components)
        # float32 thresholds
        assert_allclose(part, np.arange(n_components), atol=1e-3)

    def test_inputs_beyond_the_interval_count_as_its_ends(self):
        features = draw(Min(0, 1), 32)
        Z = features.transform([[-5.0], [7.0]])
        assert (Z[0] == 0).all()
        assert_allclose(Z[1] @ Z[1], 1.0, rtol=1e-12)


class TestMonomials:
    X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)

    @pytest.mark.parametrize(
        ("offset", "degree"), covering([0.0, 0.5, 2.0], [1, 2, 3, 4], meet=1)
    )
    def test_they_are_exact_from_as_many_components_on_as_scikit_learn_has_columns(
        self, degree, offset
    ):
        kernel = Polynomial(degree, offset)
        columns = PolynomialFeatures(degree).fit_transform(self.X)
        n_exact = columns.shape[1]
        if not offset:  # only monomials of the highest degree
            n_exact -= (
                PolynomialFeatures(degree - 1).fit(self.X).n_output_features_
                if degree > 1
                else 1
            )
        features = draw(kernel, n_exact, n_features=4)
        assert isinstance(features, MonomialFeatureMap)
        for asked in (n_exact, n_exact + 1, 4096):
            whole = draw_feature_map(
                kernel, n_features=4, n_components=asked, map="phases"
            )
            assert whole.n_components == n_exact
            Z = whole.transform(self.X)
            # products of float32 inputs in float64, in another order: a few units of
            # rounding
            assert_allclose(
                Z @ Z.T, kernel(self.X), rtol=1e-12, atol=1e-12 * abs(Z @ Z.T).max()
            )
        if n_exact > 2:
            with refuses(
                InvalidParameterError, f"{n_exact:_}", f"{n_exact - 1:_}", "nystrom"
            ):
                draw_feature_map(
                    kernel, n_features=4, n_components=n_exact - 1, map="phases"
                )
