"""Alpha by generalized cross-validation or the evidence, from statistics alone, without another pass."""

import logging
from dataclasses import replace
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.errors import SolveError
from rff_dist.numerics import eigen
from rff_dist.selection import grids
from rff_dist.typing import FloatArray, frozen

logger = logging.getLogger(__name__)

type Criterion = Literal["gcv", "evidence"]


@frozen
class Selection:
    """The alpha that was chosen, and the path it was chosen from.

    `alphas`: float64 array of shape (n_alphas,). The grid, ascending.
    `scores`: float64 array of shape (n_alphas, n_targets). GCV of each alpha and target, in the targets'
      units squared.
    `log_evidences`: float64 array of shape (n_alphas, n_targets). Log density of each target, less constants;
      see `RidgeSpectrum.log_evidences`.
    `degrees_of_freedom`: float64 array of shape (n_alphas,). Effective parameters of each alpha, intercept
      included.
    `best_index`: row of the best alpha of the grid.
    `alpha`: the best alpha for all targets together, refined between its neighbours on the grid.
    `score`: float64 array of shape (n_targets,). GCV at `penalty`.
    `at_end`: {"lower", "upper"} or None. The end of the grid that the minimum is at: the true minimum may lie
      beyond it.
    `criterion`: {"gcv", "evidence"}. How alpha was chosen.
    `n_samples`: observations that it was chosen on.
    `own_alphas`: float64 array of shape (n_targets,), or None. The alpha of each target, if they differ.
    """

    alphas: FloatArray
    scores: FloatArray
    degrees_of_freedom: FloatArray
    best_index: int
    alpha: float
    score: FloatArray
    at_end: Literal["lower", "upper"] | None
    log_evidences: FloatArray
    criterion: Criterion
    n_samples: int
    own_alphas: FloatArray | None = None

    @property
    def penalty(self) -> float | FloatArray:
        """The alpha in use: one number, or one for each target."""
        return self.alpha if self.own_alphas is None else self.own_alphas

    def to_arrays(self) -> dict[str, FloatArray]:
        names = ("alphas", "scores", "log_evidences", "degrees_of_freedom")
        return {name: np.asarray(getattr(self, name)) for name in names}


def generalized_cross_validation(spectrum: eigen.RidgeSpectrum, alphas: ArrayLike) -> FloatArray:
    """GCV score of every alpha, in O(n_alphas · n_components · n_targets).

    A residual below its rounding error is replaced by that error, so that a score is never negative or better
    than float64 can tell. With as many degrees of freedom as rows the score is infinite; an intercept counts
    as one.

    `alphas`: float64 array of shape (n_alphas,). Ridge penalties, in the units of the eigenvalues.
    Returns float64 array of shape (n_alphas, n_targets): estimated mean squared error of a new observation of
      average weight, in the targets' units squared.
    Source: Golub, Heath & Wahba (1979), Generalized cross-validation as a method for choosing a good ridge
      parameter, Technometrics 21, eq. 1.4.
    """
    resolved = np.maximum(spectrum.residual_sum_of_squares(alphas), spectrum.rss_error_bound(alphas))
    n_samples = spectrum.n_samples
    remaining = spectrum.residual_degrees_of_freedom(alphas)[:, np.newaxis] / n_samples
    determined = remaining > 0.0
    mean_square = resolved / spectrum.sum_of_weights
    return np.where(determined, mean_square / np.where(determined, remaining, 1.0) ** 2, np.inf)


