"""Which columns matter to a model: permutation importance, relevances, exact effects, partial dependence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rff_dist.classify.predict import calibration_of, class_names, class_of, read_classes
from rff_dist.data import blocks, samples
from rff_dist.features import kinds
from rff_dist.fitting import predicting
from rff_dist.kernels import stationary
from rff_dist.numerics import machine
from rff_dist.recipes import recipes
from rff_dist.ridge import describe, effects, models
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen
from rff_dist.workbench.jobs import fits
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import document
from rff_dist.workbench.results.models import target_names
from rff_dist.workbench.results.words import value_words

# At most: curves, their rows and points, their lines, bars, and shuffled columns.
CURVES, CURVE_ROWS, CURVE_POINTS, CURVE_CLASSES, BARS, MAX_COLUMNS = 6, 300, 25, 6, 12, 100
# Rows that show anything at all: a page that predicts fewer says less, and takes no less time to draw.
_FEWEST_ROWS, _FEWEST_POINTS = 50, 8
# Operations that a page may take in any case, about a second; a cosine takes as long as 40 of them.
_FLOOR, _COSINE = 2e10, 40.0

_COLORS = (pictures.BLUE, *pictures.HUES[1:])

type _Predict = Callable[[AnyArray], FloatArray]


@frozen
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
        columns = min(most, max(1, each // rows))
        curves = min(n_columns, CURVES, max(1, each // (curve_rows * points)))
        return cls(columns, rows, curves, curve_rows, points)


def columns_section(page: document.Document, sample: PageSample, model: models.RidgeModel) -> None:
    """Add the section that shows which columns matter, and how predictions change along the first six."""
    length_scale = stationary.own_length_scale(kinds.kernel_of(model.feature_map))
    scales = np.array(length_scale) if isinstance(length_scale, tuple) else None
    n_rows = len(sample.X)
    effort = Effort.of(model, n_rows, len(sample.columns))
    predict, losses = _measures(model, sample)
    about = (
        f"Permutation importance: how much {losses.what} rises when the column is shuffled, ± its standard "
        "error over rows."
    )
    if scales is not None:
        about += " Relevance: 1 over the column's length scale; the largest is set to 1."
    page.section("Which columns matter", about)
    rows = np.arange(n_rows)[:: -(-n_rows // effort.rows)]
    X = sample.X[rows]
    chosen = _worth_shuffling(predict(X), X, sample.columns, effort.columns)
    members = [column.members for column in chosen]
    rises, errors = permutation_importance(predict, X, losses, rows, columns=members, seed=SEED)
    order = np.argsort(-rises, kind="stable")
    # a thousandth of a standard deviation, or of a nat, is below what shuffling once can tell
    shown = [(chosen[i].name, f"{rises[i]:.3f} ± {errors[i]:.3f}") for i in order]
    bars = {chosen[i].name: (rises[i], rises[i] - errors[i], rises[i] + errors[i]) for i in order[:BARS]}
    largest = "; ".join(f"{name} {value:.3f}" for name, (value, *_) in bars.items())
    across = "importance, ± one standard error"
    picture = pictures.png_of(pictures.bars_of(bars, across, ours=len(bars)))
    page.picture(
        picture, f"Importance of columns: {largest}.", "The longer, the more it matters.", shrinks=True
    )
    if scales is None:
        page.table("Columns by importance", ("column", "importance"), shown)
    else:
        shortest = [float(scales[list(chosen[i].members)].min()) for i in order]
        header = ("column", "importance", "relevance", "length scale")
        scaled = [(f"{scales.min() / scale:.3f}", scale) for scale in shortest]
        page.table("Columns by importance", header, [a + b for a, b in zip(shown, scaled, strict=True)])
    if len(chosen) < len(sample.columns):
        page.say(
            f"Only the {len(chosen)} of {len(sample.columns):,} columns that predictions correlate with most "
            f"were shuffled, on {len(rows):,} rows.",
            note=True,
        )
    _draw_curves(page, sample, model, predict, [chosen[i] for i in order[: effort.curves]], effort)


@frozen(eq=False)
class Losses:
    """What predictions of the sampled rows cost.

    `what`: the error in words.
    `each`: returns each row's loss, for predictions of rows and the rows' numbers.
    `is_root`: whether the error is the root of the mean loss.
    """

    what: str
    each: Callable[[FloatArray, IndexArray], FloatArray]
    is_root: bool = False

    def rise(self, before: FloatArray, after: FloatArray) -> tuple[float, float]:
        """Return how much the error rises with the rows' losses, and the standard error of that."""
        ends = np.array([before.mean(), after.mean()])
        slopes = np.ones(2)
        if self.is_root:
            ends = np.sqrt(ends)
            slopes = 0.5 / np.maximum(ends, np.finfo(float).tiny)  # of the root, for its error to first order
        each = slopes[1] * after - slopes[0] * before
        return float(ends[1] - ends[0]), float(each.std(ddof=min(1, len(each) - 1)) / len(each) ** 0.5)


