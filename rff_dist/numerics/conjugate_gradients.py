"""Ridge systems whose matrix is known by what it does to vectors: preconditioned conjugate gradients.

(A + alpha·I)·w = b for several columns at once, each with an alpha of its own. Errors e of w are measured as
ridge's own objective measures them, ‖e‖² = ‖Ze‖² + alpha·e'e. That is estimated by r'P⁻¹r, r the residual and
P the preconditioner, times how far P⁻¹ may fall short of (A + alpha·I)⁻¹.

References
----------
Hestenes & Stiefel (1952).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rff_dist.errors import SolveError
from rff_dist.numerics.nystrom_preconditioner import NystromPreconditioner
from rff_dist.typing import FloatArray

RESTARTS = 3  # from the true residual, where the one that is updated has drifted from it
RESTART_WORTH = 0.5  # of the error that a restart begins with; one that leaves more has met rounding


class Stop(StrEnum):
    """Why iterating ended."""

    TOLERANCE = "tolerance"
    ROUNDING = "rounding"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, eq=False)
class Iterated:
    """Where conjugate gradients ended.

    `solution`: float64 array of shape (n_components, n_columns).
    `residual`: float64 array of the same shape. b − (A + alpha·I)·w, by a product of its own.
    `errors`: float64 array of shape (n_columns,). Estimates of the error's norm, see the module.
    `n_products`: products with A, the last one for the residual.
    """

    solution: FloatArray
    residual: FloatArray
    errors: FloatArray
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
) -> Iterated:
    """Solve (A + alpha·I)·w = b column by column, with one product for all columns in each step.

    `multiply`: A times columns of shape (n_components, n_columns); for fewer columns towards the end.
    `right`: float64 array of shape (n_components, n_columns). b.
    `alpha`: float64 array of shape (n_columns,). Above 0.
    `tolerance`: float64 array of shape (n_columns,). The errors, see the module, at which columns are left.
    Raises SolveError if a product is not finite.
    """
    shortfall = np.sqrt(preconditioner.shortfall(alpha))

    def error_of(residual: FloatArray) -> FloatArray:
        solved = preconditioner.solve(residual, alpha)
        return np.asarray(shortfall * np.sqrt(np.maximum(0.0, (residual * solved).sum(axis=0))))

    solution, residual = np.zeros_like(right), right.copy()
    errors, n_products = error_of(residual), 0
    for _ in range(1 + RESTARTS):
        before = errors
        taken = _descend(
            multiply,
            solution,
            residual,
            alpha,
            preconditioner,
            tolerance=tolerance / shortfall,
            max_products=max_products - n_products - 1,
        )
        residual = right - multiply(solution) - alpha * solution
        n_products += taken + 1
        errors = error_of(residual)
        if (errors <= tolerance).all():
            return Iterated(solution, residual, errors, n_products, Stop.TOLERANCE)
        if n_products >= max_products:
            break
        if (errors > RESTART_WORTH * before)[errors > tolerance].all():
            return Iterated(solution, residual, errors, n_products, Stop.ROUNDING)
    return Iterated(solution, residual, errors, n_products, Stop.LIMIT)


def _descend(
    multiply: Callable[[FloatArray], FloatArray],
    solution: FloatArray,
    residual: FloatArray,
    alpha: FloatArray,
    preconditioner: NystromPreconditioner,
    *,
    tolerance: FloatArray,
    max_products: int,
) -> int:
    """Take steps from a solution and its residual, which are updated; return how many products they took."""
    solved = preconditioner.solve(residual, alpha)
    direction = solved.copy()
    squares = (residual * solved).sum(axis=0)
    for taken in range(max_products):
        active = np.flatnonzero(squares > np.square(tolerance))
        if not len(active):
            return taken
        along, penalty = direction[:, active], alpha[active]
        image = multiply(along) + penalty * along
        curvature = (along * image).sum(axis=0)
        if not np.isfinite(curvature).all():
            raise SolveError("a product with Z'Z is not finite: the inputs overflow; standardise them")
        step = np.where(curvature > 0.0, squares[active] / np.where(curvature > 0.0, curvature, 1.0), 0.0)
        solution[:, active] += step * along
        residual[:, active] -= step * image
        solved = preconditioner.solve(residual[:, active], penalty)
        new = (residual[:, active] * solved).sum(axis=0)
        direction[:, active] = solved + (new / squares[active]) * along
        squares[active] = np.where(step > 0.0, new, 0.0)  # no step: rounding has the last word
    return max_products


def expected_iterations(condition: float, tolerance: float) -> float:
    """Return how many steps reach a share of the first error at most: √condition/2 · log(2/tolerance)."""
    return 0.5 * math.sqrt(condition) * math.log(2.0 / tolerance)