# Only by name: GCV puts the mean leverage in place of each row's. With D near n, or tails in the inputs,
# it is smallest at the rounding floor: on three real sets it errs by 7.34, 45.9 and 6.13 standard deviations,
# where folds err by 0.74, 0.34 and 0.37.
def select_alpha(
    spectrum: eigen.RidgeSpectrum,
    alphas: ArrayLike | None = None,
    *,
    criterion: Criterion = "gcv",
    per_target: grids.PerTarget = False,
) -> Selection:
    """Choose the alpha with the least GCV or the largest evidence, for all targets or for each.

    An alpha for all targets has the least mean of GCV / variance, so that units do not matter; constant
    targets do not count. Evidences of several targets add up. If scores differ by less than 1e-10 of the
    variance, the larger alpha is taken. The best of the grid is refined by a bounded search between its
    neighbours (Brent's method on log alpha).

    `alphas`: float64 array of shape (n_alphas,). Positive penalties to choose from; by default
      `default_alphas(spectrum)`.
    `criterion`: {"gcv", "evidence"}. GCV estimates the error of new rows whatever the prior. The evidence
      trusts the prior, and is more reliable if the length scales were chosen by it too.
    `per_target`: whether each target has an alpha of its own. "auto" gives one to targets whose GCV (or noise
      variance, by the evidence) it lowers by more than 1 %.
    Returns Selection: with the whole path, for plots and reports.
    Raises InvalidParameterError if an alpha is not positive and finite, or there is none; SolveError if every
      alpha leaves no residual degrees of freedom, with one sample say.
    """
    grid = grids.default_alphas(spectrum) if alphas is None else grids.check_grid(alphas)
    scores = generalized_cross_validation(spectrum, grid)
    gcv = _shared_score(spectrum, scores)
    if not np.isfinite(gcv).any():
        raise SolveError(
            f"alpha cannot be chosen by cross-validation: n_samples={spectrum.n_samples} leaves no residual "
            f"degrees of freedom for {len(spectrum.eigenvalues)} components. Give alpha, or more rows"
        )
    log_evidences = spectrum.log_evidences(grid)
    # a residual below 1e-10 of y'y is rounding, so that closer scores are equal: the larger alpha is safer
    path = _path(spectrum, grid, criterion)
    tied = np.flatnonzero(path <= path.min() + grids.RESOLUTION)
    best = int(tied[-1])
    alpha = float(grid[best])
    if len(tied) == 1:
        alpha = _refine(spectrum, grid, best, float(path[best]), criterion)
    selection = Selection(
        alphas=grid,
        scores=scores,
        degrees_of_freedom=spectrum.degrees_of_freedom(grid),
        best_index=best,
        alpha=alpha,
        score=generalized_cross_validation(spectrum, [alpha])[0],
        at_end=grids.end_of_grid(best, len(grid)),
        log_evidences=log_evidences,
        criterion=criterion,
        n_samples=spectrum.n_samples,
    )
    if per_target is not False and scores.shape[1] > 1:
        selection = _with_own_alphas(spectrum, selection, always=per_target is True)
    if (end := selection.at_end) is not None:
        logger.info("the best alpha %.3g is at the %s end of %.3g to %.3g", alpha, end, grid[0], grid[-1])
    return selection


def _with_own_alphas(spectrum: eigen.RidgeSpectrum, shared: Selection, *, always: bool) -> Selection:
    alphas = np.full(shared.scores.shape[1], shared.alpha)
    ends = []  # of the targets that vary
    for target in np.flatnonzero(spectrum.total_sum_of_squares > 0.0):
        alone = replace(
            spectrum,
            projected_moments=spectrum.projected_moments[:, [target]],
            total_sum_of_squares=spectrum.total_sum_of_squares[[target]],
            target_means=spectrum.target_means[[target]],
        )
        choice = select_alpha(alone, shared.alphas, criterion=shared.criterion)
        if shared.criterion == "evidence":
            before, after = _path(alone, [shared.alpha, choice.alpha], "evidence")
            gain = before - after  # −2·log evidence per row is the log of a variance
        else:
            gain = 1.0 - choice.score[0] / shared.score[target]
        if always or gain > grids.MATERIAL_GAIN:
            alphas[target] = choice.alpha
        ends.append(choice.at_end if alphas[target] == choice.alpha else shared.at_end)
    if (alphas == shared.alpha).all():
        return shared
    scores = generalized_cross_validation(spectrum, alphas)[np.arange(len(alphas)), np.arange(len(alphas))]
    return replace(shared, own_alphas=alphas, score=scores, at_end=grids.worst_end(ends))


def _shared_score(spectrum: eigen.RidgeSpectrum, scores: FloatArray) -> FloatArray:
    return grids.shares_of_variance(scores, spectrum.total_sum_of_squares / spectrum.sum_of_weights)


def _path(spectrum: eigen.RidgeSpectrum, alphas: ArrayLike, criterion: Criterion) -> FloatArray:
    """Return what is minimised, shape (n_alphas,): GCV, or −2·log evidence per row of targets that vary."""
    if criterion == "gcv":
        return _shared_score(spectrum, generalized_cross_validation(spectrum, alphas))
    log_evidences, varying = spectrum.log_evidences(alphas), spectrum.total_sum_of_squares > 0.0
    if not varying.any():
        return np.zeros(len(log_evidences))
    shared: FloatArray = -2.0 * log_evidences[:, varying].mean(axis=1) / spectrum.n_samples
    return shared


def _refine(
    spectrum: eigen.RidgeSpectrum, grid: FloatArray, best: int, best_score: float, criterion: Criterion
) -> float:
    """Search between the neighbours of `grid[best]`; the grid's own point wins a tie."""
    lower, upper = np.log(grid[max(best - 1, 0)]), np.log(grid[min(best + 1, len(grid) - 1)])
    if lower == upper:
        return float(grid[best])

    def score(log_alpha: float) -> float:
        return float(_path(spectrum, [np.exp(log_alpha)], criterion)[0])

    bounds, options = (lower, upper), {"xatol": 1e-3}
    minimum = scipy.optimize.minimize_scalar(score, bounds=bounds, method="bounded", options=options)
    return float(np.exp(minimum.x)) if minimum.fun < best_score else float(grid[best])