def _measures(model: models.RidgeModel, sample: PageSample) -> tuple[_Predict, Losses]:
    """Return what a page predicts, and what predictions for the sampled rows cost.

    Classes are predicted as probabilities, or as scores if there are none.
    """

    def scores(inputs: AnyArray) -> FloatArray:
        return predicting.predict_rows(blocks.Rows(blocks.Block(0, 0, len(inputs)), inputs), model.linear)

    calibration = calibration_of(model) if "classifier" in model.card else None
    if calibration is not None:
        truth = class_of(sample.y)

        def log_losses(seen: FloatArray, rows: IndexArray) -> FloatArray:
            # A probability that underflows to 0 must not make the mean infinite.
            return np.asarray(-np.log(np.maximum(seen[np.arange(len(rows)), truth[rows]], 1e-300)))

        return (
            lambda inputs: np.exp(calibration.log_probabilities(scores(inputs))),
            Losses("log loss (nats)", log_losses),
        )
    deviations = np.where(sample.y.std(axis=0) > 0, sample.y.std(axis=0), 1.0)

    def squares(seen: FloatArray, rows: IndexArray) -> FloatArray:
        return np.asarray(np.square((seen - sample.y[rows]) / deviations).mean(axis=1))

    what = "the root mean squared error, in standard deviations of the target,"
    return scores, Losses(what, squares, is_root=True)


def _worth_shuffling(
    predictions: FloatArray, X: AnyArray, columns: Sequence[TableColumn], most: int
) -> list[TableColumn]:
    """Return the columns that predictions correlate with most, or with their squares."""
    if len(columns) <= most:
        return list(columns)
    correlations = correlations_with(predictions, X)
    by_column = [correlations[list(column.members)].max() for column in columns]
    return [columns[i] for i in np.sort(np.argsort(-np.array(by_column), kind="stable")[:most])]


def correlations_with(values: FloatArray, X: AnyArray) -> FloatArray:
    """Return how much values of shape (n_rows, n) vary with each column or its square, up to a factor."""
    centred = values - values.mean(axis=0)
    columns = X - X.mean(axis=0, dtype=np.float64)
    correlations = np.zeros(X.shape[1])
    for seen in (columns, np.square(columns) - np.square(columns).mean(axis=0)):
        norms = np.linalg.norm(seen, axis=0)
        along = np.abs(centred.T @ seen).max(axis=0)
        correlations = np.maximum(correlations, along / np.where(norms > 0, norms, 1.0))
    return correlations


