"""Ridge coefficients without Z'Z, by preconditioned conjugate gradients.

A prepared dataset, a feature map and alpha go in; coefficients come out, without the
D² numbers of Z'Z, which memory may not hold. Each step is a pass over the rows that
multiplies Z'Z by vectors.

A step costs O(n_samples · n_components · n_features) and O(n_components) memory. The
preconditioner is a sketch of Z'Z: its products with random columns, whose number is the
rank. The rank is doubled as long as that costs less than the steps that it may save. It
serves Nyström features too: FALKON's
preconditioner, made of the centres alone, needed two to twenty times the steps, and two
more arrays of the Gram's size.

Alpha is chosen by held-out rows: all alphas are columns of the same passes, and each
pass measures the errors of the solutions so far at the rows that it does not train on.
"""

import logging
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.data import folding
from rff_dist.errors import warn
from rff_dist.features import maps
from rff_dist.fitting import prepare
from rff_dist.numerics import conjugate_gradients as cg
from rff_dist.numerics.solution import (
    RidgeSolution,
    SolveStatus,
    check_alpha,
    make_solution,
)
from rff_dist.selection import error_table, grids
from rff_dist.statistics import gram_products, inspection, specs
from rff_dist.typing import Facts, FloatArray, frozen

logger = logging.getLogger(__name__)

# Estimated distance from the exact predictions, in standard deviations of the targets,
# at which iteration ends.
TOLERANCE = 1e-7
MAX_PASSES = 500
FIRST_RANK = 128
# Stream of random signs, beyond those of frequencies; see `frequencies.uniforms`.
SIGN_STREAM = 2**33
# For the choice of alpha, errors at held-out rows need fewer digits than a solution.
CHOICE_TOLERANCE = 1e-4
# After so many steps without a worthwhile gain, an alpha is not iterated further.
PATIENCE = 5
WORTHWHILE = 1e-4  # share of its held-out error that a step must gain
LEAST_SHARE = 1e-8  # of the largest eigenvalue: the smallest alpha that "auto" tries


@frozen
class PcgSolution:
    """A solution by conjugate gradients, and how it was found."""

    solution: RidgeSolution
    iterated: cg.IterationResult
    #: Rank of the sketch that preconditions.
    rank: int
    #: Passes over the rows, including those of the sketch.
    n_passes: int
    #: Estimated distance of predictions from the exact solution's, in standard
    #: deviations of y.
    relative_error: float
    spec: specs.StatisticsSpec
    target_deviations: FloatArray  # shape (n_targets,)

    def facts(self) -> Facts:
        return {
            "method": "pcg",
            "rank": self.rank,
            "n_passes": self.n_passes,
            "stopped": str(self.iterated.stop),
            "relative_error": self.relative_error,
        }


@frozen(eq=False)
class AlphaPath:
    """The solutions and errors that alpha was chosen from."""

    #: Errors of every alpha on the rows of one fold, by solutions without these rows.
    table: error_table.CrossValidation
    #: Those solutions, shape (n_components, n_alphas, n_targets).
    solutions: FloatArray
    preconditioner: cg.NystromPreconditioner
    n_passes: int

    def near(self, alpha: FloatArray) -> FloatArray:
        """Return each target's solution at its alpha: (n_components, n_targets)."""
        index = np.searchsorted(self.table.alphas, alpha)
        return self.solutions[:, index, np.arange(len(alpha))]


