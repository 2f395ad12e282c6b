"""Classification losses: their sums over rows and gradients, both from one pass.

Blocks of rows and coefficients go in; exact sums of loss and gradient come out, for a
minimiser.

Targets are those of a labelled dataset: −1 and +1, in one column for two classes, else
one column per class. A row of weight w adds w·ℓ(f) to the loss, with f = z'W + b, and
w·z ⊗ ∂ℓ/∂f to the gradient. Tiles add up as exact sums, so that an objective has the
same bits on every engine.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import reduce
from typing import ClassVar

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import DataError
from rff_dist.fitting import predicting
from rff_dist.numerics import exact_sums, machine, softmax
from rff_dist.statistics import specs
from rff_dist.typing import FloatArray, frozen

# The features of so many rows are made once, and used for f and for the gradient while
# they are in the cache. Measured for 75,000 rows, D = 800, on a busy core: strips of
# 128 to 512 rows take 0.21 to 0.26 s, whole tiles of 4,096 rows 0.35 s.
STRIP_ROWS = 256


class Loss(ABC):
    """A convex loss of scores against targets."""

    #: The key in `LOSSES`.
    name: ClassVar[str]
    #: The objective is Σ w·ℓ + penalty_factor · alpha · ‖W‖².
    penalty_factor: ClassVar[float]

    @abstractmethod
    def __call__(
        self, scores: FloatArray, targets: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the loss of each row and its gradient with respect to the scores.

        Scores, targets and gradient have shape (n_samples, n_columns).
        """


class SquaredHinge(Loss):
    """max(0, 1 − y·f)² in each column: the L2 support vector machine.

    With alpha‖W‖² this is scikit-learn's LinearSVC at C = 1/(2·alpha), except that
    LinearSVC penalises the intercept. Loss and penalty have ridge's scale, so ridge's
    alpha can be used.
    """

    name = "squared_hinge"
    penalty_factor = 1.0

    def __call__(
        self, scores: FloatArray, targets: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        short = np.maximum(0.0, 1.0 - targets * scores)
        return np.square(short).sum(axis=1), -2.0 * targets * short


class Logistic(Loss):
    """`sklearn.metrics.log_loss` of each row: −log p of its class.

    Probabilities are p = σ(f) for two classes, else softmax(f). With ½·alpha‖W‖² this
    is scikit-learn's LogisticRegression at C = 1/alpha.
    """

    name = "logistic"
    penalty_factor = 0.5

    def __call__(
        self, scores: FloatArray, targets: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        logits = softmax.one_column_per_class(scores)
        losses, slopes = softmax.log_loss(logits, softmax.shares_of_classes(targets))
        # a single column has the second class's scores
        return losses, slopes[:, -scores.shape[1] :]


LOSSES: Mapping[str, Loss] = {loss.name: loss for loss in (Logistic(), SquaredHinge())}


@frozen(eq=False)
class LossSums:
    """Exact sums of a loss over rows; `+` joins two sets of rows."""

    n_samples: int
    #: Σ w·ℓ
    loss: exact_sums.ExactSum
    #: Σ w·u ⊗ ∂ℓ/∂f, with unnormalised features u; shape (n_components, n_columns)
    gradient: exact_sums.ExactSum
    #: Σ w·∂ℓ/∂f, shape (n_columns,)
    intercept_gradient: exact_sums.ExactSum

    __add__ = exact_sums.add_fields


def sum_loss(
    rows: blocks.Rows, linear: predicting.LinearModel, *, loss: Loss
) -> LossSums:
    """Return a block's sums of a model's loss and its gradient.

    Features are made 256 rows at a time, which takes 2 KiB for each component and
    thread. Threads share the tiles; the strips of a tile are summed in order, so that
    threads do not change the rounding.

    Raises DataError if values are not finite, y are not targets of the model's classes,
    or a score overflows.
    """
    feature_map = linear.feature_map
    weights = linear.raw_coefficients
    inputs = feature_map.inputs_of(rows)
    targets = _checked_targets(rows, n_columns=weights.shape[1])
    height = specs.tile_rows(feature_map.n_components)
    sums: list[LossSums] = []

    def add_up(tile: slice) -> None:
        total = 0.0
        gradient = np.zeros(weights.shape)
        slopes = np.zeros(weights.shape[1])
        n_samples = tile.stop - tile.start
        strip_height = min(STRIP_ROWS, n_samples)
        features = np.empty((feature_map.n_components, strip_height))
        for strip in machine.slices(tile.start, tile.stop, STRIP_ROWS):
            strip_features = features[:, : strip.stop - strip.start]
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                for low, high in feature_map.stripes:
                    feature_map.fill(inputs[strip], strip_features[low:high], low, high)
                scores = (weights.T @ strip_features).T + linear.intercept
            first_row = rows.block.start + strip.start
            predicting.check_predictions(scores, first_row, what="score")
            losses, slope = loss(scores, targets[strip])
            if rows.sample_weight is not None:
                losses = losses * rows.sample_weight[strip]
                slope = slope * rows.sample_weight[strip, np.newaxis]
            total += float(losses.sum())
            gradient += strip_features @ slope
            slopes += slope.sum(axis=0)
        exact = exact_sums.ExactSum.of
        tile_sums = LossSums(
            n_samples=n_samples,
            loss=exact(np.asarray(total)),
            gradient=exact(gradient),
            intercept_gradient=exact(slopes),
        )
        sums.append(tile_sums)

    machine.share_out(add_up, machine.slices(0, len(inputs), height))
    # sums are exact, so the order in which threads append them does not matter
    return reduce(operator.add, sums)


def _checked_targets(rows: blocks.Rows, *, n_columns: int) -> FloatArray:
    """Return y after a check that it has only −1 and +1, and one +1 per row."""
    if rows.y is None or rows.y.shape[1] != n_columns:
        n_given = 0 if rows.y is None else rows.y.shape[1]
        raise DataError(
            f"y has {n_given} columns of class targets; the model has {n_columns}"
        )
    is_valid = (np.abs(rows.y) == 1.0).all(axis=1)
    if n_columns > 1:
        is_valid &= (rows.y > 0).sum(axis=1) == 1
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise DataError(
            f"y holds {rows.y[row].tolist()} in row {rows.block.start + row:_};"
            " expected class targets: −1 and +1, with one +1 in each row of several"
            " columns. Read labels through a labelled dataset"
        )
    return rows.y
