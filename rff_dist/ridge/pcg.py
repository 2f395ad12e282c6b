"""Ridge coefficients without Z'Z: preconditioned conjugate gradients, a pass over the rows for each step.

A step costs O(n_samples · n_components · n_features) and O(n_components) memory. The preconditioner is a
randomised sketch of Z'Z; its rank is doubled as long as that costs less than the steps that it may save. It
serves Nyström features too: FALKON's preconditioner, made of the centres alone, needed two to twenty times
the steps, and two more arrays of the Gram's size.

Alpha is chosen by held-out rows: all alphas are columns of the same passes, and each pass measures the errors
of the solutions so far at the rows that it does not train on.
"""

import logging
import math
import warnings

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.data import folding
from rff_dist.features import maps
from rff_dist.fitting import prepare
from rff_dist.numerics import conjugate_gradients as cg
from rff_dist.numerics.solution import RidgeSolution, SolveStatus, check_alpha, make_solution
from rff_dist.selection import cross_validation, grids
from rff_dist.statistics import gram_products, inspection, specs
from rff_dist.typing import Facts, FloatArray, frozen

logger = logging.getLogger(__name__)

TOLERANCE = 1e-7  # estimated distance from the direct predictions, over the targets' deviations
MAX_PASSES = 500
FIRST_RANK = 128
SIGN_STREAM = 2**33  # beyond the streams of frequencies and seeds; see `frequencies.uniforms`
# For the choice of alpha, errors at held-out rows need fewer digits than a solution.
CHOICE_TOLERANCE = 1e-4
PATIENCE = 5  # steps without a worthwhile gain, after which an alpha is not iterated further
WORTHWHILE = 1e-4  # share of its held-out error that a step must gain
LEAST_SHARE = 1e-8  # of the largest eigenvalue: the least alpha that "auto" tries


@frozen
class Pcg:
    """A solution by conjugate gradients, and how it was found.

    `rank`: rank of the sketch.
    `n_passes`: passes over the rows, including those of the sketch.
    `relative_error`: estimated distance of predictions from the exact solution's, in deviations of y.
    `spec`: the spec of the sums.
    `target_deviations`: float64 array of shape (n_targets,).
    """

    solution: RidgeSolution
    iterated: cg.Iterated
    rank: int
    n_passes: int
    relative_error: float
    spec: specs.StatisticsSpec
    target_deviations: FloatArray

    def facts(self) -> Facts:
        return {
            "method": "pcg",
            "rank": self.rank,
            "n_passes": self.n_passes,
            "stopped": str(self.iterated.stop),
            "relative_error": self.relative_error,
        }


@frozen(eq=False)
class Chosen:
    """The solutions and errors that alpha was chosen from.

    `table`: errors of every alpha on the rows of one fold, by solutions without these rows.
    `solutions`: float64 array of shape (n_components, n_alphas, n_targets). Those solutions.
    """

    table: cross_validation.CrossValidation
    solutions: FloatArray
    preconditioner: cg.NystromPreconditioner
    n_passes: int

    def near(self, alpha: FloatArray) -> FloatArray:
        """Return each target's solution at its alpha of the table, shape (n_components, n_targets)."""
        return self.solutions[:, np.searchsorted(self.table.alphas, alpha), np.arange(len(alpha))]


