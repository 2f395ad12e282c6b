"""Cross-validate few rows from their features rather than from sums, and choose alpha.

Features of up to some thousand rows go in; the errors of each alpha come out, for rows
left out in folds or one by one. From errors of rows left out one by one,
`choose_by_rows` takes an alpha: the largest within one standard error of the best. With
fewer rows than features this is faster than sums of D² numbers, D the number of
features, and it resolves smaller alphas.

Each split of folds takes a decomposition of the smaller Gram: that of its training
rows, or of their features. The table is the same as that of `cross_validation`, which
works from sums of each fold and for any number of rows. A single decomposition gives
the errors of all rows that are left out one by one.
"""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import samples
from rff_dist.numerics import machine, tridiagonal
from rff_dist.selection import cross_validation, error_table, rule
from rff_dist.selection.grids import PerTarget, alpha_grid, check_grid
from rff_dist.typing import EPS, BoolArray, FloatArray, IndexArray, frozen


def cross_validate_rows(
    Z: FloatArray,
    sample: samples.FoldSample,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    frequency_weights: bool = False,
) -> error_table.CrossValidation | None:
    """Return the table that `cross_validate` makes of sums, from features of rows.

    O(n_samples · n_components · k) for each split, where k is the smaller of the two.
    The bits do not depend on the number of threads. `frequency_weights`: whether the
    weights are whole numbers that repeat their rows.

    Returns None if a split has no row to train on, or no split has any to hold out.
    """
    y = sample.y
    fold_of_row = sample.fold_of_row
    weights = np.ones(len(Z)) if sample.weights is None else sample.weights
    splits = []
    for trained_on, held_out in sample.folds.splits:
        train = np.isin(fold_of_row, trained_on)
        test = fold_of_row == held_out
        if test.any() and not train.any():
            return None
        if test.any():
            splits.append((train, test))
    if not splits:
        return None
    centred = _CentredRows.of(Z, y, weights, fit_intercept=fit_intercept)

    is_small = min(Z.shape) <= cross_validation.SMALL
    n_threads = 1 if is_small else machine.available_cores()
    with machine.single_threaded_blas(), machine.executor_of(n_threads) as pool:
        gram = centred.gram()
        largest = cross_validation.largest_eigenvalue(gram)
        floor = max(Z.shape) * EPS * largest
        grid = alpha_grid(largest, floor) if alphas is None else check_grid(alphas)

        def validate(
            train: BoolArray, test: BoolArray
        ) -> tuple[FloatArray, FloatArray]:
            squares, degrees = centred.hold_out(train, test, gram, grid, floor=floor)
            # degrees of freedom per row trained on are the mean leverage
            n_trained_on = weights[train].sum() if frequency_weights else train.sum()
            return squares, degrees / n_trained_on

        errors, leverages = zip(
            *pool.map(validate, *zip(*splits, strict=True)), strict=True
        )
    test_weights = np.array([weights[test].sum() for _, test in splits])
    means = np.stack(errors) / test_weights[:, np.newaxis, np.newaxis]
    variance = np.square(centred.targets).sum(axis=0) / centred.total
    if fit_intercept:  # rounding gives a constant target a variance
        variance[np.ptp(y, axis=0) == 0.0] = 0.0
    return error_table.CrossValidation(
        folds=sample.folds,
        n_components=np.array([Z.shape[1]], np.int64),
        alphas=grid,
        errors=means[:, np.newaxis],
        weights=test_weights,
        target_variance=variance,
        leverages=np.stack(leverages)[:, np.newaxis],
    )


