"""Ridge coefficients without Z'Z: preconditioned conjugate gradients, a pass over the rows for each step.

A step costs O(n_samples · n_components · n_features) and O(n_components) memory. The preconditioner is a
randomised sketch of Z'Z, whose rank is doubled as long as the steps that it may save cost more. Nyström
features take it too: measured, FALKON's, of the centres alone, needed two to twenty times the steps, and two
more arrays of the Gram's size.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgWarning

from rff_dist.data.blocks import ROUNDING
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.conjugate_gradients import Iterated, Stop, conjugate_gradients, expected_iterations
from rff_dist.numerics.nystrom_preconditioner import NystromPreconditioner, nystrom_preconditioner
from rff_dist.numerics.solution import RidgeSolution, SolveStatus, check_alpha, make_solution
from rff_dist.ridge.prepare import Prepared
from rff_dist.statistics.gram_products import GramOperator, gram_operator
from rff_dist.statistics.spec import StatisticsSpec
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)

TOLERANCE = 1e-7  # of the targets' deviations: predictions then differ from the direct solution's by less
MAX_PASSES = 500
FIRST_RANK = 128
MAX_RANK_BYTES = 2**29  # of a sketch; four such arrays are there while its eigenvectors are made
SKETCH_COLUMNS = 256  # of one pass: the pass's sums and what travels to the workers are then small
SIGN_STREAM = 2**33  # beyond those of frequencies and seeds; see `frequencies.counter`
FEATURE_OPERATIONS = 100  # that a feature takes, as many as 100 of a product; measured 1.9 ns at 50 GFLOP/s
COLUMN_OPERATIONS = 4  # that a feature takes for each column: one product to the rows, one back


@dataclass(frozen=True, slots=True)
class Pcg:
    """A solution by conjugate gradients, and how it was found.

    `rank`: of the sketch.
    `n_passes`: over the rows, those of the sketch included.
    `relative_error`: an estimate of how far predictions are from the exact solution's, in deviations of y.
    `spec`, `target_deviations`: of the sums that it began with; float64 array of shape (n_targets,).
    """

    solution: RidgeSolution
    iterated: Iterated
    rank: int
    n_passes: int
    relative_error: float
    spec: StatisticsSpec
    target_deviations: FloatArray

    def facts(self) -> Mapping[str, Any]:
        """Return what a model's card keeps of it."""
        return {
            "method": "pcg",
            "rank": self.rank,
            "n_passes": self.n_passes,
            "stopped": str(self.iterated.stop),
            "relative_error": self.relative_error,
        }


def solve_pcg(
    prepared: Prepared,
    feature_map: FeatureMap,
    *,
    alpha: float,
    fit_intercept: bool,
    tolerance: float = TOLERANCE,
    max_passes: int = MAX_PASSES,
) -> Pcg:
    """Solve for one alpha above 0 by passes of Z'(Zv), all targets together.

    It ends where predictions differ from those of the exact solution by an estimated `tolerance`, as a share
    of the targets' deviations. Where rounding or `max_passes` end it, the status is NOT_CONVERGED, with a
    LinAlgWarning.

    Raises DataError if values are not finite; SolveError if the preconditioner cannot be made.
    """
    operator = gram_operator(
        prepared.dataset, prepared.accumulation(feature_map), centred=fit_intercept, engine=prepared.engine
    )
    moments, total = operator.moments, operator.total_sum_of_squares
    penalties = check_alpha(alpha, moments.shape[1])
    preconditioner, n_sketches = _sketch(prepared, operator, alpha, tolerance)
    deviations = np.sqrt(total)
    constant = total <= ROUNDING * operator.sum_of_weights * np.square(operator.target_means)
    iterated = conjugate_gradients(
        operator.multiply,
        moments,
        penalties,
        preconditioner,
        tolerance=np.where(constant, math.inf, tolerance * deviations),
        max_products=max_passes,
    )
    relative = float(np.max(iterated.errors[~constant] / deviations[~constant], initial=0.0))
    found = Pcg(
        _solution(operator, iterated, penalties, preconditioner.floor),
        iterated,
        preconditioner.rank,
        1 + n_sketches + iterated.n_products,
        relative,
        operator.accumulation.spec,
        operator.target_deviations,
    )
    logger.info("solved by %d passes: %s", found.n_passes, dict(found.facts()))
    _warn(found)
    return found


