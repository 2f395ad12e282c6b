"""Ridge for a whole path of alpha from the eigenvalues of the Gram.

Normal equations go in; a spectrum comes out, from which each alpha takes
O(n_components). Solving for each alpha separately would take O(n_components³), and
would not show which eigenvalues are rounding error.
"""

import logging
from dataclasses import fields

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import SolveError, warn
from rff_dist.numerics import machine, solution
from rff_dist.typing import EPS, FloatArray, frozen

type _Eigen = tuple[FloatArray, FloatArray]  # values, ascending, and vectors

logger = logging.getLogger(__name__)

# LAPACK's eigenvalues, and centred sums, are in practice wrong by at most this many
# times n·eps·(largest).
_ROUNDING_FACTOR = 8.0


@frozen(kw_only=True)
class RidgeSpectrum(solution.EquationFacts):
    """Normal equations in the eigenbasis of their Gram, A = QΛQ'.

    B are the moments, and c the total sum of squares of each target.
    """

    #: Ascending, of shape (n_components,); those at or below `floor` are set to 0.
    eigenvalues: FloatArray
    #: The eigenvectors of the last `n_kept` eigenvalues, one per column, of shape
    #: (n_components, n_kept): all of Q, or with few rows only those whose eigenvalue is
    #: not 0.
    eigenvectors: FloatArray
    #: Q'B, of shape (n_components, n_targets); 0 where the eigenvalue was set to 0 (B
    #: lies in the range of A, so the rest is rounding error).
    projected_moments: FloatArray
    #: Rounding error of the eigenvalues, as `negligible` measures it.
    floor: float
    #: How many eigenvalues were set to 0.
    n_clipped: int

    @property
    def effective_rank(self) -> int:
        """Eigenvalues above the floor."""
        return len(self.eigenvalues) - self.n_clipped

    def solve(self, alpha: ArrayLike) -> solution.RidgeSolution:
        """Solve for one alpha, or one per target, in O(n_components² · n_targets).

        Directions whose eigenvalue was clipped get no weight, so alpha = 0 on a
        singular system gives the coefficients of minimum norm. If eigenvalues were
        clipped and alpha is below the floor, the status is RANK_DEFICIENT, with a
        LinAlgWarning.

        Raises InvalidParameterError if alpha is negative, not finite or of a wrong
        shape.
        """
        alphas = solution.check_alpha(alpha, self.projected_moments.shape[1])
        is_below = (alphas < self.floor) | (alphas == 0)
        status = solution.SolveStatus.OK
        if self.n_clipped > 0 and is_below.any():
            status = solution.SolveStatus.RANK_DEFICIENT
            warn(
                f"the system has rank {self.effective_rank} of {len(self.eigenvalues)}"
                f" and alpha={alphas.min():.3g} is below the floor {self.floor:.3g}:"
                " the coefficients of minimum norm are returned. Use an alpha above the"
                " floor",
                scipy.linalg.LinAlgWarning,
            )
        weights = self._inverse(alphas) * self.projected_moments
        with machine.single_threaded_blas():
            # there may be eigenvectors of the last eigenvalues only; the weights of the
            # others are 0
            n_kept = self.eigenvectors.shape[1]
            coefficients = self.eigenvectors @ weights[len(weights) - n_kept :]
        return solution.make_solution(
            self,
            coefficients,
            alphas,
            rss=self._signed_rss(alphas[np.newaxis])[0],
            effective_rank=self.effective_rank,
            floor=self.floor,
            status=status,
        )

    def residual_sum_of_squares(self, alphas: ArrayLike) -> FloatArray:
        """Return the training residual of every alpha and target, never negative.

        In the targets' units squared, of shape (n_alphas, n_targets), to within
        `rss_error_bound`; O(n_alphas · n_components · n_targets).
        """
        return np.maximum(self._signed_rss(self._alpha_rows(alphas)), 0.0)

    def rss_error_bound(self, alphas: ArrayLike) -> FloatArray:
        """Bound the rounding error of `residual_sum_of_squares`, of its shape."""
        norms = self._squared_norms(self._alpha_rows(alphas))
        total = self.total_sum_of_squares
        return solution.rss_error_bound(
            norms, total, n_components=len(self.eigenvalues), floor=self.floor
        )

    def degrees_of_freedom(self, alphas: ArrayLike) -> FloatArray:
        """Return Σ λ/(λ + alpha) of every alpha, plus one for an intercept."""
        eigenvalues = self.eigenvalues[:, np.newaxis]
        # Hastie, Tibshirani & Friedman (2009), eq. 3.50, with eigenvalues in place of
        # squared singular values
        traces = [
            (eigenvalues * self._inverse(row)).sum() for row in self._alpha_rows(alphas)
        ]
        return float(self.fit_intercept) + np.array(traces)

    def residual_degrees_of_freedom(self, alphas: ArrayLike) -> FloatArray:
        """Return n_samples − `degrees_of_freedom`, without cancellation."""
        kept = self.eigenvalues[self.n_clipped :]
        # 1 − λ/(λ + alpha) = alpha/(λ + alpha): near n degrees of freedom the
        # difference of the sums has no digits
        shrunk = [(row[0] / (kept + row[0])).sum() for row in self._alpha_rows(alphas)]
        n_beyond = self.n_samples - int(self.fit_intercept) - self.effective_rank
        return float(n_beyond) + np.array(shrunk)

    def log_evidences(self, alphas: ArrayLike) -> FloatArray:
        """Return the log density of each target for every alpha, less constants.

        y ~ N(0, σ²·(ZZ'/alpha + I)) with the σ² of the largest density, an intercept
        taken out first. That is −½·(n·log q + Σ log(1 + λ/alpha)) with q = c − B'(A +
        alpha)⁻¹B, of shape (n_alphas, n_targets), for alphas above 0. A residual sum of
        squares below its rounding error counts as that error.

        Source: Rasmussen & Williams (2006), eq. 2.30, with the matrix determinant
        lemma.
        """
        alpha_rows = self._alpha_rows(alphas)
        # q = rss + alpha·‖w‖², two terms of one sign, where c − B'(A + alpha)⁻¹B would
        # cancel
        quadratic = np.maximum(
            self._signed_rss(alpha_rows), self.rss_error_bound(alphas)
        )
        quadratic += alpha_rows * self._squared_norms(alpha_rows)
        # log det(I + ZZ'/alpha) of n rows from D eigenvalues; clipped ones are 0 and
        # add log 1
        log_determinant = np.array(
            [np.log1p(self.eigenvalues / row[0]).sum() for row in alpha_rows]
        )
        n_samples = self.n_samples - int(self.fit_intercept)
        # a constant target: infinite for every alpha
        with np.errstate(divide="ignore"):
            return np.asarray(
                -0.5 * (n_samples * np.log(quadratic) + log_determinant[:, np.newaxis])
            )

    def _alpha_rows(self, alphas: ArrayLike) -> FloatArray:
        """Return alphas as (n_alphas, 1): each row is one alpha for all targets."""
        values = np.atleast_1d(np.asarray(alphas))
        return solution.check_alpha(values, len(values))[:, np.newaxis]

    def _inverse(self, alphas: FloatArray) -> FloatArray:
        """Return 1/(λ + alpha), shape (n_components, n_alphas); 0 for a clipped λ."""
        inverse = np.zeros((len(self.eigenvalues), len(alphas)))
        kept = self.eigenvalues[self.n_clipped :, np.newaxis]
        inverse[self.n_clipped :] = 1.0 / (kept + alphas)
        return inverse

    def _squared_norms(self, alpha_rows: FloatArray) -> FloatArray:
        """Return ‖w‖² of each target for each row of alphas, (n_rows, n_targets).

        A row holds one alpha for all targets, or one alpha per target.
        """
        norms = []
        for alphas in alpha_rows:
            weights = self._inverse(alphas) * self.projected_moments
            norms.append(np.square(weights).sum(axis=0))
        return np.stack(norms)

    def _signed_rss(self, alpha_rows: FloatArray) -> FloatArray:
        """Return c − Σ b²(λ + 2·alpha)/(λ + alpha)² for each row of alphas, shape
        (n_rows, n_targets).

        A row holds one alpha for all targets, or one alpha per target. Rounding may
        make the result negative.
        """
        eigenvalues = self.eigenvalues[:, np.newaxis]
        rows = []
        for alphas in alpha_rows:
            # weights are Q'w, so this is 2w'B − w'Aw, eigenvalue by eigenvalue: shape
            # (n_components, n_targets)
            weights = self._inverse(alphas) * self.projected_moments
            explained = (np.square(weights) * (eigenvalues + 2.0 * alphas)).sum(axis=0)
            rows.append(self.total_sum_of_squares - explained)
        return np.stack(rows)


