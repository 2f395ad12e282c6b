"""Ridge problems: datasets, and explicit features for tests of what works from their
sums.
"""

import numpy as np
from numpy.typing import NDArray

from rff_dist import FeatureMap, Gaussian, SerialEngine, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.nystrom import Nystrom, draw_nystrom
from rff_dist.numerics.solution import NormalEquations
from rff_dist.statistics import inspection, passes
from rff_dist.statistics.specs import StatisticsSpec

Matrix = NDArray[np.float64]


def normal_equations(
    Z: Matrix,
    Y: Matrix,
    *,
    fit_intercept: bool = True,
    product_dtype: type = np.float64,
) -> NormalEquations:
    """Sum explicit features plainly; `product_dtype` float32 is the mistake that some
    tests are about.
    """
    n_samples = len(Z)
    feature_means = Z.mean(axis=0) if fit_intercept else np.zeros(Z.shape[1])
    target_means = Y.mean(axis=0) if fit_intercept else np.zeros(Y.shape[1])
    narrow = Z.astype(product_dtype)
    gram = (narrow.T @ narrow).astype(np.float64) - n_samples * np.outer(
        feature_means, feature_means
    )
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


def hat_matrix(Z: Matrix, alpha: float, fit_intercept: bool = True) -> Matrix:
    """Return the dense smoother of ridge, intercept included."""
    n_samples = len(Z)
    centre = np.full((n_samples, n_samples), 1.0 / n_samples if fit_intercept else 0.0)
    Zc = Z - centre @ Z
    return centre + Zc @ np.linalg.solve(Zc.T @ Zc + alpha * np.eye(Z.shape[1]), Zc.T)


def draw_problem(
    n_samples: int = 120, n_components: int = 30, n_targets: int = 3, *, seed: int = 0
) -> tuple[Matrix, Matrix]:
    """Draw correlated features with means, and targets that they explain in part."""
    rng = np.random.default_rng(seed)
    Z = (
        rng.normal(size=(n_samples, n_components))
        @ rng.normal(size=(n_components, n_components))
        + 1.0
    )
    Y = (
        Z @ rng.normal(size=(n_components, n_targets))
        + 5.0 * rng.normal(size=(n_samples, n_targets))
        + 3.0
    )
    return Z, Y


def draw_dataset(
    n_samples: int = 300,
    n_features: int = 3,
    n_targets: int | None = None,
    *,
    weighted: bool = False,
    seed: int = 0,
) -> ArrayDataset:
    """Draw inputs with means, and targets that are linear in them but for a sine; None
    gives a vector.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, n_features)) * 3.0 + 1.0
    Y = np.sin(X[:, :1]) + X @ rng.normal(size=(n_features, n_targets or 1)) + 0.1
    return ArrayDataset(
        X,
        Y[:, 0] if n_targets is None else Y,
        rng.random(n_samples) * 5 if weighted else None,
    )


def features_of(
    dataset: ArrayDataset, kind: str = "fourier", n_components: int = 40
) -> FeatureMap:
    """Return features of the Gaussian kernel of width 1: Fourier, or with centres among
    the rows.
    """
    if kind == "nystrom":
        sample = dataset.X.astype(np.float32)
        return draw_nystrom(
            Gaussian(1.0), sample, n_components=n_components, nystrom=Nystrom(), seed=0
        )
    return draw_feature_map(
        Gaussian(1.0), n_features=2, n_components=n_components, random_state=0
    )


def spec_of(
    dataset: ArrayDataset, feature_map: FeatureMap, kind: str = "precision"
) -> StatisticsSpec:
    """Return the spec that a fit takes, with the targets' means and a grid for so few
    rows.
    """
    moments = inspection.inspect(dataset, engine=SerialEngine(1))
    return passes.statistics_spec(
        dataset,
        feature_map,
        target_offset=moments.target_offset,
        fraction_bits=passes.fraction_bits_for(dataset.n_samples),
        weights=passes.weight_grid(moments, kind),
    )
