"""Ridge for one alpha, or one per target, by a Cholesky factorisation.

Normal equations and alpha go in; coefficients come out, with the rank and a status that
says how far to trust them. `scipy.linalg.solve` would say nothing if alpha is below the
rounding error of the Gram matrix, and would crash with more than some 14,000 components
(see `triangular`). In formulas A is the Gram. The floor is the rounding error of its
eigenvalues: no eigenvalue and no alpha below it can be told from 0.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import SolveError, warn
from rff_dist.numerics import eigen, machine, solution, triangular
from rff_dist.typing import FloatArray, IndexArray

# The floor is a bound. For Nyström features of 1,000 rows it was 12 times the error:
# predictions with alphas down to a tenth of it were as good as without the eigenvalues
# below it, and with a twentieth their error doubled.
_RELIABLE_SHARE = 0.25
_BY_TARGET = (
    "coefficients",
    "intercept",
    "alpha",
    "residual_sum_of_squares",
    "rss_error_bound",
    "unexplained",
)


def solve_cholesky(
    equations: solution.NormalEquations,
    alpha: ArrayLike,
    *,
    overwrite_gram: bool = False,
) -> solution.RidgeSolution:
    """Like `scipy.linalg.solve(gram + alpha·I, moments, assume_a="pos")`.

    Takes n_components³/3 floating-point operations per different alpha, and one float64
    array of the Gram's size. With `overwrite_gram` it is factored in its own memory. It
    is copied anyway if it is not C-ordered float64, if targets have different alphas,
    or if alpha is below the floor, since the eigenvalues may then be needed.
    For more than some 20 values of alpha `eigen.decompose` is cheaper. Only the upper
    triangle of the Gram is read. All cores of the process are used; the bits of a
    Cholesky solution do not depend on their number, those of the fallback to
    eigenvalues do.

    The status is ILL_CONDITIONED, with a LinAlgWarning, if alpha and the smallest
    eigenvalue are both far below the floor, see `is_rounding`. If alpha = 0 and the
    Gram is singular, or if the factorisation breaks down, eigenvalues give the solution
    of minimum norm: the status is RANK_DEFICIENT, and a LinAlgWarning names the rank.

    Raises InvalidParameterError if alpha is negative, not finite or of a wrong shape;
    SolveError if the equations hold NaN or infinity, or the Gram was overwritten and is
    not positive semi-definite.

    Source: Golub & Van Loan, Matrix Computations, 4th ed., section 4.2.6 (block
    Cholesky, here left-looking).
    """
    solution.check_equations(equations)
    alphas = solution.check_alpha(alpha, equations.moments.shape[1])
    prepared = replace(
        equations, gram=np.ascontiguousarray(equations.gram, dtype=np.float64)
    )
    # one factorisation, the n³/3 of the cost, serves all targets with the same alpha
    distinct_alphas = np.unique(alphas)
    parts = []
    with machine.tile_pool() as pool:
        floor = prepared.floor()
        for value in distinct_alphas.tolist():
            targets = np.flatnonzero(alphas == value)
            # another alpha needs the Gram again, and so does the fallback to
            # eigenvalues below the floor
            needs_gram_again = len(distinct_alphas) > 1 or value < floor
            in_place = overwrite_gram and not needs_gram_again
            part = replace(
                prepared,
                moments=prepared.moments[:, targets],
                total_sum_of_squares=prepared.total_sum_of_squares[targets],
                target_means=prepared.target_means[targets],
            )
            solved = _solve_shared(part, value, floor, pool, overwrite_gram=in_place)
            parts.append((targets, solved))
    if len(parts) == 1:
        [(_, solved)] = parts
        return solved
    return _join(parts)


def _solve_shared(
    equations: solution.NormalEquations,
    alpha: float,
    floor: float,
    pool: Executor,
    *,
    overwrite_gram: bool,
) -> solution.RidgeSolution:
    """Solve with one alpha for all targets."""
    factor = equations.gram if overwrite_gram else equations.gram.copy()
    factor.flat[:: len(factor) + 1] += alpha
    broken_at = triangular.cholesky_in_place(factor, pool)
    if broken_at is not None and overwrite_gram:
        raise SolveError(
            f"the Gram is not positive semi-definite: with alpha={alpha:.3g} (floor"
            f" {floor:.3g}) the factorisation stopped at component {broken_at}. Were"
            " its sums made in float32, or from other rows than the counts? Sum in"
            " float64, or raise alpha"
        )
    is_nearly_singular = broken_at is None and is_rounding(factor, alpha, floor, pool)
    if broken_at is not None or (is_nearly_singular and alpha == 0.0):
        del factor  # before the eigensolver takes three arrays of its size
        return eigen.decompose(equations).solve(alpha)
    status = solution.SolveStatus.OK
    if is_nearly_singular:
        status = solution.SolveStatus.ILL_CONDITIONED
        warn(
            f"alpha={alpha:.3g} is below the floor {floor:.3g}, the rounding error of"
            " the Gram's eigenvalues: the coefficients are unreliable. Fit with an"
            ' alpha above it, or with `alpha` "auto"',
            scipy.linalg.LinAlgWarning,
        )
    coefficients, quadratic_forms = triangular.solve_factored(
        factor, equations.moments, pool
    )
    # w'Aw = ‖Uw‖² − alpha‖w‖², where U'U = A + alpha and Uw = U⁻ᵀb: the factor may have
    # overwritten A
    linear = 2.0 * (coefficients * equations.moments).sum(axis=0)
    # `make_solution` refuses coefficients whose squares overflow
    with np.errstate(over="ignore"):
        penalty = alpha * np.square(coefficients).sum(axis=0)
    rss = equations.total_sum_of_squares - linear + quadratic_forms - penalty
    return solution.make_solution(
        equations,
        coefficients,
        np.full(len(rss), alpha),
        rss=rss,
        effective_rank=len(factor),
        floor=floor,
        status=status,
    )


def is_rounding(factor: FloatArray, alpha: float, floor: float, pool: Executor) -> bool:
    """Return whether the smallest eigenvalue of A + alpha·I = U'U is rounding error.

    No eigenvalue is below alpha, so the smallest one can be below the limit only if
    alpha is.
    """
    limit = _RELIABLE_SHARE * floor
    return alpha < limit and _smallest_eigenvalue(factor, pool) < limit


def _smallest_eigenvalue(factor: FloatArray, pool: Executor) -> float:
    """Estimate the smallest eigenvalue of U'U by inverse iterations, never too low."""

    def solve(vector: FloatArray) -> FloatArray:
        solved, _ = triangular.solve_factored(factor, vector[:, np.newaxis], pool)
        return solved[:, 0]

    growth = solution.norm_growth(solve, len(factor), steps=3)
    if not np.isfinite(growth) or growth <= 0.0:
        return 0.0
    return 1.0 / growth


def _join(
    parts: Sequence[tuple[IndexArray, solution.RidgeSolution]],
) -> solution.RidgeSolution:
    """Put the targets' solutions back in order; the joint status is the worst one."""
    targets, solved = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(targets))
    by_target = {}
    for name in _BY_TARGET:
        array = np.concatenate([getattr(part, name) for part in solved], axis=-1)
        by_target[name] = array[..., order]
    # `SolveStatus` lists them from best to worst
    statuses = list(solution.SolveStatus)
    return solution.RidgeSolution(
        **by_target,
        effective_rank=min(part.effective_rank for part in solved),
        floor=max(part.floor for part in solved),
        status=max((part.status for part in solved), key=statuses.index),
    )