def leave_out_each(
    Z: FloatArray,
    y: FloatArray,
    weights: FloatArray | None,
    alphas: FloatArray,
    *,
    fit_intercept: bool = True,
    frequency_weights: bool = False,
) -> FloatArray:
    """Return each row's squared errors by ridge on the others, for each alpha.

    Their shape is (n_alphas, n_targets, n_samples): `cv_results_` of
    `sklearn.linear_model.RidgeCV(alphas, store_cv_results=True)`, axes reversed. An
    error is infinite if the other rows do not determine the row's prediction, up to
    rounding, and 0 for a row without weight. If weights repeat rows, one copy is left
    out. O(n_samples · n_components · k), where k is the smaller of the two.
    """
    counted = np.ones(len(Z), bool) if weights is None else weights > 0
    weights = np.ones(len(Z)) if weights is None else weights[counted]
    centred = _CentredRows.of(
        Z[counted], y[counted], weights, fit_intercept=fit_intercept
    )
    # several threads of decompositions of up to 512 components wait for each other: 0.4
    # s next to other work, where one thread takes 0.03 s
    with machine.single_threaded_blas():
        hat = centred.hat_matrix()
        U = hat.vectors
        unfitted = alphas[:, np.newaxis] / (hat.eigenvalues + alphas[:, np.newaxis])
        # I − H = U·diag(unfitted)·U' + C, and h is the diagonal of H; of each alpha and
        # row, shape (n_alphas, n_rows)
        one_minus_h = hat.c_diagonal + unfitted @ np.square(U).T
        # (I − H)·y, the residuals of the fit to all rows
        unfitted_targets = unfitted[:, :, np.newaxis] * (U.T @ centred.targets)
        errors = hat.c_times_y + U @ unfitted_targets
    if frequency_weights:
        # the copies of a row share its h, and one of them is left out
        one_minus_h = 1.0 - (1.0 - one_minus_h) / weights
    is_undetermined = one_minus_h <= len(U) * EPS
    divisors = np.sqrt(weights) * np.where(is_undetermined, 1.0, one_minus_h)
    # a residual over 1 − h is the error if the row is left out
    errors /= divisors[:, :, np.newaxis]
    of_counted = np.where(is_undetermined[:, :, np.newaxis], np.inf, np.square(errors))
    squares = np.zeros((len(alphas), y.shape[1], len(Z)))
    squares[:, :, counted] = of_counted.swapaxes(1, 2)
    return squares


@frozen(eq=False)
class _HatMatrix:
    """H of rows times the roots of their weights: I − H = U·diag(α/(λ + α))·U' + C.

    C projects on the directions that neither features nor an intercept reach; it is 0
    if there are as many components as rows.
    """

    #: U, shape (n_samples, rank).
    vectors: FloatArray
    #: λ
    eigenvalues: FloatArray
    #: The diagonal of C, shape (n_samples,).
    c_diagonal: FloatArray
    #: C·y, shape (n_samples, n_targets).
    c_times_y: FloatArray


@frozen(eq=False)
class _System:
    """Ridge on some rows: (gram + α)·x = moments predicts held-out rows, held_out·x."""

    #: Products of the rows trained on with each other, or of their columns if these are
    #: fewer.
    gram: FloatArray
    moments: FloatArray
    #: Products of held-out rows with the rows trained on; if `gram` is of columns, the
    #: held-out rows themselves.
    held_out: FloatArray