def _sketch(
    prepared: Prepared, operator: GramOperator, alpha: float, tolerance: float
) -> tuple[NystromPreconditioner, int]:
    """Return the preconditioner, and how many passes it took."""
    n_components = operator.feature_map.n_components
    largest = largest_rank(n_components)
    test_matrix = products = np.empty((n_components, 0))
    wanted, n_passes = FIRST_RANK, 0
    while True:
        wanted = min(wanted, largest)
        while (rank := products.shape[1]) < wanted:
            signs = random_signs(n_components, rank, min(wanted, rank + SKETCH_COLUMNS))
            products = np.hstack([products, operator.multiply(signs, label="sketch")])
            test_matrix = np.hstack([test_matrix, signs])
            n_passes += 1
        found = nystrom_preconditioner(test_matrix, products.copy())
        prepared.say("solve", f"a sketch of rank {rank:,}: {_words(found, alpha)}")
        if rank == largest or not _worth_doubling(found, alpha, operator, tolerance):
            return found, n_passes
        wanted = 2 * rank


def largest_rank(n_components: int) -> int:
    """Return the rank that a sketch may reach."""
    return max(1, min(n_components, MAX_RANK_BYTES // (8 * n_components)))


def random_signs(n_components: int, start: int, stop: int, *, seed: int = 0) -> FloatArray:
    """Return columns `start:stop` of a random matrix of ±1/√n_components.

    Each depends on the seed and its number alone.
    """
    keys = [np.array([seed, SIGN_STREAM + column], np.uint64) for column in range(start, stop)]
    words = [np.random.Philox(key=key).random_raw(-(-n_components // 64)).astype("<u8") for key in keys]
    bits = [np.unpackbits(word.view(np.uint8), count=n_components) for word in words]
    return np.asarray((np.column_stack(bits) * 2.0 - 1.0) / math.sqrt(n_components), np.float64)


def _worth_doubling(
    found: NystromPreconditioner, alpha: float, operator: GramOperator, tolerance: float
) -> bool:
    """Return whether the steps that a larger rank may save cost more than its columns."""
    least = expected_iterations(1.0, tolerance)
    saved = expected_iterations(float(found.shortfall(np.array([alpha]))[0]), tolerance) - least
    return saved * pass_operations(operator.accumulation.spec.n_targets) > pass_operations(found.rank)


def pass_operations(n_columns: int) -> int:
    """Return the operations of a pass of Z'(ZV), for each of its features."""
    return FEATURE_OPERATIONS + COLUMN_OPERATIONS * n_columns


def _words(found: NystromPreconditioner, alpha: float) -> str:
    return f"eigenvalues from {found.eigenvalues[0]:.3g} to {found.eigenvalues[-1]:.3g}, alpha {alpha:.3g}"


def _solution(operator: GramOperator, iterated: Iterated, alpha: FloatArray, floor: float) -> RidgeSolution:
    w, total = iterated.solution, operator.total_sum_of_squares
    # c − 2w'b + w'Aw with Aw = b − r − alpha·w
    along = operator.moments + iterated.residual + alpha * w
    status = SolveStatus.OK if iterated.stop is Stop.TOLERANCE else SolveStatus.NOT_CONVERGED
    if alpha.min() < floor:
        status = SolveStatus.ILL_CONDITIONED
    return make_solution(
        operator,
        w,
        alpha,
        rss=total - (w * along).sum(axis=0),
        effective_rank=len(w),
        floor=floor,
        status=status,
    )


def _warn(found: Pcg) -> None:
    status = found.solution.status
    if status is SolveStatus.OK:
        return
    warnings.warn(
        f"after {found.n_passes} passes predictions are within {found.relative_error:.2g} deviations of y of "
        f"the exact solution, by estimate: iterating was stopped by {found.iterated.stop.value}. "
        + "; ".join((*status.causes, *status.remedies)),
        LinAlgWarning,
        stacklevel=2,
    )