def decompose(equations: solution.NormalEquations) -> RidgeSpectrum:
    """Decompose normal equations, like `scipy.linalg.eigh(gram)`.

    Takes O(n_components³), some 20 times a Cholesky factorisation, and three more
    float64 arrays of the Gram's size; O(n_components² · n_samples) if there are at
    least twice as many components as rows. For a single alpha `solve_cholesky` is
    cheaper. The equations are not changed, and only the Gram's upper triangle is read.

    BLAS uses one thread: bits would depend on the number of threads, which the process
    shares, and threaded OpenBLAS crashes in large symmetric products (numpy issue
    19685). Eigenvalues at or below the floor are set to 0, and their number is kept and
    logged.

    Raises SolveError if the equations hold NaN or infinity, or the eigenvalues do not
    converge.
    """
    solution.check_equations(equations)
    n_components = len(equations.gram)
    gram = np.asarray(equations.gram, dtype=np.float64)
    with machine.single_threaded_blas():
        decomposed = None
        if 2 * equations.n_samples <= n_components:
            decomposed = _eigh_of_low_rank(gram, equations)
        eigenvalues, eigenvectors = decomposed or _eigh(gram)
        n_kept = eigenvectors.shape[1]
        projected = np.zeros((n_components, equations.moments.shape[1]))
        projected[n_components - n_kept :] = eigenvectors.T @ equations.moments
    floor, n_clipped = negligible(equations, eigenvalues)
    eigenvalues = eigenvalues.copy()
    eigenvalues[:n_clipped] = 0.0
    projected[:n_clipped] = 0.0
    facts = [field.name for field in fields(solution.EquationFacts)]
    return RidgeSpectrum(
        eigenvalues=eigenvalues,
        eigenvectors=eigenvectors,
        projected_moments=projected,
        floor=floor,
        n_clipped=n_clipped,
        **{name: getattr(equations, name) for name in facts},
    )


