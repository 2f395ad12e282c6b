"""Exact errors of few rows that are left out in folds or one by one, from the rows themselves.

Each split of folds takes a decomposition of the smaller Gram: that of its training rows, or of their
features. The table is the same as that of `cross_validation`, which works from sums of each fold and for any
number of rows. A single decomposition gives the errors of all rows that are left out one by one.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import folding, samples
from rff_dist.numerics import machine, tridiagonal
from rff_dist.selection import cross_validation
from rff_dist.selection.grids import MATERIAL_GAIN, RESOLUTION, PerTarget, alpha_grid, check_grid, last_within
from rff_dist.typing import EPS, BoolArray, FloatArray, IndexArray, frozen


def cross_validate_rows(
    Z: FloatArray,
    sample: samples.FoldSample,
    folds: folding.Folds,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    repeated: bool = False,
) -> cross_validation.CrossValidation | None:
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

    def validate(train: BoolArray, test: BoolArray) -> tuple[FloatArray, FloatArray]:
        squares, degrees = whole.hold_out(train, test, gram, grid, floor=floor)
        return squares, degrees / (weights[train].sum() if repeated else train.sum())

    n_threads = machine.available_cores() if min(Z.shape) > cross_validation.SMALL else 1
    with machine.single_threaded_blas(), machine.executor_of(n_threads) as pool:
        gram = whole.gram()
        largest = cross_validation.largest_eigenvalue(gram)
        floor = max(Z.shape) * EPS * largest
        grid = alpha_grid(largest, floor) if alphas is None else check_grid(alphas)
        errors, leverages = zip(*pool.map(validate, *zip(*splits, strict=True)), strict=True)
    held_out = np.array([weights[test].sum() for _, test in splits])
    constant = np.ptp(y, axis=0) == 0.0 if fit_intercept else np.zeros(y.shape[1], bool)
    return cross_validation.CrossValidation(
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
    """`cv_results_` of `sklearn.linear_model.RidgeCV(alphas, store_cv_results=True)`, axes reversed.

    Each row's squared errors by ridge on the others, shape (n_alphas, n_targets, n_samples).
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
    # threads of decompositions of up to 512 components wait for each other: next to other work 0.4 s for 0.03
    with machine.single_threaded_blas():
        U, eigenvalues, rest, outside = centred.orthogonal()
        shares = alphas[:, np.newaxis] / (eigenvalues + alphas[:, np.newaxis])
        # 1 − h of each alpha and row, the diagonal of I − H; shape (n_alphas, n_rows)
        left = rest + shares @ np.square(U).T
        missed = outside + U @ (shares[:, :, np.newaxis] * (U.T @ centred.targets))
    if repeated:
        # h of a row that is there `times` times is shared by its copies, and one of them is left out
        left = 1.0 - (1.0 - left) / times
    undetermined = left <= len(U) * EPS
    missed /= (np.sqrt(times) * np.where(undetermined, 1.0, left))[:, :, np.newaxis]
    squares = np.zeros((len(alphas), y.shape[1], len(Z)))
    squared = np.where(undetermined[:, :, np.newaxis], np.inf, np.square(missed))
    squares[:, :, counted] = squared.swapaxes(1, 2)
    return squares


