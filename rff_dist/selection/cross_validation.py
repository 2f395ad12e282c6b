"""Exact k-fold cross-validation from the sums of each fold, without another pass.

The sums go in; a table of errors comes out, for every split, number of components,
alpha and target. Refitting without each fold would read the data once per fold and
alpha. `CrossValidation` has the table, and the rules that choose from it.

Let A, B and c be a fold's sums of Z'Z, Z'y and y'y about its own means. The
coefficients w of the other folds then have on it the error

    c − 2w'B + w'Aw + W·(δ_y − δ_z'w)²,

where δ are the fold's means less those of the rows trained on, and W is its sum of
weights. This is what a refit without the fold would give. Without an intercept, sums
and means are about 0.

Hastie, Tibshirani & Friedman (2009), The Elements of Statistical Learning, section
7.10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.data import folding
from rff_dist.errors import InvalidParameterError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine, solution, tridiagonal
from rff_dist.selection import grids, rule
from rff_dist.statistics import fold_statistics
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import short_repr
from rff_dist.typing import (
    EPS,
    AnyArray,
    Arrays,
    FloatArray,
    IndexArray,
    IntArray,
    frozen,
)

_COLUMNS = 512  # pairs of alpha and target whose coefficients are in memory at once
SMALL = 256  # components, below which one thread is faster than several
# Share of a standard error: folds do not tell an error from the smallest that is larger
# by less.
AS_GOOD = 0.1
# mean leverage of training rows, above which they are as good as interpolated
INTERPOLATING = 0.9

#: Which alpha to take: that of the smallest error, or a larger one; see
#: `CrossValidation.choose`.
type AlphaRule = Literal["best", "safest", "one_standard_error"]


@frozen
class Choice:
    """A number of components and an alpha, and how well they did."""

    n_components: int
    #: The alpha of the grid that is best for all targets together.
    alpha: float
    #: Validation error as a share of the targets' variance, and its standard error.
    score: float
    standard_error: float
    #: The end of the grid that an alpha is at; better ones may lie beyond.
    at_end: Literal["lower", "upper"] | None
    #: The alpha of each target, if they differ.
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

    A size is a number of components. Methods raise InvalidParameterError if a size is
    not in the table, or if they need standard errors and there is only one split.
    """

    folds: folding.Folds
    #: shape (n_sizes,), ascending
    n_components: IntArray
    #: shape (n_alphas,), ascending
    alphas: FloatArray
    #: Mean squared validation errors in the targets' units squared, shape (n_splits,
    #: n_sizes, n_alphas, n_targets); one below its rounding error is replaced by that.
    errors: FloatArray
    #: Sums of weights of the rows validated on, shape (n_splits,).
    weights: FloatArray
    #: Variance over all rows, 0 for constants; the mean square without an intercept.
    target_variance: FloatArray
    #: Mean leverage of the rows trained on, shape (n_splits, n_sizes, n_alphas):
    #: degrees of freedom over rows, 1 if they are interpolated. None after conjugate
    #: gradients.
    leverages: FloatArray | None = None

    __repr__ = short_repr

    @property
    def units(self) -> rule.Units:
        """How splits count in means."""
        return rule.Units.of_splits(self.weights)

    @property
    def mean(self) -> FloatArray:
        """Mean squared error over all rows, shape (n_sizes, n_alphas, n_targets)."""
        return self.units.mean(self.errors)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of `mean`, by how far splits differ; NaN for a single split.

        sqrt(Σ w·(m − mean)² / ((K − 1)·Σ w)) over K splits: with equal weights the
        standard deviation of the splits' errors over √K.
        """
        return self.units.standard_error(self.errors)

    @property
    def scores(self) -> FloatArray:
        """Errors as shares of variance, (n_sizes, n_alphas), by which to choose."""
        return self.units.mean(self.split_scores())

    @property
    def score_standard_errors(self) -> FloatArray:
        """Standard errors of `scores`, shape (n_sizes, n_alphas)."""
        return self.units.standard_error(self.split_scores())

    @property
    def best(self) -> Choice:
        """The smallest score, with the fewest components and the largest alpha."""
        return self._fewest_within(self.scores.min() + grids.RESOLUTION)

    def fewest_components(self) -> Choice:
        """Return the smallest size within one standard error of the best of all."""
        self._check_has_standard_errors()
        best = self.best
        # even with a standard error of 0 the limit must include the best and its ties
        slack = max(best.standard_error, grids.RESOLUTION)
        return self._fewest_within(best.score + slack)

    def _fewest_within(self, limit: float) -> Choice:
        size_index = int(np.argmax(self.scores.min(axis=1) <= limit))
        return self.choose(int(self.n_components[size_index]))

    def choose(self, n_components: int, by: AlphaRule = "best") -> Choice:
        """Return one size's alpha by a rule; of equal scores the largest.

        "safest" is for rows without noise, where a path is flat down to the rounding
        errors at its end. If rows have a mean leverage above 0.9 at the best alpha, the
        largest alpha within a tenth of a standard error replaces it: nothing is lost,
        and the coefficients depend less on chance. "one_standard_error" takes the
        largest within one.
        """
        if by == "one_standard_error":
            self._check_has_standard_errors()
        size_index = self.index_of(n_components)
        errors = self.split_scores()[:, size_index]
        slack = self._slack(n_components, by)
        return self._choice(size_index, self.units.largest_as_good(errors, slack))

    def _slack(self, n_components: int, by: AlphaRule) -> rule.Slack:
        def slack(errors: FloatArray, best: int) -> float:
            share = 0.0
            if by == "one_standard_error":
                share = 1.0
            elif by == "safest":
                leverage = self.mean_leverage(n_components, self.alphas[best])
                share = AS_GOOD if leverage > INTERPOLATING else 0.0
            standard_error = self.units.standard_error(errors[:, best])
            return share * float(np.nan_to_num(standard_error))

        return slack

    def mean_leverage(self, n_components: int, alpha: float) -> float:
        """Return the mean leverage of the rows trained on; 0 if it is not known."""
        if self.leverages is None:
            return 0.0
        size_index = self.index_of(n_components)
        alpha_index = int(np.searchsorted(self.alphas, alpha))
        return float(self.leverages[:, size_index, alpha_index].mean())

    def at_alphas(
        self, n_components: int, alphas: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return each target's mean squared error at its alpha, and standard errors."""
        size_index = self.index_of(n_components)
        entries = np.searchsorted(self.alphas, alphas), np.arange(len(alphas))
        return self.mean[size_index][entries], self.standard_error[size_index][entries]

    def with_own_alphas(
        self, choice: Choice, *, always: bool, by: AlphaRule = "best"
    ) -> Choice:
        """Return a choice with an alpha for each target; see `rule.Units`."""
        shared = int(np.argmin(np.abs(self.alphas - choice.alpha)))
        varying = np.flatnonzero(self.target_variance > 0.0)
        errors = self.errors[:, self.index_of(choice.n_components)][..., varying]
        indices = np.full(len(self.target_variance), shared)
        indices[varying] = self.units.own_alphas(
            errors / self.target_variance[varying],
            shared,
            self._slack(choice.n_components, by),
            always=always,
        )
        if (indices == shared).all():
            return choice
        return self.choice_at(choice.n_components, indices, shared)

    def choice_at(
        self, n_components: int, indices: IndexArray, shared: int | None = None
    ) -> Choice:
        """Return the choice of one size and of the targets' alphas at `indices`.

        `shared` is the index of targets without their own alpha; by default that of
        most targets.
        """
        size_index = self.index_of(n_components)
        if shared is None:
            shared = int(np.bincount(indices).argmax())
        if (indices == shared).all():
            return self._choice(size_index, shared)
        score, standard_error = self.score_of(size_index, indices)
        ends = [
            grids.end_of_grid(index, len(self.alphas))
            for index in indices[self.target_variance > 0.0].tolist()
        ]
        return Choice(
            n_components=n_components,
            alpha=float(self.alphas[shared]),
            score=score,
            standard_error=standard_error,
            at_end=grids.worst_end(ends),
            own_alphas=tuple(self.alphas[indices].tolist()),
        )

    def score_of(self, size_index: int, indices: IndexArray) -> tuple[float, float]:
        """Return the score of one size with alphas at `indices`, and its std error."""
        errors = self.errors[:, size_index, indices, np.arange(len(indices))]
        shares = grids.shares_of_variance(errors, self.target_variance)
        standard_error = float(self.units.standard_error(shares))
        return float(self.units.mean(shares)), standard_error

    def from_alpha(self, least: float) -> Self:
        """Return the table without alphas below `least`; the largest always stays."""
        first = min(int(np.searchsorted(self.alphas, least)), len(self.alphas) - 1)
        leverages = None if self.leverages is None else self.leverages[:, :, first:]
        return replace(
            self,
            alphas=self.alphas[first:],
            errors=self.errors[:, :, first:],
            leverages=leverages,
        )

    def to_arrays(self) -> dict[str, AnyArray]:
        arrays = {f"cv_{name}": getattr(self, name) for name in _STORED}
        if self.leverages is not None:
            arrays["cv_leverages"] = self.leverages
        return arrays

    @classmethod
    def from_arrays(cls, folds: folding.Folds, arrays: Arrays) -> Self:
        stored = {
            name: np.asarray(arrays[f"cv_{name}"])
            for name in _STORED
            if name not in _DERIVED
        }
        return cls(folds, **stored, leverages=arrays.get("cv_leverages"))

    def split_scores(self) -> FloatArray:
        return grids.shares_of_variance(self.errors, self.target_variance)

    def _choice(self, size_index: int, alpha_index: int) -> Choice:
        n_components = int(self.n_components[size_index])
        end = grids.end_of_grid(alpha_index, len(self.alphas))
        return Choice(
            n_components,
            float(self.alphas[alpha_index]),
            float(self.scores[size_index, alpha_index]),
            float(self.score_standard_errors[size_index, alpha_index]),
            end,
        )

    def index_of(self, n_components: int) -> int:
        indices = np.flatnonzero(self.n_components == n_components)
        if not len(indices):
            raise InvalidParameterError(
                f"`n_components` is {n_components}; expected one of"
                f" {self.n_components.tolist()}"
            )
        return int(indices[0])

    def _check_has_standard_errors(self) -> None:
        if len(self.weights) < 2:
            raise InvalidParameterError(
                f"{self.folds} give one split, whose error has no standard error; use"
                " more folds"
            )


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
    at the largest size. The sizes to try are maps of the leading components, ascending,
    see `shortened`; by default only the statistics' own.

    Raises InvalidParameterError if an alpha is not positive and finite, or the maps are
    not of leading components, ascending; StatisticsError if a fold that is validated on
    has no rows, or none remain to train on.
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
            # problems are made as they are needed: memory holds one for each thread
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
    """Return the operations of `cross_validate`, as if all were those of a product.

    A reduction takes 4/3·D³, but half of it runs at memory speed: it takes as long as
    3·D³ of products.
    """
    return n_splits * sum(3 * number**3 for number in n_components)


# -- splits and sizes


@frozen
class _Size:
    """A number of leading components."""

    n_components: int
    #: Has these components; None for the statistics' own.
    feature_map: maps.FeatureMap | None

    def of(self, statistics: RidgeStatistics) -> RidgeStatistics:
        if self.feature_map is None:
            return statistics
        return statistics.leading(
            self.n_components,
            feature_digest=self.feature_map.digest(),
            scales=self.feature_map.scales,
        )


@dataclass(slots=True)
class _Problem:
    """One split at one size."""

    split_index: int
    size_index: int
    #: Sums of the rows that are trained on; or the equations of all rows, from which
    #: those of `validation` are to be subtracted. None after use, to free memory.
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
                # no variable for the sums to train on: they are freed after use
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
    # orthogonal to no eigenvector by accident
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

    Of the rows that they were trained on, the means are read. A column of coefficients
    is of the target in `targets`. `weight` is the sum of weights of the fold, and
    `floor` the rounding error of its Gram: c − 2w'B + w'Aw is replaced by its own if
    that is larger. An error E of the Gram moves it by w'Ew; rounding in the sums, each
    at most about c, moves it by n_components·eps·c.
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