def permutation_importance(
    predict: _Predict,
    X: AnyArray,
    losses: Losses,
    rows: IndexArray,
    *,
    columns: Sequence[Sequence[int]],
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Return how much the error of predictions for rows grows when some columns are shuffled together.

    `rows`: numbers of these rows, which the losses know their targets by.
    `columns`: for each entry, numbers of columns of X that are shuffled alike, such as those of one text.
    Returns the rises and their standard errors, two float64 arrays of shape (n_entries,).
    """
    rng, plain = np.random.Generator(np.random.Philox(seed)), losses.each(predict(X), rows)
    # Drawn before threads start, whose order must not decide which column gets which.
    orders = [rng.permutation(len(X)) for _ in columns]

    def growth(members: Sequence[int], order: IndexArray) -> tuple[float, float]:
        shuffled = X.copy()
        shuffled[:, members] = X[np.ix_(order, members)]
        return losses.rise(plain, losses.each(predict(shuffled), rows))

    with machine.tile_pool() as pool:  # so few rows are one tile, which one thread predicts
        found = np.array(list(pool.map(growth, map(list, columns), orders))).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def partial_dependence(
    predict: _Predict, X: AnyArray, members: Sequence[int], places: AnyArray
) -> FloatArray:
    """Equivalent to `sklearn.inspection.partial_dependence` with `method="brute"`, at given values.

    That is the mean prediction over all rows when some columns are set to values, for each set of values.

    `places`: array of shape (n_places, n_members).
    Returns: float64 array of shape (n_places, n_targets).
    """

    def mean(place: AnyArray) -> FloatArray:
        moved = X.copy()
        moved[:, list(members)] = place
        return np.asarray(predict(moved).mean(axis=0))

    with machine.tile_pool() as pool:
        return np.array(list(pool.map(mean, places)))


def _draw_curves(
    page: document.Document,
    sample: PageSample,
    model: models.RidgeModel,
    predict: _Predict,
    columns: Sequence[TableColumn],
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
        members, places, levels = column.places(X, effort.points)
        if exact:
            parts = [effects.column_effect(model, i, places[:, at]) for at, i in enumerate(members)]
            heights = np.sum(parts, axis=0)
        else:
            heights = partial_dependence(predict, looked_at, members, places)
        across = np.arange(len(places)) if levels else places[:, 0]
        for color, (at, name) in zip(_COLORS, lines.items(), strict=False):
            # a line between levels would show what is nowhere
            axes.plot(across, heights[:, at], "o" if levels else "-", color=color, lw=2.0, label=name)
        if levels:
            axes.set_xticks(across, levels, parse_math=False, rotation=30 if len(levels) > 3 else 0)
            axes.set_xlim(-0.5, len(levels) - 0.5)
        else:
            at_bottom = {"transform": axes.get_xaxis_transform(), "color": pictures.MUTED, "ms": 6}
            axes.plot(across, np.full_like(across, 0.03), "|", **at_bottom)
        if column.is_date:
            ends_of = [across[0], across[-1]]
            axes.set_xticks(ends_of, [date_words(end) for end in ends_of])
        elif not levels:
            pictures.round_ticks(axes)
        pictures.plain_axes(axes, column.name)
        ends = ", ".join(
            f"{name} from {value_words(heights[0, at])} to {value_words(heights[-1, at])}"
            for at, name in lines.items()
        )
        words.append(f"{column.name}: {ends}")
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
    meaning = f"the mean {what} when one column has the value on the axis in every row; dots are levels"
    if exact:
        meaning = (
            f"how far the {what} is from that at the column's mean, whatever the other columns are. The "
            "model is a sum of such functions of one column each"
        )
    caption = f"{kind}: {meaning}. Ticks mark the values that were tried.{some}"
    page.picture(pictures.png_of(figure), f"{kind}. {'; '.join(words)}.", caption)


def _lines(model: models.RidgeModel, sample: PageSample) -> dict[int, str]:
    """Return which columns of the predictions are drawn, and their names."""
    if "classifier" not in model.card:
        return {0: sample.targets[0]}
    names = class_names(model)
    if calibration_of(model) is None:  # scores: of two classes, the second has one
        names = names[-sample.y.shape[1] :]
        if len(names) == 1:
            return {0: f"score of {names[0]}"}
    counts = np.bincount(class_of(sample.y), minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:CURVE_CLASSES])
    return {int(at): names[at] for at in kept}


def label_values(axes: Any, sample: PageSample, column: int) -> None:
    """Put ticks at values of a column of X that lies across: two dates, 0 and 1, or round numbers."""
    pictures.round_ticks(axes)
    values = np.unique(sample.X[:, column])
    if column in sample.dates:
        axes.set_xticks(values[[0, -1]], [date_words(end) for end in values[[0, -1]]])
    elif {*values} <= {0.0, 1.0}:
        axes.set_xticks([0, 1])
        axes.set_xlim(-0.5, 1.5)


def date_words(days: float) -> str:
    """Return a day by its number since 1970."""
    return str(np.datetime64(int(np.floor(days)), "D"))


# -- the training rows that a page is made from ----------------------------------------------------


SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same
SAMPLE_ROWS = 2_000


@frozen
class TableColumn:
    """A column of the table that X was made of.

    `members`: the columns of X that it became.
    `levels`: of text, in the order of the members; of two levels only the second has a member.
    `is_date`: whether the first member is in days since 1970.
    """

    name: str
    members: tuple[int, ...]
    levels: tuple[str, ...] = ()
    is_date: bool = False

    def cell(self, row: AnyArray) -> str:
        """Return what a row of X had in this column of the table; "" for a missing level."""
        values = np.asarray(row, np.float64)[list(self.members)]
        if self.levels:
            # The first of two levels has no column: it is there where the other is not.
            marks = np.append(1.0 - values.sum(), values)[-len(self.levels) :]
            return self.levels[int(marks.argmax())] if marks.max() > 0 else ""
        if self.is_date:
            return date_words(values[0])
        return value_words(float(values[0]))

    def places(self, X: AnyArray, most: int) -> tuple[tuple[int, ...], AnyArray, Sequence[str]]:
        """Return columns of X, values to set them to, of shape (n_places, n_columns), and names of levels.

        There are no levels for numbers, of which only the first column is set.
        """
        if len(self.levels) > 1:
            n = len(self.levels)
            return self.members, np.eye(n)[:, n - len(self.members) :], self.levels
        values = X[:, self.members[0]]
        places = np.unique(values)
        if len(places) > 2:
            # By quantiles, so that places lie where rows are; outliers at the ends would stretch the axis.
            places = np.unique(np.quantile(values, np.linspace(0.02, 0.98, most)))
            return self.members[:1], places[:, np.newaxis], ()
        return self.members[:1], places[:, np.newaxis], [value_words(float(place)) for place in places]


@frozen(eq=False)
class PageSample:
    """Rows of the data to describe.

    `names`: of X's columns.
    `columns`: those of the table that X was made of; X's own without a recipe.
    """

    X: AnyArray
    y: FloatArray
    names: list[str]
    columns: list[TableColumn]
    targets: list[str]

    @property
    def dates(self) -> set[int]:
        """The columns of X that are days since 1970."""
        return {column.members[0] for column in self.columns if column.is_date}


def sample_data(data: fits.JobData, model: models.RidgeModel) -> PageSample:
    """Sample up to 2,000 rows of the data."""
    dataset = data.rows
    X, y, _ = samples.sample_rows(data.with_targets(model), SEED, n_rows=SAMPLE_ROWS)
    assert y is not None  # the model was trained on targets
    names = list(dataset.feature_names or model.card.get("feature_names") or dataset.column_names)
    return PageSample(X, y, names, _table_columns(names, recipes.recipe_of(model.card)), target_names(model))


def _table_columns(names: Sequence[str], recipe: recipes.Recipe | None) -> list[TableColumn]:
    if recipe is None or recipe.transformer is not None or recipe.names != list(names):
        return [TableColumn(name, (i,)) for i, name in enumerate(names)]
    columns, first = [], 0
    for encoder in recipe.columns:
        members = tuple(range(first, first + len(encoder.names)))
        first += len(members)
        name = encoder.names[0] if len(members) == 1 else encoder.column
        if isinstance(encoder, recipes.OneHot):
            levels = (*encoder.levels, *(["others"] if encoder.rest else []))
            columns.append(TableColumn(encoder.column, members, levels))
        else:
            is_date = isinstance(encoder, recipes.Date) and encoder.parts[0] == "elapsed-days"
            columns.append(TableColumn(encoder.column if is_date else name, members, (), is_date))
    return columns
