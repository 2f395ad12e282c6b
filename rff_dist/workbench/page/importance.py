"""How much a model's error rises if a column is shuffled.

A model and a sample of rows go in; the columns come out, the largest rise first, with
standard errors. Shuffling takes many predictions, whose number is bounded, so that the
page takes seconds. A date that became five columns of X is shuffled as one. So are
columns that correlate: shuffled singly, they make rows that do not occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csgraph

from rff_dist.classify.predict import (
    calibration_of,
    class_of,
)
from rff_dist.data import blocks
from rff_dist.fitting import predicting
from rff_dist.numerics import machine
from rff_dist.ridge import models
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen
from rff_dist.workbench.page import page_sample, pictures
from rff_dist.workbench.page.page_sample import PageSample, TableColumn
from rff_dist.workbench.results import document

BARS = 12

SHUFFLED_COLUMNS = 40

# Predictions of shuffled rows: with D = 16,384 and 40 columns they take a second.
SHUFFLED_ROWS = 20_000

# What remains of the draw's deviation is a third of one shuffle's.
SHUFFLES = 10

CORRELATED = 0.9

type Predict = Callable[[AnyArray], FloatArray]


@frozen(eq=False)
class Importance:
    """How much the error rises when columns are shuffled, the largest rise first."""

    #: columns that are shuffled alike, because they correlate; most have one
    groups: list[list[TableColumn]]
    rises: FloatArray
    #: Standard errors of the rises.
    errors: FloatArray
    #: how many rows were shuffled
    n_rows: int
    n_shuffles: int

    @property
    def names(self) -> list[str]:
        """The first two names of each group, and how many more it has."""
        names = []
        for group in self.groups:
            name = " + ".join(column.name for column in group[:2])
            if len(group) > 2:
                name += f" + {len(group) - 2:,} more"
            names.append(name)
        return names

    @property
    def columns(self) -> list[TableColumn]:
        """The first two columns of each group."""
        return [column for group in self.groups for column in group[:2]]


def measure_importance(sample: PageSample, model: models.RidgeModel) -> Importance:
    """Shuffle the columns that predictions correlate with most."""
    predict, losses = measures_of(model, sample)
    variation = variation_with(predict(sample.X), sample.X, sample.columns)
    largest = np.argsort(-variation, kind="stable")[:SHUFFLED_COLUMNS]
    shuffled = [sample.columns[i] for i in largest]
    rows = page_sample.evenly(len(sample.X), SHUFFLED_ROWS // len(shuffled))
    X = sample.X[rows]
    groups = correlated_groups(X, shuffled)
    members = [[i for column in group for i in column.members] for group in groups]
    most = SHUFFLED_ROWS // (len(X) * len(groups))
    n_shuffles = min(max(most, 1), SHUFFLES)
    rises, errors = permutation_importance(
        predict,
        X,
        losses,
        rows,
        columns=members,
        n_shuffles=n_shuffles,
        seed=page_sample.SEED,
    )
    order = np.argsort(-rises, kind="stable")
    ranked = [groups[i] for i in order]
    return Importance(ranked, rises[order], errors[order], len(X), n_shuffles)


def correlated_groups(
    X: AnyArray, columns: Sequence[TableColumn]
) -> list[list[TableColumn]]:
    """Return columns in groups; numbers that correlate, in either sense, share one."""
    first = X[:, [column.members[0] for column in columns]]
    is_number = np.array([not column.levels for column in columns])
    centred = first - first.mean(axis=0, dtype=np.float64)
    # of a constant column rounding is left, which must not correlate
    centred[:, ~is_number | (np.ptp(first, axis=0) == 0)] = 0.0
    norms = np.linalg.norm(centred, axis=0)
    scaled = centred / np.where(norms > 0, norms, 1.0)
    is_close = np.abs(scaled.T @ scaled) > CORRELATED
    n_groups, group_of = csgraph.connected_components(is_close)
    groups: list[list[TableColumn]] = [[] for _ in range(n_groups)]
    for column, group in zip(columns, group_of, strict=True):
        groups[group].append(column)
    return groups


def variation_with(
    values: FloatArray, X: AnyArray, columns: Sequence[TableColumn]
) -> FloatArray:
    """Return how much values vary with each column of a table, up to a factor.

    It is the length of what a column explains of the values: as a line, as a square, or
    by means of levels, less what as many levels explain by chance. `values` has the
    shape (n_rows, n_targets); the largest of the targets counts.
    """
    centred = values - values.mean(axis=0)
    variations = []
    for column in columns:
        if column.levels:
            _, place, counts = np.unique(
                X[:, column.members[0]], return_inverse=True, return_counts=True
            )
            sums = np.array([np.bincount(place, of_target) for of_target in centred.T])
            # means of k levels explain k - 1 by chance, of which a line has one too
            by_chance = max(len(counts) - 2, 0) * np.square(centred).mean(axis=0)
            explained = (np.square(sums) / counts).sum(axis=1) - by_chance
            variations.append(np.sqrt(max(explained.max(), 0.0)))
            continue
        linear = X[:, list(column.members)]
        linear = linear - linear.mean(axis=0, dtype=np.float64)
        squares = np.square(linear)
        terms = np.hstack([linear, squares - squares.mean(axis=0)])
        norms = np.linalg.norm(terms, axis=0)
        products = np.abs(centred.T @ terms).max(axis=0)
        variations.append((products / np.where(norms > 0, norms, 1.0)).max())
    return np.array(variations)


def permutation_importance(
    predict: Predict,
    X: AnyArray,
    losses: Losses,
    rows: IndexArray,
    *,
    columns: Sequence[Sequence[int]],
    n_shuffles: int,
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Return how much the error rises when some columns of X are shuffled together.

    A row's loss afterwards is the mean over `n_shuffles`.
    Each entry of `columns` has the numbers of columns that are shuffled alike, such as
    those of one text; `rows` are the numbers by which the losses know the rows of X.
    Returns the rises and their standard errors, of shape (n_entries,).
    """
    rng = np.random.Generator(np.random.Philox(seed))
    before = losses.each(predict(X), rows)
    # Drawn before threads start, whose order must not decide which column gets which.
    orders = [
        np.concatenate([rng.permutation(len(X)) for _ in range(n_shuffles)])
        for _ in columns
    ]
    repeated = np.tile(rows, n_shuffles)

    def rise(members: Sequence[int], order: IndexArray) -> tuple[float, float]:
        shuffled = np.tile(X, (n_shuffles, 1))
        shuffled[:, members] = X[np.ix_(order, members)]
        after = losses.each(predict(shuffled), repeated)
        return losses.rise(before, after.reshape(n_shuffles, -1).mean(axis=0))

    # so few rows are one tile, which one thread predicts
    with machine.tile_pool() as pool:
        rises = np.array(list(pool.map(rise, map(list, columns), orders)))
    return rises[:, 0], rises[:, 1]


