"""Preconditioned conjugate gradients, for ridge without a matrix.

A function that multiplies by A goes in; the solution of (A + alpha·I)·w = b comes out,
with an estimate of its error. `scipy.sparse.linalg.cg` takes one column at a time, and
stops by the residual, which says little about the error.

Several columns are solved at once, each with an alpha of its own. The norm of an error
e of w is the one in ridge's objective, ‖e‖² = ‖Ze‖² + alpha·e'e. The estimate of it
is r'P⁻¹r, with r the residual and P the preconditioner, times the factor by which (A +
alpha·I)⁻¹ may exceed P⁻¹.

References
----------
Hestenes & Stiefel (1952).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.numerics import machine
from rff_dist.typing import EPS, FloatArray, IntArray, frozen

# The most restarts from the true residual; the updated one drifts away from it.
RESTARTS = 3
# If a restart leaves more than this share of the error, rounding stops progress.
RESTART_WORTH = 0.5


class Stop(StrEnum):
    """Why iterating ended."""

    TOLERANCE = "tolerance"
    ROUNDING = "rounding"
    LIMIT = "limit"


@frozen(eq=False)
class IterationResult:
    """The solution by conjugate gradients, and why iterating ended."""

    #: Of shape (n_components, n_columns).
    solution: FloatArray
    #: b − (A + alpha·I)·w, computed again by one more product.
    residual: FloatArray
    #: Estimates of the error's norm, see the module; shape (n_columns,).
    errors: FloatArray
    #: Products with A, including the one for the residual.
    n_products: int
    stop: Stop


def conjugate_gradients(
    multiply: Callable[[FloatArray], FloatArray],
    right: FloatArray,
    alpha: FloatArray,
    preconditioner: NystromPreconditioner,
    *,
    tolerance: FloatArray,
    max_products: int,
    start: FloatArray | None = None,
) -> IterationResult:
    """Like `scipy.sparse.linalg.cg`, with one product for all columns in each step.

    `multiply` returns A times columns; it gets fewer of them towards the end. `right`
    is b, of shape (n_components, n_columns), and each column has an alpha above 0. A
    column is done when its error is at most its tolerance. Iterating begins at `start`,
    which costs a product, or at 0. Raises SolveError if a product is not finite.
    """
    # the square of the error's norm is r'(A + alpha)⁻¹r, at most the shortfall times
    # r'P⁻¹r
    root_shortfall = np.sqrt(preconditioner.shortfall(alpha))

    def error_of(residual: FloatArray) -> FloatArray:
        solved = preconditioner.solve(residual, alpha)
        return np.asarray(
            root_shortfall * np.sqrt(np.maximum(0.0, (residual * solved).sum(axis=0)))
        )

    solution = np.zeros_like(right)
    residual = right.copy()
    n_products = 0
    if start is not None:
        solution = start.copy()
        n_products = 1
        residual -= multiply(solution) + alpha * solution
    errors = error_of(residual)
    stop = Stop.LIMIT
    for _ in range(1 + RESTARTS):
        # here the residual is always the true one, b − (A + alpha)w, never the updated
        # one
        errors_before = errors
        descent = Descent(solution, residual, alpha, preconditioner)
        n_steps = 0
        # one product is kept for the residual
        while n_products + n_steps + 1 < max_products:
            active = descent.active(tolerance / root_shortfall)
            if not len(active):
                break
            descent.step(active, multiply(descent.direction[:, active]))
            n_steps += 1
        residual = right - multiply(solution) - alpha * solution
        n_products += n_steps + 1
        errors = error_of(residual)
        if (errors <= tolerance).all():
            stop = Stop.TOLERANCE
            break
        if n_products >= max_products:
            break
        if (errors > RESTART_WORTH * errors_before)[errors > tolerance].all():
            stop = Stop.ROUNDING
            break
    return IterationResult(solution, residual, errors, n_products, stop)


class Descent:
    """Steps of conjugate gradients from a solution and its residual.

    Both arrays are overwritten. `direction` is where each column steps next.
    """

    def __init__(
        self,
        solution: FloatArray,
        residual: FloatArray,
        alpha: FloatArray,
        preconditioner: NystromPreconditioner,
    ) -> None:
        self.solution = solution
        self._residual = residual
        self._alpha = alpha
        self._preconditioner = preconditioner
        self.direction = preconditioner.solve(residual, alpha)
        self._squares = (residual * self.direction).sum(axis=0)

    def active(self, tolerance: FloatArray) -> IntArray:
        """Return the columns whose √(r'P⁻¹r) is above their tolerance."""
        return np.flatnonzero(self._squares > np.square(tolerance))

    def step(self, active: IntArray, product: FloatArray) -> None:
        """Take a step in some columns; `product` is A times their directions.

        Raises SolveError if it is not finite.
        """
        # Saad (2003), Iterative Methods for Sparse Linear Systems, Alg. 9.1, for the
        # active columns only
        along = self.direction[:, active]
        alpha = self._alpha[active]
        squares = self._squares[active]
        image = product + alpha * along
        curvature = (along * image).sum(axis=0)
        if not np.isfinite(curvature).all():
            raise SolveError(
                "a product with Z'Z is not finite: the inputs overflow; standardise"
                " them"
            )
        # A is positive semi-definite, so a curvature of 0 or less is rounding; dividing
        # by it would destroy the column
        is_curved = curvature > 0.0
        step = np.where(is_curved, squares / np.where(is_curved, curvature, 1.0), 0.0)
        self.solution[:, active] += step * along
        self._residual[:, active] -= step * image
        solved = self._preconditioner.solve(self._residual[:, active], alpha)
        new = (self._residual[:, active] * solved).sum(axis=0)
        # only columns with squares above 0 are active, so this divides by no 0
        self.direction[:, active] = solved + (new / squares) * along
        # a column without a step is ended by rounding: 0 makes it inactive
        self._squares[active] = np.where(step > 0.0, new, 0.0)


def most_iterations(condition: float, share: float) -> float:
    """Bound the steps that reduce the error to a share of itself."""
    # the error falls below 2·((√κ − 1)/(√κ + 1))^m ≤ 2·exp(−2m/√κ) of itself in m steps
    # (Saad 2003, sec. 6.11.3)
    return 0.5 * math.sqrt(condition) * math.log(2.0 / share)


# -- a preconditioner from a few products with the matrix
#
# References
# ----------
# Frangella, Tropp & Udell (2023), Randomized Nyström preconditioning.


# Columns of a sketch per pass, so that sums and messages to workers stay small.
SKETCH_COLUMNS = 256
_MOST_SHIFTED = 1e-9  # largest shift, as a share of the norm of the products
# Bytes of the largest sketch; four such arrays exist while eigenvectors are computed.
MAX_RANK_BYTES = 2**29


@frozen(eq=False)
class NystromPreconditioner:
    """P, which is near A + alpha·I.

    P has estimates of A's leading eigenvectors and eigenvalues, and the smallest of
    these eigenvalues in all other directions.
    """

    #: Descending, of shape (rank,).
    eigenvalues: FloatArray
    #: Orthonormal up to rounding, of shape (n_components, rank).
    vectors: FloatArray
    #: Size below which eigenvalues of A are rounding error; an alpha below it counts as
    #: the floor here.
    floor: float

    @property
    def rank(self) -> int:
        """Directions that are known."""
        return len(self.eigenvalues)

    def solve(self, columns: FloatArray, alpha: FloatArray) -> FloatArray:
        """Return P⁻¹ times columns, each with its alpha.

        Source: Frangella, Tropp & Udell (2023), eq. 1.3, up to a constant factor.
        """
        alpha = np.maximum(alpha, self.floor)
        # P⁻¹x = V(Λ + alpha)⁻¹V'x + (I − VV')x/(λ_last + alpha) takes
        # 4·n_components·rank operations per column
        beyond = 1.0 / (self.eigenvalues[-1] + alpha)
        within = 1.0 / (self.eigenvalues[:, np.newaxis] + alpha) - beyond
        with machine.single_threaded_blas():  # the same bits for any number of threads
            in_range = self.vectors @ (within * (self.vectors.T @ columns))
        return np.asarray(in_range + beyond * columns)

    def shortfall(self, alpha: FloatArray) -> FloatArray:
        """Return each column's factor by which (A + alpha·I)⁻¹ may exceed P⁻¹.

        In directions outside the sketch A may be as small as 0.
        """
        # (λ_last + alpha)/alpha: P's value in an unknown direction over the smallest
        # that A + alpha can have there
        return np.asarray(1.0 + self.eigenvalues[-1] / np.maximum(alpha, self.floor))


def nystrom_preconditioner(
    test_matrix: FloatArray, products: FloatArray, *, rounding: float
) -> NystromPreconditioner:
    """Return the preconditioner of a sketch, O(n_components · rank²).

    `test_matrix` is Ω, of shape (n_components, rank), and `products` AΩ, with errors of
    size `rounding`. Raises SolveError if A is not positive semi-definite by
    more than rounding explains.

    Source: Frangella, Tropp & Udell (2023), Algorithm 2.1, with another shift.
    """
    with machine.single_threaded_blas():  # the same bits for any number of threads
        norm = float(np.linalg.norm(products))
        if norm == 0.0:
            return NystromPreconditioner(
                np.zeros(1), np.zeros((len(products), 1)), rounding
            )
        # Ω'AΩ is singular to rounding if A's rank is below the sketch's, or if Ω is
        # nearly singular, as a square one is. Algorithm 2.1 factors Ω'(A + shift)Ω, but
        # errors E of AΩ leave Ω'E in Ω'AΩ, and shift·Ω'Ω does not exceed that where Ω
        # is small (σ = 6e-5 with 300 columns of 300).
        shift = EPS * norm
        most = max(_MOST_SHIFTED * norm, 10.0 * rounding)
        while True:
            core = test_matrix.T @ products
            core.flat[:: len(core) + 1] += shift
            try:
                factor = scipy.linalg.cholesky(
                    (core + core.T) / 2.0, overwrite_a=True, check_finite=False
                )
                break
            except scipy.linalg.LinAlgError as error:
                if shift > most:
                    raise SolveError(
                        f"a sketch of Z'Z has eigenvalues below {-most:.3g}, "
                        "more than rounding explains: report this"
                    ) from error
                shift *= 10.0
        # root·root' = AΩ(Ω'AΩ + shift)⁻¹Ω'A: at most the Nyström approximation, so at
        # most A. root has the shape of the sketch.
        root = scipy.linalg.solve_triangular(
            factor, products.T, trans="T", check_finite=False
        ).T
        # A QR and an SVD would take twice the time, and resolve eigenvalues below the
        # rounding of the Gram, for which a preconditioner has no use.
        eigenvalues, directions = scipy.linalg.eigh(
            root.T @ root, overwrite_a=True, check_finite=False
        )
        is_resolved = eigenvalues > len(root) * EPS * eigenvalues[-1]
        eigenvalues = eigenvalues[is_resolved][::-1]
        directions = directions[:, is_resolved][:, ::-1]
        vectors = root @ (directions / np.sqrt(eigenvalues))
        floor = max(len(root) * EPS * float(eigenvalues[0]), rounding)
        return NystromPreconditioner(eigenvalues, vectors, floor)


def largest_rank(n_components: int) -> int:
    """Return the rank that a sketch may reach."""
    return max(1, min(n_components, MAX_RANK_BYTES // (8 * n_components)))
