"""Minimise a convex loss of linear scores plus a ridge penalty.

A loss with its gradient and the ridge Gram of the same rows go in; coefficients come
out. `scipy.optimize.minimize` alone would take hundreds of passes over the data; here
the Gram is the preconditioner.

The objective is J(W, b) = L(W, b) + penalty·‖W‖². Each evaluation costs a pass over the
data, so passes are what counts. With A the centred Gram and h the mean curvature of the
loss, the Hessian in centred features is near h·A + 2·penalty·I = R'R. In V = R·W it is
near the identity: L-BFGS then takes 10 to 30 passes, where it would take hundreds in W.
Newton's method with conjugate gradients takes far more, because every step of its inner
iteration is a pass too.

If alpha is tiny or classes are separable, L-BFGS takes more passes, but none of the
costlier methods that were tried paid. A Gram of the rows weighted by their curvature
costs as much as 5 to 13 passes at D = 512. With a new one every 12 passes, 8,000
separable rows (alpha = 3e-9) were short of the minimum after 197 passes and 5 Grams,
and the digits' logistic loss, with one Gram for all classes, took 96 passes and 6 Grams
instead of 116 passes. L-BFGS with a memory of 160 steps instead of 20 saved at most a
tenth.

Nocedal & Wright (2006), Numerical Optimization, ch. 7.2; Byrd, Lu, Nocedal & Zhu
(1995); Fan et al. (2008), LIBLINEAR, whose tolerance is relative to the loss at W = 0
too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
import scipy

from rff_dist.errors import SolveError
from rff_dist.numerics import machine, solution, triangular
from rff_dist.typing import FloatArray, frozen

logger = logging.getLogger(__name__)

# (coefficients, intercept) -> loss, its gradient with respect to each of the two
type LossFunction = Callable[
    [FloatArray, FloatArray], tuple[float, FloatArray, FloatArray]
]

MEMORY = 20  # steps that L-BFGS remembers: 16 · MEMORY bytes for each coefficient


@frozen(eq=False)
class Minimum:
    """The result of a minimisation, and how far above the minimum it may be."""

    #: W, of shape (n_components, n_columns).
    coefficients: FloatArray
    #: b, of shape (n_columns,); zero without an intercept.
    intercept: FloatArray
    #: J at the end.
    objective: float
    #: ½‖∂J/∂V‖², about how far J is above its minimum.
    excess: float
    n_iterations: int
    #: Evaluations of the loss, which are passes over the data.
    n_evaluations: int
    #: Whether `excess` is at most tol · `reference`.
    converged: bool
    #: The loss of scores of 0.
    reference: float


@frozen(eq=False)
class PenalizedLoss:
    """J(W, b) = loss(W, b) + penalty·‖W‖²."""

    #: From W and b, returns the loss and its gradients, all sums over rows.
    loss: LossFunction
    #: The equations of the same rows and features; centred if an intercept is fitted.
    equations: solution.NormalEquations
    #: At least 0.
    penalty: float
    #: h, a typical second derivative of the loss with respect to a score. It changes
    #: the number of evaluations, not the minimum.
    curvature: float
    #: The loss of scores of 0, which is J at W = 0; tolerances are relative to it. If
    #: classes are separable, J itself goes to 0 with the penalty, and a tolerance
    #: relative to J would rarely be met.
    reference: float


def minimize_loss(
    problem: PenalizedLoss,
    coefficients: FloatArray,
    intercept: FloatArray,
    *,
    tol: float,
    max_iter: int,
) -> Minimum:
    """Like `scipy.optimize.minimize(…, method="L-BFGS-B")` of a penalized loss.

    Begins with W, of shape (n_components, n_columns), and b, of shape (n_columns,),
    which is not changed if the equations have no intercept. Stops if ½‖∂J/∂V‖² ≤
    tol·reference; scores are then right to about √tol of their spread. Takes
    O(n_components³ / 3) in addition to the evaluations of the loss, and overwrites the
    Gram. The bits depend only on the loss's bits: BLAS runs on one thread for each
    tile.

    Raises SolveError if the Gram is not positive semi-definite.
    """
    search = _Search(problem, (coefficients, intercept))
    goal = tol * problem.reference

    def scaled(point: FloatArray) -> tuple[float, FloatArray]:
        # L-BFGS-B begins with an evaluation at x0, which would be one more pass
        if search.n_evaluations == 1 and np.array_equal(point, x0):
            objective, gradient = first
        else:
            objective, gradient = search(unit * point)
        return objective / unit**2, gradient / unit

    def stop(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        if search.excess <= goal:
            raise StopIteration

    # SciPy's own tolerances are off: `stop` compares the excess with the goal
    options = {
        "maxcor": MEMORY,
        "maxiter": max_iter,
        "maxfun": 10 * max_iter + 20,
        "ftol": 0.0,
        "gtol": 0.0,
    }
    # with more threads the bits of L-BFGS's own products would depend on their number
    with machine.single_threaded_blas():
        start = search.start()
        first = search(start)
        # The first step of L-BFGS-B is the gradient over its norm. In units of that
        # norm it is ∂J/∂V, near Newton's step.
        unit = float(np.sqrt(np.square(first[1]).sum())) or 1.0
        x0 = start / unit
        ending = scipy.optimize.minimize(
            scaled, x0, jac=True, method="L-BFGS-B", callback=stop, options=options
        )
    converged = search.excess <= goal
    if not converged:
        logger.warning(
            "stopped after %d evaluations: %s", search.n_evaluations, ending.message
        )
    best, intercept = search.parameters(search.point)
    return Minimum(
        coefficients=best,
        intercept=intercept,
        objective=search.objective,
        excess=search.excess,
        n_iterations=int(ending.nit),
        n_evaluations=search.n_evaluations,
        converged=converged,
        reference=problem.reference,
    )


class _Search:
    """J as a function of one vector: V, and the scaled intercept in centred features.

    `objective`, `point` and `gradient` belong to the best evaluation so far.
    """

    def __init__(
        self, problem: PenalizedLoss, start: tuple[FloatArray, FloatArray]
    ) -> None:
        self._problem = problem
        self._start = start
        equations = problem.equations
        self._means = equations.feature_means
        self._factor = _factor(problem)
        # scales the intercept so that its curvature too is near 1; None without an
        # intercept
        scale = math.sqrt(problem.curvature * equations.sum_of_weights)
        self._intercept_scale = scale if equations.fit_intercept else None
        self.n_evaluations = 0
        self.objective = math.inf
        self.point = np.zeros(0)
        self.gradient = self.point

    @property
    def excess(self) -> float:
        """½‖∂J/∂V‖² at the best point."""
        return 0.5 * float(np.square(self.gradient).sum())

    def start(self) -> FloatArray:
        """Return the vector of the coefficients and the intercept to start from."""
        coefficients, intercept = self._start
        scaled = np.empty(coefficients.shape)
        for rows in triangular.tiles_of(len(scaled)):
            # V = R·W; triu, because below the diagonal the diagonal tiles keep old
            # numbers
            scaled[rows] = np.triu(self._factor[rows, rows]) @ coefficients[rows]
            scaled[rows] += self._factor[rows, rows.stop :] @ coefficients[rows.stop :]
        if self._intercept_scale is None:
            return scaled.ravel()
        # scores ZW + b are (Z − z̄)W + (b + z̄'W): the search's intercept is the second
        # bracket
        centred = intercept + self._means @ coefficients
        return np.append(scaled, self._intercept_scale * centred)

    def parameters(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return W and b."""
        values = point.reshape(-1, len(self._start[1]))
        coefficients = np.array(values[: len(self._factor)], order="C")
        triangular.solve_upper(self._factor, coefficients)
        if self._intercept_scale is None:
            return coefficients, self._start[1]
        centred = values[-1] / self._intercept_scale
        return coefficients, centred - self._means @ coefficients

    def __call__(self, point: FloatArray) -> tuple[float, FloatArray]:
        coefficients, intercept = self.parameters(point)
        penalty = self._problem.penalty
        loss, slope, intercept_slope = self._problem.loss(coefficients, intercept)
        self.n_evaluations += 1
        objective = loss + penalty * float(np.square(coefficients).sum())
        # ∂J/∂W with b + z̄'W held fixed, as in `start`; then ∂J/∂V = R⁻ᵀ ∂J/∂W
        of_means = np.outer(self._means, intercept_slope)
        slope = slope - of_means + 2.0 * penalty * coefficients
        triangular.solve_transposed(self._factor, slope)
        gradient = slope.ravel()
        if self._intercept_scale is not None:
            gradient = np.append(gradient, intercept_slope / self._intercept_scale)
        # a line search also visits points that are worse than the best one
        if objective <= self.objective:
            self.objective = objective
            self.point = point.copy()
            self.gradient = gradient.copy()
        return objective, gradient


def _factor(problem: PenalizedLoss) -> FloatArray:
    """Factor h·A + 2·penalty·I in the Gram's memory; the floor limits the penalty."""
    matrix = problem.equations.gram
    penalty = problem.penalty
    curvature = problem.curvature
    with machine.tile_pool() as pool:
        floor = problem.equations.floor()
        matrix *= curvature
        # `tiny` keeps the diagonal above 0 even if all features are 0
        matrix.flat[:: len(matrix) + 1] += max(
            2.0 * penalty, 2.0 * curvature * floor, np.finfo(float).tiny
        )
        broken_at = triangular.cholesky_in_place(matrix, pool)
    if broken_at is not None:
        raise SolveError(
            f"the Gram is not positive semi-definite: with a penalty of {penalty:.3g}"
            f" its factorisation stopped at component {broken_at}; raise alpha"
        )
    return matrix