def draw_importance(page: document.Document, importance: Importance) -> None:
    """Draw the rises of the first columns as bars."""
    bars = {}
    names = importance.names[:BARS]
    measured = zip(names, importance.rises, importance.errors, strict=False)
    for name, rise, error in measured:
        reach = 1.96 * error
        bars[name] = (rise, rise - reach, rise + reach)
    largest = "; ".join(f"{name} {rise:.3f}" for name, (rise, *_) in bars.items())
    figure = pictures.bars_of(bars, "importance, with its 95% interval", ours=len(bars))
    page.picture(
        figure,
        f"Importance of columns: {largest}.",
        "The longer, the more it matters.",
        shrinks=True,
    )


@frozen(eq=False)
class Losses:
    """The error of predictions for the sampled rows, row by row."""

    #: the error in words
    what: str
    #: returns each row's loss, for predictions of rows and the rows' numbers
    each: Callable[[FloatArray, IndexArray], FloatArray]
    #: whether the error is the root of the mean loss
    is_root: bool = False

    def rise(self, before: FloatArray, after: FloatArray) -> tuple[float, float]:
        """Return the rise of the error, and the standard error of that."""
        errors = np.array([before.mean(), after.mean()])
        slopes = np.ones(2)
        if self.is_root:
            errors = np.sqrt(errors)
            # of the root, for its error to first order
            slopes = 0.5 / np.maximum(errors, np.finfo(float).tiny)
        by_row = slopes[1] * after - slopes[0] * before
        deviation = by_row.std(ddof=min(1, len(by_row) - 1))
        return float(errors[1] - errors[0]), float(deviation / len(by_row) ** 0.5)


def measures_of(model: models.RidgeModel, sample: PageSample) -> tuple[Predict, Losses]:
    """Return what a page predicts for rows of X, and the losses of the sampled rows.

    Classes are predicted as probabilities, or as scores if there are none.
    """

    def scores(X: AnyArray) -> FloatArray:
        rows = blocks.Rows(blocks.Block(0, 0, len(X)), X)
        return predicting.predict_rows(rows, model.linear)

    calibration = calibration_of(model) if "classifier" in model.card else None
    if calibration is None:
        deviations = sample.y.std(axis=0)
        deviations[deviations == 0] = 1.0

        def squares(predicted: FloatArray, rows: IndexArray) -> FloatArray:
            errors = (predicted - sample.y[rows]) / deviations
            return np.asarray(np.square(errors).mean(axis=1))

        what = "the RMSE, in standard deviations of the target,"
        return scores, Losses(what, squares, is_root=True)

    truth = class_of(sample.y)

    def probabilities(X: AnyArray) -> FloatArray:
        return np.exp(calibration.log_probabilities(scores(X)))

    def log_losses(predicted: FloatArray, rows: IndexArray) -> FloatArray:
        of_truth = predicted[np.arange(len(rows)), truth[rows]]
        # A probability that underflows to 0 must not make the mean infinite.
        return np.asarray(-np.log(np.maximum(of_truth, 1e-300)))

    return probabilities, Losses("log loss (nats)", log_losses)
