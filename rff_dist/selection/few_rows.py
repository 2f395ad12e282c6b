"""Alpha for few rows: by each row's own leave-one-out error, since few folds would let chance choose.

Errors of few rows hardly tell alphas apart, and the smallest of those that are as good is easily far too
small. So the largest one is taken whose error is within one standard error of the least. This is the standard
error of the difference, row by row, in which most of what makes rows easy or hard to predict cancels.

Of 349 nasty draws 38 err by more than 1.1 times what the best alpha gives; by half a standard error it would
be 48, by one and a half 60, by the greatest evidence 96, and by that among the alphas within the error 62.
Copies of rows that are left out together do no better: of 115 draws that have copies 13, for 9.
Were errors clipped at ten times their mean asked as well, two fewer would, and five of 42 in 240 smooth ones.

Breiman, Friedman, Olshen & Stone (1984), Classification and regression trees, section 3.4.3, on the rule of
one standard error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.selection.alphas import MATERIAL_GAIN, RESOLUTION, PerTarget, last_within
from rff_dist.typing import FloatArray

# Share of the least error. Rows that may be interpolated all gain by ever smaller alphas, however little:
# classes of wine took 7e-10 where 1e-3 errs as much. Of 194 nasty draws none fails for it, by 0.01 two do.
IMMATERIAL = 0.003


@dataclass(frozen=True, slots=True)
class Doubts:
    """What speaks against an alpha that rows chose.

    `other`: place of the alpha that may err less by most, among those that were tried.
    `saving`: share of the error that it saves, and one standard error of that more.
    `heaviest_row`: number of the row with the largest error.
    `share`: of that row in the sum of all squared errors.
    """

    other: int
    saving: float
    heaviest_row: int
    share: float


def choose_by_rows(
    squares: FloatArray,
    weights: FloatArray,
    target_variance: FloatArray,
    *,
    per_target: PerTarget,
    repeated: bool = False,
) -> tuple[NDArray[np.intp], Doubts] | None:
    """Return the place of each target's alpha among those that were tried, and what speaks against it.

    `squares`: float64 array of shape (n_alphas, n_targets, n_samples). From `leave_out_each`, alphas
      ascending.
    `weights`: float64 array of shape (n_samples,).
    `target_variance`: float64 array of shape (n_targets,). Constant targets have no say.
    `per_target`: whether each target has an alpha of its own; "auto" gives one to targets for which it saves
      more than 1 % of the error, and more than its standard error.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Returns None where no target varies, no row errs, or every alpha leaves a row undetermined.
    """
    varying = np.flatnonzero(target_variance > 0.0)
    known = np.flatnonzero(np.isfinite(squares).all(axis=(1, 2)))
    if not len(varying) or not len(known):
        return None
    rows = _Rows(weights / weights.sum(), repeated, float(weights.sum()))
    losses = squares[known][:, varying] / target_variance[varying, np.newaxis]
    shared = rows.largest_as_good(losses.mean(axis=1))
    places = np.full(len(target_variance), shared)
    for i, target in enumerate(varying) if per_target is not False else ():
        own = rows.largest_as_good(losses[:, i])
        saved, error = rows.mean_and_error(losses[shared, i] - losses[own, i])
        material = MATERIAL_GAIN * float(rows.shares @ losses[shared, i])
        if per_target is True or saved > max(material, error):
            places[target] = own
    errors = rows.shares * losses[places[varying], np.arange(len(varying))].mean(axis=0)
    if not (total := float(errors.sum())) > 0.0:
        return None
    saving, other = max(rows.most_saved(losses[:, i], place) for i, place in enumerate(places[varying]))
    heaviest = int(np.argmax(errors))
    return known[places], Doubts(int(known[other]), saving, heaviest, float(errors[heaviest]) / total)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What rows weigh in a mean: `shares`, float64 array of shape (n_samples,), adds up to 1."""

    shares: FloatArray
    repeated: bool
    sum_of_weights: float

    def largest_as_good(self, losses: FloatArray) -> int:
        """Return the last of the alphas whose mean loss is at most a standard error above the least.

        Where all rows gain alike, however little, that error is next to nothing: what is immaterial counts
        as none.

        `losses`: float64 array of shape (n_alphas, n_samples).
        """
        means = losses @ self.shares
        least = int(np.argmin(means))
        excess, error = self.mean_and_error(losses - losses[least])
        slack = max(RESOLUTION, IMMATERIAL * float(means[least]))
        return last_within(excess, np.maximum(error, slack))

    def most_saved(self, losses: FloatArray, chosen: int) -> tuple[float, int]:
        """Return by what share another alpha may err less, with a standard error added, and its place.

        `losses`: as of `largest_as_good`.
        """
        saved, error = self.mean_and_error(losses[chosen] - losses)
        most, total = int(np.argmax(saved + error)), float(losses[chosen] @ self.shares)
        return float(saved[most] + error[most]) / total if total > 0.0 else 0.0, most

    def mean_and_error(self, losses: FloatArray) -> tuple[Any, Any]:
        """Return means over the last axis, and their standard errors, whatever else weights stand for."""
        means = losses @ self.shares
        spreads = self.shares / self.sum_of_weights if self.repeated else np.square(self.shares)
        return means, np.sqrt(np.square(losses - np.expand_dims(means, -1)) @ spreads)
