"""Exact k-fold cross-validation from the statistics of each fold, for every alpha, size and target.

Let A, B and c be a fold's sums of Z'Z, Z'y and y'y about its own means. The coefficients w of the other folds
then have on it the error

    c − 2w'B + w'Aw + W·(δ_y − δ_z'w)²,

where δ are the fold's means less those of the rows trained on, and W is its sum of weights. This is what a
refit without the fold would give, with no second pass over the data. Without an intercept, sums and means are
about 0.

Hastie, Tibshirani & Friedman (2009), The Elements of Statistical Learning, section 7.10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from rff_dist.data import folding
from rff_dist.errors import InvalidParameterError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine, solution, tridiagonal
from rff_dist.selection import grids
from rff_dist.statistics import fold_statistics
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import short_repr
from rff_dist.typing import EPS, AnyArray, Arrays, FloatArray, IndexArray, frozen

_COLUMNS = 512  # pairs of alpha and target whose coefficients are in memory at once
SMALL = 256  # components, below which one thread is faster than several
AS_GOOD = 0.1  # of a standard error: folds do not tell such an error from the least
INTERPOLATING = 0.9  # mean leverage of training rows, above which they are as good as interpolated


@frozen
class Choice:
    """A size and an alpha, and how well they did.

    `n_components`: D'.
    `alpha`: the alpha of the grid that is best for all targets together.
    `score`, `standard_error`: validation error as a share of the targets' variance, and its standard error.
    `at_end`: {"lower", "upper"} or None. The end of the grid that an alpha is at; better ones may lie beyond.
    `own_alphas`: the alpha of each target, if they differ.
    """

    n_components: int
    alpha: float
    score: float
    standard_error: float
    at_end: Literal["lower", "upper"] | None
    own_alphas: tuple[float, ...] | None = None

    @property
    def penalty(self) -> float | tuple[float, ...]:
        """The alpha in use: one number, or one for each target."""
        return self.alpha if self.own_alphas is None else self.own_alphas


_DERIVED = ("mean", "standard_error")  # stored for other readers
_STORED = ("alphas", "n_components", "errors", *_DERIVED, "weights", "target_variance")


@frozen(eq=False)
class CrossValidation:
    """Validation errors of every split, size, alpha and target.

    Methods raise InvalidParameterError if a number of components is not in the table, or if they need
    standard errors and there is only one split.

    `folds`: how the rows were cut.
    `n_components`: int64 array of shape (n_sizes,). Ascending.
    `alphas`: float64 array of shape (n_alphas,). Ascending.
    `errors`: float64 array of shape (n_splits, n_sizes, n_alphas, n_targets). Mean squared validation errors,
      in the targets' units squared; one below its rounding error is replaced by that.
    `weights`: float64 array of shape (n_splits,). Sums of weights of the rows validated on.
    `target_variance`: float64 array of shape (n_targets,). Variance over all rows, 0 for constants; the mean
      square without an intercept.
    `leverages`: float64 array of shape (n_splits, n_sizes, n_alphas), or None. Mean leverage of the rows
      trained on: degrees of freedom over rows, 1 if they are interpolated. None after conjugate
      gradients.
    """

    folds: folding.Folds
    n_components: NDArray[np.int64]
    alphas: FloatArray
    errors: FloatArray
    weights: FloatArray
    target_variance: FloatArray
    leverages: FloatArray | None = None

    __repr__ = short_repr

    @property
    def mean(self) -> FloatArray:
        """Mean squared error over all rows validated on, shape (n_sizes, n_alphas, n_targets)."""
        return _mean(self.errors, self.weights)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of `mean`, by how far the splits differ; NaN for a single split.

        sqrt(Σ w·(m − mean)² / ((K − 1)·Σ w)) over K splits: with equal weights the standard deviation of
        the splits' errors over √K.
        """
        return _standard_error(self.errors, self.weights)

    @property
    def scores(self) -> FloatArray:
        """The errors that choices are made by, see `shares_of_variance`: shape (n_sizes, n_alphas)."""
        return _mean(self.split_scores(), self.weights)

    @property
    def score_standard_errors(self) -> FloatArray:
        """Standard errors of `scores`, shape (n_sizes, n_alphas)."""
        return _standard_error(self.split_scores(), self.weights)

    @property
    def best(self) -> Choice:
        """The least score; among scores within 1e-10 the fewest components, and their largest alpha."""
        scores = self.scores
        size, _ = np.argwhere(scores <= scores.min() + grids.RESOLUTION)[0]
        return self._choice(size, grids.last_within(scores[size], scores.min() + grids.RESOLUTION))

    def best_of(self, n_components: int) -> Choice:
        """Return one size's alpha with the least score, the largest of those within 1e-10."""
        least = self.scores[self.place_of(n_components)].min()
        return self._largest_within(n_components, least + grids.RESOLUTION)

    def safest(self, n_components: int) -> Choice:
        """Return one size's alpha with the least score, or a larger one if rows are interpolated.

        Without noise a path is flat down to the rounding errors at its end. If rows have a mean leverage
        above 0.9 at the best alpha, the largest alpha within a tenth of a standard error replaces it: nothing
        is lost, and the coefficients depend less on chance.
        """
        best = self.best_of(n_components)
        interpolates = self.mean_leverage(n_components, best.alpha) > INTERPOLATING
        slack = AS_GOOD * best.standard_error if interpolates else 0.0
        return self._largest_within(n_components, best.score + max(np.nan_to_num(slack), grids.RESOLUTION))

    def mean_leverage(self, n_components: int, alpha: float) -> float:
        """Return the mean leverage of the rows trained on for one size and alpha; 0 if it is not known."""
        if self.leverages is None:
            return 0.0
        size, at = self.place_of(n_components), int(np.searchsorted(self.alphas, alpha))
        return float(self.leverages[:, size, at].mean())

    def at_alphas(self, n_components: int, alphas: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each target's mean squared error and its standard error at its own alpha of the grid."""
        size = self.place_of(n_components)
        places = np.searchsorted(self.alphas, alphas), np.arange(len(alphas))
        return self.mean[size][places], self.standard_error[size][places]

    def one_standard_error(self, n_components: int) -> Choice:
        """Return one size's largest alpha within one standard error of its best."""
        return self._largest_within(n_components, self._limit(self.best_of(n_components)))

    def fewest_components(self) -> Choice:
        """Return the smallest size whose best is within one standard error of the best of all."""
        limit = self._limit(self.best)
        size = int(np.argmax(self.scores.min(axis=1) <= limit))
        return self.best_of(int(self.n_components[size]))

    def with_own_alphas(self, choice: Choice, *, always: bool, standard_errors: float = 0.0) -> Choice:
        """Return a choice with an alpha for each target, by that target's own errors.

        `choice`: an entry of this table, with one alpha for all targets.
        `always`: whether each target gets its own alpha; else only targets for which that saves more than 1 %
          of the error, and more than the standard error of the saving over splits.
        `standard_errors`: a target's own alpha is the largest whose error is within so many standard errors
          of its least: 1 for the rule of `one_standard_error`, and `AS_GOOD` for that of `safest`, which
          applies only if rows are interpolated.
        """
        size, shared = self.place_of(choice.n_components), int(np.argmin(np.abs(self.alphas - choice.alpha)))
        places = np.full(len(self.target_variance), shared)
        varying = np.flatnonzero(self.target_variance > 0.0)
        for target in varying:
            errors = self.errors[:, size, :, target] / self.target_variance[target]
            mean, deviation = _mean(errors, self.weights), _standard_error(errors, self.weights)
            best = int(np.argmin(mean))
            slack = standard_errors * np.nan_to_num(deviation[best])
            leverage = self.mean_leverage(choice.n_components, self.alphas[best])
            if standard_errors == AS_GOOD and not leverage > INTERPOLATING:
                slack = 0.0
            place = grids.last_within(mean, mean[best] + max(slack, grids.RESOLUTION))
            saved = errors[:, shared] - errors[:, place]
            # of the saving itself: both alphas are judged on the same splits, so what makes a split hard
            # cancels
            noise = np.nan_to_num(_standard_error(saved, self.weights))
            if always or _mean(saved, self.weights) > max(grids.MATERIAL_GAIN * mean[shared], noise):
                places[target] = place
        return choice if (places == shared).all() else self.choice_at(choice.n_components, places, shared)

    def choice_at(self, n_components: int, places: IndexArray, shared: int | None = None) -> Choice:
        """Return the choice of one size and of an alpha for each target.

        `places`: indices of the targets' alphas, shape (n_targets,).
        `shared`: index of the alpha of targets without one of their own; by default that of most targets.
        """
        size = self.place_of(n_components)
        if shared is None:
            shared = int(np.bincount(places).argmax())
        if (places == shared).all():
            return self._choice(size, shared)
        score, standard_error = self.score_of(size, places)
        varying = places[self.target_variance > 0.0].tolist()
        end = grids.worst_end([grids.end_of_grid(place, len(self.alphas)) for place in varying])
        alphas = tuple(self.alphas[places].tolist())
        return Choice(n_components, float(self.alphas[shared]), score, standard_error, end, alphas)

    def score_of(self, size: int, places: IndexArray) -> tuple[float, float]:
        """Return the score and its standard error of one size, with the index of each target's alpha."""
        errors = self.errors[:, size, places, np.arange(len(places))]
        shares = grids.shares_of_variance(errors, self.target_variance)
        return float(_mean(shares, self.weights)), float(_standard_error(shares, self.weights))

    def from_alpha(self, least: float) -> Self:
        """Return the table without alphas below `least`; the largest alpha always stays."""
        first = min(int(np.searchsorted(self.alphas, least)), len(self.alphas) - 1)
        leverages = None if self.leverages is None else self.leverages[:, :, first:]
        alphas, errors = self.alphas[first:], self.errors[:, :, first:]
        return replace(self, alphas=alphas, errors=errors, leverages=leverages)

    def to_arrays(self) -> dict[str, AnyArray]:
        leverages = {} if self.leverages is None else {"cv_leverages": self.leverages}
        return leverages | {f"cv_{name}": getattr(self, name) for name in _STORED}

    @classmethod
    def from_arrays(cls, folds: folding.Folds, arrays: Arrays) -> Self:
        stored = {name: np.asarray(arrays[f"cv_{name}"]) for name in _STORED if name not in _DERIVED}
        return cls(folds, **stored, leverages=arrays.get("cv_leverages"))

    def split_scores(self) -> FloatArray:
        return grids.shares_of_variance(self.errors, self.target_variance)

    def _largest_within(self, n_components: int, limit: float) -> Choice:
        size = self.place_of(n_components)
        return self._choice(size, grids.last_within(self.scores[size], limit))

    def _choice(self, size: int, alpha: int) -> Choice:
        n_components, end = int(self.n_components[size]), grids.end_of_grid(alpha, len(self.alphas))
        score, standard_error = self.scores[size, alpha], self.score_standard_errors[size, alpha]
        return Choice(n_components, float(self.alphas[alpha]), float(score), float(standard_error), end)

    def place_of(self, n_components: int) -> int:
        places = np.flatnonzero(self.n_components == n_components)
        if not len(places):
            raise InvalidParameterError(
                f"`n_components` is {n_components}; expected one of {self.n_components.tolist()}"
            )
        return int(places[0])

    def _limit(self, best: Choice) -> float:
        if len(self.weights) < 2:
            raise InvalidParameterError(
                f"{self.folds} give one split, whose error has no standard error; use more folds"
            )
        # even with a standard error of 0 the limit must include the best and its ties
        return best.score + max(best.standard_error, grids.RESOLUTION)


def cross_validate(
    statistics: fold_statistics.FoldStatistics,
    *,
    alphas: ArrayLike | None = None,
    feature_maps: Sequence[maps.FeatureMap] | None = None,
    fit_intercept: bool = True,
) -> CrossValidation:
    """Mean squared errors as `sklearn.model_selection.cross_val_score(Ridge(alpha), Z, y)` gives, from sums.

    For every alpha, size and target at once, without another look at the data.
    Each split and size takes a reduction to tridiagonal form, O(n_components³), and each alpha and target
    O(n_components²); see `cross_validation_bytes` for the memory. Each core works on one at a time, with one
    BLAS thread, so that no bit depends on the number of cores.

    `alphas`: float64 array of shape (n_alphas,). Positive penalties, in any order. By default the
      `alpha_grid` of all rows at the largest number of components.
    `feature_maps`: the sizes to look at, ascending, as maps of the leading components, see `shortened`. By
      default only the statistics' own size.
    Raises InvalidParameterError if an alpha is not positive and finite, or the maps are not of leading
      components, ascending; StatisticsError if a fold that is validated on has no rows, or none are left to
      train on.
    """
    total = statistics.total()
    sizes = _sizes(total, feature_maps)
    splits = statistics.splits
    variance = total.target_moments.variances(centred=fit_intercept)
    whole: solution.NormalEquations | None = None
    if alphas is None:
        whole = sizes[-1].of(total).normal_equations(fit_intercept=fit_intercept)
        with machine.single_threaded_blas():
            largest = largest_eigenvalue(whole.gram)  # Lanczos reads the Gram some 20 times
        grid = grids.alpha_grid(largest, whole.floor(largest))
    else:
        grid = grids.check_grid(alphas)
    errors = np.empty((len(splits), len(sizes), len(grid), total.spec.n_targets))
    leverages = np.empty(errors.shape[:-1])
    weights = np.array([statistics.fold(validation).sum_of_weights for _, validation in splits])
    problems, lock = _problems(statistics, total, sizes, whole, fit_intercept=fit_intercept), Lock()
    del whole

    def work(_: int) -> None:
        while True:
            with lock:  # problems are made as they are needed: memory holds one for each thread
                problem = next(problems, None)
            if problem is None:
                return
            at = problem.split, problem.size
            errors[at], leverages[at] = _validate(problem, grid, fit_intercept=fit_intercept)

    # with small problems threads wait for one another: 10 folds of D = 64 took 1.3 times as long on two
    small = sizes[-1].n_components <= SMALL
    threads = 1 if small else min(machine.available_cores(), len(splits) * len(sizes))
    with machine.tile_pool(threads) as pool:
        list(pool.map(work, range(threads)))
    return CrossValidation(
        folds=statistics.folds,
        n_components=np.array([size.n_components for size in sizes], np.int64),
        alphas=grid,
        errors=errors / weights[:, np.newaxis, np.newaxis, np.newaxis],
        weights=weights,
        target_variance=variance,
        leverages=leverages,
    )


def cross_validation_bytes(
    n_components: int, *, n_targets: int, n_alphas: int, n_threads: int, statistics_bytes: int
) -> int:
    """Return the peak memory of `cross_validate`, beyond the statistics it is given.

    Each thread holds a Gram, its tridiagonal form, the fold's Gram, statistics of the rows that it trains on,
    and the coefficients of up to 512 pairs of alpha and target. If these rows are all but the fold's, one
    Gram of all rows takes the place of their statistics.

    `n_components`: the largest number of components.
    `n_threads`: at most splits times sizes are used.
    `statistics_bytes`: those of one fold.
    """
    columns = min(_COLUMNS, n_alphas * n_targets)
    of_thread = 8 * n_components * (3 * n_components + 4 * columns + 4 * n_targets)
    return n_threads * (of_thread + statistics_bytes) + statistics_bytes


def cross_validation_flops(sizes: Sequence[int], n_splits: int) -> int:
    """Return the cost of the reductions in `cross_validate`, its main work, in operations of a product.

    A reduction takes 4/3·D³, but half of it runs at memory speed: it takes as long as 3·D³ of products.
    """
    return n_splits * sum(3 * size**3 for size in sizes)


# -- splits and sizes ------------------------------------------------------------------------------


@frozen
class _Size:
    """The leading components that one feature map has; `feature_map` is None for the statistics' own."""

    n_components: int
    feature_map: maps.FeatureMap | None

    def of(self, statistics: RidgeStatistics) -> RidgeStatistics:
        if self.feature_map is None:
            return statistics
        return statistics.leading(
            self.n_components, feature_digest=self.feature_map.digest(), scales=self.feature_map.scales
        )


@dataclass(slots=True)
class _Problem:
    """One split at one size.

    `training`: sums of the rows that are trained on; or the equations of all rows, from which those of
      `validation` are to be subtracted.
    """

    split: int
    size: int
    training: RidgeStatistics | solution.NormalEquations | None
    validation: RidgeStatistics


def _sizes(total: RidgeStatistics, feature_maps: Sequence[maps.FeatureMap] | None) -> list[_Size]:
    if feature_maps is None:
        return [_Size(total.n_components, None)]
    sizes = [feature_map.n_components for feature_map in feature_maps]
    if not sizes or (np.diff(sizes) <= 0).any() or sizes[-1] > total.n_components:
        raise InvalidParameterError(
            f"`feature_maps` have {sizes} components; expected at least one map, ascending, of at most "
            f"{total.n_components}"
        )
    scales, checked = total.spec.scales, []
    for size, feature_map in zip(sizes, feature_maps, strict=True):
        whole = size == total.n_components
        if not whole and (len(feature_map.scales) > 1 or len(scales) > 1):
            raise InvalidParameterError(
                f"the leading {size} of {total.n_components} components are no feature map of their own: "
                f"their scales are {feature_map.scales} of {scales}; give the whole map alone"
            )
        ratio = exact_sums.expand(feature_map.scales) / exact_sums.expand(scales)[:size]
        if not np.allclose(ratio, ratio[0], rtol=1e-12, atol=0.0):
            raise InvalidParameterError(
                f"the features of a map of {size} components have scales {feature_map.scales}, those of the "
                f"statistics {scales}; expected the statistics' own up to one factor"
            )
        checked.append(_Size(size, None if whole and feature_map.scales == scales else feature_map))
    return checked


def _problems(
    statistics: fold_statistics.FoldStatistics,
    total: RidgeStatistics,
    sizes: Sequence[_Size],
    whole: solution.NormalEquations | None,
    *,
    fit_intercept: bool,
) -> Iterator[_Problem]:
    """Yield every split at every size, the largest size first, so that threads end together.

    `whole`: the equations of all rows at the largest size, if they have been made.
    """
    every = set(range(len(statistics.parts)))
    if all(set(folds) != every - {held_out} for folds, held_out in statistics.splits):
        whole = None  # nothing is subtracted from them
    for index, size in reversed(list(enumerate(sizes))):
        running: RidgeStatistics | None = None
        summed: set[int] = set()
        for split, (folds, held_out) in enumerate(statistics.splits):
            validation = size.of(statistics.fold(held_out))
            if set(folds) == every - {held_out}:
                # subtracting equations takes a third of the time of making them from sums, but loses digits
                # if little is left
                if 2 * validation.sum_of_weights <= total.sum_of_weights:
                    whole = whole or size.of(total).normal_equations(fit_intercept=fit_intercept)
                    yield _Problem(split, index, whole, validation)
                else:
                    yield _Problem(split, index, size.of(total) - validation, validation)
                continue
            if not summed <= set(folds):
                running, summed = None, set()
            if added := [fold for fold in folds if fold not in summed]:
                any_rows = any(statistics.parts[fold] is not None for fold in added)
                more = size.of(statistics.sum(added)) if any_rows else None
                running = more if running is None else running if more is None else running + more
                summed |= set(added)
            if running is None:
                running = size.of(statistics.sum(folds))  # raises: these folds have no rows
            yield _Problem(split, index, running, validation)
        whole = None


def largest_eigenvalue(gram: FloatArray) -> float:
    """Return the largest eigenvalue of a Gram, by Lanczos for 64 components and more."""
    if len(gram) < 64:
        return float(np.linalg.eigvalsh(gram)[-1])
    if not gram.any():
        return 0.0
    start = np.cos(np.arange(len(gram), dtype=np.float64) ** 2)  # orthogonal to no eigenvector by accident
    return float(scipy.sparse.linalg.eigsh(gram, 1, which="LA", v0=start, return_eigenvectors=False)[0])


# -- errors ----------------------------------------------------------------------------------------


def _validate(problem: _Problem, alphas: FloatArray, *, fit_intercept: bool) -> tuple[FloatArray, FloatArray]:
    """Return the sums of squared errors of one split at one size, and the mean leverages.

    Their shapes are (n_alphas, n_targets) and (n_alphas,).
    """
    assert problem.training is not None
    fold = problem.validation.normal_equations(fit_intercept=fit_intercept)
    if isinstance(problem.training, solution.NormalEquations):
        equations = problem.training.without(fold)
    else:
        equations = problem.training.normal_equations(fit_intercept=fit_intercept)
    problem.training = None  # free it before the peak of memory, which follows
    # eigenvectors would take three times as long, and five arrays of the Gram's size instead of three
    reduced = tridiagonal.tridiagonalize(equations)
    weight = problem.validation.sum_of_weights
    fold_error = fold.floor()
    n_targets = fold.moments.shape[1]
    pairs = np.arange(len(alphas) * n_targets)
    errors = np.empty(len(pairs))
    for start in range(0, len(pairs), _COLUMNS):
        columns = pairs[start : start + _COLUMNS]
        targets = columns % n_targets
        # below the floor, the rounding error of eigenvalues, coefficients would be chance
        penalties = np.maximum(alphas[columns // n_targets], reduced.floor)
        moments = equations.moments[:, targets]
        coefficients = reduced.solve(moments, penalties)
        # One step of iterative refinement (Higham 2002, ch. 12) removes the reduction's rounding error, some
        # 100 times that of a Cholesky factorisation.
        residual = moments - equations.gram @ coefficients - penalties * coefficients
        coefficients = coefficients + reduced.solve(residual, penalties)
        # about the fold's own means, plus its weight times the squared distance between predicted and true
        # mean
        errors[columns] = _sum_of_squares(fold, coefficients, targets, fold_error) + weight * np.square(
            fold.target_means[targets]
            - equations.target_means[targets]
            - (fold.feature_means - equations.feature_means) @ coefficients
        )
    leverages = reduced.degrees_of_freedom(alphas) / equations.n_samples
    return errors.reshape(len(alphas), n_targets), leverages


def _sum_of_squares(
    fold: solution.NormalEquations, coefficients: FloatArray, targets: IndexArray, fold_error: float
) -> FloatArray:
    """Compute c − 2w'B + w'Aw, or its rounding error if that is larger.

    An error E of the fold's Gram moves it by w'Ew; rounding in the sums, each at most about c, moves it by
    n_components·eps·c.
    """
    total = fold.total_sum_of_squares[targets]
    gradient = fold.gram @ coefficients
    gradient -= 2.0 * fold.moments[:, targets]
    squares = total + np.einsum("ij,ij->j", coefficients, gradient)
    squared_norm = np.square(coefficients).sum(axis=0)
    bound = fold_error * squared_norm + 4.0 * len(coefficients) * EPS * total
    return np.asarray(np.maximum(squares, bound))


# -- means over splits -----------------------------------------------------------------------------


def _mean(errors: FloatArray, weights: FloatArray) -> FloatArray:
    return np.asarray(np.tensordot(weights / weights.sum(), errors, axes=1))


def _standard_error(errors: FloatArray, weights: FloatArray) -> FloatArray:
    if len(weights) < 2:
        return np.full(errors.shape[1:], np.nan)
    squares = np.square(errors - _mean(errors, weights))
    return np.asarray(np.sqrt(_mean(squares, weights) / (len(weights) - 1)))
