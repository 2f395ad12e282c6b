"""Exact k-fold cross-validation from the sums of each fold, without another pass.

The sums go in; a table of errors comes out, for every split, number of components,
alpha and target. Refitting without each fold would read the data once per fold and
alpha. `error_table` has the rules that choose from the table.

Let A, B and c be a fold's sums of Z'Z, Z'y and y'y about its own means. Let w be the
coefficients that are trained on the other folds. Their error on this fold is

    c − 2w'B + w'Aw + W·(δ_y − δ_z'w)²,

where δ are the fold's means less those of the rows trained on, and W is its sum of
weights. This is what a refit without the fold would give. Without an intercept, sums
and means are about 0.

Hastie, Tibshirani & Friedman (2009), The Elements of Statistical Learning, section
7.10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import InvalidParameterError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine, solution, tridiagonal
from rff_dist.selection import grids
from rff_dist.selection.error_table import CrossValidation
from rff_dist.statistics import fold_statistics
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import EPS, FloatArray, IndexArray, frozen

_COLUMNS = 512  # pairs of alpha and target whose coefficients are in memory at once
SMALL = 256  # up to so many components one thread is faster than several


def cross_validate(
    statistics: fold_statistics.FoldStatistics,
    *,
    alphas: ArrayLike | None = None,
    feature_maps: Sequence[maps.FeatureMap] | None = None,
    fit_intercept: bool = True,
) -> CrossValidation:
    """Return the errors of every alpha, size and target.

    They are mean squared errors of `sklearn.linear_model.Ridge` on each fold. Each
    split and size takes a reduction to tridiagonal form, O(n_components³), and each
    alpha and target O(n_components²); see `cross_validation_bytes` for the memory. Each
    core works on one at a time, with one BLAS thread, so that no bit depends on the
    number of cores.

    A size is a number of components. By default alphas are the `alpha_grid` of all rows
    at the largest size. `feature_maps` are maps of leading components, one for each
    size to try, ascending, see `shortened`; by default the statistics' own size alone.

    Raises InvalidParameterError if an alpha is not positive and finite, or the maps are
    not of leading components, ascending; StatisticsError if a validation fold has no
    rows, or no rows remain to train on.
    """
    total = statistics.total()
    sizes = _sizes(total, feature_maps)
    splits = statistics.splits
    variance = total.target_moments.variances(centred=fit_intercept)
    whole: solution.NormalEquations | None = None
    if alphas is None:
        whole = sizes[-1].of(total).normal_equations(fit_intercept=fit_intercept)
        with machine.single_threaded_blas():
            # Lanczos reads the Gram some 20 times
            largest = largest_eigenvalue(whole.gram)
        grid = grids.alpha_grid(largest, whole.floor(largest))
    else:
        grid = grids.check_grid(alphas)
    errors = np.empty((len(splits), len(sizes), len(grid), total.spec.n_targets))
    leverages = np.empty(errors.shape[:-1])
    weights = np.array(
        [statistics.fold(validation).sum_of_weights for _, validation in splits]
    )
    problems = _problems(statistics, total, sizes, whole, fit_intercept=fit_intercept)
    lock = Lock()
    del whole

    def work(_: int) -> None:
        while True:
            # problems are made when a thread is free: memory holds one for each thread
            with lock:
                problem = next(problems, None)
            if problem is None:
                return
            entry = problem.split_index, problem.size_index
            errors[entry], leverages[entry] = _validate(
                problem, grid, fit_intercept=fit_intercept
            )

    n_threads = min(machine.available_cores(), len(splits) * len(sizes))
    if sizes[-1].n_components <= SMALL:
        # threads would wait for one another: 10 folds of D = 64 took 1.3 times as long
        # on two
        n_threads = 1
    with machine.tile_pool(n_threads) as pool:
        list(pool.map(work, range(n_threads)))
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
    n_components: int,
    *,
    n_targets: int,
    n_alphas: int,
    n_threads: int,
    statistics_bytes: int,
) -> int:
    """Return the peak memory of `cross_validate`, beyond the statistics it is given.

    Each thread needs a Gram, its tridiagonal form, the fold's Gram, statistics of the
    rows that it trains on, and the coefficients of up to 512 pairs of alpha and target.
    If these rows are all but the fold's, one Gram of all rows takes the place of their
    statistics. `statistics_bytes` are those of one fold.
    """
    columns = min(_COLUMNS, n_alphas * n_targets)
    of_thread = 8 * n_components * (3 * n_components + 4 * columns + 4 * n_targets)
    return n_threads * (of_thread + statistics_bytes) + statistics_bytes


def cross_validation_flops(n_components: Sequence[int], n_splits: int) -> int:
    """Return the operations of a product that takes as long as `cross_validate`.

    A reduction takes 4/3·D³ operations, but half of them run at memory speed, so it
    takes as long as 3·D³ operations of products.
    """
    return n_splits * sum(3 * number**3 for number in n_components)


# -- splits and sizes


@frozen
class _Size:
    """A number of leading components."""

    n_components: int
    #: The map of these components; None if they are the statistics' own.
    feature_map: maps.FeatureMap | None

    def of(self, statistics: RidgeStatistics) -> RidgeStatistics:
        if self.feature_map is None:
            return statistics
        return statistics.leading(self.feature_map)


@dataclass(slots=True)
class _Problem:
    """One split at one size."""

    split_index: int
    size_index: int
    #: Sums of the rows to train on; or the equations of all rows, from which the
    #: validation rows' equations are still to be subtracted. None after use, to free
    #: memory.
    training: RidgeStatistics | solution.NormalEquations | None
    validation: RidgeStatistics


def _sizes(
    total: RidgeStatistics, feature_maps: Sequence[maps.FeatureMap] | None
) -> list[_Size]:
    if feature_maps is None:
        return [_Size(total.n_components, None)]
    numbers = [feature_map.n_components for feature_map in feature_maps]
    is_ascending = bool(numbers) and bool((np.diff(numbers) > 0).all())
    if not is_ascending or numbers[-1] > total.n_components:
        raise InvalidParameterError(
            f"`feature_maps` have {numbers} components; expected at least one map,"
            f" ascending, of at most {total.n_components}"
        )
    scales = total.spec.scales
    sizes = []
    for number, feature_map in zip(numbers, feature_maps, strict=True):
        is_whole = number == total.n_components
        if not is_whole and (len(feature_map.scales) > 1 or len(scales) > 1):
            raise InvalidParameterError(
                f"the leading {number} of {total.n_components} components are no"
                f" feature map of their own: their scales are {feature_map.scales} of"
                f" {scales}; give the whole map alone"
            )
        ratio = (
            exact_sums.expand(feature_map.scales) / exact_sums.expand(scales)[:number]
        )
        if not np.allclose(ratio, ratio[0], rtol=1e-12, atol=0.0):
            raise InvalidParameterError(
                f"the features of a map of {number} components have scales"
                f" {feature_map.scales}, those of the statistics {scales}; expected the"
                " statistics' own up to one factor"
            )
        is_own = is_whole and feature_map.scales == scales
        sizes.append(_Size(number, None if is_own else feature_map))
    return sizes


def _problems(
    statistics: fold_statistics.FoldStatistics,
    total: RidgeStatistics,
    sizes: Sequence[_Size],
    whole: solution.NormalEquations | None,
    *,
    fit_intercept: bool,
) -> Iterator[_Problem]:
    """Yield every split at every size, the largest first, so that threads end together.

    `whole` are the equations of all rows at the largest size, if they are known.
    """
    splits = statistics.splits
    all_folds = set(range(len(statistics.parts)))

    def is_subtracted(split: tuple[Sequence[int], int]) -> bool:
        # Subtracting equations takes a third of the time of making them from sums, but
        # loses digits if little remains.
        folds, held_out = split
        part = statistics.fold(held_out).sum_of_weights
        return {*folds, held_out} == all_folds and 2 * part <= total.sum_of_weights

    subtracts = [is_subtracted(split) for split in splits]
    for size_index, size in reversed(list(enumerate(sizes))):
        if not any(subtracts):
            whole = None
        elif whole is None:
            whole = size.of(total).normal_equations(fit_intercept=fit_intercept)
        for split_index, (folds, held_out) in enumerate(splits):
            validation = size.of(statistics.fold(held_out))
            if subtracts[split_index]:
                assert whole is not None
                yield _Problem(split_index, size_index, whole, validation)
            else:
                # the sums to train on get no variable here, so that use frees them
                yield _Problem(
                    split_index,
                    size_index,
                    size.of(statistics.sum(folds)),
                    validation,
                )
        whole = None


def largest_eigenvalue(gram: FloatArray) -> float:
    """Return the largest eigenvalue of a Gram, by Lanczos from 64 components on."""
    if len(gram) < 64:
        return float(np.linalg.eigvalsh(gram)[-1])
    if not gram.any():
        return 0.0
    # irregular, so that it is orthogonal to no eigenvector by accident
    start = np.cos(np.arange(len(gram), dtype=np.float64) ** 2)
    (largest,) = scipy.sparse.linalg.eigsh(
        gram, 1, which="LA", v0=start, return_eigenvectors=False
    )
    return float(largest)


# -- errors


def _validate(
    problem: _Problem, alphas: FloatArray, *, fit_intercept: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the sums of squared errors of one split at one size, and mean leverages.

    Their shapes are (n_alphas, n_targets) and (n_alphas,).
    """
    assert problem.training is not None
    fold = problem.validation.normal_equations(fit_intercept=fit_intercept)
    if isinstance(problem.training, solution.NormalEquations):
        equations = problem.training.without(fold)
    else:
        equations = problem.training.normal_equations(fit_intercept=fit_intercept)
    problem.training = None  # free it before the peak of memory, which follows
    # eigenvectors would take three times as long, and five arrays of the Gram's size
    # instead of three
    reduced = tridiagonal.tridiagonalize(equations)
    weight = problem.validation.sum_of_weights
    fold_error = fold.floor()
    n_targets = fold.moments.shape[1]
    pairs = np.arange(len(alphas) * n_targets)
    errors = np.empty(len(pairs))
    for start in range(0, len(pairs), _COLUMNS):
        columns = pairs[start : start + _COLUMNS]
        targets = columns % n_targets
        # below the floor, the rounding error of eigenvalues, coefficients would be
        # chance
        penalties = np.maximum(alphas[columns // n_targets], reduced.floor)
        moments = equations.moments[:, targets]
        coefficients = reduced.solve(moments, penalties)
        # One step of iterative refinement (Higham 2002, ch. 12) removes the reduction's
        # rounding error, some 100 times that of a Cholesky factorisation.
        residual = moments - equations.gram @ coefficients - penalties * coefficients
        coefficients = coefficients + reduced.solve(residual, penalties)
        errors[columns] = squared_errors(
            fold, equations, coefficients, targets, weight=weight, floor=fold_error
        )
    leverages = reduced.degrees_of_freedom(alphas) / equations.n_samples
    return errors.reshape(len(alphas), n_targets), leverages


def squared_errors(
    fold: solution.NormalEquations,
    training: solution.NormalEquations,
    coefficients: FloatArray,
    targets: IndexArray,
    *,
    weight: float,
    floor: float,
) -> FloatArray:
    """Return the sums of squared errors of models on a fold.

    Only the means of `training` are read. `targets` has the target of each column of
    coefficients. `weight` is the sum of the fold's weights, and `floor` the rounding
    error of its Gram. If the sum about the fold's own means, total − 2w'moments +
    w'·gram·w, is below its own rounding error, it is replaced by that: an error E of
    the Gram moves it by w'Ew, and rounding in the sums, each at most about the total,
    by n_components·eps·total.
    """
    total = fold.total_sum_of_squares[targets]
    gradient = fold.gram @ coefficients
    gradient -= 2.0 * fold.moments[:, targets]
    squares = total + np.einsum("ij,ij->j", coefficients, gradient)
    squared_norm = np.square(coefficients).sum(axis=0)
    bound = floor * squared_norm + 4.0 * len(coefficients) * EPS * total
    # about the fold's own means, plus its weight times the squared distance between
    # predicted and true mean
    distance = (
        fold.target_means[targets]
        - training.target_means[targets]
        - (fold.feature_means - training.feature_means) @ coefficients
    )
    return np.asarray(np.maximum(squares, bound) + weight * np.square(distance))
