"""Decompose the Gram once; ridge for any alpha then takes O(n_components)."""

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
_LAPACK = 8.0


@frozen(kw_only=True)
class RidgeSpectrum(solution.EquationFacts):
    """Normal equations in the eigenbasis of their Gram, A = QΛQ'."""

    #: float64 array of shape (n_components,). Ascending; those at or below `floor` are
    #: set to 0.
    eigenvalues: FloatArray
    #: float64 array of shape (n_components, n_kept). The eigenvectors of the last
    #: `n_kept` eigenvalues, one per column: all of Q, or with few rows only those whose
    #: eigenvalue is not 0.
    eigenvectors: FloatArray
    #: float64 array of shape (n_components, n_targets). Q'B; 0 where the eigenvalue was
    #: set to 0 (B lies in the range of A, so the rest is rounding error).
    projected_moments: FloatArray
    #: rounding error of the eigenvalues: n_components · eps · (largest), or the size of
    #: the most negative eigenvalue where that is larger
    floor: float
    #: how many eigenvalues were set to 0
    n_clipped: int

    @property
    def effective_rank(self) -> int:
        """Eigenvalues above the floor."""
        return len(self.eigenvalues) - self.n_clipped

    def solve(self, alpha: ArrayLike) -> solution.RidgeSolution:
        """Solve for one alpha, or one per target, in O(n_components² · n_targets).

        Directions whose eigenvalue was clipped get no weight, so alpha = 0 on a
        singular system gives the coefficients of least norm.

        `alpha`: float or array of shape (n_targets,). Ridge penalty, in the units of
          the eigenvalues. The result's status is RANK_DEFICIENT, with a LinAlgWarning,
          where eigenvalues were clipped and alpha is below the floor.

        Raises InvalidParameterError if alpha is negative, not finite or of a wrong
        shape.
        """
        penalty = solution.check_alpha(alpha, self.projected_moments.shape[1])
        deficient = self.n_clipped > 0 and bool(
            ((penalty < self.floor) | (penalty == 0)).any()
        )
        if deficient:
            warn(
                f"the system has rank {self.effective_rank} of {len(self.eigenvalues)}"
                f" and alpha={penalty.min():.3g} is below the floor {self.floor:.3g}:"
                " the coefficients of least norm are returned. Use an alpha above the"
                " floor",
                scipy.linalg.LinAlgWarning,
            )
        weights = self._filter(penalty) * self.projected_moments
        with machine.single_threaded_blas():
            # eigenvectors may be those of the last eigenvalues only; the weights before
            # them are 0
            coefficients = (
                self.eigenvectors @ weights[len(weights) - self.eigenvectors.shape[1] :]
            )
        return solution.make_solution(
            self,
            coefficients,
            penalty,
            rss=self._signed_rss(penalty[np.newaxis])[0],
            effective_rank=self.effective_rank,
            floor=self.floor,
            status=(
                solution.SolveStatus.RANK_DEFICIENT
                if deficient
                else solution.SolveStatus.OK
            ),
        )

    def residual_sum_of_squares(self, alphas: ArrayLike) -> FloatArray:
        """Training residual for every alpha, never negative, in O(n_alphas ·
        n_components · n_targets).

        `alphas`: float64 array of shape (n_alphas,). Ridge penalties.

        Returns float64 array of shape (n_alphas, n_targets): in the targets' units
        squared, to within `rss_error_bound(alphas)`.
        """
        return np.maximum(self._signed_rss(self._column(alphas)), 0.0)

    def rss_error_bound(self, alphas: ArrayLike) -> FloatArray:
        """Bound the rounding error of `residual_sum_of_squares(alphas)`, shape
        (n_alphas, n_targets).
        """
        norms = self._squared_norms(self._column(alphas))
        total = self.total_sum_of_squares
        return solution.rss_error_bound(
            norms, total, n_components=len(self.eigenvalues), floor=self.floor
        )

    def degrees_of_freedom(self, alphas: ArrayLike) -> FloatArray:
        """Effective number of parameters, Σ λ/(λ + alpha), plus one for an intercept;
        shape (n_alphas,).
        """
        column = self.eigenvalues[:, np.newaxis]
        # Hastie, Tibshirani & Friedman (2009), eq. 3.50, with eigenvalues in place of
        # squared singular values
        traces = [(column * self._filter(row)).sum() for row in self._column(alphas)]
        return float(self.fit_intercept) + np.array(traces)

    def residual_degrees_of_freedom(self, alphas: ArrayLike) -> FloatArray:
        """Compute n_samples − `degrees_of_freedom` without cancellation; shape
        (n_alphas,).
        """
        kept = self.eigenvalues[self.n_clipped :]
        # 1 − λ/(λ + alpha) = alpha/(λ + alpha): near n degrees of freedom the
        # difference of the sums has no digits
        shrunk = np.array(
            [(row[0] / (kept + row[0])).sum() for row in self._column(alphas)]
        )
        return (
            float(self.n_samples - int(self.fit_intercept) - self.effective_rank)
            + shrunk
        )

    def log_evidences(self, alphas: ArrayLike) -> FloatArray:
        """Log density of each target for every alpha, the noise variance profiled out,
        less constants.

        y ~ N(0, σ²·(ZZ'/alpha + I)) with the σ² of the largest density, an intercept
        taken out first.

        `alphas`: float64 array of shape (n_alphas,). Penalties above 0.

        Returns float64 array of shape (n_alphas, n_targets): −½·(n·log q + Σ log(1 +
        λ/alpha)) with q = c − B'(A + alpha)⁻¹B; a q below its rounding error counts as
        that error.

        Source: Rasmussen & Williams (2006), eq. 2.30, with the matrix determinant
        lemma.
        """
        column = self._column(alphas)
        # q = rss + alpha·‖w‖², two terms of one sign, where c − B'(A + alpha)⁻¹B would
        # cancel
        quadratic = np.maximum(self._signed_rss(column), self.rss_error_bound(alphas))
        quadratic += column * self._squared_norms(column)
        # log det(I + ZZ'/alpha) of n rows from D eigenvalues; clipped ones are 0 and
        # add log 1
        log_determinant = np.array(
            [np.log1p(self.eigenvalues / row[0]).sum() for row in column]
        )
        n_samples = self.n_samples - int(self.fit_intercept)
        # a constant target: infinite for every alpha
        with np.errstate(divide="ignore"):
            return np.asarray(
                -0.5 * (n_samples * np.log(quadratic) + log_determinant[:, np.newaxis])
            )

    def _column(self, alphas: ArrayLike) -> FloatArray:
        values = np.atleast_1d(np.asarray(alphas))
        return solution.check_alpha(values, len(values))[:, np.newaxis]

    def _filter(self, penalty: FloatArray) -> FloatArray:
        """Compute 1/(λ + alpha), and 0 for clipped eigenvalues; shape (n_components, 1
        or n_targets).
        """
        inverse = np.zeros((len(self.eigenvalues), len(penalty)))
        inverse[self.n_clipped :] = 1.0 / (
            self.eigenvalues[self.n_clipped :, np.newaxis] + penalty
        )
        return inverse

    def _squared_norms(self, penalties: FloatArray) -> FloatArray:
        """Compute ‖w‖² of each target for rows of penalties."""
        weights = (self._filter(row) * self.projected_moments for row in penalties)
        return np.stack([np.square(columns).sum(axis=0) for columns in weights])

    def _signed_rss(self, penalties: FloatArray) -> FloatArray:
        """Compute c − Σ b²(λ + 2·alpha)/(λ + alpha)² for rows of penalties; rounding
        may make it negative.
        """
        eigenvalues = self.eigenvalues[:, np.newaxis]
        rows = []
        for row in penalties:
            # weights are Q'w, so this is 2w'B − w'Aw, eigenvalue by eigenvalue: shape
            # (n_components, n_targets)
            weights = self._filter(row) * self.projected_moments
            explained = (np.square(weights) * (eigenvalues + 2.0 * row)).sum(axis=0)
            rows.append(self.total_sum_of_squares - explained)
        return np.stack(rows)


