"""Ridge for a whole path of alpha from the Gram's tridiagonal form.

Normal equations go in; a form comes out that solves them for any alpha. A = QTQ' with T
tridiagonal, so that (A + alpha)⁻¹b = Q(T + alpha)⁻¹Q'b takes O(n_components²) for each
alpha. The form costs a third of an eigendecomposition, whose eigenvectors take the
other two thirds.

Eldén (1977), Algorithms for the regularization of ill-conditioned least squares
problems, BIT 17; Golub & Van Loan (2013), Matrix Computations, section 8.3.
"""

from typing import Self

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.numerics import eigen, lapack, machine
from rff_dist.numerics.solution import NormalEquations, check_equations
from rff_dist.typing import FloatArray, frozen

# Columns that LAPACK processes together: its work arrays have as many numbers per row.
_BLOCK = 64


@frozen(eq=False)
class Tridiagonal:
    """A symmetric matrix as A = QTQ'."""

    #: Fortran-ordered, of shape (n, n). The entries below the first subdiagonal, with
    #: `reflector_scales`, encode Q as Householder reflections.
    reflectors: FloatArray
    #: Of shape (n - 1,), one zero for n = 1.
    reflector_scales: FloatArray
    #: Of T, of shape (n,).
    diagonal: FloatArray
    #: Of T, of shape (n - 1,), one zero for n = 1.
    off_diagonal: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> Self:
        """Reduce a symmetric matrix; only its upper half is read.

        Like `scipy.linalg.hessenberg(matrix, calc_q=True)`, in 4/3·n³ operations and
        one array of the matrix's size. BLAS uses one thread, because
        bits would depend on the number of threads; the call releases Python's lock, so
        that other Python threads run at the same time.
        """
        n = len(matrix)
        # the transpose's lower triangle is the matrix's upper one, in LAPACK's order
        reflectors = np.array(matrix, np.float64, order="C").T
        diagonal = np.empty(n)
        work = np.empty(n * _BLOCK)
        off_diagonal, scales = np.zeros((2, max(1, n - 1)))
        with machine.single_threaded_blas():
            lapack.call(
                "dsytrd",
                b"L",
                n,
                reflectors,
                n,
                diagonal,
                off_diagonal,
                scales,
                work,
                len(work),
            )
        return cls(reflectors, scales, diagonal, off_diagonal)

    def eigenvalues(self) -> FloatArray:
        """Return all eigenvalues, ascending: `scipy.linalg.eigvalsh(matrix)`.

        Raises SolveError if they do not converge.
        """
        n = len(self.diagonal)
        try:
            with machine.single_threaded_blas():
                # "sterf": the QR algorithm without square roots, O(n²), which gives no
                # vectors and needs none
                values: FloatArray = scipy.linalg.eigvalsh_tridiagonal(
                    self.diagonal,
                    self.off_diagonal[: n - 1],
                    lapack_driver="sterf",
                    check_finite=False,
                )
        except np.linalg.LinAlgError as error:
            raise eigen.not_converged(self.diagonal, error) from error
        return values

    def solve_path(self, columns: FloatArray, alphas: FloatArray) -> FloatArray:
        """Return (T + alpha)⁻¹x of each column x for each alpha.

        One call solves for all alphas: their matrices are the blocks of a single
        tridiagonal matrix. The result has the shape (n, n_alphas, n_columns). Raises
        SolveError if T + alpha is not positive definite.
        """
        n = len(columns)
        n_alphas = len(alphas)
        # blocks T + alpha₁, T + alpha₂, … along the diagonal of one matrix of n ·
        # n_alphas rows
        diagonal = (alphas[:, np.newaxis] + self.diagonal).ravel()
        # each row ends in a 0, which keeps a block apart from the next
        between = np.zeros((n_alphas, n))
        between[:, : n - 1] = self.off_diagonal[: n - 1]
        between = between.ravel()[: max(1, len(diagonal) - 1)]
        right = np.tile(columns, (n_alphas, 1))
        # LDL' without pivoting, which positive definite matrices do not need: O(n) per
        # alpha and column
        _, _, solution, failed = scipy.linalg.lapack.dptsv(diagonal, between, right)
        if failed:
            alpha = alphas[(failed - 1) // n]
            raise SolveError(
                f"the Gram + alpha is not positive definite at alpha = {alpha:g}; give"
                " a larger alpha"
            )
        return np.asarray(solution.reshape(n_alphas, n, -1).swapaxes(0, 1))

    def rotate(self, columns: FloatArray, *, transposed: bool) -> FloatArray:
        """Return Q'x or Qx of each column x."""
        n, n_columns = columns.shape
        # a copy, because LAPACK overwrites it, in its own order
        rotated = np.array(columns, order="F")
        work = np.empty(max(1, n_columns) * _BLOCK)
        side = b"L"  # Q stands to the left of the columns
        half = b"L"  # its reflections lie in the lower half
        lapack.call(
            "dormtr",
            side,
            half,
            b"T" if transposed else b"N",
            n,
            n_columns,
            self.reflectors,
            n,
            self.reflector_scales,
            rotated,
            n,
            work,
            len(work),
        )
        return rotated


@frozen(eq=False)
class RidgeTridiagonal:
    """The Gram of normal equations as A = QTQ'."""

    form: Tridiagonal
    #: Ascending; those at or below their rounding error, see `eigen.negligible`, are
    #: set to 0.
    eigenvalues: FloatArray
    #: The smallest alpha that is used: the rounding error of the eigenvalues, plus the
    #: size of a negative one. T itself is not clipped, and T + floor has no eigenvalue
    #: below the rounding error.
    floor: float
    fit_intercept: bool

    def solve(self, right_hand_sides: FloatArray, alphas: FloatArray) -> FloatArray:
        """Return (A + alpha)⁻¹b, each column b with its own alpha.

        An alpha below the floor counts as the floor, because the solutions for smaller
        ones differ by rounding error only. Columns have n_components numbers. Raises
        SolveError if A + alpha is not positive definite.
        """
        # 2·n_components² operations per column for each rotation; the solutions between
        # them take O(n_components)
        solved = self.form.rotate(right_hand_sides, transposed=True)
        penalties = np.maximum(alphas, self.floor)
        for penalty in np.unique(penalties):
            columns = np.flatnonzero(penalties == penalty)
            solved[:, columns] = self.form.solve_path(
                solved[:, columns], penalty[np.newaxis]
            )[:, 0]
        return self.form.rotate(solved, transposed=False)

    def degrees_of_freedom(self, alphas: FloatArray) -> FloatArray:
        """Return Σ λ/(λ + alpha), plus one for an intercept, of shape (n_alphas,)."""
        kept = self.eigenvalues[self.eigenvalues > 0.0]
        shares = [
            (kept / (kept + alpha)).sum() for alpha in np.maximum(alphas, self.floor)
        ]
        return float(self.fit_intercept) + np.array(shares)


def tridiagonalize(equations: NormalEquations) -> RidgeTridiagonal:
    """Reduce the Gram of normal equations; see `Tridiagonal.of`.

    Raises SolveError if the equations hold NaN or infinity, or the eigenvalues do not
    converge.
    """
    check_equations(equations)
    form = Tridiagonal.of(equations.gram)
    eigenvalues = form.eigenvalues()
    smallest = float(eigenvalues[0])
    rounding_error, n_negligible = eigen.negligible(equations, eigenvalues)
    eigenvalues[:n_negligible] = 0.0
    return RidgeTridiagonal(
        form=form,
        eigenvalues=eigenvalues,
        floor=rounding_error + max(0.0, -smallest),
        fit_intercept=equations.fit_intercept,
    )