def solve_pcg(
    prepared: prepare.Prepared,
    feature_map: maps.FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool,
    chosen: Chosen | None = None,
) -> Pcg:
    """Solve for an alpha above 0, or one for each target, by passes of Z'(Zv), all targets together.

    Iteration ends when the estimated distance of predictions from those of the exact solution is `TOLERANCE`
    times the targets' deviations. If rounding or `MAX_PASSES` end it before, the status is NOT_CONVERGED, and
    there is a LinAlgWarning.

    `chosen`: how alpha was chosen; its preconditioner and solutions are reused.
    Raises DataError if values are not finite; SolveError if the preconditioner cannot be made.
    """
    operator = gram_products.gram_operator(
        prepared.dataset, prepared.accumulation(feature_map), centred=fit_intercept, engine=prepared.engine
    )
    inspection.check_same_rows(prepared.moments, operator.sums.targets, operator.accumulation.spec)
    moments, total = operator.moments, operator.total_sum_of_squares
    penalties = check_alpha(alpha, moments.shape[1])
    start = None
    if chosen is None:
        preconditioner, n_before = _sketch(prepared, operator, float(penalties.min()), TOLERANCE)
    else:
        preconditioner, n_before, start = chosen.preconditioner, chosen.n_passes, chosen.near(penalties)
    deviations = np.sqrt(total)
    # of a constant target rounding alone is left, which is not worth a step
    constant = operator.targets.variances(centred=fit_intercept) == 0.0
    prepared.count("iterate", 0, MAX_PASSES)
    iterated = cg.conjugate_gradients(
        operator.multiply,
        moments,
        penalties,
        preconditioner,
        tolerance=np.where(constant, math.inf, TOLERANCE * deviations),
        max_products=MAX_PASSES,
        start=start,
    )
    relative = float(np.max(iterated.errors[~constant] / deviations[~constant], initial=0.0))
    w, floor = iterated.solution, preconditioner.floor
    # c − 2w'b + w'Aw with Aw = b − r − alpha·w
    rss = total - (w * (moments + iterated.residual + penalties * w)).sum(axis=0)
    status = SolveStatus.OK if iterated.stop is cg.Stop.TOLERANCE else SolveStatus.NOT_CONVERGED
    if penalties.min() < floor:
        status = SolveStatus.ILL_CONDITIONED
    solution = make_solution(
        operator, w, penalties, rss=rss, effective_rank=len(w), floor=floor, status=status
    )
    rank, n_passes = preconditioner.rank, 1 + n_before + iterated.n_products
    spec, of_targets = operator.accumulation.spec, operator.targets.deviations
    result = Pcg(solution, iterated, rank, n_passes, relative, spec, of_targets)
    logger.debug("solved by %d passes: %s", result.n_passes, dict(result.facts()))
    _warn(result)
    return result


def validate_alphas(
    prepared: prepare.Prepared,
    feature_map: maps.FeatureMap,
    folds: folding.Folds,
    *,
    alphas: ArrayLike | None,
    fit_intercept: bool,
) -> Chosen:
    """Measure each alpha's errors at held-out rows, all in the same passes.

    A column (an alpha and a target) is not iterated further once it is solved within 1e-4 of the target's
    deviation, or five steps in a row each gained less than 1e-4 of its held-out error.

    `folds`: their last split says which rows are trained on and which are held out.
    `alphas`: the values to try; by default three per decade, down to 1e-8 of the largest eigenvalue.
    Raises DataError, SolveError as `solve_pcg`; StatisticsError if no row is held out.
    """
    dataset, accumulation = prepared.dataset, prepared.accumulation(feature_map)
    split = gram_products.TrainingSplit(folds, dataset.n_samples)
    operator = gram_products.gram_operator(
        dataset, accumulation, centred=fit_intercept, engine=prepared.engine, split=split
    )
    if alphas is None:
        preconditioner, n_passes = _sketch(prepared, operator, None, CHOICE_TOLERANCE)
        largest = float(preconditioner.eigenvalues[0])
        grid = grids.alpha_grid(largest, max(LEAST_SHARE * largest, preconditioner.floor))
    else:
        grid = grids.check_grid(alphas)
        preconditioner, n_passes = _sketch(prepared, operator, float(grid[0]), CHOICE_TOLERANCE)
    n_targets, total = operator.moments.shape[1], operator.total_sum_of_squares
    # columns in the order of (alpha, target), as the table's last two axes
    penalties, targets = np.repeat(grid, n_targets), np.tile(np.arange(n_targets), len(grid))
    right = operator.moments[:, targets]
    descent = cg.Descent(np.zeros_like(right), right.copy(), penalties, preconditioner)
    tolerance = CHOICE_TOLERANCE * np.sqrt(total[targets] / preconditioner.shortfall(penalties))
    least, since = np.full(len(penalties), math.inf), np.zeros(len(penalties), np.int64)
    while n_passes < MAX_PASSES:
        active = descent.active(np.where(since < PATIENCE, tolerance, math.inf))
        if not len(active):
            break
        product, errors = operator.multiply_and_validate(
            descent.direction[:, active], descent.solution[:, active], targets[active]
        )
        gained = errors < (1.0 - WORTHWHILE) * least[active]
        since[active] = np.where(gained, 0, since[active] + 1)
        least[active] = np.minimum(least[active], errors)
        descent.step(active, product)
        n_passes += 1
    # the product is not needed, so that one column will do
    _, errors = operator.multiply_and_validate(right[:, :1], descent.solution, targets)
    errors = errors.reshape(1, 1, len(grid), n_targets)
    widths, variance = np.array([feature_map.n_components]), operator.targets.variances(centred=fit_intercept)
    table = cross_validation.CrossValidation(folds, widths, grid, errors, np.ones(1), variance)
    solutions = descent.solution.reshape(-1, len(grid), n_targets)
    # two more: the one that began, and the last errors
    return Chosen(table, solutions, preconditioner, n_passes + 2)