@frozen(eq=False)
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
        self,
        train: BoolArray,
        test: BoolArray,
        gram: FloatArray,
        alphas: FloatArray,
        *,
        floor: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Predict some rows by ridge on others; see `Tridiagonal`.

        `train`, `test`: masks of shape (n_samples,).
        `gram`: the result of `gram`.
        `floor`: its rounding error; smaller penalties count as this one.
        Returns `squares`: float64 array of shape (n_alphas, n_targets). Weighted sums of squared errors.
        Returns `degrees_of_freedom`: float64 array of shape (n_alphas,).
        """
        trained = train[:, np.newaxis]
        roots = self.roots * trained  # without copies of all features but those of the rest
        weight = float(np.square(roots).sum())
        shares = roots / weight if self.fit_intercept else np.zeros(roots.shape)
        target_means = shares.T @ self.targets
        targets = self.targets - self.roots * target_means
        if self._by_rows:  # A'(AA' + α)⁻¹b = (A'A + α)⁻¹A'b, so that products of rows are enough
            products, moments = gram[:, train], targets[train]
            if self.fit_intercept:  # about the means of the rows trained on, on both sides
                means = shares.T @ products
                centres = products @ shares[train] - self.roots * (means @ shares[train])
                products -= np.hstack([self.roots, centres]) @ np.vstack([means, roots[train].T])
            system, held_out = products[train], products[test]
        else:  # sums over all rows, less those of the rows that are not trained on
            left_out, means = self.features[~train], shares.T @ self.features
            system = gram - left_out.T @ left_out - weight * (means.T @ means)
            moments = self.features.T @ (targets * trained)
            held_out = self.features[test] - self.roots[test] * means
        form = tridiagonal.Tridiagonal.of(system)
        eigenvalues = form.eigenvalues()
        # also for an eigenvalue that rounding made negative
        penalties = np.maximum(alphas, floor + max(0.0, -float(eigenvalues[0])))
        solved = form.solve_path(form.rotate(moments, transposed=True), penalties)
        # alphas are fewer than the rows of most folds
        solutions = form.rotate(solved.reshape(len(solved), -1), transposed=False)
        predicted = (held_out @ solutions).reshape(-1, *solved.shape[1:])
        missed = predicted - targets[test][:, np.newaxis]
        kept = eigenvalues[eigenvalues > floor]
        degrees = (kept / (kept + penalties[:, np.newaxis])).sum(axis=1)
        return np.square(missed).sum(axis=0), float(self.fit_intercept) + degrees

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
        kept = eigenvalues > n_samples * EPS * max(float(eigenvalues[-1]), 0.0)
        eigenvalues = eigenvalues[kept]
        U = self.features @ (Q[:, kept] / np.sqrt(eigenvalues))
        rest = 1.0 - np.square(U).sum(axis=1) - np.square(constant[:, 0])
        return U, eigenvalues, rest, self.targets - U @ (U.T @ self.targets)


# -- few rows --------------------------------------------------------------------------------------
#
# Errors of few rows barely tell alphas apart, and the smallest of those that are as good is easily far too
# small. So the largest alpha whose error is within one standard error of the least is taken. The standard
# error is that of the differences row by row, in which most of what makes rows easy or hard to predict
# cancels.
#
# With this rule 38 of 349 nasty draws err by more than 1.1 times the error of the best alpha. It would be 48
# with half a standard error, 60 with one and a half, 96 by the largest evidence, and 62 by the largest
# evidence among the alphas within the error. Leaving out all copies of a row together is no better: of 115
# draws with copies 13 fail, not 9. If errors clipped at ten times their mean were tested as well, two fewer
# of the 38 would fail, and five fewer of 42 in 240 smooth draws.
#
# Breiman, Friedman, Olshen & Stone (1984), Classification and regression trees, section 3.4.3, on the rule of
# one standard error.


# Share of the least error that does not count. If rows can be interpolated, ever smaller alphas gain little:
# classes of wine took 7e-10 where 1e-3 errs as much. None of 194 nasty draws fails for it; with 0.01 two do.
IMMATERIAL = 0.003


@frozen
class Doubts:
    """Reasons to doubt an alpha that was chosen by leaving out each row.

    `other`: index of the tried alpha that may save most of the error.
    `saved`, `saving`: the share of the error that it saves, and that plus one standard error.
    `heaviest_row`: number of the row with the largest error.
    `share`: that row's share in the sum of all squared errors.
    """

    other: int
    saved: float
    saving: float
    heaviest_row: int
    share: float


def choose_by_rows(
    squares: FloatArray,
    weights: FloatArray,
    target_variance: FloatArray,
    *,
    per_target: PerTarget,
    repeated: bool = False,
) -> tuple[IndexArray, Doubts] | None:
    """Return the index of each target's alpha among those that were tried, and reasons to doubt it.

    `squares`: float64 array of shape (n_alphas, n_targets, n_samples). From `leave_out_each`, alphas
      ascending.
    `weights`: float64 array of shape (n_samples,).
    `target_variance`: float64 array of shape (n_targets,). Constant targets do not count.
    `per_target`: whether each target has an alpha of its own; "auto" gives one to targets for which it saves
      more than 1 % of the error, and more than the standard error of the saving.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Returns None if no target varies, no row errs, or every alpha leaves a row undetermined.
    """
    varying = np.flatnonzero(target_variance > 0.0)
    known = np.flatnonzero(np.isfinite(squares).all(axis=(1, 2)))
    if not len(varying) or not len(known):
        return None
    rows = _Rows(weights / weights.sum(), repeated, float(weights.sum()))
    losses = squares[known][:, varying] / target_variance[varying, np.newaxis]
    shared = rows.largest_as_good(losses.mean(axis=1))
    places = np.full(len(target_variance), shared)
    for i, target in enumerate(varying) if per_target is not False else ():
        best = rows.largest_as_good(losses[:, i])
        saved, error = rows.mean_and_error(losses[shared, i] - losses[best, i])
        material = MATERIAL_GAIN * float(rows.shares @ losses[shared, i])
        if per_target is True or saved > max(material, error):
            places[target] = best
    errors = rows.shares * losses[places[varying], np.arange(len(varying))].mean(axis=0)
    if not (total := float(errors.sum())) > 0.0:
        return None
    savings = (rows.most_saved(losses[:, i], place) for i, place in enumerate(places[varying]))
    saving, saved, other = max(savings)
    heaviest = int(np.argmax(errors))
    return known[places], Doubts(int(known[other]), saved, saving, heaviest, float(errors[heaviest]) / total)


@frozen(eq=False)
class _Rows:
    """How rows are weighted in means: `shares`, float64 array of shape (n_samples,), adds up to 1."""

    shares: FloatArray
    repeated: bool
    sum_of_weights: float

    def largest_as_good(self, losses: FloatArray) -> int:
        """Return the last alpha whose mean loss is at most a standard error above the least.

        If all rows gain alike, however little, the standard error is near 0. So immaterial gains are ignored.

        `losses`: float64 array of shape (n_alphas, n_samples).
        """
        means = losses @ self.shares
        least = int(np.argmin(means))
        excess, error = self.mean_and_error(losses - losses[least])
        slack = max(RESOLUTION, IMMATERIAL * float(means[least]))
        return last_within(excess, np.maximum(error, slack))

    def most_saved(self, losses: FloatArray, chosen: int) -> tuple[float, float, int]:
        """Return what another alpha may save at most: the share plus a standard error, the share, its index.

        `losses`: as in `largest_as_good`.
        """
        saved, error = self.mean_and_error(losses[chosen] - losses)
        most, total = int(np.argmax(saved + error)), float(losses[chosen] @ self.shares)
        if not total > 0.0:
            return 0.0, 0.0, most
        return float(saved[most] + error[most]) / total, float(saved[most]) / total, most

    def mean_and_error(self, losses: FloatArray) -> tuple[Any, Any]:
        """Return means over the last axis, and their standard errors, for either kind of weights."""
        means = losses @ self.shares
        # variances of means of Σw equal rows, or of rows of which each is one observation
        spreads = self.shares / self.sum_of_weights if self.repeated else np.square(self.shares)
        return means, np.sqrt(np.square(losses - np.expand_dims(means, -1)) @ spreads)
