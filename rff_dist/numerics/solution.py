"""The system that ridge regression solves, and its solution.

`NormalEquations`, made from sums of rows, go in; a solver returns a `RidgeSolution`.
Its status says how far to trust it, with causes and remedies. A bare array of
coefficients would hide that alpha was below the rounding error of the sums.

Z are the features, a row per sample; Y the targets. Z'Z is the *Gram*, Z'Y are the
*moments*. The *floor* is the size below which eigenvalues of the Gram, and alphas, are
lost in rounding. The *residual* of coefficients w is total − 2w'moments + w'·Gram·w, in
which total is the targets' sum of squares. If an intercept is fitted, these sums are
about the means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.typing import EPS, FloatArray, frozen

_STRIP_ROWS = 64  # rows of two Grams that are subtracted at a time, to fit the cache
_CHECKED_ROWS = 512  # rows of a Gram that are checked at a time, since np.triu copies


class SolveStatus(StrEnum):
    """How a ridge system was solved, with causes and remedies in words."""

    OK = "ok"
    ILL_CONDITIONED = "ill_conditioned"
    RANK_DEFICIENT = "rank_deficient"
    NOT_CONVERGED = "not_converged"

    @property
    def causes(self) -> tuple[str, ...]:
        """What usually leads to this status."""
        return _CAUSES.get(self, ())

    @property
    def remedies(self) -> tuple[str, ...]:
        """What usually helps."""
        return _REMEDIES.get(self, ())


_CAUSES = {
    SolveStatus.ILL_CONDITIONED: (
        (
            "alpha is below the rounding error of the Gram matrix, so some coefficients"
            " are rounding error too"
        ),
        (
            "the length scale is wide for the data, or the features nearly repeat each"
            " other"
        ),
    ),
    SolveStatus.RANK_DEFICIENT: (
        "there are fewer independent rows than components",
        "some features repeat each other or are constant",
    ),
    SolveStatus.NOT_CONVERGED: (
        (
            "alpha is so small compared with Z'Z that conjugate gradients meet"
            " rounding, or need more passes"
        ),
    ),
}
_REMEDIES = {
    SolveStatus.ILL_CONDITIONED: (
        'raise alpha above the floor, or let alpha="auto" choose it',
        "use a shorter length scale or fewer components",
    ),
    SolveStatus.RANK_DEFICIENT: (
        'use an alpha above the floor, or let alpha="auto" choose it',
        "use more rows or fewer components",
    ),
    SolveStatus.NOT_CONVERGED: ('raise alpha, or solve with solver="direct"',),
}


@frozen
class RidgeSolution:
    """Coefficients that minimise ‖y − intercept − Zw‖² + alpha·‖w‖².

    Arrays have one number per target, and coefficients one column.
    """

    #: Weights of the normalised features, of shape (n_components, n_targets).
    coefficients: FloatArray
    #: ȳ − z̄'w; zero without an intercept.
    intercept: FloatArray
    alpha: FloatArray
    #: Of the training rows; at least 0. The true value is within `rss_error_bound`.
    residual_sum_of_squares: FloatArray
    #: Rounding error of `residual_sum_of_squares`. A residual below its bound is not
    #: resolved: say "at most the bound", not "zero".
    rss_error_bound: FloatArray
    #: The residual as a share of the total sum of squares, 1 − R² at the training rows;
    #: 0 for a constant target.
    unexplained: FloatArray
    #: Number of directions of the feature space that the solution uses.
    effective_rank: int
    #: Eigenvalues below it are rounding error; see `NormalEquations.floor`.
    floor: float
    status: SolveStatus


@frozen(kw_only=True)
class TargetSummary:
    """Means and sums of squares that a ridge system has, with a Gram or without."""

    #: Sum of squares of each (centred) target, of shape (n_targets,).
    total_sum_of_squares: FloatArray
    #: z̄, of shape (n_components,); zero without an intercept.
    feature_means: FloatArray
    #: ȳ, of shape (n_targets,); zero without an intercept.
    target_means: FloatArray


def make_solution(
    summary: TargetSummary,
    coefficients: FloatArray,
    alpha: FloatArray,
    *,
    rss: FloatArray,
    effective_rank: int,
    floor: float,
    status: SolveStatus,
) -> RidgeSolution:
    """Complete a solution from its coefficients and `rss`, the residual as computed.

    Rounding may make `rss` negative. Raises SolveError if squares of the coefficients
    overflow.
    """
    total = summary.total_sum_of_squares
    # total − 2w'moments + w'·Gram·w cancels where the fit is close, and may come out
    # below 0; the bound says by how much
    residual = np.maximum(rss, 0.0)
    with np.errstate(over="ignore"):
        norms = np.square(coefficients).sum(axis=0)
    if not np.isfinite(norms).all():
        largest = float(np.abs(coefficients).max())
        raise SolveError(
            f"coefficients reach {largest:.3g}, whose squares overflow float64; scale y"
            " down"
        )
    return RidgeSolution(
        coefficients=coefficients,
        intercept=summary.target_means - summary.feature_means @ coefficients,
        alpha=alpha,
        residual_sum_of_squares=residual,
        rss_error_bound=rss_error_bound(
            norms, total, n_components=len(coefficients), floor=floor
        ),
        unexplained=np.divide(
            residual, total, out=np.zeros_like(residual), where=total > 0.0
        ),
        effective_rank=effective_rank,
        floor=floor,
        status=status,
    )


def rss_error_bound(
    squared_norm: FloatArray,
    total_sum_of_squares: FloatArray,
    *,
    n_components: int,
    floor: float,
) -> FloatArray:
    """Bound the rounding error of a residual computed from sums.

    An error E of the Gram A moves the residual by at most 3·‖E‖·‖w‖² to first order:
    w'Ew directly and 2·alpha·w'(A + alpha)⁻¹Ew through w. ‖E‖ is taken as the floor.
    The residual is made of four sums, each at most about the total sum of squares.
    Rounding adds n_components·eps of that total for each.
    """
    return 3.0 * floor * squared_norm + 4.0 * n_components * EPS * total_sum_of_squares


def check_alpha(alpha: ArrayLike, n_targets: int) -> FloatArray:
    """Return one penalty per target.

    Raises InvalidParameterError if a penalty is negative or not finite, or their number
    is neither one nor `n_targets`.
    """
    values = np.asarray(alpha)
    are_numbers = values.dtype.kind in "iuf" and np.isfinite(values).all()
    if not are_numbers or (values < 0).any():
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; expected finite numbers in [0, inf)"
        )
    if values.shape not in {(), (n_targets,)}:
        raise InvalidParameterError(
            f"`alpha` has shape {values.shape}; expected one number or one for each of"
            f" {n_targets} targets"
        )
    return np.broadcast_to(values.astype(np.float64), (n_targets,)).copy()


def norm_growth(
    apply: Callable[[FloatArray], FloatArray], n: int, *, steps: int
) -> float:
    """Return the growth of a vector's norm under repeated `apply`.

    It never exceeds the largest eigenvalue if `apply` is symmetric and positive
    semi-definite.
    """
    # irregular, so that it is orthogonal to no eigenvector by accident
    vector = np.cos(np.arange(n, dtype=np.float64) ** 2)
    growth = 0.0
    for _ in range(steps):
        # ‖Av‖ of a unit vector never exceeds the largest eigenvalue (Golub & Van Loan,
        # section 8.2.1)
        vector = apply(vector / np.linalg.norm(vector))
        growth = float(np.linalg.norm(vector))
        if growth == 0.0:
            break
    return growth


# -- the system that ridge regression solves


@frozen(kw_only=True)
class EquationFacts(TargetSummary):
    """What normal equations and their spectrum have in common."""

    #: Observations; see `RidgeStatistics.n_observations`.
    n_samples: int
    #: Sum of the rows' weights; over `n_samples` it is the mean weight of an
    #: observation.
    sum_of_weights: float
    #: Whether an intercept is fitted, which costs one degree of freedom.
    fit_intercept: bool


@frozen(kw_only=True)
class NormalEquations(EquationFacts):
    """The system (gram + alpha·I)·w = moments that ridge regression solves."""

    #: Z'Z, symmetric; centred (Z'Z − n·z̄z̄') if an intercept is fitted.
    gram: FloatArray
    #: Z'Y, of shape (n_components, n_targets), centred likewise.
    moments: FloatArray
    #: How far rounding of sums and of means may have moved an eigenvalue of the Gram.
    gram_error: float = 0.0

    def floor(self, largest: float | None = None) -> float:
        """Return the size below which eigenvalues are rounding error.

        No alpha below it is reliable. It is n_components · eps · (largest
        eigenvalue), or the Gram's own error if that is more. By default eight power
        iterations estimate the largest eigenvalue, up to a few per cent too low; they
        read the upper triangle only.
        """
        if largest is None:
            # the transpose is in Fortran's order without a copy, and its lower triangle
            # is the Gram's upper
            gram = self.gram.T

            def multiply(vector: FloatArray) -> FloatArray:
                return np.asarray(scipy.linalg.blas.dsymv(1.0, gram, vector, lower=1))

            largest = norm_growth(multiply, len(gram), steps=8)
        return max(len(self.gram) * EPS * largest, self.gram_error)

    def without(self, part: NormalEquations) -> NormalEquations:
        """Return the equations of the rows not in `part`, about their own means.

        The sums of all rows about their means are the sums of both groups about their
        own means, plus a term of rank one for the distance between these means (Chan,
        Golub and LeVeque 1983). The difference loses digits if few rows are left, of
        which some must have a weight.
        """
        weight = self.sum_of_weights - part.sum_of_weights
        ratio = self.sum_of_weights / weight
        # how far apart the means of both groups are; 0 without an intercept
        feature_gap = ratio * (part.feature_means - self.feature_means)
        target_gap = ratio * (part.target_means - self.target_means)
        # w₁w₂/(w₁ + w₂) of both groups' weights: the factor of the term of rank one
        factor = part.sum_of_weights / ratio
        gram = np.empty_like(self.gram)
        for start in range(0, len(gram), _STRIP_ROWS):
            rows = slice(start, start + _STRIP_ROWS)
            np.subtract(self.gram[rows], part.gram[rows], out=gram[rows])
            if self.fit_intercept:
                gram[rows] -= np.outer(factor * feature_gap[rows], feature_gap)
        squares = self.total_sum_of_squares - part.total_sum_of_squares
        squares -= factor * target_gap**2
        moments = self.moments - part.moments
        moments -= factor * np.outer(feature_gap, target_gap)
        return NormalEquations(
            gram=gram,
            moments=moments,
            total_sum_of_squares=np.maximum(squares, 0.0),
            feature_means=part.feature_means - feature_gap,
            target_means=part.target_means - target_gap,
            n_samples=self.n_samples - part.n_samples,
            sum_of_weights=weight,
            fit_intercept=self.fit_intercept,
            # the roundings of both are independent, so they add in squares
            gram_error=math.hypot(self.gram_error, part.gram_error),
        )


def check_equations(equations: NormalEquations) -> None:
    """Refuse shapes that do not fit together, and values that are not finite.

    Only the upper triangle of the Gram is read.

    Raises SolveError if shapes disagree, or the Gram or the moments hold NaN or
    infinity.
    """
    gram = equations.gram
    moments = equations.moments
    if (
        gram.ndim != 2
        or gram.shape[0] != gram.shape[1]
        or moments.ndim != 2
        or len(moments) != len(gram)
    ):
        raise SolveError(
            f"normal equations do not fit together: gram has shape {gram.shape},"
            f" moments {moments.shape}; expected (n_components, n_components) and"
            " (n_components, n_targets)"
        )
    if 0 in moments.shape:
        raise SolveError(
            f"nothing to solve: moments have shape {moments.shape}; expected at least"
            " (1, 1)"
        )
    for start in range(0, len(gram), _CHECKED_ROWS):
        strip = np.triu(gram[start : start + _CHECKED_ROWS, start:])
        if not np.isfinite(strip).all():
            row, column = np.argwhere(~np.isfinite(strip))[0] + start
            raise SolveError(
                f"gram[{row}, {column}] is {gram[row, column]}; expected finite"
                " numbers. Look for NaN or infinity in the rows that were summed"
            )
    for name in ("moments", "total_sum_of_squares", "feature_means", "target_means"):
        if not np.isfinite(getattr(equations, name)).all():
            raise SolveError(
                f"{name} of the normal equations hold NaN or infinity; expected finite"
                " numbers"
            )
