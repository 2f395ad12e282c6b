"""Ridge for one alpha by a Cholesky factorisation in tiles.

See `rff_dist.numerics.triangular` for the tiles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from rff_dist.errors import SolveError
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.normal_equations import NormalEquations
from rff_dist.numerics.solution import (
    RidgeSolution,
    SolveStatus,
    check_alpha,
    check_equations,
    make_solution,
)
from rff_dist.numerics.threads import tile_pool
from rff_dist.numerics.triangular import cholesky_in_place, solve_factored
from rff_dist.typing import FloatArray

_BY_TARGET = (
    "coefficients", "intercept", "alpha", "residual_sum_of_squares", "rss_error_bound", "unexplained",
)  # fmt: skip


def solve_cholesky(
    equations: NormalEquations,
    alpha: ArrayLike,
    *,
    overwrite_gram: bool = False,
) -> RidgeSolution:
    """Solve (gram + alpha·I)·w = moments for one alpha, or one alpha per target.

    Takes n_components³/3 floating-point operations per different alpha, and one float64 array of the
    Gram's size unless `overwrite_gram`. For more than some 20 values of alpha `eigen.decompose` is
    cheaper. It uses all cores of the process. The bits of a Cholesky solution do not depend on their number;
    those of the fallback to eigenvalues do.

    `equations`: only the upper triangle of the Gram is read.
    `alpha`: float or array of shape (n_targets,). Ridge penalty, in the units of the Gram.
    `overwrite_gram`: factor in the Gram's own memory, which destroys it. The Gram is copied all the same
      where it is not C-ordered float64, where targets have different alphas, and where alpha is below the
      floor, since the eigenvalues may then be needed.
    The status is ILL_CONDITIONED, with a LinAlgWarning, where alpha and the smallest eigenvalue are both
      below the floor. Where alpha = 0 and the Gram is singular, or where the factorisation breaks down,
      eigenvalues give the solution of least norm: the status is RANK_DEFICIENT, and a LinAlgWarning names the
      rank.
    Raises InvalidParameterError if alpha is negative, not finite or of a wrong shape; SolveError if the
      equations hold NaN or infinity, or the Gram was overwritten and is not positive semi-definite.
    Source: Golub & Van Loan, Matrix Computations, 4th ed., section 4.2.6 (block Cholesky, here left-looking).
    """
    check_equations(equations)
    penalty = check_alpha(alpha, equations.moments.shape[1])
    prepared = replace(equations, gram=np.ascontiguousarray(equations.gram, dtype=np.float64))
    different = np.unique(penalty)
    parts = []
    with tile_pool() as pool:
        floor = max(rounding_floor(prepared.gram), prepared.gram_error)
        for value in different.tolist():
            targets = np.flatnonzero(penalty == value)
            in_place = overwrite_gram and len(different) == 1 and value >= floor
            part = _select_targets(prepared, targets)
            solution = _solve_shared(part, value, floor=floor, pool=pool, overwrite_gram=in_place)
            parts.append((targets, solution))
    return parts[0][1] if len(parts) == 1 else _join(parts)


def rounding_floor(gram: FloatArray) -> float:
    """Size below which eigenvalues are rounding error: n_components · eps · (largest eigenvalue).

    The largest eigenvalue is estimated by eight power iterations, which read the upper triangle eight times.
    The estimate is up to a few per cent low.
    """
    largest = _largest_eigenvalue(
        lambda vector: scipy.linalg.blas.dsymv(1.0, gram.T, vector, lower=1), len(gram), steps=8
    )
    return len(gram) * float(np.finfo(np.float64).eps) * largest


def _largest_eigenvalue(apply: Callable[[FloatArray], FloatArray], n: int, *, steps: int) -> float:
    """Growth of the norm under repeated `apply`, symmetric and non-negative; never above the eigenvalue."""
    # irregular, so that it is orthogonal to no eigenvector by accident
    vector = np.cos(np.arange(n, dtype=np.float64) ** 2)
    growth = 0.0
    for _ in range(steps):
        vector = apply(vector / np.linalg.norm(vector))
        growth = float(np.linalg.norm(vector))
        if growth == 0.0:
            break
    return growth


def _solve_shared(
    equations: NormalEquations, alpha: float, *, floor: float, pool: Executor, overwrite_gram: bool
) -> RidgeSolution:
    """Solve with one alpha for all targets."""
    factor = equations.gram if overwrite_gram else equations.gram.copy()
    n_components = len(factor)
    factor.flat[:: n_components + 1] += alpha
    broken_at = cholesky_in_place(factor, pool)
    if broken_at is not None and overwrite_gram:
        raise SolveError(
            f"the Gram is not positive semi-definite: with alpha={alpha:.3g} (floor {floor:.3g}) the "
            f"factorisation stopped at component {broken_at}. Were its sums made in float32, or from other "
            f"rows than the counts? Sum in float64, or raise alpha"
        )
    nearly_singular = broken_at is None and alpha < floor and smallest_eigenvalue(factor, pool) < floor
    if broken_at is not None or (nearly_singular and alpha == 0.0):
        del factor  # before the eigensolver takes three arrays of its size
        return decompose(equations).solve(alpha)
    if nearly_singular:
        warnings.warn(
            f"alpha={alpha:.3g} is below the floor {floor:.3g}, the rounding error of the Gram's "
            f"eigenvalues: the coefficients are unreliable. Raise alpha above it, or choose it by GCV",
            scipy.linalg.LinAlgWarning,
            stacklevel=3,
        )
    coefficients, quadratic_forms = solve_factored(factor, equations.moments, pool)
    # w'Aw = ‖Uw‖² − alpha‖w‖², where U'U = A + alpha and Uw = U⁻ᵀb: A itself may be gone
    rss = (
        equations.total_sum_of_squares
        - 2.0 * (coefficients * equations.moments).sum(axis=0)
        + quadratic_forms
        - alpha * np.square(coefficients).sum(axis=0)
    )
    return make_solution(
        equations,
        coefficients,
        np.full(len(rss), alpha),
        rss=rss,
        effective_rank=n_components,
        floor=floor,
        status=SolveStatus.ILL_CONDITIONED if nearly_singular else SolveStatus.OK,
    )


def smallest_eigenvalue(factor: FloatArray, pool: Executor) -> float:
    """Smallest eigenvalue of U'U by three inverse iterations; the estimate is never too low."""

    def solve(vector: FloatArray) -> FloatArray:
        return solve_factored(factor, vector[:, np.newaxis], pool)[0][:, 0]

    growth = _largest_eigenvalue(solve, len(factor), steps=3)
    return 1.0 / growth if np.isfinite(growth) and growth > 0.0 else 0.0


def _select_targets(equations: NormalEquations, targets: NDArray[np.intp]) -> NormalEquations:
    return replace(
        equations,
        moments=equations.moments[:, targets],
        total_sum_of_squares=equations.total_sum_of_squares[targets],
        target_means=equations.target_means[targets],
    )


def _join(parts: Sequence[tuple[NDArray[np.intp], RidgeSolution]]) -> RidgeSolution:
    """Put the targets' solutions back in order; the worst status is that of all."""
    order = np.argsort(np.concatenate([targets for targets, _ in parts]))
    solutions = [solution for _, solution in parts]
    each = {
        name: np.concatenate([getattr(one, name) for one in solutions], axis=-1)[..., order]
        for name in _BY_TARGET
    }
    return RidgeSolution(
        **each,
        effective_rank=min(s.effective_rank for s in solutions),
        floor=max(s.floor for s in solutions),
        status=max((s.status for s in solutions), key=list(SolveStatus).index),
    )