def decompose(equations: solution.NormalEquations) -> RidgeSpectrum:
    """Like `scipy.linalg.eigh(gram)`, decompose normal equations for a whole path of
    alpha.

    Takes O(n_components³), some 20 times a Cholesky factorisation, and three more
    float64 arrays of the Gram's size; O(n_components² · n_samples) where the rows are
    at most half as many as the components. For a single alpha `solve_cholesky` is
    cheaper.

    `equations`: not changed; only the upper triangle of the Gram is read.

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
        few = 2 * equations.n_samples <= n_components
        decomposed = _eigh_of_low_rank(gram, equations) if few else None
        eigenvalues, eigenvectors = decomposed or _eigh(gram)
        projected = np.zeros((n_components, equations.moments.shape[1]))
        projected[n_components - eigenvectors.shape[1] :] = (
            eigenvectors.T @ equations.moments
        )
    floor, n_clipped = negligible(equations, eigenvalues)
    clipped = np.arange(n_components) < n_clipped
    return RidgeSpectrum(
        eigenvalues=np.where(clipped, 0.0, eigenvalues),
        eigenvectors=eigenvectors,
        projected_moments=np.where(clipped[:, np.newaxis], 0.0, projected),
        floor=floor,
        n_clipped=n_clipped,
        **{
            field.name: getattr(equations, field.name)
            for field in fields(solution.EquationFacts)
        },
    )


def _eigh(gram: FloatArray) -> _Eigen:
    """Decompose by divide and conquer, by NumPy: unlike SciPy it lets other Python
    threads run meanwhile.
    """
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
        f" ({error}); give one alpha, which needs none, and report this"
    )


def _eigh_of_low_rank(
    gram: FloatArray, equations: solution.NormalEquations
) -> _Eigen | None:
    """Decompose a Gram of few rows by pivoted Cholesky to its rank, A = LL', then L =
    (QU)ΣV'.

    Higham (1990), Analysis of the Cholesky decomposition of a semi-definite matrix. 5
    to 15 times as fast as `eigh` for 30 to 500 rows of 2,048 components, with the same
    eigenvalues to 5e-13.

    Returns `eigenvalues`, float64 array of shape (n_components,): ascending, with 0 for
    all beyond the rank. Returns `eigenvectors`, float64 array of shape (n_components,
    rank): of the last `rank` eigenvalues. Returns None where so few rows cannot have
    given the Gram: it is indefinite, or its rank is higher.
    """
    n_components = len(gram)
    rounding = n_components * EPS * float(np.diagonal(gram).max())
    tolerance = max(rounding, equations.gram_error)
    # O(n_components · rank²); pivoting makes the remaining diagonal fall, so the first
    # below `tol` ends it
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(gram.T, tol=tolerance, lower=1)
    # what is left of so few rows is rounding
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
    # The trace of LL' is another one where the Gram has a higher rank or is indefinite.
    if abs(np.trace(gram) - eigenvalues.sum()) > n_components * tolerance:
        return None
    return eigenvalues, (basis @ rotation)[:, ::-1]


def negligible(
    equations: solution.NormalEquations, eigenvalues: FloatArray
) -> tuple[float, int]:
    """Return the rounding error of a Gram's eigenvalues, and how many of them are not
    above it.

    The error is n_components · eps · (largest), the error of the sums' grid, or the
    size of the most negative eigenvalue, whichever is largest. A negative eigenvalue
    that rounding does not explain causes a LinAlgWarning.

    `eigenvalues`: float64 array of shape (n_components,). Ascending.
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
    explained = _LAPACK * rounding * uncentred + equations.gram_error
    if smallest < -explained:
        warn(
            f"the Gram has a negative eigenvalue {smallest:.3g} (largest"
            f" {largest:.3g}), more than float64 rounding explains ({explained:.3g}):"
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
