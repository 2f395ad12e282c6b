"""Feature maps: the kernel they stand for, their closed-form variance, and how they
travel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import draw_feature_map
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.features.maps import ColumnMap, Standardizer

RANKS = tuple(
    ColumnMap(column, np.array([0.0, 1.0, 3.0]), np.array([-1.0, 0.0, 1.0]))
    for column in (0, 2)
)
FLOAT32 = 2.0**-23
STANDARDIZER = Standardizer(np.arange(3.0), np.ones(3))
MAPS = ("pairs", "phases")


def draw(
    kernel="gaussian", *, n_features=3, n_components=64, **options
) -> FourierFeatureMap:
    return draw_feature_map(
        kernel, n_features=n_features, n_components=n_components, **options
    )


def inputs(n_samples: int, n_features: int = 3, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_samples, n_features))


class TestFeatures:
    def test_squared_norm_is_what_each_row_of_unnormalised_pairs_has(self):
        for precision in ("high", "standard"):
            pairs, phases = (
                draw(n_components=96, map=map_name, precision=precision)
                for map_name in MAPS
            )
            unnormalised = pairs.transform(inputs(9)) / pairs.scales[0][1]
            assert_allclose(
                (unnormalised**2).sum(axis=1),
                pairs.squared_norm,
                rtol=pairs.squared_norm_error,
            )
            assert phases.squared_norm is None
        assert draw(n_components=96, precision="high").squared_norm == 48

    @pytest.mark.parametrize("map_name", MAPS)
    def test_features_are_the_formulas_in_float64(self, map_name):
        options = {"n_components": 1_100, "map": map_name, "design": "iid"}  # 3 stripes
        features = draw("laplacian", precision="high", **options)
        X = inputs(7).astype(np.float32)
        angles = X.astype(np.float64) @ features.frequencies.astype(np.float64)
        size = np.abs(X.astype(np.float64)) @ np.abs(features.frequencies) + 7
        z = features.transform(X)
        if map_name == "pairs":
            expected = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(7, -1)
            size = np.repeat(size, 2, axis=1)
        else:
            expected = np.cos(angles + features.phases)
        # the angle is rounded about once per product and sum; Cauchy frequencies make
        # some angles huge
        assert (abs(z / np.sqrt(2 / 1_100) - expected) <= 4 * FLOAT32 * size).all()
        rounded = draw("laplacian", precision="standard", **options).transform(
            X
        ) / np.sqrt(2 / 1_100)
        assert abs(rounded - z / np.sqrt(2 / 1_100)).max() <= 0.501 / 16_256
        assert abs(rounded * 16_256 - np.rint(rounded * 16_256)).max() < 1e-9

    @pytest.mark.parametrize("map_name", MAPS)
    @pytest.mark.parametrize("n_features", [1, 3, 40])
    def test_whole_numbers_are_those_of_transform_in_whatever_company(
        self, map_name, n_features
    ):
        features = draw(n_features=n_features, n_components=600, map=map_name)
        X = features.prepare(10 * inputs(320, n_features))
        whole = np.empty((320, 600), np.int16)
        features.fill_whole(X, whole)
        assert_array_equal(
            whole, np.rint(features.transform(X) / features.scale * 16_256)
        )
        some = np.empty((64, 600), np.int16)
        for first in (0, 100, 256):
            features.fill_whole(X[first : first + 64], some)
            assert_array_equal(some, whole[first : first + 64])


class TestDigest:
    def test_it_has_not_changed(self):
        """Frozen on purpose: a new value means that stored models and statistics no
        longer match.
        """
        frequencies = np.arange(6, dtype=np.float32).reshape(2, 3)
        phases = np.arange(3, dtype=np.float32)
        standardizer = Standardizer(np.zeros(2), np.ones(2))
        assert FourierFeatureMap(frequencies).digest()[:16] == "7cd20ae80789da1f"
        assert (
            FourierFeatureMap(frequencies, phases, standardizer).digest()[:16]
            == "93795c91df83d3b1"
        )

    def test_it_tells_every_array_apart(self):
        features = replace(draw(map="phases", standardizer=STANDARDIZER), spec=None)

        def nudged(array: np.ndarray) -> np.ndarray:
            copy = array.copy()
            copy.flat[-1] = np.nextafter(copy.flat[-1], np.array(9, copy.dtype))
            return copy

        standardizer = features.standardizer
        changed = [
            features,
            replace(features, frequencies=nudged(features.frequencies)),
            replace(features, frequencies=features.frequencies.reshape(1, -1)),
            replace(features, phases=nudged(features.phases)),
            replace(features, phases=None),
            replace(features, standardizer=None),
            replace(
                features,
                standardizer=Standardizer(
                    nudged(standardizer.mean), standardizer.scale
                ),
            ),
            replace(
                features,
                standardizer=Standardizer(
                    standardizer.mean, nudged(standardizer.scale)
                ),
            ),
            replace(
                features,
                standardizer=Standardizer(standardizer.scale, standardizer.mean),
            ),
            *(
                replace(
                    features,
                    standardizer=Standardizer(
                        standardizer.mean, standardizer.scale, ranks
                    ),
                )
                for ranks in (
                    RANKS,
                    RANKS[:1],
                    (replace(RANKS[0], outputs=nudged(RANKS[0].outputs)),),
                )
            ),
        ]
        assert len({other.digest() for other in changed}) == len(changed)
