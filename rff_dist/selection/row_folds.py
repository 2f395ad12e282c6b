"""Exact errors of few rows that are left out in folds or one by one, from the rows themselves.

Each split of folds takes a decomposition of the smaller Gram: that of its training rows, or of their
features. The table is the same as that of `cross_validation`, which works from sums of each fold and for any
number of rows. A single decomposition gives the errors of all rows that are left out one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.data.folds import Folds
from rff_dist.data.samples import FoldSample
from rff_dist.numerics.machine import available_cores
from rff_dist.numerics.threads import executor_of, limit_blas
from rff_dist.numerics.tridiagonal import Tridiagonal
from rff_dist.selection.alphas import alpha_grid, check_grid
from rff_dist.selection.cross_validation import SMALL, CrossValidation, largest_eigenvalue
from rff_dist.typing import FloatArray

_EPS = float(np.finfo(np.float64).eps)


def cross_validate_rows(
    Z: FloatArray,
    sample: FoldSample,
    folds: Folds,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    repeated: bool = False,
) -> CrossValidation | None:
    """Return the table that `cross_validate` makes of the sums of these rows, for all components.

    O(n_samples · n_components · k) for each split, where k is the smaller of the two. The bits do not depend
    on the number of threads.

    `Z`: float64 array of shape (n_samples, n_components). Features of the sample's rows.
    `folds`: gives the splits of the sample's folds.
    `alphas`: as in `cross_validate`.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Returns None if a split has no row to train on, or no split has any to hold out.
    """
    y, fold_of_row = sample.y, sample.fold_of_row
    weights = np.ones(len(Z)) if sample.weights is None else sample.weights
    splits = [(np.isin(fold_of_row, trained), fold_of_row == held) for trained, held in folds.splits]
    splits = [(train, test) for train, test in splits if test.any()]
    if not splits or not all(train.any() for train, _ in splits):
        return None
    whole = _Centred.of(Z, y, weights, fit_intercept=fit_intercept)

    def validate(train: NDArray[np.bool_], test: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        squares, degrees = whole.hold_out(train, test, gram, grid)
        return squares, degrees / (weights[train].sum() if repeated else train.sum())

    n_threads = available_cores() if min(Z.shape) > SMALL else 1
    with limit_blas(1), executor_of(n_threads) as pool:
        gram = whole.gram()
        largest = largest_eigenvalue(gram)
        grid = alpha_grid(largest, max(Z.shape) * _EPS * largest) if alphas is None else check_grid(alphas)
        errors, leverages = zip(*pool.map(validate, *zip(*splits, strict=True)), strict=True)
    held_out = np.array([weights[test].sum() for _, test in splits])
    constant = np.ptp(y, axis=0) == 0.0 if fit_intercept else np.zeros(y.shape[1], bool)
    return CrossValidation(
        folds=folds,
        n_components=np.array([Z.shape[1]], np.int64),
        alphas=grid,
        errors=(np.stack(errors) / held_out[:, np.newaxis, np.newaxis])[:, np.newaxis],
        weights=held_out,
        target_variance=np.where(constant, 0.0, np.square(whole.targets).sum(axis=0) / whole.total),
        leverages=np.stack(leverages)[:, np.newaxis],
    )


def leave_out_each(
    Z: FloatArray,
    y: FloatArray,
    weights: FloatArray | None,
    alphas: FloatArray,
    *,
    fit_intercept: bool = True,
    repeated: bool = False,
) -> FloatArray:
    """Return each row's squared errors by ridge on the others, shape (n_alphas, n_targets, n_samples).

    Infinite if the other rows do not determine a row, up to rounding; 0 for rows without weight. If weights
    repeat rows, one copy is left out. O(n_samples · n_components · k), where k is the smaller of the two.

    `Z`, `repeated`: as in `cross_validate_rows`.
    `y`: float64 array of shape (n_samples, n_targets).
    `weights`: float64 array of shape (n_samples,), or None. At least 0.
    `alphas`: float64 array of shape (n_alphas,). Penalties above 0.
    """
    counted = np.ones(len(Z), bool) if weights is None else weights > 0
    times = np.ones(len(Z)) if weights is None else weights[counted]
    centred = _Centred.of(Z[counted], y[counted], times, fit_intercept=fit_intercept)
    # threads of decompositions of up to 512 components wait for each other: beside other work 0.4 s for 0.03
    with limit_blas(1):
        U, eigenvalues, rest, outside = centred.orthogonal()
        shares = alphas[:, np.newaxis] / (eigenvalues + alphas[:, np.newaxis])
        left = rest + shares @ np.square(U).T
        missed = outside + U @ (shares[:, :, np.newaxis] * (U.T @ centred.targets))
    if repeated:
        left = 1.0 - (1.0 - left) / times
    undetermined = left <= len(U) * _EPS
    missed /= (np.sqrt(times) * np.where(undetermined, 1.0, left))[:, :, np.newaxis]
    squares = np.zeros((len(alphas), y.shape[1], len(Z)))
    squares[:, :, counted] = np.where(undetermined[:, :, np.newaxis], np.inf, np.square(missed)).swapaxes(
        1, 2
    )
    return squares


@dataclass(frozen=True, slots=True, eq=False)
class _Centred:
    """Rows less their means, times the roots of their weights; means are 0 without an intercept.

    `features`: float64 array of shape (n_samples, n_components).
    `targets`: float64 array of shape (n_samples, n_targets).
    `roots`: float64 array of shape (n_samples, 1). Square roots of the weights.
    `total`: sum of the weights.
    """

    features: FloatArray
    targets: FloatArray
    roots: FloatArray
    total: float
    fit_intercept: bool

    @classmethod
    def of(cls, Z: FloatArray, y: FloatArray, weights: FloatArray, *, fit_intercept: bool) -> Self:
        total, roots = float(weights.sum()), np.sqrt(weights)[:, np.newaxis]
        shares = weights / total if fit_intercept else np.zeros(len(weights))
        return cls(roots * (Z - shares @ Z), roots * (y - shares @ y), roots, total, fit_intercept)

    @property
    def _by_rows(self) -> bool:
        n_samples, n_components = self.features.shape
        return bool(n_samples <= n_components)

    def gram(self) -> FloatArray:
        A = self.features
        return A @ A.T if self._by_rows else A.T @ A

    def hold_out(
        self, train: NDArray[np.bool_], test: NDArray[np.bool_], gram: FloatArray, alphas: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Predict some rows by ridge on others; see `Tridiagonal`.

        `train`, `test`: masks of shape (n_samples,).
        `gram`: the result of `gram`.
        Returns `squares`: float64 array of shape (n_alphas, n_targets). Weighted sums of squared errors.
        Returns `degrees_of_freedom`: float64 array of shape (n_alphas,).
        """
        targets, roots = self._about(train, self.targets), self.roots[train]
        if self._by_rows:  # A'(AA' + α)⁻¹b = (A'A + α)⁻¹A'b, so that products of rows are enough
            products = self._about(train, gram)[:, train]
            if self.fit_intercept:
                products -= (products @ roots) / np.square(roots).sum() @ roots.T
            system, moments, held_out = products[train], targets[train], products[test]
        else:
            features = self._about(train, self.features)
            A = features[train]
            system, moments, held_out = A.T @ A, A.T @ targets[train], features[test]
        form = Tridiagonal.of(system)
        eigenvalues = form.eigenvalues()
        # a penalty of at least the rounding error, also for an eigenvalue that rounding made negative
        rounding = max(int(train.sum()), self.features.shape[1]) * _EPS * max(float(eigenvalues[-1]), 0.0)
        penalties = np.maximum(alphas, rounding + max(0.0, -float(eigenvalues[0])))
        moments, held_out = (form.rotate(columns, transposed=True) for columns in (moments, held_out.T))
        solved = form.solve_path(moments, penalties)
        predicted = (held_out.T @ solved.reshape(len(solved), -1)).reshape(-1, *solved.shape[1:])
        missed = predicted - targets[test][:, np.newaxis]
        kept = eigenvalues[eigenvalues > rounding]
        degrees = (kept / (kept + penalties[:, np.newaxis])).sum(axis=1)
        return np.square(missed).sum(axis=0), float(self.fit_intercept) + degrees

    def _about(self, train: NDArray[np.bool_], columns: FloatArray) -> FloatArray:
        """Return weighted columns less their means over the training rows."""
        if not self.fit_intercept:
            return columns
        roots = self.roots[train]
        means = (roots.T @ columns[train]) / np.square(roots).sum()
        return np.asarray(columns - self.roots * means)

    def orthogonal(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return U and λ of I − H = U·diag(α/(λ + α))·U' + C, the diagonal of C, and C·y.

        H is the hat matrix of rows times the roots of their weights. C projects on the space that neither
        features nor an intercept reach; it is 0 with as many components as rows.
        """
        n_samples = len(self.features)
        constant = self.roots / np.sqrt(self.total) if self.fit_intercept else np.zeros((n_samples, 1))
        gram = self.gram()
        if self._by_rows:
            if self.fit_intercept:  # moves the constant beyond all eigenvalues, apart from other eigenvectors
                gram += (2.0 * np.trace(gram) or 1.0) * (constant @ constant.T)
            eigenvalues, U = np.linalg.eigh(gram)
            if self.fit_intercept:
                eigenvalues, U = eigenvalues[:-1], U[:, :-1]
            return U, np.maximum(eigenvalues, 0.0), np.zeros(n_samples), np.zeros_like(self.targets)
        eigenvalues, Q = np.linalg.eigh(gram)
        kept = eigenvalues > n_samples * _EPS * max(float(eigenvalues[-1]), 0.0)
        eigenvalues = eigenvalues[kept]
        U = self.features @ (Q[:, kept] / np.sqrt(eigenvalues))
        rest = 1.0 - np.square(U).sum(axis=1) - np.square(constant[:, 0])
        return U, eigenvalues, rest, self.targets - U @ (U.T @ self.targets)
