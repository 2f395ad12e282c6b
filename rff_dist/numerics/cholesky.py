"""Ridge for one alpha by a Cholesky factorisation in tiles; the tiled routines are the
second half.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import SolveError, warn
from rff_dist.numerics import eigen, machine, solution
from rff_dist.typing import FloatArray, IndexArray

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
    """Like `scipy.linalg.solve(gram + alpha·I, moments, assume_a="pos")`, for one alpha
    or one per target.

    Takes n_components³/3 floating-point operations per different alpha, and one float64
    array of the Gram's size unless `overwrite_gram`. For more than some 20 values of
    alpha `eigen.decompose` is cheaper. It uses all cores of the process. The bits of a
    Cholesky solution do not depend on their number; those of the fallback to
    eigenvalues do.

    `equations`: only the upper triangle of the Gram is read.
    `alpha`: float or array of shape (n_targets,). Ridge penalty, in the units of the
      Gram.
    `overwrite_gram`: factor in the Gram's own memory, which destroys it. The Gram is
      copied all the same where it is not C-ordered float64, where targets have
      different alphas, and where alpha is below the floor, since the eigenvalues may
      then be needed. The status is ILL_CONDITIONED, with a LinAlgWarning, where alpha
      and the smallest eigenvalue are both below the floor. Where alpha = 0 and the Gram
      is singular, or where the factorisation breaks down, eigenvalues give the solution
      of least norm: the status is RANK_DEFICIENT, and a LinAlgWarning names the rank.

    Raises InvalidParameterError if alpha is negative, not finite or of a wrong shape;
    SolveError if the equations hold NaN or infinity, or the Gram was overwritten and is
    not positive semi-definite.

    Source: Golub & Van Loan, Matrix Computations, 4th ed., section 4.2.6 (block
    Cholesky, here left-looking).
    """
    solution.check_equations(equations)
    penalty = solution.check_alpha(alpha, equations.moments.shape[1])
    prepared = replace(
        equations, gram=np.ascontiguousarray(equations.gram, dtype=np.float64)
    )
    # one factorisation, the n³/3 of the cost, serves all targets with the same alpha
    different = np.unique(penalty)
    parts = []
    with machine.tile_pool() as pool:
        floor = prepared.floor()
        for value in different.tolist():
            targets = np.flatnonzero(penalty == value)
            # another alpha, or the eigenvalues below the floor, would need the Gram
            # again
            in_place = overwrite_gram and len(different) == 1 and value >= floor
            part = replace(
                prepared,
                moments=prepared.moments[:, targets],
                total_sum_of_squares=prepared.total_sum_of_squares[targets],
                target_means=prepared.target_means[targets],
            )
            parts.append(
                (
                    targets,
                    _solve_shared(part, value, floor, pool, overwrite_gram=in_place),
                )
            )
    return parts[0][1] if len(parts) == 1 else _join(parts)


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
    broken_at = cholesky_in_place(factor, pool)
    if broken_at is not None and overwrite_gram:
        raise SolveError(
            f"the Gram is not positive semi-definite: with alpha={alpha:.3g} (floor"
            f" {floor:.3g}) the factorisation stopped at component {broken_at}. Were"
            " its sums made in float32, or from other rows than the counts? Sum in"
            " float64, or raise alpha"
        )
    # no eigenvalue of A + alpha is below alpha, so only below the floor is the smallest
    # one worth an estimate
    nearly_singular = (
        broken_at is None
        and alpha < floor
        and smallest_eigenvalue(factor, pool) < floor
    )
    if broken_at is not None or (nearly_singular and alpha == 0.0):
        del factor  # before the eigensolver takes three arrays of its size
        return eigen.decompose(equations).solve(alpha)
    if nearly_singular:
        warn(
            f"alpha={alpha:.3g} is below the floor {floor:.3g}, the rounding error of"
            " the Gram's eigenvalues: the coefficients are unreliable. Raise alpha"
            " above it, or choose it by GCV",
            scipy.linalg.LinAlgWarning,
        )
    coefficients, quadratic_forms = solve_factored(factor, equations.moments, pool)
    # w'Aw = ‖Uw‖² − alpha‖w‖², where U'U = A + alpha and Uw = U⁻ᵀb: A itself may be
    # gone
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
        status=(
            solution.SolveStatus.ILL_CONDITIONED
            if nearly_singular
            else solution.SolveStatus.OK
        ),
    )


def smallest_eigenvalue(factor: FloatArray, pool: Executor) -> float:
    """Smallest eigenvalue of U'U by three inverse iterations; the estimate is never too
    low.
    """

    def solve(vector: FloatArray) -> FloatArray:
        return solve_factored(factor, vector[:, np.newaxis], pool)[0][:, 0]

    growth = solution.largest_eigenvalue(solve, len(factor), steps=3)
    return 1.0 / growth if np.isfinite(growth) and growth > 0.0 else 0.0


def _join(
    parts: Sequence[tuple[IndexArray, solution.RidgeSolution]],
) -> solution.RidgeSolution:
    """Put the targets' solutions back in order; the worst status is that of all."""
    targets, solved = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(targets))
    arrays = {
        name: np.concatenate([getattr(part, name) for part in solved], axis=-1)
        for name in _BY_TARGET
    }
    return solution.RidgeSolution(
        **{name: array[..., order] for name, array in arrays.items()},
        effective_rank=min(part.effective_rank for part in solved),
        floor=max(part.floor for part in solved),
        status=max(
            (part.status for part in solved), key=list(solution.SolveStatus).index
        ),
    )