def _eigh(gram: FloatArray) -> _Eigen:
    """Decompose by NumPy, which unlike SciPy lets other Python threads run."""
    try:
        # The transpose's lower triangle is the Gram's upper one, and in LAPACK's order.
        eigenvalues, eigenvectors = np.linalg.eigh(gram.T, UPLO="L")
    except np.linalg.LinAlgError as error:
        raise not_converged(gram, error) from error
    return eigenvalues, eigenvectors


def not_converged(matrix: FloatArray, error: Exception) -> SolveError:
    """Return the error to raise when LAPACK finds no eigenvalues."""
    return SolveError(
        f"the eigenvalues of a Gram of {len(matrix)} components do not converge"
        f" ({error}); give one alpha, which needs no eigenvalues, and report this"
    )


def _eigh_of_low_rank(
    gram: FloatArray, equations: solution.NormalEquations
) -> _Eigen | None:
    """Decompose a Gram of few rows: pivoted Cholesky, A = LL', and the SVD of L.

    5 to 15 times as fast as `eigh` for 30 to 500 rows and 2,048 components, with the
    same eigenvalues to 5e-13. Returns all eigenvalues, 0 beyond the rank, and the
    eigenvectors of the last `rank` ones; None if so few rows cannot have given the
    Gram, because it is indefinite or its rank is higher.

    Source: Higham (1990), Analysis of the Cholesky decomposition of a semi-definite
    matrix.
    """
    n_components = len(gram)
    rounding = n_components * EPS * float(np.diagonal(gram).max())
    tolerance = max(rounding, equations.gram_error)
    # O(n_components · rank²); pivoting makes the remaining diagonal fall, so the first
    # below `tol` ends it
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(gram.T, tol=tolerance, lower=1)
    # beyond the number of rows there is rounding only
    rank = min(int(rank), equations.n_samples)
    rows = np.zeros((n_components, rank))
    # L, (n_components, rank), with its rows back in the Gram's order; LAPACK counts
    # pivots from 1
    rows[pivots - 1] = np.tril(factor[:, :rank])
    basis, triangle = np.linalg.qr(rows)
    # L = basis·triangle = (basis·rotation)·Σ·V', so the eigenvalues of LL' are the
    # squares of Σ
    rotation, singular, _ = np.linalg.svd(triangle)
    eigenvalues = np.zeros(n_components)
    eigenvalues[n_components - rank :] = singular[::-1] ** 2
    # If the Gram has a higher rank or is indefinite, its trace differs from LL''s.
    if abs(np.trace(gram) - eigenvalues.sum()) > n_components * tolerance:
        return None
    return eigenvalues, (basis @ rotation)[:, ::-1]


def negligible(
    equations: solution.NormalEquations, eigenvalues: FloatArray
) -> tuple[float, int]:
    """Return the rounding error of a Gram's eigenvalues, and how many are not above it.

    The error is the largest of n_components · eps · (largest eigenvalue),
    `equations.gram_error` and the size of the most negative eigenvalue. A negative
    eigenvalue that rounding does not explain causes a LinAlgWarning. Eigenvalues are
    ascending.
    """
    rounding = len(eigenvalues) * EPS
    smallest = float(eigenvalues[0])
    largest = float(eigenvalues[-1])
    # a Gram has no negative eigenvalue: one of −e proves that errors moved some by e or
    # more (Weyl)
    floor = max(equations.floor(largest), -smallest, 0.0)
    n_negligible = int(np.searchsorted(eigenvalues, floor, side="right"))
    # Centring subtracts Σw·z̄z̄', so its rounding error is measured on that scale.
    uncentred = largest + equations.sum_of_weights * float(
        np.square(equations.feature_means).sum()
    )
    error_bound = _ROUNDING_FACTOR * rounding * uncentred + equations.gram_error
    if smallest < -error_bound:
        warn(
            f"the Gram has a negative eigenvalue {smallest:.3g} (largest"
            f" {largest:.3g}), more than float64 rounding explains ({error_bound:.3g}):"
            " was it summed in float32, or from other rows than the counts?"
            f" Eigenvalues up to {floor:.3g} are taken as zero",
            scipy.linalg.LinAlgWarning,
        )
    if n_negligible:
        message = (
            "clipped %d of %d eigenvalues at or below the floor %.3g to 0 (smallest"
            " %.3g, largest %.3g)"
        )
        logger.debug(message, n_negligible, len(eigenvalues), floor, smallest, largest)
    return floor, n_negligible
