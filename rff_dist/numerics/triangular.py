"""Cholesky factors in tiles, and solutions with them.

A positive definite matrix goes in; its triangular factor, or solutions, come out, often
in the input's memory. LAPACK's own factorisation is as fast, but with threaded OpenBLAS
it kills the process above some 14,000 components (numpy issue 19685). Here every BLAS
call runs on one thread and covers one tile, and a thread pool runs the tiles. So the
bits do not depend on the number of threads either.

In all functions U is the upper triangular factor of U'U, a C-ordered float64 array;
entries below its diagonal are not read. BLAS must be limited to one thread while a
`pool` runs tiles, as `machine.tile_pool` does.
"""

from concurrent.futures import Executor, Future, wait

import numpy as np
import scipy

from rff_dist.numerics import machine
from rff_dist.typing import FloatArray

# Both numbers are fixed, because bits depend on them.
STRIP_COLUMNS = 256  # right-hand sides solved together
_PANEL_ROWS = 64  # rows whitened together


def cholesky_in_place(matrix: FloatArray, pool: Executor) -> int | None:
    """Like `scipy.linalg.cholesky(matrix)`, writing U over the upper triangle.

    Tile (j, i) waits for the tiles above it in columns j and i, then for its diagonal
    tile. Tiles enter the pool row by row, and a pool starts tasks in the order in which
    they enter. So each waits only for tasks that have started, and there is no
    deadlock.

    With two threads it takes as long as LAPACK's factorisation for 2,048 to 8,192
    components. For 16,384 it takes 15 s, and LAPACK's kills the process.

    The part below the diagonal tiles is neither read nor written. Returns None when it
    succeeded, else the component at which the matrix proved not positive definite. Then
    the upper triangle holds the factor in part.

    Source: Golub & Van Loan, Matrix Computations, 4th ed., section 4.2.6 (block
    Cholesky, here left-looking).
    """
    tiles = tiles_of(len(matrix))
    done: dict[tuple[int, int], Future[None]] = {}

    def factor_tile(j: int, i: int) -> None:
        rows = tiles[j]
        columns = tiles[i]
        tile = np.ascontiguousarray(matrix[rows, columns])
        if j:
            # Each of these two tiles waited for the one above it, so both columns are
            # done in all rows above row j.
            done[j - 1, j].result()
            done[j - 1, i].result()
            # left-looking: all rows above at once, in one product of shapes (width_j,
            # above) and (above, width_i). Unlike SciPy's wrappers of BLAS, matmul lets
            # other threads run meanwhile.
            tile = tile - matrix[: rows.start, rows].T @ matrix[: rows.start, columns]
        if i > j:
            done[j, j].result()
            diagonal = matrix[rows, rows]
            matrix[rows, columns] = _solve_tile(diagonal, tile, transposed=True)
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
            done[j, i] = pool.submit(factor_tile, j, i)
    try:
        for future in done.values():
            future.result()
    except _NotPositiveDefiniteError as error:
        # no tile may still be writing when the caller copies or frees the matrix
        wait(done.values())
        return int(error.args[0])
    return None


class _NotPositiveDefiniteError(Exception):
    """The argument is the component at which a matrix proved not positive definite."""


def solve_factored(
    factor: FloatArray, right: FloatArray, pool: Executor
) -> tuple[FloatArray, FloatArray]:
    """Like `scipy.linalg.cho_solve`: return the solutions w of U'U·w = b, and b'w.

    b has the shape (n_components, n_targets), and b'w = ‖U⁻ᵀb‖² the shape (n_targets,).
    Strips of 256 right-hand sides run side by side in the pool; 2·n_components²
    operations each.
    """

    def solve(strip: FloatArray) -> tuple[FloatArray, FloatArray]:
        x = np.array(strip, dtype=np.float64, order="C")
        solve_transposed(factor, x)
        # x is U⁻ᵀb now, so its squared norm b'(U'U)⁻¹b costs no further product
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
    """Overwrite x by U⁻ᵀx, tile by tile; x is C-ordered, (n_components, n_columns).

    It is `scipy.linalg.solve_triangular(factor, x, trans="T")`.
    """
    for rows in tiles_of(len(factor)):
        # forward substitution: all rows above these are solved
        x[rows] -= factor[: rows.start, rows].T @ x[: rows.start]
        x[rows] = _solve_tile(factor[rows, rows], x[rows], transposed=True)


