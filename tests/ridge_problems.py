"""Ridge problems: datasets, and explicit features for tests of what works from their sums."""

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.memory import ArrayDataset
from rff_dist.numerics.solution import NormalEquations

Matrix = NDArray[np.float64]


def normal_equations(
    Z: Matrix, Y: Matrix, *, fit_intercept: bool = True, product_dtype: type = np.float64
) -> NormalEquations:
    """Sum explicit features plainly; `product_dtype` float32 is the mistake that some tests are about."""
    n_samples = len(Z)
    feature_means = Z.mean(axis=0) if fit_intercept else np.zeros(Z.shape[1])
    target_means = Y.mean(axis=0) if fit_intercept else np.zeros(Y.shape[1])
    narrow = Z.astype(product_dtype)
    gram = (narrow.T @ narrow).astype(np.float64) - n_samples * np.outer(feature_means, feature_means)
    return NormalEquations(
        gram=gram,
        moments=Z.T @ (Y - target_means),
        total_sum_of_squares=np.square(Y - target_means).sum(axis=0),
        feature_means=feature_means,
        target_means=target_means,
        n_samples=n_samples,
        sum_of_weights=n_samples,
        fit_intercept=fit_intercept,
    )


def draw_problem(
    n_samples: int = 120, n_components: int = 30, n_targets: int = 3, *, seed: int = 0
) -> tuple[Matrix, Matrix]:
    """Draw correlated features with means, and targets that they explain in part."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n_samples, n_components)) @ rng.normal(size=(n_components, n_components)) + 1.0
    Y = Z @ rng.normal(size=(n_components, n_targets)) + 5.0 * rng.normal(size=(n_samples, n_targets)) + 3.0
    return Z, Y


def draw_dataset(
    n_samples: int = 300,
    n_features: int = 3,
    n_targets: int | None = None,
    *,
    weighted: bool = False,
    seed: int = 0,
) -> ArrayDataset:
    """Draw inputs with means, and targets that are linear in them but for a sine; None gives a vector."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, n_features)) * 3.0 + 1.0
    Y = np.sin(X[:, :1]) + X @ rng.normal(size=(n_features, n_targets or 1)) + 0.1
    return ArrayDataset(
        X, Y[:, 0] if n_targets is None else Y, rng.random(n_samples) * 5 if weighted else None
    )
