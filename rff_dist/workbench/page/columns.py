"""Which columns matter to a model: permutation importance, relevances, exact effects, partial dependence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.predict import calibration_of, class_names, class_of, read_classes
from rff_dist.data import blocks, labelled, samples
from rff_dist.features import kinds
from rff_dist.fitting import predicting
from rff_dist.kernels import stationary
from rff_dist.numerics import machine
from rff_dist.ridge import describe, effects, models
from rff_dist.typing import FloatArray
from rff_dist.workbench.jobs import fits
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import document, html
from rff_dist.workbench.results.models import target_names
from rff_dist.workbench.results.words import value_words

# At most: curves, their rows and points, their lines, and shuffled columns.
CURVES, CURVE_ROWS, CURVE_POINTS, CURVE_CLASSES, MAX_COLUMNS = 6, 300, 25, 6, 100
# Rows that show anything at all: a page that predicts fewer says less, and takes no less time to draw.
_FEWEST_ROWS, _FEWEST_POINTS = 50, 8
# Operations that a page may take in any case, about a second; a cosine takes as long as 40 of them.
_FLOOR, _COSINE = 2e10, 40.0

_COLORS = (pictures.BLUE, *pictures.HUES[1:])

type _Predict = Callable[[NDArray[Any]], FloatArray]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many predictions a page makes.

    `columns`, `rows`: columns that are shuffled, and rows that are predicted for each.
    `curves`, `curve_rows`, `points`: columns with a curve, and rows and places of its partial dependence.
    """

    columns: int
    rows: int
    curves: int
    curve_rows: int
    points: int

    @classmethod
    def of(cls, model: models.RidgeModel, n_rows: int, n_columns: int) -> Effort:
        """Return an effort below that of the fit, by counts alone: a page that is made again is the same.

        A row's prediction projects it and makes its features. The fit did so for all of its rows and each
        candidate, and multiplied the features. The page may predict as many rows as that takes, half of them
        for shuffled columns; or as many as take a second.
        """
        D = model.feature_map.n_components
        of_row = D * (n_columns + _COSINE)
        n_fits = max(1, describe.n_candidates(model.card.get("candidates", [])))
        of_fit = model.card["n_samples"] * (of_row + D**2) * n_fits
        each = int(max(_FLOOR, of_fit) / of_row / 2.0)
        most = min(n_columns, MAX_COLUMNS)
        rows = min(n_rows, max(_FEWEST_ROWS, each // most))
        points = min(CURVE_POINTS, max(_FEWEST_POINTS, each // (CURVES * CURVE_ROWS)))
        curve_rows = min(n_rows, CURVE_ROWS, max(_FEWEST_ROWS, each // (CURVES * points)))
        return cls(
            columns=min(most, max(1, each // rows)),
            rows=rows,
            curves=min(n_columns, CURVES, max(1, each // (curve_rows * points))),
            curve_rows=curve_rows,
            points=points,
        )


def columns_section(page: document.Document, sample: PageSample, model: models.RidgeModel) -> None:
    """Add the section that shows which columns matter, and how predictions change along the first six."""
    length_scale = stationary.own_length_scale(kinds.kernel_of(model.feature_map))
    scales = np.array(length_scale) if isinstance(length_scale, tuple) else None
    n_rows, n_columns = sample.X.shape
    effort = Effort.of(model, n_rows, n_columns)
    predict, error_of, what = _measures(model, sample)
    page.section(
        "Which columns matter",
        f"Permutation importance: how much {what} rises when the column is shuffled."
        + (
            "" if scales is None else " Relevance: 1 over the column's length scale; the largest is set to 1."
        ),
    )
    rows = np.arange(n_rows)[:: -(-n_rows // effort.rows)]
    X = sample.X[rows]
    chosen = _worth_shuffling(predict(X), X, effort.columns)
    importance = permutation_importance(
        predict, X, lambda seen: error_of(seen, rows), columns=chosen, seed=SEED
    )
    order = np.argsort(-importance, kind="stable")
    # a thousandth of a standard deviation, or of a nat, is below what shuffling once can tell
    shown = [(sample.columns[chosen[i]], round(float(importance[i]), 3)) for i in order]
    if scales is None:
        page.table("Columns by importance", ("column", "importance"), shown)
    else:
        scaled = [(float(scales.min() / scales[i]), float(scales[i])) for i in chosen[order]]
        header = ("column", "importance", "relevance", "length scale")
        page.table("Columns by importance", header, [a + b for a, b in zip(shown, scaled, strict=True)])
    if len(chosen) < n_columns:
        page.say(
            f"Only the {len(chosen)} of {n_columns:,} columns that predictions correlate with most were "
            f"shuffled, on {len(rows):,} rows.",
            note=True,
        )
    _draw_curves(page, sample, model, predict, chosen[order][: effort.curves], effort)


def _measures(
    model: models.RidgeModel, sample: PageSample
) -> tuple[_Predict, Callable[[FloatArray, NDArray[np.intp]], float], str]:
    """Return what a page predicts, the error of predictions for some of the sampled rows, and its name.

    Classes are predicted as probabilities, or as scores if there are none.
    """

    def scores(inputs: NDArray[Any]) -> FloatArray:
        return predicting.predict_rows(blocks.Rows(blocks.Block(0, 0, len(inputs)), inputs), model.linear)

    calibration = calibration_of(model) if "classifier" in model.card else None
    if calibration is not None:
        truth = class_of(sample.y)

        def log_loss(seen: FloatArray, rows: NDArray[np.intp]) -> float:
            return float(-np.log(np.maximum(seen[np.arange(len(rows)), truth[rows]], 1e-300)).mean())

        return (
            lambda inputs: np.exp(calibration.log_probabilities(scores(inputs))),
            log_loss,
            "log loss (nats)",
        )
    deviations = np.where(sample.y.std(axis=0) > 0, sample.y.std(axis=0), 1.0)

    def rmse(seen: FloatArray, rows: NDArray[np.intp]) -> float:
        return float(np.sqrt(np.square((seen - sample.y[rows]) / deviations).mean()))

    return scores, rmse, "the root mean squared error, in standard deviations of the target,"


def _worth_shuffling(predictions: FloatArray, X: NDArray[Any], n_columns: int) -> NDArray[np.intp]:
    """Return the columns that predictions correlate with most, or with their squares."""
    if X.shape[1] <= n_columns:
        return np.arange(X.shape[1])
    centred = predictions - predictions.mean(axis=0)
    columns = X - X.mean(axis=0, dtype=np.float64)
    correlations = np.zeros(X.shape[1])
    for values in (columns, np.square(columns) - np.square(columns).mean(axis=0)):
        norms = np.linalg.norm(values, axis=0)
        along = np.abs(centred.T @ values).max(axis=0)
        correlations = np.maximum(correlations, along / np.where(norms > 0, norms, 1.0))
    return np.sort(np.argsort(-correlations, kind="stable")[:n_columns])


def permutation_importance(
    predict: _Predict,
    X: NDArray[Any],
    error_of: Callable[[FloatArray], float],
    *,
    columns: Sequence[int] | NDArray[np.intp],
    seed: int,
) -> FloatArray:
    """Return how much the error of predictions for rows grows when a column is shuffled, for some columns.

    Returns: float64 array of shape (n_columns,).
    """
    rng, plain = np.random.Generator(np.random.Philox(seed)), error_of(predict(X))
    permuted = [rng.permutation(X[:, column]) for column in columns]

    def growth(column: int, values: NDArray[Any]) -> float:
        shuffled = X.copy()
        shuffled[:, column] = values
        return error_of(predict(shuffled)) - plain

    with machine.tile_pool() as pool:  # so few rows are one tile, which one thread predicts
        return np.array(list(pool.map(growth, columns, permuted)))


def partial_dependence(
    predict: _Predict, X: NDArray[Any], column: int, places: Sequence[float]
) -> FloatArray:
    """Equivalent to `sklearn.inspection.partial_dependence` with `method="brute"`, at given values.

    That is the mean prediction over all rows when a column is set to one value, for each value.

    Returns: float64 array of shape (n_places, n_targets).
    """

    def mean(place: float) -> FloatArray:
        moved = X.copy()
        moved[:, column] = place
        return np.asarray(predict(moved).mean(axis=0))

    with machine.tile_pool() as pool:
        return np.array(list(pool.map(mean, places)))


def _draw_curves(
    page: document.Document,
    sample: PageSample,
    model: models.RidgeModel,
    predict: _Predict,
    columns: NDArray[np.intp],
    effort: Effort,
) -> None:
    """Draw the exact effects of some columns if the model has them, else the mean prediction along them.

    Of the first target, or of the probabilities of classes.
    """
    X, exact = sample.X, "classifier" not in model.card and effects.why_no_effects(model) is None
    lines = _lines(model, sample)
    n_lines = -(-len(columns) // 3)
    figure = pictures.figure_of(9.2, 2.7 * n_lines)
    panels = np.atleast_1d(figure.subplots(n_lines, min(3, len(columns)), sharey=True)).ravel()
    words, looked_at = [], X[:: -(-len(X) // effort.curve_rows)]
    for axes, column in zip(panels, columns, strict=False):
        places = np.unique(np.quantile(X[:, column], np.linspace(0.02, 0.98, effort.points)))
        if exact:
            heights = effects.column_effect(model, int(column), places)
        else:
            heights = partial_dependence(predict, looked_at, int(column), places.tolist())
        for color, (at, name) in zip(_COLORS, lines.items(), strict=False):
            axes.plot(places, heights[:, at], color=color, lw=2.0, label=name)
        at_bottom = {"transform": axes.get_xaxis_transform(), "color": pictures.MUTED, "ms": 6}
        axes.plot(places, np.full_like(places, 0.03), "|", **at_bottom)
        axes.set_xlabel(sample.columns[column], color=pictures.MUTED, parse_math=False)
        pictures.plain_axes(axes)
        pictures.round_ticks(axes)
        ends = ", ".join(
            f"{name} from {value_words(heights[0, at])} to {value_words(heights[-1, at])}"
            for at, name in lines.items()
        )
        words.append(f"{sample.columns[column]}: {ends}")
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    what, some = f"predicted {next(iter(lines.values()))}", ""
    if len(lines) > 1:
        for text in panels[0].legend(fontsize=7, frameon=False).get_texts():
            text.set_parse_math(False)
        what = "predicted probability of each class"
        n_classes = len(read_classes(model))
        if len(lines) < n_classes:
            some = f" Only the {len(lines)} most frequent of {n_classes} classes are drawn."
    kind = "Exact effect" if exact else "Partial dependence"
    meaning = f"the mean {what} when one column has the value on the axis in every row"
    if exact:
        meaning = (
            f"how far the {what} is from that at the column's mean, whatever the other columns are. The "
            "model is a sum of such functions of one column each"
        )
    page.picture(
        html.png_of(figure),
        f"{kind}. {'; '.join(words)}.",
        f"{kind}: {meaning}. Ticks mark the values that were tried.{some}",
    )


def _lines(model: models.RidgeModel, sample: PageSample) -> dict[int, str]:
    """Return which columns of the predictions are drawn, and their names."""
    if "classifier" not in model.card:
        return {0: sample.targets[0]}
    names = class_names(model)
    if calibration_of(model) is None:  # scores: of two classes, the second has one
        names = names[-sample.y.shape[1] :]
        return {0: f"score of {names[0]}"} if len(names) == 1 else _frequent(names, sample)
    return _frequent(names, sample)


def _frequent(names: Sequence[str], sample: PageSample) -> dict[int, str]:
    counts = np.bincount(class_of(sample.y), minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:CURVE_CLASSES])
    return {int(at): names[at] for at in kept}


# -- the training rows that a page is made from ----------------------------------------------------


SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same
SAMPLE_ROWS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class PageSample:
    """Rows of the data to describe."""

    X: NDArray[Any]
    y: FloatArray
    columns: list[str]
    targets: list[str]


def sample_data(data: fits.JobData, model: models.RidgeModel) -> PageSample:
    """Sample up to 2,000 rows of the data."""
    dataset = data.rows
    if data.labels is not None:
        dataset = labelled.LabelledDataset(dataset, data.labels, read_classes(model))
    X, y, _ = samples.sample_rows(dataset, SEED, n_rows=SAMPLE_ROWS)
    assert y is not None  # the model was trained on targets
    columns = list(dataset.feature_names or model.card.get("feature_names") or dataset.column_names)
    return PageSample(X, y, columns, target_names(model))