# -- cholesky factors in tiles, and solutions with them
# --------------------------------------------
#
# LAPACK's own factorisation is as fast, but in it threaded OpenBLAS kills the process
# above some 14,000 components (numpy issue 19685). Here every BLAS call runs on one
# thread and covers one tile, and a thread pool runs the tiles. So the bits do not
# depend on the number of threads either.


# Right-hand sides, and rows, that are solved together. The numbers are fixed, because
# bits depend on them. LAPACK's factorisation, with two threads, kills the process at D
# = 16,384. This takes 15 s there, and as long as LAPACK's at 2,048 to 8,192.
STRIP_COLUMNS = 256
_PANEL_ROWS = 64


def cholesky_in_place(matrix: FloatArray, pool: Executor) -> int | None:
    """Like `scipy.linalg.cholesky(matrix)`, factor matrix = U'U, writing U over the
    upper triangle.

    Tile (j, i) waits for the tiles above it in columns j and i, then for its diagonal
    tile. Tiles enter the pool row by row, and a pool starts tasks in the order in which
    they enter. So each waits only for tasks that have started, and there is no
    deadlock.

    `matrix`: C-ordered float64 array of shape (n_components, n_components). Symmetric
      positive definite; the part below its diagonal tiles is neither read nor written.
    `pool`: where tiles run. BLAS must be limited to one thread meanwhile.
    Returns None when it succeeded, else the component at which the matrix proved not
    positive definite. Source: Golub & Van Loan, Matrix Computations, 4th ed., section
    4.2.6 (block Cholesky, here left-looking).
    """
    tiles = tiles_of(len(matrix))
    done: dict[tuple[int, int], Future[None]] = {}

    def factor(j: int, i: int) -> None:
        rows = tiles[j]
        columns = tiles[i]
        # each of these two waited for the one above it, so both columns are done above
        # row j
        for above in ((j - 1, j), (j - 1, i)) if j else ():
            done[above].result()
        tile = np.ascontiguousarray(matrix[rows, columns])
        if j:
            # left-looking: all rows above at once, in one product of shapes (width_j,
            # above) and (above, width_i) matmul, unlike SciPy's wrappers of BLAS, lets
            # other threads run meanwhile
            tile = tile - matrix[: rows.start, rows].T @ matrix[: rows.start, columns]
        if i > j:
            done[j, j].result()
            matrix[rows, columns] = _solve_tile(
                matrix[rows, rows], tile, transposed=True
            )
            return
        # LAPACK's order is the transposed one: the lower triangle of tile.T is the
        # upper one of tile
        lower, stopped = scipy.linalg.lapack.dpotrf(
            tile.T, lower=1, clean=0, overwrite_a=1
        )
        if stopped:
            raise _NotPositiveDefiniteError(rows.start + stopped - 1)
        matrix[rows, columns] = lower.T

    for j in range(len(tiles)):
        for i in range(j, len(tiles)):
            done[j, i] = pool.submit(factor, j, i)
    try:
        for future in done.values():
            future.result()
    except _NotPositiveDefiniteError as error:
        # no tile may still be writing when the caller copies or frees the matrix
        wait(done.values())
        return int(error.args[0])
    return None


