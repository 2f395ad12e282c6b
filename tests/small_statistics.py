"""Small statistics: of random rows of three columns, and with sums that are given."""

from __future__ import annotations

import numpy as np

from rff_dist import FeatureMap, RidgeStatistics, draw_feature_map
from rff_dist.data.blocks import Block, Rows
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.specs import StatisticsSpec

N_FEATURES = 3
LIMB_ROWS = 2**23  # on the usual grid of 2**-39


def feature_map(n_components: int = 12, map_name: str = "pairs") -> FourierFeatureMap:
    return draw_feature_map(
        "matern", n_features=N_FEATURES, n_components=n_components, map=map_name
    )


def accumulation(features: FeatureMap, n_targets: int = 2, **spec) -> Accumulation:
    whitened = features.whitener is not None
    digest = features.digest()
    scales = features.scales
    return Accumulation(
        features,
        StatisticsSpec(
            features.n_components, n_targets, digest, scales, whitened=whitened, **spec
        ),
    )


def random_rows(
    n_samples: int, n_targets: int = 2, *, weights: float = 0, seed: int = 0
) -> Rows:
    """Return rows with weights up to a largest one; 0 is without weights."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, N_FEATURES))
    y = np.sin(X[:, :1]) + rng.standard_normal((n_samples, n_targets))
    return Rows(
        Block(0, 0, n_samples),
        X,
        y,
        rng.uniform(0, weights, n_samples) if weights else None,
    )


def part(rows: Rows, index) -> Rows:
    """Return some rows as a block of their own."""
    weights = None if rows.sample_weight is None else rows.sample_weight[index]
    X = rows.X[index]
    return Rows(Block(0, 0, len(X)), X, rows.y[index], weights)


def by_hand(low: list[int], n_samples: int) -> RidgeStatistics:
    """Return statistics of two components whose Gram holds the given integers."""
    spec = StatisticsSpec(2, 0, "hand-made", ((2, 1.0),))
    one = ExactSum.of(np.full((1, 1), float(n_samples)))
    return RidgeStatistics(
        spec,
        n_samples,
        n_samples,
        np.array(low, np.int64),
        None,
        ExactSum.zeros((2, 1)),
        one,
    )
