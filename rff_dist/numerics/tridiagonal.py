"""Ridge for a whole path of alpha from the Gram's tridiagonal form, at a third of what eigenvectors cost.

A = QTQ' with T tridiagonal, so that (A + alpha)⁻¹b = Q(T + alpha)⁻¹Q'b takes O(n_components²) for each
alpha. The eigenvectors, two thirds of an eigendecomposition, are never made.

Eldén (1977), Algorithms for the regularization of ill-conditioned least squares problems, BIT 17;
Golub & Van Loan (2013), Matrix Computations, section 8.3.
"""

from typing import Self

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.numerics import eigen, lapack, machine
from rff_dist.numerics.solution import NormalEquations, check_equations
from rff_dist.typing import FloatArray, frozen

_BLOCK = 64  # columns that LAPACK reduces or applies together, which decides the size of its work arrays


@frozen(eq=False)
class Tridiagonal:
    """A symmetric matrix as A = QTQ'.

    `reflectors`: Fortran-ordered float64 array of shape (n, n). Below its first subdiagonal, and with
      `reflector_scales`, the Householder reflections that make Q.
    `reflector_scales`: float64 array of shape (n - 1,), one zero for n = 1.
    `diagonal`: float64 array of shape (n,). Of T.
    `off_diagonal`: float64 array of shape (n - 1,), one zero for n = 1. Of T.
    """

    reflectors: FloatArray
    reflector_scales: FloatArray
    diagonal: FloatArray
    off_diagonal: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> Self:
        """Like `scipy.linalg.hessenberg(matrix, calc_q=True)` on a symmetric matrix; the upper half is read.

        Takes 4/3·n³ operations and one array of the matrix's size.

        It takes one BLAS thread, so that no bit depends on their number. Other Python threads run meanwhile.
        """
        n = len(matrix)
        # the transpose's lower triangle is the matrix's upper one, in LAPACK's order
        reflectors = np.array(matrix, np.float64, order="C").T
        diagonal, work = np.empty(n), np.empty(n * _BLOCK)
        off_diagonal, scales = np.zeros((2, max(1, n - 1)))
        with machine.single_threaded_blas():
            _call("dsytrd", b"L", n, reflectors, n, diagonal, off_diagonal, scales, work, len(work))
        return cls(reflectors, scales, diagonal, off_diagonal)

    def eigenvalues(self) -> FloatArray:
        """Return all eigenvalues, ascending: `scipy.linalg.eigvalsh(matrix)`.

        Raises SolveError if they do not converge.
        """
        n = len(self.diagonal)
        try:
            with machine.single_threaded_blas():
                # "sterf": the QR algorithm without square roots, O(n²), which gives no vectors and needs none
                values: FloatArray = scipy.linalg.eigvalsh_tridiagonal(
                    self.diagonal, self.off_diagonal[: n - 1], lapack_driver="sterf", check_finite=False
                )
        except np.linalg.LinAlgError as error:
            raise eigen.not_converged(self.diagonal, error) from error
        return values

    def solve_path(self, columns: FloatArray, alphas: FloatArray) -> FloatArray:
        """Return (T + alpha)⁻¹x of each column x for each alpha, of shape (n, n_alphas, n_columns).

        One call serves all alphas: their matrices are the blocks of a single tridiagonal matrix.

        Raises SolveError if T + alpha is not positive definite.
        """
        n, n_alphas = len(columns), len(alphas)
        # blocks T + alpha₁, T + alpha₂, … along the diagonal of one matrix of n · n_alphas rows
        diagonal = (alphas[:, np.newaxis] + self.diagonal).ravel()
        # each row ends in a 0, which keeps a block apart from the next
        between = np.zeros((n_alphas, n))
        between[:, : n - 1] = self.off_diagonal[: n - 1]
        between = between.ravel()[: max(1, len(diagonal) - 1)]
        right = np.tile(columns, (n_alphas, 1))
        # LDL' without pivoting, which positive definite matrices do not need: O(n) per alpha and column
        _, _, solution, failed = scipy.linalg.lapack.dptsv(diagonal, between, right)
        if failed:
            alpha = alphas[(failed - 1) // n]
            raise SolveError(
                f"Z'Z + alpha is not positive definite at alpha = {alpha:g}; give a larger alpha"
            )
        return np.asarray(solution.reshape(n_alphas, n, -1).swapaxes(0, 1))

    def rotate(self, columns: FloatArray, *, transposed: bool) -> FloatArray:
        """Return Q'x or Qx of each column x."""
        n, n_columns = columns.shape
        # a copy, because LAPACK overwrites it, in its own order
        rotated = np.array(columns, order="F")
        work = np.empty(max(1, n_columns) * _BLOCK)
        shape = b"L", b"L", b"T" if transposed else b"N", n, n_columns
        _call("dormtr", *shape, self.reflectors, n, self.reflector_scales, rotated, n, work, len(work))
        return rotated


@frozen(eq=False)
class RidgeTridiagonal:
    """The Gram of normal equations as A = QTQ'.

    `form`: Q and T.
    `eigenvalues`: float64 array of shape (n_components,). Ascending; those at or below `floor` are set to 0.
    `floor`: rounding error of the eigenvalues, see `RidgeSpectrum`, plus the size of the most negative one.
    """

    form: Tridiagonal
    eigenvalues: FloatArray
    floor: float
    fit_intercept: bool

    def solve(self, right_hand_sides: FloatArray, alphas: FloatArray) -> FloatArray:
        """Return (A + alpha)⁻¹b, each column b with its own alpha.

        An alpha below the floor counts as the floor, since smaller ones would differ by rounding error only.

        `right_hand_sides`: float64 array of shape (n_components, n_columns).
        `alphas`: float64 array of shape (n_columns,).
        Returns float64 array of shape (n_components, n_columns).
        Raises SolveError if A + alpha is not positive definite.
        """
        # 2·n_components² operations per column for each rotation; the solutions between them take
        # O(n_components)
        solved = self.form.rotate(right_hand_sides, transposed=True)
        penalties = np.maximum(alphas, self.floor)
        for penalty in np.unique(penalties):
            columns = np.flatnonzero(penalties == penalty)
            solved[:, columns] = self.form.solve_path(solved[:, columns], penalty[np.newaxis])[:, 0]
        return self.form.rotate(solved, transposed=False)

    def degrees_of_freedom(self, alphas: FloatArray) -> FloatArray:
        """Effective number of parameters, Σ λ/(λ + alpha), plus one for an intercept; shape (n_alphas,)."""
        kept = self.eigenvalues[self.eigenvalues > 0.0]
        shares = [(kept / (kept + alpha)).sum() for alpha in np.maximum(alphas, self.floor)]
        return float(self.fit_intercept) + np.array(shares)


def tridiagonalize(equations: NormalEquations) -> RidgeTridiagonal:
    """Reduce the Gram of normal equations; see `Tridiagonal.of`.

    Raises SolveError if the equations hold NaN or infinity, or the eigenvalues do not converge.
    """
    check_equations(equations)
    form = Tridiagonal.of(equations.gram)
    eigenvalues = form.eigenvalues()
    rounding_error, n_clipped = eigen.clip(equations, eigenvalues)
    return RidgeTridiagonal(
        form=form,
        eigenvalues=np.where(np.arange(len(eigenvalues)) < n_clipped, 0.0, eigenvalues),
        # so that the least eigenvalue plus the floor is not below the rounding error
        floor=rounding_error + max(0.0, -float(eigenvalues[0])),
        fit_intercept=equations.fit_intercept,
    )


def _call(name: str, *arguments: bytes | int | FloatArray) -> None:
    if status := lapack.call(name, *arguments):
        raise SolveError(f"LAPACK's {name} returned {status}; report this")
