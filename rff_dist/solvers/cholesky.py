"""Ridge for one alpha by a Cholesky factorisation in tiles.

LAPACK's own factorisation is as fast, but threaded OpenBLAS kills the process in it above some
14,000 components (numpy issue 19685). Here every BLAS call runs on one thread and covers one tile, and
a thread pool runs the tiles, so that the bits do not depend on the number of threads either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgWarning, blas, lapack
from threadpoolctl import threadpool_limits

from rff_dist.errors import SolveError
from rff_dist.solvers.eigen import decompose
from rff_dist.solvers.solution import (
    RidgeSolution,
    SolveStatus,
    check_alpha,
    check_equations,
    check_n_threads,
    make_solution,
)
from rff_dist.statistics import FloatArray, NormalEquations

# Targets solved together: their bits must not depend on how many threads share them out.
STRIP_COLUMNS = 256


def solve_cholesky(
    equations: NormalEquations,
    alpha: ArrayLike,
    *,
    n_threads: int | None = None,
    overwrite_gram: bool = False,
) -> RidgeSolution:
    """Solve (gram + alpha·I)·w = moments for one alpha, or one alpha per target.

    Takes n_components³/3 floating-point operations per different alpha, and one float64 array of the
    Gram's size unless `overwrite_gram`. For more than some 20 values of alpha `eigen.decompose` is
    cheaper.

    Parameters
    ----------
    equations : NormalEquations
        Of the Gram only the upper triangle is read.
    alpha : float or array of shape (n_targets,)
        Ridge penalty, in the units of the Gram.
    n_threads : int, optional
        All cores of the process by default, whatever the environment says. The bits of a Cholesky
        solution do not depend on it; those of the fallback to eigenvalues do.
    overwrite_gram : bool, default False
        Factor in the Gram's own memory, which destroys it. The Gram is copied all the same where it is
        not C-ordered float64, where targets have different alphas, and where alpha is below the floor,
        since the eigenvalues may then be needed.

    Returns
    -------
    RidgeSolution
        Status ILL_CONDITIONED, with a LinAlgWarning, where alpha and the smallest eigenvalue are both
        below the floor. Where alpha = 0 and the Gram is singular, or the factorisation breaks down: the
        solution of least norm by eigenvalues, RANK_DEFICIENT, with a LinAlgWarning that names the rank.

    Raises
    ------
    InvalidParameterError
        If alpha is negative, not finite or of a wrong shape, or `n_threads` is below 1.
    SolveError
        If the equations hold NaN or infinity, or the Gram was overwritten and is not positive
        semi-definite.

    References
    ----------
    Golub & Van Loan, Matrix Computations, 4th ed., section 4.2.6 (block Cholesky, here left-looking).
    """
    check_equations(equations)
    threads = check_n_threads(n_threads)
    penalty = check_alpha(alpha, equations.moments.shape[1])
    prepared = replace(equations, gram=np.ascontiguousarray(equations.gram, dtype=np.float64))
    different = np.unique(penalty)
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        floor = max(rounding_floor(prepared.gram), prepared.gram_error)
        parts = []
        for value in different:
            targets = np.flatnonzero(penalty == value)
            in_place = overwrite_gram and len(different) == 1 and value >= floor
            part = _select_targets(prepared, targets)
            solution = _solve_shared(
                part, float(value), floor=floor, pool=pool, n_threads=threads, overwrite_gram=in_place
            )
            parts.append((targets, solution))
    return parts[0][1] if len(parts) == 1 else _join(parts)


def rounding_floor(gram: FloatArray) -> float:
    """Size below which eigenvalues are rounding error: n_components · eps · (largest eigenvalue).

    The eigenvalue comes from eight power iterations, eight readings of the upper triangle; the estimate
    errs on the low side, by a few per cent.
    """
    largest = _largest_eigenvalue(lambda vector: blas.dsymv(1.0, gram.T, vector, lower=1), len(gram), steps=8)
    return len(gram) * float(np.finfo(np.float64).eps) * largest


def cholesky_in_place(matrix: FloatArray, pool: Executor) -> int | None:
    """Factor matrix = U'U, writing U over the upper triangle.

    Tile (j, i) waits for the tiles above it in columns j and i, then for its diagonal tile. Tiles enter
    the pool row by row, and a pool starts tasks in the order they enter, so that each waits for
    tasks that have started: it cannot deadlock.

    Parameters
    ----------
    matrix : C-ordered float64 array of shape (n_components, n_components)
        Symmetric positive definite; the part below its diagonal tiles is neither read nor written.
    pool : Executor
        Where tiles run. BLAS must be limited to one thread meanwhile.

    Returns
    -------
    int or None
        None when it succeeded, else the component at which the matrix proved not positive definite.
    """
    tiles = _tiles(len(matrix))
    done: dict[tuple[int, int], Future[None]] = {}
    for j, rows in enumerate(tiles):
        for i, columns in enumerate(tiles[j:], start=j):
            above = [done[j - 1, j], done[j - 1, i]] if j else []
            diagonal = done[j, j] if i > j else None
            done[j, i] = pool.submit(_factor_tile, matrix, rows, columns, above=above, diagonal=diagonal)
    try:
        for future in done.values():
            future.result()
    except _NotPositiveDefiniteError as error:
        wait(done.values())
        return error.component
    return None


class _NotPositiveDefiniteError(Exception):
    def __init__(self, component: int) -> None:
        super().__init__(component)
        self.component = component


def _factor_tile(
    matrix: FloatArray,
    rows: slice,
    columns: slice,
    *,
    above: Sequence[Future[None]],
    diagonal: Future[None] | None,
) -> None:
    for future in above:
        future.result()
    tile = np.ascontiguousarray(matrix[rows, columns])
    if rows.start:
        # matmul, unlike SciPy's wrappers of BLAS, lets other threads run meanwhile
        tile = tile - matrix[: rows.start, rows].T @ matrix[: rows.start, columns]
    if diagonal is None:
        # LAPACK's order is the transposed one: the lower triangle of tile.T is the upper one of tile
        lower, stopped = lapack.dpotrf(tile.T, lower=1, clean=0, overwrite_a=1)
        if stopped:
            raise _NotPositiveDefiniteError(rows.start + stopped - 1)
        matrix[rows, columns] = lower.T
    else:
        diagonal.result()
        matrix[rows, columns] = _solve_triangle(matrix[rows, rows], tile, transposed=True)


def solve_factored(
    factor: FloatArray, right_hand_sides: FloatArray, pool: Executor
) -> tuple[FloatArray, FloatArray]:
    """Solve U'U·w = b for many right-hand sides, and give b'w = ‖U⁻ᵀb‖² for each.

    Strips of 256 right-hand sides run side by side in the pool; 2·n_components² operations each.

    Parameters
    ----------
    factor : C-ordered float64 array of shape (n_components, n_components)
        U in its upper triangle.
    right_hand_sides : float64 array of shape (n_components, n_targets)
        b.
    pool : Executor
        Where strips run. BLAS must be limited to one thread meanwhile.

    Returns
    -------
    solutions : float64 array of shape (n_components, n_targets)
    quadratic_forms : float64 array of shape (n_targets,)
    """
    n_targets = right_hand_sides.shape[1]
    strips = [right_hand_sides[:, s : s + STRIP_COLUMNS] for s in range(0, n_targets, STRIP_COLUMNS)]
    solved = list(pool.map(lambda strip: _solve_strip(factor, strip), strips))
    return np.hstack([s for s, _ in solved]), np.hstack([q for _, q in solved])


def _solve_strip(factor: FloatArray, strip: FloatArray) -> tuple[FloatArray, FloatArray]:
    x = np.array(strip, dtype=np.float64, order="C")
    tiles = _tiles(len(factor))
    for rows in tiles:
        x[rows] -= factor[: rows.start, rows].T @ x[: rows.start]
        x[rows] = _solve_triangle(factor[rows, rows], x[rows], transposed=True)
    quadratic_forms = np.square(x).sum(axis=0)
    for rows in reversed(tiles):
        x[rows] -= factor[rows, rows.stop :] @ x[rows.stop :]
        x[rows] = _solve_triangle(factor[rows, rows], x[rows], transposed=False)
    return x, quadratic_forms


def _solve_triangle(upper: FloatArray, x: FloatArray, *, transposed: bool) -> FloatArray:
    """U⁻ᵀx or U⁻¹x for one tile; `x` is used up."""
    lower = np.ascontiguousarray(upper).T
    solved: FloatArray = blas.dtrsm(1.0, lower, x.T, side=1, lower=1, trans_a=int(transposed), overwrite_b=1)
    return solved.T


def _tiles(n_components: int) -> list[slice]:
    # Measured with 2 threads: 256 is best up to 8,192 (small tiles keep all threads busy), 512 at 16,384.
    size = 256 if n_components <= 8_192 else 512
    return [slice(start, min(start + size, n_components)) for start in range(0, n_components, size)]


def _largest_eigenvalue(apply: Callable[[FloatArray], FloatArray], n: int, *, steps: int) -> float:
    """Norm growth under repeated `apply`, a symmetric non-negative operator; never above the eigenvalue."""
    vector = np.cos(np.arange(n, dtype=np.float64) ** 2)  # in no eigenvector's null space by accident
    growth = 0.0
    for _ in range(steps):
        vector = apply(vector / np.linalg.norm(vector))
        growth = float(np.linalg.norm(vector))
        if growth == 0.0:
            break
    return growth


def _solve_shared(
    equations: NormalEquations,
    alpha: float,
    *,
    floor: float,
    pool: Executor,
    n_threads: int,
    overwrite_gram: bool,
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
    nearly_singular = broken_at is None and alpha < floor and _smallest_eigenvalue(factor, pool) < floor
    if broken_at is not None or (nearly_singular and alpha == 0.0):
        del factor
        return decompose(equations, n_threads=n_threads).solve(alpha)
    if nearly_singular:
        warnings.warn(
            f"alpha={alpha:.3g} is below the floor {floor:.3g}, the rounding error of the Gram's "
            f"eigenvalues: the coefficients are unreliable. Raise alpha above it, or choose it by GCV",
            LinAlgWarning,
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


def _smallest_eigenvalue(factor: FloatArray, pool: Executor) -> float:
    """Smallest eigenvalue of U'U by three inverse iterations; errs on the high side."""

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
    """Put the targets' solutions back in order; the worst status speaks for all."""
    order = np.argsort(np.concatenate([targets for targets, _ in parts]))
    solutions = [solution for _, solution in parts]

    def column(name: str) -> FloatArray:
        joined: FloatArray = np.concatenate([getattr(s, name) for s in solutions], axis=-1)[..., order]
        return joined

    return RidgeSolution(
        coefficients=column("coefficients"),
        intercept=column("intercept"),
        alpha=column("alpha"),
        residual_sum_of_squares=column("residual_sum_of_squares"),
        rss_error_bound=column("rss_error_bound"),
        effective_rank=min(s.effective_rank for s in solutions),
        floor=max(s.floor for s in solutions),
        status=max((s.status for s in solutions), key=list(SolveStatus).index),
    )