class _NotPositiveDefiniteError(Exception):
    """The argument is the component at which the matrix proved not to be positive
    definite.
    """


def solve_factored(
    factor: FloatArray, right: FloatArray, pool: Executor
) -> tuple[FloatArray, FloatArray]:
    """Like `scipy.linalg.cho_solve`, solve U'U·w = b for many right-hand sides; give
    b'w = ‖U⁻ᵀb‖² too.

    Strips of 256 right-hand sides run side by side in the pool; 2·n_components²
    operations each.

    `factor`: C-ordered float64 array of shape (n_components, n_components). U in its
      upper triangle.
    `right`: float64 array of shape (n_components, n_targets). b.
    `pool`: where strips run. BLAS must be limited to one thread meanwhile.

    Returns `solutions`, float64 array of shape (n_components, n_targets), and
    `quadratic_forms`, float64 array of shape (n_targets,).
    """

    def solve(strip: FloatArray) -> tuple[FloatArray, FloatArray]:
        x = np.array(strip, dtype=np.float64, order="C")
        solve_transposed(factor, x)
        # half-way x is U⁻ᵀb, so that b'(U'U)⁻¹b costs no further product
        quadratic_forms = np.square(x).sum(axis=0)
        solve_upper(factor, x)
        return x, quadratic_forms

    strips = [
        right[:, start : start + STRIP_COLUMNS]
        for start in range(0, right.shape[1], STRIP_COLUMNS)
    ]
    solutions, quadratic_forms = zip(*pool.map(solve, strips), strict=True)
    return np.hstack(solutions), np.hstack(quadratic_forms)


def solve_transposed(factor: FloatArray, x: FloatArray) -> None:
    """Overwrite x by U⁻ᵀx: `scipy.linalg.solve_triangular(factor, x, trans="T")`, tile
    by tile.

    `factor`: float64 array of shape (n_components, n_components). U in its upper
      triangle.
    `x`: C-ordered float64 array of shape (n_components, n_columns).
    """
    for rows in tiles_of(len(factor)):
        # forward substitution: all rows above these are solved
        x[rows] -= factor[: rows.start, rows].T @ x[: rows.start]
        x[rows] = _solve_tile(factor[rows, rows], x[rows], transposed=True)


def solve_upper(factor: FloatArray, x: FloatArray) -> None:
    """Overwrite x by U⁻¹x: `scipy.linalg.solve_triangular(factor, x)`; arguments as
    `solve_transposed`.
    """
    for rows in reversed(tiles_of(len(factor))):
        # back substitution: all rows below these are solved
        x[rows] -= factor[rows, rows.stop :] @ x[rows.stop :]
        x[rows] = _solve_tile(factor[rows, rows], x[rows], transposed=False)


def multiply_upper_in_place(
    left: FloatArray, right: FloatArray, pool: Executor
) -> None:
    """Overwrite U by U·T, `numpy.triu(left) @ right`, strip by strip of rows in
    n_components³ / 3 operations.

    `left`: C-ordered float64 array of shape (n_components, n_components). U in its
      upper triangle.
    `right`: float64 array of the same shape. T, with zeros below its diagonal.
    `pool`: where strips run. BLAS must be limited to one thread meanwhile.
    """
    tiles = tiles_of(len(left))

    def multiply(i: int) -> None:
        rows = tiles[i]
        # a copy: the loop overwrites the strip from left to right, while each of its
        # products needs all of it
        strip = np.triu(left[rows, rows.start :])
        for columns in tiles[i:]:
            # rows of T below its diagonal are 0, so the product ends with the columns'
            # own rows
            upper = right[rows.start : columns.stop, columns]
            left[rows, columns] = strip[:, : len(upper)] @ upper

    list(pool.map(multiply, range(len(tiles))))