def solve_pcg(
    prepared: prepare.PreparedDataset,
    feature_map: maps.FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool,
    path: AlphaPath | None = None,
) -> PcgSolution:
    """Solve for an alpha above 0, or one for each target, by passes of Z'(Zv).

    All targets share the passes. Iteration ends when the estimated distance of
    predictions from those of the exact solution is `TOLERANCE` times the targets'
    deviations. If rounding or `MAX_PASSES` end it before, the status is NOT_CONVERGED,
    and there is a LinAlgWarning.

    If alpha was chosen from a path, its preconditioner and solutions are reused.

    Raises DataError if values are not finite; SolveError if the preconditioner cannot
    be made.
    """
    operator = gram_products.gram_operator(
        prepared.dataset,
        prepared.accumulation(feature_map),
        centred=fit_intercept,
        engine=prepared.engine,
    )
    inspection.check_same_rows(
        prepared.moments, operator.sums.targets, operator.accumulation.spec
    )
    right_sides = operator.moments  # Z'y of each target
    total = operator.summary.total_sum_of_squares
    penalties = check_alpha(alpha, right_sides.shape[1])
    start = None
    if path is None:
        preconditioner, n_before = _sketch(
            prepared, operator, float(penalties.min()), TOLERANCE
        )
    else:
        preconditioner = path.preconditioner
        n_before = path.n_passes
        start = path.near(penalties)
    deviations = np.sqrt(total)
    # a constant target has rounding alone, which is not worth a step
    constant = operator.targets.variances(centred=fit_intercept) == 0.0
    prepared.count("iterate", 0, MAX_PASSES)
    iterated = cg.conjugate_gradients(
        operator.multiply,
        right_sides,
        penalties,
        preconditioner,
        tolerance=np.where(constant, math.inf, TOLERANCE * deviations),
        max_products=MAX_PASSES,
        start=start,
    )
    relative = float(
        np.max(iterated.errors[~constant] / deviations[~constant], initial=0.0)
    )
    w = iterated.solution
    floor = preconditioner.floor
    # c − 2w'b + w'Aw with Aw = b − r − alpha·w
    rss = total - (w * (right_sides + iterated.residual + penalties * w)).sum(axis=0)
    if penalties.min() < floor:
        status = SolveStatus.ILL_CONDITIONED
    elif iterated.stop is cg.Stop.TOLERANCE:
        status = SolveStatus.OK
    else:
        status = SolveStatus.NOT_CONVERGED
    solution = make_solution(
        operator.summary,
        w,
        penalties,
        rss=rss,
        effective_rank=len(w),
        floor=floor,
        status=status,
    )
    result = PcgSolution(
        solution=solution,
        iterated=iterated,
        rank=preconditioner.rank,
        n_passes=1 + n_before + iterated.n_products,
        relative_error=relative,
        spec=operator.accumulation.spec,
        target_deviations=operator.targets.deviations,
    )
    logger.debug("solved by %d passes: %s", result.n_passes, dict(result.facts()))
    _warn(result)
    return result


def validate_alphas(
    prepared: prepare.PreparedDataset,
    feature_map: maps.FeatureMap,
    folds: folding.Folds,
    *,
    alphas: ArrayLike | None,
    fit_intercept: bool,
) -> AlphaPath:
    """Measure each alpha's errors at held-out rows, all in the same passes.

    A column (an alpha and a target) is not iterated further once it is solved within
    1e-4 of the target's deviation, or five steps in a row each gained less than 1e-4 of
    its held-out error.

    The last split of the folds says which rows are held out. By default three alphas
    per decade are tried, down to 1e-8 of the largest eigenvalue.

    Raises DataError, SolveError as `solve_pcg`; StatisticsError if no row is held out.
    """
    dataset = prepared.dataset
    accumulation = prepared.accumulation(feature_map)
    split = gram_products.TrainingSplit(folds, dataset.n_samples)
    operator = gram_products.gram_operator(
        dataset,
        accumulation,
        centred=fit_intercept,
        engine=prepared.engine,
        split=split,
    )
    if alphas is None:
        preconditioner, n_passes = _sketch(prepared, operator, None, CHOICE_TOLERANCE)
        largest = float(preconditioner.eigenvalues[0])
        grid = grids.alpha_grid(
            largest, max(LEAST_SHARE * largest, preconditioner.floor)
        )
    else:
        grid = grids.check_grid(alphas)
        preconditioner, n_passes = _sketch(
            prepared, operator, float(grid[0]), CHOICE_TOLERANCE
        )
    n_targets = operator.moments.shape[1]
    total = operator.summary.total_sum_of_squares
    # columns in the order of (alpha, target), as the table's last two axes
    penalties = np.repeat(grid, n_targets)
    target_of_column = np.tile(np.arange(n_targets), len(grid))
    right_sides = operator.moments[:, target_of_column]
    start = np.zeros_like(right_sides)
    descent = cg.Descent(start, right_sides.copy(), penalties, preconditioner)
    # `Descent` compares √(r'P⁻¹r), which times the root of the shortfall bounds the
    # error
    tolerance = CHOICE_TOLERANCE * np.sqrt(
        total[target_of_column] / preconditioner.shortfall(penalties)
    )
    best_errors = np.full(len(penalties), math.inf)
    steps_without_gain = np.zeros(len(penalties), np.int64)
    while n_passes < MAX_PASSES:
        may_gain = steps_without_gain < PATIENCE
        active = descent.active(np.where(may_gain, tolerance, math.inf))
        if not len(active):
            break
        product, errors = operator.multiply_and_validate(
            descent.direction[:, active],
            descent.solution[:, active],
            target_of_column[active],
        )
        has_gained = errors < (1.0 - WORTHWHILE) * best_errors[active]
        steps_without_gain[active] += 1
        steps_without_gain[active[has_gained]] = 0
        best_errors[active] = np.minimum(best_errors[active], errors)
        descent.step(active, product)
        n_passes += 1
    # the last pass is for errors alone; its product is not used, so one column will do
    _, errors = operator.multiply_and_validate(
        right_sides[:, :1], descent.solution, target_of_column
    )
    errors = errors.reshape(1, 1, len(grid), n_targets)
    widths = np.array([feature_map.n_components])
    variance = operator.targets.variances(centred=fit_intercept)
    table = error_table.CrossValidation(
        folds, widths, grid, errors, np.ones(1), variance
    )
    solutions = descent.solution.reshape(-1, len(grid), n_targets)
    # 2 more passes: that of `gram_operator`, and the one above
    return AlphaPath(table, solutions, preconditioner, n_passes + 2)


