"""Rows, maps of each kind and centres for tests of k-means, and its distances written
out.
"""

import functools

import numpy as np

from rff_dist import Gaussian, Laplacian, Linear, Min, Nystrom, draw_feature_map
from rff_dist.data.blocks import Block, Rows
from rff_dist.features.nystrom import draw_nystrom
from rff_dist.kmeans.cluster_sums import ClusterGrid, ClusterState, fraction_bits_for
from rff_dist.kmeans.lloyd_pass import measure_tiles
from rff_dist.numerics.exact_sums import as_runs

N_ROWS = 3_000
N_FEATURES = 3
N_CLUSTERS = 7
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (N_ROWS, N_FEATURES))
WEIGHTS = RNG.exponential(size=N_ROWS)
draw = functools.partial(draw_feature_map, n_features=N_FEATURES, random_state=0)


def nystrom(kernel):
    sample = X[:200].astype(np.float32)
    return draw_nystrom(kernel, sample, n_components=40, nystrom=Nystrom(), seed=0)


MAPS = {
    "pairs": draw(Gaussian(1.5), n_components=64),
    "high precision": draw(Gaussian(1.5), n_components=64, precision="high"),
    "phases": draw(Gaussian(1.5), n_components=65, map="phases"),
    "Laplacian": draw(Laplacian(1.5), n_components=64, design="iid"),
    "two widths": draw(Gaussian(1.0) + 0.25 * Gaussian(4.0), n_components=80),
    "with linear terms": draw(
        Gaussian(1.5) + 9.0 * Linear(), n_components=67, map="phases"
    ),
    "linear": draw(Linear(), n_components=3, map="phases"),
    "Min": draw(Min(0.0, 3.0), n_components=60),
    "Nyström": nystrom(Gaussian(1.5)),
    "Nyström, unbounded": nystrom(Gaussian(1.5) * Linear()),
}


def rows_of(start=0, stop=N_ROWS, *, weighted=False):
    return Rows(
        Block(0, start, stop),
        X[start:stop],
        None,
        WEIGHTS[start:stop] if weighted else None,
    )


def grid_of(feature_map, *, weighted=False):
    largest = measure_tiles(rows_of(), feature_map)
    exponents = as_runs(np.where(largest > 0, np.frexp(largest)[1], 0))
    weight_exponent = int(np.frexp(WEIGHTS.max())[1]) if weighted else 0
    return ClusterGrid(fraction_bits_for(N_ROWS), weight_exponent, exponents)


def centres_of(feature_map, *, n_init=1, n_clusters=N_CLUSTERS, weighted=False):
    Z = feature_map.transform(X)
    chosen = np.random.default_rng(1).choice(N_ROWS, n_init * n_clusters, replace=False)
    values = Z[chosen].reshape(n_init, n_clusters, -1) * 0.9
    return ClusterState(feature_map, values, grid_of(feature_map, weighted=weighted))


def rounded(feature_map, centres):
    """The centres that rows are compared with: whole numbers of the unit of fixed-point
    features.
    """
    if not feature_map.fixed_point or len(feature_map.scales) > 1:
        return centres
    one = np.sqrt(2 / feature_map.n_components) / (127 * 128)
    return np.rint(centres / one) * one


def squared_distances(Z, centres):
    """‖z − c‖² as it is written, in float64."""
    return np.square(Z[:, np.newaxis] - centres).sum(axis=2)


def nearest(distances):
    """The lowest of those that rounding alone tells apart: features of 0 and 1 have
    many ties.
    """
    return (distances <= distances.min(axis=1, keepdims=True) * (1 + 1e-12)).argmax(
        axis=1
    )
