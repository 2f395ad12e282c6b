"""A preconditioner from a few products with a matrix: its leading eigenvectors, by a randomised sketch.

References
----------
Frangella, Tropp & Udell (2023), Randomized Nyström preconditioning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.numerics.threads import limit_blas
from rff_dist.typing import FloatArray

SKETCH_COLUMNS = 256  # per pass, so that its sums and what is sent to workers stay small
MAX_RANK_BYTES = 2**29  # of a sketch; four such arrays exist while its eigenvectors are computed


@dataclass(frozen=True, slots=True, eq=False)
class NystromPreconditioner:
    """P, near A + alpha·I: A's leading eigenvectors, and the least of their eigenvalues in other directions.

    `eigenvalues`: float64 array of shape (rank,). Descending.
    `vectors`: float64 array of shape (n_components, rank). Orthonormal up to rounding.
    """

    eigenvalues: FloatArray
    vectors: FloatArray

    @property
    def rank(self) -> int:
        """Directions that are known."""
        return len(self.eigenvalues)

    @property
    def floor(self) -> float:
        """Size below which eigenvalues of A are rounding error; see `rounding_floor`."""
        return len(self.vectors) * float(np.finfo(np.float64).eps) * float(self.eigenvalues[0])

    def solve(self, columns: FloatArray, alpha: FloatArray) -> FloatArray:
        """Return P⁻¹ times columns of shape (n_components, n_columns), each with its alpha.

        Source: Frangella, Tropp & Udell (2023), eq. 1.3, up to a constant factor.
        """
        beyond = 1.0 / (self.eigenvalues[-1] + alpha)
        within = 1.0 / (self.eigenvalues[:, np.newaxis] + alpha) - beyond
        with limit_blas(1):  # the same bits for any number of threads
            return np.asarray(self.vectors @ (within * (self.vectors.T @ columns)) + beyond * columns)

    def shortfall(self, alpha: FloatArray) -> FloatArray:
        """Return by what factor (A + alpha·I)⁻¹ may exceed P⁻¹, shape (n_columns,).

        In directions that are not known A may be as small as 0.
        """
        return np.asarray(1.0 + self.eigenvalues[-1] / alpha)


def nystrom_preconditioner(test_matrix: FloatArray, products: FloatArray) -> NystromPreconditioner:
    """Return the preconditioner of a sketch, O(n_components · rank²).

    `test_matrix`: float64 array of shape (n_components, rank). Ω.
    `products`: float64 array of shape (n_components, rank). AΩ. Overwritten.
    Source: Frangella, Tropp & Udell (2023), Algorithm 2.1. Only the span of Ω matters.
    """
    with limit_blas(1):  # the same bits for any number of threads
        norm = float(np.linalg.norm(products))
        if norm == 0.0:
            return NystromPreconditioner(np.zeros(1), np.zeros((len(products), 1)))
        shift = float(np.finfo(np.float64).eps) * norm
        for _ in range(8):
            core = test_matrix.T @ products + shift * (test_matrix.T @ test_matrix)
            try:
                factor = scipy.linalg.cholesky((core + core.T) / 2.0, overwrite_a=True, check_finite=False)
            except scipy.linalg.LinAlgError:
                shift *= 10.0
                continue
            break
        else:
            raise SolveError("a sketch of Z'Z is not positive semi-definite: some of its sums are wrong")
        products += shift * test_matrix
        root = scipy.linalg.solve_triangular(factor, products.T, trans="T", check_finite=False).T
        # A QR and an SVD would take twice the time, and resolve eigenvalues below the rounding of the Gram,
        # for which a preconditioner has no use.
        squares, directions = scipy.linalg.eigh(root.T @ root, overwrite_a=True, check_finite=False)
        known = squares > len(root) * float(np.finfo(np.float64).eps) * squares[-1]
        squares, directions = squares[known][::-1], directions[:, known][:, ::-1]
        vectors = root @ (directions / np.sqrt(squares))
        # Algorithm 2.1 takes the shift off again
        return NystromPreconditioner(np.maximum(0.0, squares - shift), vectors)


def largest_rank(n_components: int) -> int:
    """Return the rank that a sketch may reach."""
    return max(1, min(n_components, MAX_RANK_BYTES // (8 * n_components)))