def _sketch(
    prepared: prepare.PreparedDataset,
    operator: gram_products.GramOperator,
    alpha: float | None,
    tolerance: float,
) -> tuple[cg.NystromPreconditioner, int]:
    """Return a preconditioner for alphas of at least `alpha`, and its passes.

    By default alpha is `LEAST_SHARE` of the largest eigenvalue.
    """
    n_components = operator.feature_map.n_components
    largest = cg.largest_rank(n_components)
    test_matrix = np.empty((n_components, 0))
    products = test_matrix.copy()
    rank = 0
    goal = FIRST_RANK
    n_passes = 0
    while True:
        goal = min(goal, largest)
        while rank < goal:
            stop = min(goal, rank + cg.SKETCH_COLUMNS)
            signs = random_signs(n_components, rank, stop)
            products = np.hstack([products, operator.multiply(signs, label="sketch")])
            test_matrix = np.hstack([test_matrix, signs])
            n_passes += 1
            rank = stop
        preconditioner = cg.nystrom_preconditioner(
            test_matrix, products, rounding=operator.rounding_error
        )
        first, last = preconditioner.eigenvalues[[0, -1]].tolist()
        least = LEAST_SHARE * first if alpha is None else alpha
        spectrum = f"eigenvalues from {first:.3g} to {last:.3g}, alpha {least:.3g}"
        prepared.say("solve", f"a sketch of rank {rank:,}: {spectrum}")
        if rank == largest or not _worth_doubling(
            preconditioner, least, operator, tolerance
        ):
            return preconditioner, n_passes
        goal = 2 * rank


def random_signs(n_components: int, start: int, stop: int) -> FloatArray:
    """Return columns `start:stop` of a fixed random matrix of ±1/√n_components."""
    n_words = -(-n_components // 64)
    bits = []
    for column in range(start, stop):
        # bits of Philox, since NumPy promises a generator's stream for one version only
        key = np.array([0, SIGN_STREAM + column], np.uint64)
        words = np.random.Philox(key=key).random_raw(n_words).astype("<u8")
        bits.append(np.unpackbits(words.view(np.uint8), count=n_components))
    return np.asarray((np.column_stack(bits) * 2.0 - 1.0) / math.sqrt(n_components))


def _worth_doubling(
    sketch: cg.NystromPreconditioner,
    alpha: float,
    operator: gram_products.GramOperator,
    tolerance: float,
) -> bool:
    """Return whether the steps that a doubled rank may save cost more than doubling."""
    # The shortfall, the factor by which (A + alpha·I)⁻¹ may exceed P⁻¹, bounds the
    # condition of the preconditioned system. With a perfect sketch it is 1.
    condition = float(sketch.shortfall(np.array([alpha]))[0])
    saved = cg.most_iterations(condition, tolerance)
    saved -= cg.most_iterations(1.0, tolerance)
    # One column per target, also in `validate_alphas`: `alpha` is the smallest there,
    # and its columns are the last to be iterated.
    per_step = gram_products.pass_operations(operator.accumulation.spec.n_targets)
    # doubling multiplies Z'Z by as many more columns as the rank
    return saved * per_step > gram_products.pass_operations(sketch.rank)


def _warn(result: PcgSolution) -> None:
    status = result.solution.status
    if status is SolveStatus.OK:
        return
    warn(
        f"after {result.n_passes} passes predictions are an estimated"
        f" {result.relative_error:.2g} standard deviations of y from those of the exact"
        f" solution: iterating was stopped by {result.iterated.stop.value}. "
        + "; ".join((*status.causes, *status.remedies)),
        scipy.linalg.LinAlgWarning,
    )