@frozen(eq=False)
class _CentredRows:
    """Rows less their means if there is an intercept, times the roots of weights."""

    features: FloatArray  # shape (n_samples, n_components)
    targets: FloatArray  # shape (n_samples, n_targets)
    #: Square roots of the weights, shape (n_samples, 1).
    roots: FloatArray
    #: Sum of the weights.
    total: float
    fit_intercept: bool

    @classmethod
    def of(
        cls, Z: FloatArray, y: FloatArray, weights: FloatArray, *, fit_intercept: bool
    ) -> Self:
        total = float(weights.sum())
        roots = np.sqrt(weights)[:, np.newaxis]
        mean_weights = weights / total if fit_intercept else np.zeros(len(weights))
        return cls(
            roots * (Z - mean_weights @ Z),
            roots * (y - mean_weights @ y),
            roots,
            total,
            fit_intercept,
        )

    @property
    def _is_wide(self) -> bool:
        """Whether products of rows, AA', are smaller than those of columns, A'A."""
        n_samples, n_components = self.features.shape
        return bool(n_samples <= n_components)

    def gram(self) -> FloatArray:
        A = self.features
        return A @ A.T if self._is_wide else A.T @ A

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

        `train` and `test` are masks of rows. Penalties below the rounding error `floor`
        of the Gram are raised to it. Returns weighted sums of squared errors, shape
        (n_alphas, n_targets), and degrees of freedom, shape (n_alphas,).
        """
        # masks rather than copies of all features of these rows
        roots = self.roots * train[:, np.newaxis]
        weight = float(np.square(roots).sum())
        # products with these are means of the rows trained on
        mean_factors = roots / weight if self.fit_intercept else np.zeros(roots.shape)
        targets = self.targets - self.roots * (mean_factors.T @ self.targets)
        if self._is_wide:
            system = self._system_of_rows(train, test, gram, targets, mean_factors)
        else:
            system = self._system_of_columns(
                train, test, gram, targets, mean_factors, weight
            )
        form = tridiagonal.Tridiagonal.of(system.gram)
        eigenvalues = form.eigenvalues()
        # also for an eigenvalue that rounding made negative
        penalties = np.maximum(alphas, floor + max(0.0, -float(eigenvalues[0])))
        moments = form.rotate(system.moments, transposed=True)
        solved = form.solve_path(moments, penalties)
        # rotate solutions rather than held-out rows: alphas are fewer than most folds'
        # rows
        solutions = form.rotate(solved.reshape(len(solved), -1), transposed=False)
        predicted = (system.held_out @ solutions).reshape(-1, *solved.shape[1:])
        errors = predicted - targets[test][:, np.newaxis]
        above = eigenvalues[eigenvalues > floor]
        degrees = (above / (above + penalties[:, np.newaxis])).sum(axis=1)
        return np.square(errors).sum(axis=0), float(self.fit_intercept) + degrees

    def _system_of_rows(
        self,
        train: BoolArray,
        test: BoolArray,
        gram: FloatArray,
        targets: FloatArray,
        mean_factors: FloatArray,
    ) -> _System:
        """Return the system of products of rows, AA', which are fewer than columns.

        It suffices since (A'A + α)⁻¹A'b = A'(AA' + α)⁻¹b.
        """
        products = gram[:, train]
        if self.fit_intercept:
            # With t for the rows trained on, rows less the means of t are B = A -
            # r·s'A, where r are roots and s is `mean_factors`, which is 0 outside t. So
            #   B·Bₜ' = A·Aₜ' - r·(s'A·Aₜ') - (AA's - r·(s'AA's))·rₜ'
            #         = products - r·mean_products - centred_products·rₜ'.
            s = mean_factors[train]
            # products of the mean row s'A with the rows trained on, and of all rows
            # less the mean row with the mean row
            mean_products = mean_factors.T @ products
            centred_products = products @ s - self.roots * (mean_products @ s)
            products -= np.hstack([self.roots, centred_products]) @ np.vstack(
                [mean_products, self.roots[train].T]
            )
        return _System(products[train], targets[train], products[test])

    def _system_of_columns(
        self,
        train: BoolArray,
        test: BoolArray,
        gram: FloatArray,
        targets: FloatArray,
        mean_factors: FloatArray,
        weight: float,
    ) -> _System:
        """Return the system of products of columns, A'A, which are fewer than rows.

        They are sums over all rows, less those of the rows not trained on.
        """
        left_out = self.features[~train]
        means = mean_factors.T @ self.features
        return _System(
            gram - left_out.T @ left_out - weight * (means.T @ means),
            self.features.T @ (targets * train[:, np.newaxis]),
            self.features[test] - self.roots[test] * means,
        )

    def hat_matrix(self) -> _HatMatrix:
        n_samples = len(self.features)
        constant = np.zeros((n_samples, 1))
        if self.fit_intercept:
            constant = self.roots / np.sqrt(self.total)
        gram = self.gram()
        if self._is_wide:
            if self.fit_intercept:
                # makes the constant the last eigenvector, which is then left out
                gram += (2.0 * np.trace(gram) or 1.0) * (constant @ constant.T)
            eigenvalues, U = np.linalg.eigh(gram)
            if self.fit_intercept:
                eigenvalues = eigenvalues[:-1]
                U = U[:, :-1]
            return _HatMatrix(
                U,
                np.maximum(eigenvalues, 0.0),
                np.zeros(n_samples),
                np.zeros_like(self.targets),
            )
        eigenvalues, Q = np.linalg.eigh(gram)
        floor = n_samples * EPS * max(float(eigenvalues[-1]), 0.0)
        is_above = eigenvalues > floor
        eigenvalues = eigenvalues[is_above]
        U = self.features @ (Q[:, is_above] / np.sqrt(eigenvalues))
        # C = I − UU' − constant·constant', and centred targets have no constant part
        c_diagonal = 1.0 - np.square(U).sum(axis=1) - np.square(constant[:, 0])
        c_times_y = self.targets - U @ (U.T @ self.targets)
        return _HatMatrix(U, eigenvalues, c_diagonal, c_times_y)


# -- choose alpha by rows that are left out one by one
#
# Errors of few rows barely tell alphas apart, and the smallest of those that are as
# good is easily far too small. So the largest alpha whose error is within one standard
# error of the smallest is taken. The standard error is that of the differences row by
# row, in which most of what makes rows easy or hard to predict cancels.
#
# Of 349 draws of nasty data (benchmarks/no_absurd_models.py), so many err by more than
# 1.1 times the error of the best alpha:
#
#   38  with this rule
#   48  with half a standard error
#   60  with one and a half
#   96  by the largest evidence
#   62  by the largest evidence among the alphas within the error
#   36  if errors clipped at ten times their mean were tested as well (in 240 smooth
#       draws: 37, with this rule 42)
#
# Leaving out all copies of a row together is no better: of 115 draws with copies 13
# fail, with this rule 9.
#
# Breiman, Friedman, Olshen & Stone (1984), Classification and regression trees, section
# 3.4.3, on the rule of one standard error.


# Gains below this share of the smallest error do not count. If rows can be
# interpolated, ever smaller alphas gain little: for classes of wine 7e-10 was chosen,
# although 1e-3 errs as much. With a share of 0.003 no draw of 194 fails because of it;
# with 0.01 two do.
IMMATERIAL = 0.003


@frozen
class Doubts:
    """Reasons to doubt an alpha that was chosen by leaving out each row."""

    #: Index of the tried alpha that may save the largest share of some target's error.
    other: int
    #: The share of this target's error that it saves, and that plus a standard error.
    saved: float
    saved_at_most: float
    #: The row with the largest error, and its share in the sum of squared errors.
    heaviest_row: int
    share: float


def choose_by_rows(
    squares: FloatArray,
    weights: FloatArray,
    target_variance: FloatArray,
    *,
    per_target: PerTarget,
    frequency_weights: bool = False,
) -> tuple[IndexArray, Doubts] | None:
    """Return the index of each target's alpha, and reasons to doubt it.

    `squares` are those of `leave_out_each`, alphas ascending. Constant targets do not
    count. With `per_target` "auto", a target has its own alpha if that saves more than
    1 % of its error, and more than the standard error of the saving.

    Returns None if no target varies, no row errs, or every alpha leaves a row
    undetermined.
    """
    varying = np.flatnonzero(target_variance > 0.0)
    determined = np.flatnonzero(np.isfinite(squares).all(axis=(1, 2)))
    if not len(varying) or not len(determined):
        return None
    # a unit is a row; with `frequency_weights` it counts as several observations
    units = rule.HeldOutUnits.of_rows(weights, frequency_weights=frequency_weights)
    losses = squares[determined][:, varying] / target_variance[varying, np.newaxis]
    losses = np.moveaxis(losses, -1, 0)  # rows first

    def slack(losses_of_target: FloatArray, best: int) -> FloatArray:
        """Return how much worse than the alpha `best` still counts as good."""
        loss_of_best = losses_of_target[:, best]
        standard_error = units.standard_error(
            losses_of_target - loss_of_best[:, np.newaxis]
        )
        # if all rows gain alike, however little, the standard error is near 0
        return np.maximum(standard_error, IMMATERIAL * units.mean(loss_of_best))

    shared_alpha = units.largest_as_good(losses.mean(axis=-1), slack)
    alpha_of_varying = np.full(len(varying), shared_alpha)
    if per_target is not False:
        alpha_of_varying = units.own_alphas(
            losses, shared_alpha, slack, always=per_target is True
        )
    # the losses of the alphas that are chosen, shape (n_rows, n_varying)
    chosen_losses = losses[:, alpha_of_varying, np.arange(len(varying))]
    errors = units.shares * chosen_losses.mean(axis=-1)
    total = float(errors.sum())
    if not total > 0.0:
        return None
    saved_at_most, saved, other = max(
        _most_saved(units, losses[:, :, i], chosen_losses[:, i])
        for i in range(len(varying))
    )
    alpha_of_target = np.full(len(target_variance), shared_alpha)
    alpha_of_target[varying] = alpha_of_varying
    heaviest = int(np.argmax(errors))
    doubts = Doubts(
        other=int(determined[other]),
        saved=saved,
        saved_at_most=saved_at_most,
        heaviest_row=heaviest,
        share=float(errors[heaviest]) / total,
    )
    # so far these are indices among the determined alphas
    return determined[alpha_of_target], doubts


def _most_saved(
    units: rule.HeldOutUnits, losses: FloatArray, chosen_losses: FloatArray
) -> tuple[float, float, int]:
    """Return the most that another alpha than the chosen one may save of a target's
    error, the saving itself, and that alpha's index.

    Savings are shares of the error; the most is the saving plus a standard error.
    """
    savings = chosen_losses[:, np.newaxis] - losses
    saved = units.mean(savings)
    highest = saved + units.standard_error(savings)
    other = int(np.argmax(highest))
    total = float(units.mean(chosen_losses))
    if not total > 0.0:
        return 0.0, 0.0, other
    return float(highest[other]) / total, float(saved[other]) / total, other