def _sketch(
    prepared: prepare.Prepared, operator: gram_products.GramOperator, alpha: float | None, tolerance: float
) -> tuple[cg.NystromPreconditioner, int]:
    """Return a preconditioner for alphas of at least `alpha`, and how many passes it took.

    `alpha`: None is `LEAST_SHARE` of the largest eigenvalue.
    """
    n_components = operator.feature_map.n_components
    largest = cg.largest_rank(n_components)
    test_matrix = products = np.empty((n_components, 0))
    wanted, n_passes = FIRST_RANK, 0
    while True:
        wanted = min(wanted, largest)
        while (rank := products.shape[1]) < wanted:
            signs = random_signs(n_components, rank, min(wanted, rank + cg.SKETCH_COLUMNS))
            products = np.hstack([products, operator.multiply(signs, label="sketch")])
            test_matrix = np.hstack([test_matrix, signs])
            n_passes += 1
        # a copy, since a larger rank begins with these products
        preconditioner = cg.nystrom_preconditioner(
            test_matrix, products.copy(), rounding=operator.rounding_error
        )
        first, last = preconditioner.eigenvalues[[0, -1]].tolist()
        least = LEAST_SHARE * first if alpha is None else alpha
        spectrum = f"eigenvalues from {first:.3g} to {last:.3g}, alpha {least:.3g}"
        prepared.say("solve", f"a sketch of rank {rank:,}: {spectrum}")
        if rank == largest or not _worth_doubling(preconditioner, least, operator, tolerance):
            return preconditioner, n_passes
        wanted = 2 * rank


def random_signs(n_components: int, start: int, stop: int) -> FloatArray:
    """Return columns `start:stop` of a random matrix of ±1/√n_components; each depends on its own number."""
    # bits of Philox, since NumPy promises a generator's stream for one version only
    keys = [np.array([0, SIGN_STREAM + column], np.uint64) for column in range(start, stop)]
    words = [np.random.Philox(key=key).random_raw(-(-n_components // 64)).astype("<u8") for key in keys]
    bits = [np.unpackbits(word.view(np.uint8), count=n_components) for word in words]
    return np.asarray((np.column_stack(bits) * 2.0 - 1.0) / math.sqrt(n_components), np.float64)


def _worth_doubling(
    sketch: cg.NystromPreconditioner, alpha: float, operator: gram_products.GramOperator, tolerance: float
) -> bool:
    """Return whether the steps that a doubled rank may save cost more than its columns."""
    least = cg.expected_iterations(1.0, tolerance)
    # with a perfect sketch the condition is 1, now it is at most the shortfall; doubling takes rank more
    # columns
    saved = cg.expected_iterations(float(sketch.shortfall(np.array([alpha]))[0]), tolerance) - least
    of_step = gram_products.pass_operations(operator.accumulation.spec.n_targets)
    return saved * of_step > gram_products.pass_operations(sketch.rank)


def _warn(result: Pcg) -> None:
    status = result.solution.status
    if status is SolveStatus.OK:
        return
    warnings.warn(
        f"after {result.n_passes} passes predictions are an estimated {result.relative_error:.2g} deviations "
        f"of y from those of the exact solution: iterating was stopped by {result.iterated.stop.value}. "
        + "; ".join((*status.causes, *status.remedies)),
        scipy.linalg.LinAlgWarning,
        stacklevel=2,
    )