def whiten_in_place(matrix: FloatArray, factor: FloatArray, pool: Executor) -> None:
    """Overwrite a symmetric matrix A by U⁻ᵀAU⁻¹, in 4/3·n_components³ operations
    without a second array.

    First B = U⁻ᵀA takes the place of A, a strip of columns at a time. Then (U⁻ᵀB')'
    takes that of B, a strip of rows at a time: only its lower triangle is solved for,
    and mirrored in the end.

    `matrix`: C-ordered float64 array of shape (n_components, n_components). All of it
      is read.
    `factor`: C-ordered float64 array of the same shape. U in its upper triangle.
    `pool`: where strips run. BLAS must be limited to one thread meanwhile.
    """
    n = len(matrix)
    strips = [
        slice(start, min(start + STRIP_COLUMNS, n))
        for start in range(0, n, STRIP_COLUMNS)
    ]

    def from_left(strip: slice) -> None:
        columns = np.ascontiguousarray(matrix[:, strip])
        solve_transposed(factor, columns)
        matrix[:, strip] = columns

    def from_right(strip: slice) -> None:
        # forward substitution takes an entry from those before it alone, so the leading
        # block of U is enough for the lower triangle
        rows = np.ascontiguousarray(matrix[strip, : strip.stop].T)
        solve_transposed(factor[: strip.stop, : strip.stop], rows)
        matrix[strip, : strip.stop] = rows.T

    def mirror(strip: slice) -> None:
        matrix[: strip.start, strip] = matrix[strip, : strip.start].T
        square = matrix[strip, strip]
        square[:] = np.tril(square) + np.tril(square, -1).T

    for step, order in (
        (from_left, strips),
        (from_right, strips[::-1]),
        (mirror, strips),
    ):
        list(pool.map(step, order))  # the longest strips first


def whiten_rows(rows: FloatArray, factor: FloatArray, pool: Executor) -> None:
    """Overwrite V by V·U⁻¹: `scipy.linalg.solve_triangular(factor, rows.T,
    trans="T").T`.

    Takes n_components² operations per row.

    Panels of 64 rows, the last one padded, run side by side in the pool. So a row's
    bits do not depend on the rows next to it.

    `rows`: float64 array of shape (n_samples, n_components). V.
    `factor`: float64 array of shape (n_components, n_components). U in its upper
      triangle.
    `pool`: where panels run. BLAS must be limited to one thread meanwhile.
    """

    def solve(start: int) -> None:
        panel = rows[start : start + _PANEL_ROWS]
        columns = np.zeros((rows.shape[1], _PANEL_ROWS))
        columns[:, : len(panel)] = panel.T
        solve_transposed(factor, columns)
        panel[:] = columns[:, : len(panel)].T

    list(pool.map(solve, range(0, len(rows), _PANEL_ROWS)))


def _solve_tile(upper: FloatArray, x: FloatArray, *, transposed: bool) -> FloatArray:
    """U⁻ᵀx or U⁻¹x for one tile; `x` is used up."""
    # in Fortran's order all are transposes: BLAS solves y'·op(U) = x' from the right
    # (side=1) without a copy
    lower = np.ascontiguousarray(upper).T
    trsm = scipy.linalg.blas.dtrsm
    solved: FloatArray = trsm(
        1.0, lower, x.T, side=1, lower=1, trans_a=int(transposed), overwrite_b=1
    )
    return solved.T


def tiles_of(n_components: int) -> list[slice]:
    """Return the tiles of a factorisation: 256 components wide, 512 above 8,192."""
    # Measured with 2 threads: 256 is best up to 8,192 (small tiles keep all threads
    # busy), 512 at 16,384.
    size = 256 if n_components <= 8_192 else 512
    return [
        slice(start, min(start + size, n_components))
        for start in range(0, n_components, size)
    ]
