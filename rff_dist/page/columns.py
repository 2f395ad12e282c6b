"""Which columns matter to a model: permutation importance, relevances and partial dependence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Block, Rows
from rff_dist.features.kernel_of import kernel_of
from rff_dist.kernels.stationary import own_length_scale
from rff_dist.page.content import Page, png_of, words_of
from rff_dist.page.sample import SEED, PageSample
from rff_dist.report import BLUE, MUTED, figure_of, plain_axes, round_ticks
from rff_dist.ridge.linear_model import predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.typing import FloatArray

# They bound the time of a page: each point of a curve and each shuffled column predict their rows once more.
CURVES, CURVE_ROWS, CURVE_POINTS, MAX_COLUMNS = 6, 300, 25, 100

type _Predict = Callable[[NDArray[Any]], FloatArray]


def columns_section(page: Page, sample: PageSample, model: RidgeModel) -> None:
    """Add the section that says which columns matter, and how predictions change along the first six."""
    found = own_length_scale(kernel_of(model.feature_map))
    scales = np.array(found) if isinstance(found, tuple) else None
    page.section(
        "Which columns matter",
        "Permutation importance: the growth of the root mean squared error on the sampled rows when the "
        "column is shuffled, in standard deviations of the target."
        + (
            "" if scales is None else " Relevance: 1 over the column's length scale; the largest is set to 1."
        ),
    )

    def predict(inputs: NDArray[Any]) -> FloatArray:
        return predict_rows(Rows(Block(0, 0, len(inputs)), inputs), model.linear)

    importance = permutation_importance(predict, sample.X, sample.y, n_columns=MAX_COLUMNS, seed=SEED)
    order = np.argsort(importance)[::-1]
    rows = [(sample.columns[i], float(importance[i])) for i in order]
    if scales is None:
        page.table("Columns by importance", ("column", "importance"), rows)
    else:
        scaled = [(float(scales.min() / scales[i]), float(scales[i])) for i in order]
        header = ("column", "importance", "relevance", "length scale")
        page.table("Columns by importance", header, [a + b for a, b in zip(rows, scaled, strict=True)])
    if sample.X.shape[1] > MAX_COLUMNS:
        page.say(f"Only the first {MAX_COLUMNS} of {sample.X.shape[1]:,} columns were shuffled.", note=True)
    _draw_curves(page, sample, predict, order[:CURVES], "classifier" in model.card)


def permutation_importance(
    predict: _Predict, X: NDArray[Any], y: FloatArray, *, n_columns: int, seed: int
) -> FloatArray:
    """Return how much the RMSE grows when a column is shuffled, in standard deviations of the targets.

    `n_columns`: only so many of the first columns are shuffled.
    Returns: float64 array of shape (n_columns,).
    """
    deviations = np.where(y.std(axis=0) > 0, y.std(axis=0), 1.0)

    def error(inputs: NDArray[Any]) -> float:
        return float(np.sqrt(np.square((predict(inputs) - y) / deviations).mean()))

    rng, plain = np.random.Generator(np.random.Philox(seed)), error(X)
    found = []
    for column in range(min(X.shape[1], n_columns)):
        shuffled = X.copy()
        shuffled[:, column] = rng.permutation(X[:, column])
        found.append(error(shuffled) - plain)
    return np.array(found)


def partial_dependence(
    predict: _Predict, X: NDArray[Any], column: int, places: Sequence[float]
) -> FloatArray:
    """Return the mean prediction over all rows when a column is set to one value, for each value.

    Returns: float64 array of shape (n_places, n_targets).
    """
    means, moved = [], X.copy()
    for place in places:
        moved[:, column] = place
        means.append(predict(moved).mean(axis=0))
    return np.array(means)


def _draw_curves(
    page: Page, sample: PageSample, predict: _Predict, columns: NDArray[np.intp], is_score: bool
) -> None:
    X = sample.X
    n_lines = -(-len(columns) // 3)
    figure = figure_of(9.2, 2.7 * n_lines)
    panels = np.atleast_1d(figure.subplots(n_lines, min(3, len(columns)), sharey=True)).ravel()
    words, looked_at = [], X[:: -(-len(X) // CURVE_ROWS)]
    for axes, column in zip(panels, columns, strict=False):
        places = np.unique(np.quantile(X[:, column], np.linspace(0.02, 0.98, CURVE_POINTS)))
        means = partial_dependence(predict, looked_at, int(column), places.tolist())[:, 0]
        axes.plot(places, means, color=BLUE, lw=2.0)
        at_bottom = {"transform": axes.get_xaxis_transform(), "color": MUTED, "ms": 6}
        axes.plot(places, np.full_like(places, 0.03), "|", **at_bottom)
        axes.set_xlabel(sample.columns[column], color=MUTED, parse_math=False)
        plain_axes(axes)
        round_ticks(axes)
        words.append(f"{sample.columns[column]}: from {words_of(means[0])} to {words_of(means[-1])}")
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    what = "score" if is_score else sample.targets[0]
    page.picture(
        png_of(figure),
        f"Partial dependence of {what}: {'; '.join(words)}.",
        f"Partial dependence: the mean predicted {what} when one column has the value on the axis in "
        "every row. Ticks mark the values that were tried.",
    )