def solve_upper(factor: FloatArray, x: FloatArray) -> None:
    """Overwrite x by U⁻¹x: `scipy.linalg.solve_triangular(factor, x)`."""
    for rows in reversed(tiles_of(len(factor))):
        # back substitution: all rows below these are solved
        x[rows] -= factor[rows, rows.stop :] @ x[rows.stop :]
        x[rows] = _solve_tile(factor[rows, rows], x[rows], transposed=False)


def multiply_upper_in_place(
    left: FloatArray, right: FloatArray, pool: Executor
) -> None:
    """Overwrite `left` by `numpy.triu(left) @ right`, strip by strip of rows.

    `right` has zeros below its diagonal. Takes n_components³ / 3 operations.
    """
    tiles = tiles_of(len(left))

    def multiply(i: int) -> None:
        rows = tiles[i]
        # a copy: the loop overwrites the strip from left to right, while each of its
        # products needs all of it
        strip = np.triu(left[rows, rows.start :])
        for columns in tiles[i:]:
            # `right` is 0 below its diagonal, so the product ends with the columns' own
            # rows
            upper = right[rows.start : columns.stop, columns]
            left[rows, columns] = strip[:, : len(upper)] @ upper

    list(pool.map(multiply, range(len(tiles))))


def whiten_in_place(matrix: FloatArray, factor: FloatArray, pool: Executor) -> None:
    """Overwrite a symmetric matrix A by U⁻ᵀAU⁻¹, without a second array.

    First B = U⁻ᵀA replaces A, a strip of columns at a time. Then the result, (U⁻ᵀB')',
    replaces B, a strip of rows at a time. The result is symmetric: only its lower
    triangle is solved for, and in the end mirrored. The whole matrix is read. Takes
    4/3·n_components³ operations.
    """
    strips = machine.slices(0, len(matrix), STRIP_COLUMNS)

    def from_left(strip: slice) -> None:
        columns = np.ascontiguousarray(matrix[:, strip])
        solve_transposed(factor, columns)
        matrix[:, strip] = columns

    def from_right(strip: slice) -> None:
        # forward substitution computes an entry from earlier ones only, so the leading
        # block of U is enough for the lower triangle
        rows = np.ascontiguousarray(matrix[strip, : strip.stop].T)
        solve_transposed(factor[: strip.stop, : strip.stop], rows)
        matrix[strip, : strip.stop] = rows.T

    def mirror(strip: slice) -> None:
        matrix[: strip.start, strip] = matrix[strip, : strip.start].T
        square = matrix[strip, strip]
        square[:] = np.tril(square) + np.tril(square, -1).T

    # each list waits until all strips are done
    list(pool.map(from_left, strips))
    longest_first = strips[::-1]
    list(pool.map(from_right, longest_first))
    list(pool.map(mirror, strips))


def whiten_rows(rows: FloatArray, factor: FloatArray, pool: Executor) -> None:
    """Overwrite `rows` by rows·U⁻¹, in n_components² operations per row.

    It is `scipy.linalg.solve_triangular(factor, rows.T, trans="T").T`. Panels of 64
    rows, the last one padded, run side by side in the pool. So a row's bits do not
    depend on the rows next to it.
    """

    def solve(start: int) -> None:
        panel = rows[start : start + _PANEL_ROWS]
        columns = np.zeros((rows.shape[1], _PANEL_ROWS))
        columns[:, : len(panel)] = panel.T
        solve_transposed(factor, columns)
        panel[:] = columns[:, : len(panel)].T

    list(pool.map(solve, range(0, len(rows), _PANEL_ROWS)))


def _solve_tile(upper: FloatArray, x: FloatArray, *, transposed: bool) -> FloatArray:
    """Return U⁻ᵀx or U⁻¹x for one tile; `x` may be overwritten."""
    # BLAS takes Fortran's order, which `lower`, U', and x.T have without a copy. So it
    # solves the transposed equations: y'·U' = x', or y'·U = x' if transposed, where the
    # matrix is on the right (side=1).
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
    return machine.slices(0, n_components, size)
