"""Every kernel in every design and map: unbiased, with the variance that theory gives
or less.

The oracles are the closed forms of Sutherland & Schneider (2015), and the laws of the
frequencies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rff_dist import (
    Additive,
    Cauchy,
    Gaussian,
    Laplacian,
    Matern,
    RationalQuadratic,
    Sinc,
    SpectralKernel,
    draw_feature_map,
)
from rff_dist.frequencies.designs import DESIGNS
from rff_dist.kernels.base import Kernel, Product

SHIFT_INVARIANT = {
    "gaussian": Gaussian(1.3),
    "laplacian": Laplacian(1.3),
    "cauchy": Cauchy(1.3),
    "sinc": Sinc(0.7),
    "matern 1/2": Matern(1.3, nu=0.5),
    "matern 3/2": Matern(1.3, nu=1.5),
    "matern 3.1": Matern(1.3, nu=3.1),
    "rational quadratic": RationalQuadratic(1.3, shape=0.8),
    "spectral, logistic": SpectralKernel(stats.logistic(scale=0.6), 1.3),
    "additive": Additive(1.3),
    "additive, gaussian": Additive(1.3, kernel=Gaussian(), order_1=2.0, order_2=3.0),
    "product": Gaussian(2.0) * Matern(2.0, nu=1.5),
}
DIMENSIONS = [1, 3, 8]
REAL_MAPS = ["pairs", "phases"]
N_SEEDS = 50


def suits(kernel: Kernel, design: str) -> bool:
    return kernel.isotropic or design in ("iid", "quasi-monte-carlo")


CASES = [
    pytest.param(kernel, design, id=f"{name}, {design}")
    for name, kernel in SHIFT_INVARIANT.items()
    for design in DESIGNS
    if suits(kernel, design)
]


def points(n_features: int, n: int = 12) -> np.ndarray:
    """Return points at distances of the order of the kernels' widths, in every
    dimension.
    """
    return np.random.default_rng(5).standard_normal((n, n_features)) / np.sqrt(
        n_features
    )


def iid_variance(kernel: Kernel, X: np.ndarray, map_name: str) -> np.ndarray:
    """Return the exact variance of z(x)'z(y) times the number of frequencies, for all
    pairs of rows.
    """
    k = kernel(X)
    k_twice = kernel(2 * X)
    return (
        (1 + k_twice - 2 * k**2) / 2 if map_name == "pairs" else 1 + k_twice / 2 - k**2
    )


def estimates(
    kernel: Kernel, design: str, map_name: str, X: np.ndarray, n_frequencies: int
) -> np.ndarray:
    """Return the estimated Gram matrices of independent seeds, shape (N_SEEDS, n,
    n).
    """
    n_components = n_frequencies * (2 if map_name == "pairs" else 1)
    grams = []
    for seed in range(N_SEEDS):
        features = draw_feature_map(
            kernel,
            n_features=X.shape[1],
            n_components=n_components,
            design=design,
            map=map_name,
            random_state=seed,
        )
        Z = features.transform(X)
        grams.append(Z @ Z.T)
    return np.array(grams)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent values and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


@pytest.mark.parametrize("map_name", REAL_MAPS)
@pytest.mark.parametrize("kernel", SHIFT_INVARIANT.values(), ids=SHIFT_INVARIANT)
def test_iid_features_have_the_closed_form_variance(kernel, map_name):
    """Groups of 8 frequencies of one long draw are independent estimates."""
    group = 8
    n_groups = 2_000
    per_frequency = 2 if map_name == "pairs" else 1
    for n_features in DIMENSIONS:
        X = points(n_features, 2)
        features = draw_feature_map(
            kernel,
            n_features=n_features,
            n_components=group * n_groups * per_frequency,
            design="iid",
            map=map_name,
            random_state=2026,
        )
        Z = features.transform(X)
        values = (Z[0] * Z[1]).reshape(n_groups, -1).sum(axis=1) * n_groups
        centred = values - values.mean()
        variance = centred.var()
        error = np.sqrt(((centred**4).mean() - variance**2) / n_groups)
        assert (
            abs(variance - iid_variance(kernel, X, map_name)[0, 1] / group) < 4 * error
        )
        assert abs(values.mean() - kernel(X)[0, 1]) < 4 * np.sqrt(variance / n_groups)


# How cosines are paired has nothing to do with the law of the frequencies: two kernels
# show phases.
CASES_OF_MAPS = [
    pytest.param(*case.values, map_name, id=f"{case.id}, {map_name}")
    for case in CASES
    for map_name in REAL_MAPS
    if map_name == "pairs"
    or case.values[0] in (SHIFT_INVARIANT["gaussian"], SHIFT_INVARIANT["laplacian"])
    if case.values[1] != "iid"  # of which the closed form says more
]


@pytest.mark.parametrize(("kernel", "design", "map_name"), CASES_OF_MAPS)
def test_features_are_unbiased_with_no_more_variance_than_independent_draws(
    kernel, design, map_name
):
    """The error of each seed, weighted by random signs over the pairs, is 0 within 4.5
    standard errors.

    Its square, as a mean over pairs of rows and seeds, is at most the exact variance of
    independent draws. A product's frequencies are sums of two arranged draws, which are
    not arranged as well as each."""
    for n_features in DIMENSIONS:
        X = points(n_features)
        upper = np.triu_indices(len(X), 1)
        directions = np.random.default_rng(1).standard_normal((6, len(upper[0])))
        directions[0] = 1.0
        for per_feature in (1, 4) if n_features in (3, 20) else (4,):
            n_frequencies = per_feature * n_features
            errors = (
                estimates(kernel, design, map_name, X, n_frequencies) - kernel(X)
            )[:, *upper]
            if per_feature == 4:
                for direction in directions:
                    mean, error = mean_and_error(
                        errors @ direction / np.linalg.norm(direction)
                    )
                    # the largest of 6 directions; float32 features
                    assert abs(mean) < 4.5 * error + 1e-6
            mean, error = mean_and_error((errors**2).mean(axis=1))
            iid = iid_variance(kernel, X, map_name)[upper].mean() / n_frequencies
            if design != "iid":
                assert mean - 3.5 * error < iid
            arranged = design != "iid" and not isinstance(kernel, Product)
            if (
                arranged
                and map_name == "pairs"
                and per_feature == 4
                and n_features >= 3
            ):
                assert mean < 0.95 * iid


def test_the_first_frequencies_of_a_long_draw_are_a_short_one():
    for case in CASES:
        kernel, design = case.values
        short, long = (
            kernel.sample_frequencies(3, n, design=design, rng=9) for n in (7, 200)
        )
        np.testing.assert_array_equal(long[:, :7], short, err_msg=case.id)
