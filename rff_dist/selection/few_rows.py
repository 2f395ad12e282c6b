"""Alpha for few rows, by the leave-one-out error of each row, since a few folds would let chance choose.

Errors of few rows hardly tell alphas apart, and the smallest of those that are as good is easily far too
small. So the largest alpha whose error is within one standard error of the least is taken. The standard
error is that of the differences row by row, in which most of what makes rows easy or hard to predict cancels.

With this rule 38 of 349 nasty draws err by more than 1.1 times the error of the best alpha. It would be 48
with half a standard error, 60 with one and a half, 96 by the greatest evidence, and 62 by the greatest
evidence among the alphas within the error. Leaving out all copies of a row together is no better: of 115
draws with copies 13 fail, not 9. If errors clipped at ten times their mean were tested as well, two fewer of
the 38 would fail, and five fewer of 42 in 240 smooth draws.

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

# Share of the least error that does not count. If rows can be interpolated, ever smaller alphas gain little:
# classes of wine took 7e-10 where 1e-3 errs as much. None of 194 nasty draws fails for it; with 0.01 two do.
IMMATERIAL = 0.003


@dataclass(frozen=True, slots=True)
class Doubts:
    """What speaks against an alpha that was chosen by leaving out each row.

    `other`: index of the tried alpha that may save most of the error.
    `saved`, `saving`: the share of the error that it saves, and that plus one standard error.
    `heaviest_row`: number of the row with the largest error.
    `share`: that row's share in the sum of all squared errors.
    """

    other: int
    saved: float
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
    """Return the index of each target's alpha among those that were tried, and what speaks against it.

    `squares`: float64 array of shape (n_alphas, n_targets, n_samples). From `leave_out_each`, alphas
      ascending.
    `weights`: float64 array of shape (n_samples,).
    `target_variance`: float64 array of shape (n_targets,). Constant targets do not count.
    `per_target`: whether each target has an alpha of its own; "auto" gives one to targets for which it saves
      more than 1 % of the error, and more than the standard error of the saving.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Returns None if no target varies, no row errs, or every alpha leaves a row undetermined.
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
    found = (rows.most_saved(losses[:, i], place) for i, place in enumerate(places[varying]))
    saving, saved, other = max(found)
    heaviest = int(np.argmax(errors))
    return known[places], Doubts(int(known[other]), saved, saving, heaviest, float(errors[heaviest]) / total)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """How rows are weighted in means: `shares`, float64 array of shape (n_samples,), adds up to 1."""

    shares: FloatArray
    repeated: bool
    sum_of_weights: float

    def largest_as_good(self, losses: FloatArray) -> int:
        """Return the last alpha whose mean loss is at most a standard error above the least.

        If all rows gain alike, however little, the standard error is near 0. So immaterial gains are ignored.

        `losses`: float64 array of shape (n_alphas, n_samples).
        """
        means = losses @ self.shares
        least = int(np.argmin(means))
        excess, error = self.mean_and_error(losses - losses[least])
        slack = max(RESOLUTION, IMMATERIAL * float(means[least]))
        return last_within(excess, np.maximum(error, slack))

    def most_saved(self, losses: FloatArray, chosen: int) -> tuple[float, float, int]:
        """Return what another alpha may save at most: the share plus a standard error, the share, its index.

        `losses`: as in `largest_as_good`.
        """
        saved, error = self.mean_and_error(losses[chosen] - losses)
        most, total = int(np.argmax(saved + error)), float(losses[chosen] @ self.shares)
        if not total > 0.0:
            return 0.0, 0.0, most
        return float(saved[most] + error[most]) / total, float(saved[most]) / total, most

    def mean_and_error(self, losses: FloatArray) -> tuple[Any, Any]:
        """Return means over the last axis, and their standard errors, for either kind of weights."""
        means = losses @ self.shares
        spreads = self.shares / self.sum_of_weights if self.repeated else np.square(self.shares)
        return means, np.sqrt(np.square(losses - np.expand_dims(means, -1)) @ spreads)
