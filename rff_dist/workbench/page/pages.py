"""The pages about a regression, a classifier, and clusters."""

import getpass
import itertools
import math
import os
import subprocess
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rff_dist import fields, text
from rff_dist.data import blocks, memory, samples
from rff_dist.data.columns import Column
from rff_dist.engines import clock, protocol, serial
from rff_dist.errors import RFFDistError
from rff_dist.features import approximation, kinds
from rff_dist.models.kinds import AnyModel
from rff_dist.recipes import recipes
from rff_dist.ridge import describe, models
from rff_dist.ridge.predict import predict_in_memory
from rff_dist.text import errors_words, redact
from rff_dist.typing import AnyArray, BoolArray, Facts, PathLike, Summary
from rff_dist.workbench.jobs import (
    cards,
    cluster,
    fits,
    judging,
    places,
    predict,
    refresh,
    specs,
    train,
    verdict,
)
from rff_dist.workbench.page import columns, pictures
from rff_dist.workbench.results import clusters as results
from rff_dist.workbench.results import document, html, updates
from rff_dist.workbench.results import models as results_models
from rff_dist.workbench.results import rows as rows_words
from rff_dist.workbench.results.words import (
    APPROXIMATION,
    Alert,
    table_words,
    time_words,
    value_words,
)

type Times = Callable[[], clock.Times]
type Result = train.Training | refresh.Updated | cluster.Clustered


def page_of(
    result: Result, job: Any, *, times: Times, command: str | None = None, warned: Sequence[str] = ()
) -> document.Document:
    """Return the page about what a job made: a model that was trained or updated, or clusters.

    `job`: its spec.
    `times`: see `model_page`.
    `command`: the line of a shell that repeats the job.
    `warned`: warnings of the job, which come first, before those of the page itself.
    """
    with warnings.catch_warnings(record=True) as caught:
        page = _page_of(result, job, times, command)
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    said = dict.fromkeys([*warned, *(str(warning.message) for warning in caught)])
    if said:
        page.parts.insert(0, {"warning": Alert("; ".join(said))})
    return page


def _page_of(result: Result, job: Any, times: Times, command: str | None) -> document.Document:
    about: Summary = {"times": times, "made": {"command": command, **_made_by(job)}}
    if isinstance(result, cluster.Clustered):
        return clusters_page(result, job, **about)
    if isinstance(result, refresh.Updated):
        assert result.challenger is not None  # else there is nothing to describe
        data = fits.JobData(result.dataset)
        return model_page(data, result.challenger, place=job.model, update=result.record, **about)
    about |= fields.values_of(result, "comparison", "metrics") | {"version": result.published["version"]}
    return model_page(result.data, result.model, place=job.destination.model, **about)


def clusters_page(
    clustered: cluster.Clustered, job: specs.Clustering, *, times: Times, made: Facts
) -> document.Document:
    """Return the page about clusters: their sizes, a map and representative rows.

    `times`, `made`: see `model_page`.
    """
    dataset, clusters, seed = clustered.dataset, clustered.clusters, job.space.seed
    lead = f"{clusters.n_clusters:,} clusters of {dataset.n_samples:,} rows, by k-means in features."
    page = document.Document(f"Report: {redact(job.model or job.output)}", lead=lead)
    sizes = results.sizes_table(clusters.weights, 50)
    page.section("Sizes", f"Inertia {value_words(clusters.inertia)} after Lloyd pass {clusters.n_iter:,}.")
    page.parts.append(sizes)
    if clustered.comparison is not None:
        page.section("Number of clusters", f"{clusters.n_clusters:,} clusters have the largest silhouette.")
        page.parts.append(results.numbers_table(clustered.comparison))
    about = "A sample of rows in the two directions in which their features vary most. Numbers mark centres."
    page.section("Map", about)
    view = pictures.view_clusters(dataset, clusters, seed=seed)
    figure = pictures.draw_clusters(view, title="Rows and centres")
    shares = " and ".join(f"{share:.0%}" for share in view.shares)
    page.picture(
        pictures.png_of(figure, pictures.FILE_DPI),
        f"{len(view.labels):,} rows and {clusters.n_clusters:,} centres in two principal components, "
        f"which hold {shares} of the variance.",
        "Similar clusters are neighbours here. Clusters that overlap may differ in other directions.",
    )
    X, _, _ = samples.sample_rows(dataset.without_targets(), seed, n_rows=len(view.labels))
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    names = dataset.column_names
    shown = min(10, X.shape[1])
    stand = [
        (i, *X[np.square(Z - clusters.centres[i]).sum(axis=1).argmin(), :shown].tolist())
        for i, *_ in sizes.rows[:20]
    ]
    first = "" if shown == X.shape[1] else f" Its first {shown} columns are shown."
    nearest = "For each of the largest clusters: the sampled row that is nearest to its centre."
    page.section("Representatives", nearest + first)
    page.table("Rows that represent their clusters", ("cluster", *map(str, names[:shown])), stand)
    last_sections(page, clusters, made, times)
    return page


# -- the page about a regression or a classifier ---------------------------------------------------


MAX_APPROXIMATED = 8_192  # largest D whose approximation of the kernel is measured
COVERAGES = (0.5, 0.8, 0.9, 0.95)
INTERVAL_ROWS = 1_000  # each takes D² operations, four times
NEGLIGIBLE = 1e-4  # error of an approximated kernel value that needs no table
_CLOUD: dict[str, Any] = {"s": 9, "alpha": 0.45, "color": pictures.BLUE, "linewidths": 0}
_GUIDE: dict[str, Any] = {"color": pictures.INK, "lw": 1.2, "ls": "--"}
_RESIDUAL = "observed − predicted"


def write_report(
    rows: blocks.Dataset,
    labels: Column | None,
    model: models.RidgeModel,
    path: PathLike,
    *,
    place: str,
    times: clock.Times,
    engine: protocol.Engine,
) -> Path:
    """Write the page about a model as an HTML file, from rows that it was not trained on.

    `labels`: of the rows, for a classifier.
    `place`, `times`: see `model_page`.
    Returns the path of the file.
    Raises DataError if values are not finite; OutputExistsError if a file is there that this package did not
      write; StorageError if the file cannot be written.
    """
    file = fields.Declared("The page.", place="writes", suffixes=(".html", ".htm"))
    places.check([("path", file, os.fspath(path)), ("overwrite", fields.Declared(""), True)])
    data = fits.JobData(rows, labels)
    comparison = judging.compare_new(data, model)
    errors: Any = {"comparison": comparison, "metrics": judging.measure_errors(data, model, engine=engine)}
    page = model_page(data, model, place=place, times=lambda: times, are_new=True, **errors)
    return html.write_page(page, path)


def model_page(
    data: fits.JobData,
    model: models.RidgeModel,
    *,
    place: str,
    times: Times,
    comparison: verdict.Comparison | None = None,
    metrics: Facts | None = None,
    update: Facts | None = None,
    are_new: bool = False,
    version: int | None = None,
    made: Facts = MappingProxyType({}),
) -> document.Document:
    """Return the page about a regression or a classifier.

    `data`: the rows it was trained on; up to 2,000 of them are read. Or new rows, if `are_new`.
    `place`: where the model is stored.
    `times`: returns the times of the job that made the model; called at the end.
    `comparison`: with other models. By default rows are left out by the model's own sums, if these allow it.
    `metrics`: its errors on test data.
    `update`: what `workbench.jobs.refresh.Updated.record` holds, if an update made the model.
    `version`: the number that the model is registered under.
    `made`: facts on the job, such as the line of a shell that repeats it; facts of None are left out.
    """
    classifier = "classifier" in model.card
    comparison = comparison or judging.compare_left_out(data, model)
    lead = verdict.verdict_of(comparison)
    lead = lead if update is None else f"{updates.decision_words(update)}: {update['reason']}."
    sample = columns.sample_data(data, model)
    split = rows_words.split_words(data.rows.attributes)
    created = model.card.get("created")
    chips = [
        f"kernel {'classifier' if classifier else 'regression'}",
        f"{model.card['n_samples']:,} training rows",
        comparison and comparison.rows_words,
        split,
        f"model {model.digest()[:8]}" + ("" if version is None else f", version {version}"),
        created and time_words(created),
        _user_words(),
    ]
    page = document.Document(f"Report: {redact(place)}", lead=lead, chips=[*filter(None, chips)])
    if update is not None:
        refused = update["decision"].endswith("kept")
        not_published = "The updated model, which this page describes, was not published."
        page.section("The update", not_published if refused else "")
        page.parts.append(updates.update_facts(update))
    score_section(page, model, comparison, metrics, None if update is None else update["gate"])
    if comparison is not None and comparison.classes is not None:
        _confusion_section(page, comparison, comparison.classes)
    elif comparison is not None:
        _residual_section(page, comparison, sample)
        if comparison.by == "test":
            _interval_table(page, comparison, model, sample.targets)
    columns.columns_section(page, sample, model)
    whose = "new rows" if are_new else f"the training rows, of {redact(data.rows.url or 'memory')}"
    page.section("Data", f"{len(sample.X):,} of {whose}.", folded=True)
    _data_tables(page, sample, model)
    _choice_section(page, model)
    _approximation_section(page, data.rows, model)
    made = {**made, "split": split, "test data": None if metrics is None else metrics["test_data"]}
    last_sections(page, model, made, times)
    return page


def _made_by(job: Any) -> dict[str, str | None]:
    """Return the options of a job that differ from its defaults, apart from places, and its seed."""
    values = {name: value for name, _, value in fields.values(job)}
    changed = [
        f"{one.name} = {redact(str(values[one.name]))}"
        for one in fields.options_of(type(job))
        if not (one.declared.argument or one.declared.writes or values[one.name] == one.default)
    ]
    seed = values.get("seed")  # an update has none
    return {"options": "; ".join(changed) or "all by default", "seed": None if seed is None else str(seed)}


def _user_words() -> str | None:
    """Name whose account makes the page; None where an account has no name, as in some containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # KeyError before Python 3.13
        return None
    return None if name == "root" else f"by {name}"


def _data_tables(page: document.Document, sample: columns.PageSample, model: models.RidgeModel) -> None:
    shown = sample.columns[: columns.MAX_COLUMNS]
    _draw_distributions(page, sample, shown)
    rows: list[Sequence[Any]] = [
        (column.name, *_spread(sample.X[:, column.members[0]], is_date=column.is_date))
        for column in shown
        if not column.levels
    ]
    if "classifier" not in model.card:
        rows += [(f"{name} (target)", *_spread(sample.y[:, i])) for i, name in enumerate(sample.targets)]
    page.table("Columns of numbers and dates", ("column", "mean", "std", "min", "median", "max"), rows)
    page.parts.extend(rows_words.recipe_parts(recipes.recipe_of(model.card)))


def _spread(values: AnyArray, *, is_date: bool = False) -> list[str]:
    """Return mean, std, min, median and max in words."""
    values = np.asarray(values, np.float64)
    mean, std, *others = (float(f(values)) for f in (np.mean, np.std, np.min, np.median, np.max))
    if is_date:
        return [columns.date_words(mean), f"{std:,.0f} days", *map(columns.date_words, others)]
    return _rounded((mean, std, *others), std)


def _rounded(values: Iterable[float], std: float) -> list[str]:
    """Return values in words, to three digits of their standard deviation."""
    digits = max(0, 2 - math.floor(math.log10(std))) if std > 0 else 12
    return [value_words(round(float(value), digits) + 0.0) for value in values]  # -0 becomes 0


def _draw_distributions(
    page: document.Document, sample: columns.PageSample, shown: Sequence[columns.TableColumn]
) -> None:
    figure = pictures.figure_of(9.2, 1.7 * -(-len(shown) // 4))
    panels = np.atleast_1d(figure.subplots(-(-len(shown) // 4), 4)).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, column in zip(panels, shown, strict=False):
        X = sample.X[:, list(column.members)]
        if levels := column.levels:
            # the first of two levels has no column of its own
            counts = np.append(len(X) - X.sum(), X.sum(axis=0))[-len(levels) :]
            axes.bar(np.arange(len(levels)), counts, color=pictures.BLUE)
            few = {"parse_math": False, "rotation": 30 if len(levels) > 3 else 0}
            axes.set_xticks(*([np.arange(len(levels)), levels] if len(levels) <= 8 else [[], []]), **few)
        else:
            axes.hist(X[:, 0], bins=24, color=pictures.BLUE)
            columns.label_values(axes, sample, column.members[0])
        axes.set_title(column.name, fontsize=9, color=pictures.INK, parse_math=False)
        axes.set_yticks([])
        pictures.plain_axes(axes)
    words = "Distributions of the columns: histograms, and the rows of each level."
    page.picture(pictures.png_of(figure), words, words)


def _draw_scores(page: document.Document, comparison: verdict.Comparison) -> None:
    """Draw the error of each model with its interval."""
    found = comparison.intervals()
    title = describe.TITLES[comparison.measure]
    figure = pictures.bars_of(found, f"{title}, with its {verdict.LEVEL:.0%} interval")
    shown = "; ".join(f"{name} {value_words(value)}" for name, (value, _, _) in found.items())
    about = f"{title} on {comparison.rows_words}: {shown}."
    better = "Larger" if comparison.measure in ("accuracy", "r2") else "Smaller"
    words = f"{better} is better. Models are compared row by row, which shows more than these intervals."
    page.picture(pictures.png_of(figure), about, words, shrinks=True)


def _worst_rows(
    page: document.Document, comparison: verdict.Comparison, sample: columns.PageSample, target: int
) -> None:
    observed, predicted = comparison.y[:, target], comparison.ours.values[:, target]
    residuals, shown = observed - predicted, sample.columns[:6]
    data = "test" if comparison.by == "test" else "training"
    what, called = f"row of the {data} data, from 0", comparison.numbers
    if comparison.ids is not None:
        what, called = "id", comparison.ids
    rows = []
    for row in np.argsort(-np.abs(residuals), kind="stable")[:5]:
        cells = (column.cell(comparison.X[row]) for column in shown)
        figures = value_words(float(observed[row])), float(predicted[row]), float(residuals[row])
        rows.append((f"{called[row]}", *figures, *cells))
    header = (what, f"observed {sample.targets[target]}", "predicted", "error")
    page.table("Rows with the largest errors", (*header, *(column.name for column in shown)), rows)
    if comparison.ids is None:
        page.say("An `id` that the table is ingested with would name these rows here.", note=True)


def _residual_section(
    page: document.Document, comparison: verdict.Comparison, sample: columns.PageSample
) -> None:
    page.section("Predicted and observed", f"{comparison.rows_words}.")
    shown = slice(None, None, -(-comparison.n_rows // columns.SAMPLE_ROWS))
    for target, name in enumerate(sample.targets[: columns.CURVES]):
        observed, fitted = comparison.y[shown, target], comparison.ours.values[shown, target]
        residuals = observed - fitted
        figure = pictures.figure_of(9.6, 3.4)
        left, middle, right = figure.subplots(1, 3)
        middle.scatter(fitted, residuals, **_CLOUD)
        middle.axhline(0.0, **_GUIDE)
        left.scatter(fitted, observed, **_CLOUD)
        ends = [min(observed.min(), fitted.min()), max(observed.max(), fitted.max())]
        left.plot(ends, ends, **_GUIDE)
        n_bins = min(40, max(5, len(residuals) // 10))
        right.hist(residuals, bins=n_bins, color=pictures.BLUE, edgecolor="white", lw=0.5)
        right.axvline(0.0, **_GUIDE)
        for axes, across, up in (
            (left, f"predicted {name}", f"observed {name}"),
            (middle, f"predicted {name}", _RESIDUAL),
            (right, _RESIDUAL, "rows"),
        ):
            pictures.plain_axes(axes, across, up)
            pictures.round_ticks(axes)
        low, median, high = _rounded(np.quantile(residuals, [0.05, 0.5, 0.95]), residuals.std())
        words = f"Nine of ten residuals lie between {low} and {high}; their median is {median}."
        page.picture(
            pictures.png_of(figure),
            f"Left: observed against predicted {name}, around the diagonal. Middle: residuals against "
            f"predictions. Right: histogram of the residuals. {words}",
            words,
        )
        _draw_residuals_by_column(page, residuals, comparison.X[shown], sample)
        _worst_rows(page, comparison, sample, target)


def _draw_residuals_by_column(
    page: document.Document, residuals: AnyArray, X: AnyArray, sample: columns.PageSample
) -> None:
    """Draw residuals against the three columns that they correlate with most, or with their squares."""
    order = np.argsort(-columns.correlations_with(residuals[:, np.newaxis], X), kind="stable")[:3]
    figure = pictures.figure_of(9.6, 3.0)
    panels = np.atleast_1d(figure.subplots(1, len(order), sharey=True))
    for axes, column in zip(panels, order, strict=True):
        axes.scatter(X[:, column], residuals, **_CLOUD)
        axes.axhline(0.0, **_GUIDE)
        pictures.plain_axes(axes, sample.names[column], "" if axes is not panels[0] else _RESIDUAL)
        columns.label_values(axes, sample, column)
    names = ", ".join(sample.names[column] for column in order)
    words = "Residuals against the columns that they vary most with. A trend is what the model misses."
    page.picture(pictures.png_of(figure), f"Residuals against {names}.", words)


def _interval_table(
    page: document.Document, comparison: verdict.Comparison, model: models.RidgeModel, targets: Sequence[str]
) -> None:
    """Add a table of the coverage of prediction intervals on test rows."""
    # Without held-out residuals intervals take a Cholesky factor of the Gram, of D³/3 operations.
    if model.held_out is None and (
        model.statistics is None or model.feature_map.n_components > judging.MAX_FACTOR
    ):
        return
    shown = slice(None, None, -(-comparison.n_rows // INTERVAL_ROWS))
    rows, observed = memory.ArrayDataset(comparison.X[shown]), comparison.y[shown]
    weights, groups = (
        None if values is None else values[shown] for values in (comparison.weights, comparison.groups)
    )
    found, narrow = [], []
    for level in COVERAGES:
        try:
            made = predict_in_memory(rows, model, coverage=level, engine=serial.SerialEngine())
        except RFFDistError as error:
            page.say(f"Prediction intervals were not checked: {error}", note=True)
            return
        lower, upper = (made[name].reshape(observed.shape) for name in ("lower", "upper"))
        inside = (lower <= observed) & (observed <= upper)
        for target, name in enumerate(targets[: columns.CURVES]):
            hits = inside[:, target].astype(np.float64)
            share, low, high = verdict.share_with_interval(hits, weights, groups)
            wanted = f"{level:.0%}" if len(targets) == 1 else f"{name}, {level:.0%}"
            width = float((upper - lower)[:, target].mean())
            if high < level:
                narrow.append(wanted)
            found.append((wanted, text.share(share), f"{text.share(low)} to {text.share(high)}", width))
    caption = f"Prediction intervals, from {predict.intervals_by(model)}, on {len(observed):,} test rows"
    header = ("wanted coverage", "measured coverage", f"its {verdict.LEVEL:.0%} interval", "mean width")
    page.table(caption, header, found)
    if narrow:
        page.parts.append({"too narrow": Alert(f"the intervals of {' and '.join(narrow)}")})


def _confusion_section(page: document.Document, comparison: verdict.Comparison, names: Sequence[str]) -> None:
    page.section("Classes", f"{comparison.rows_words}.")
    truth, said, logs = comparison.y, comparison.ours.values, comparison.ours.log_probabilities
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (truth, said), 1)
    shown, by_class = names[:30], []
    for i, name in enumerate(shown):
        recall = text.share(counts[i, i] / counts[i].sum()) if counts[i].any() else None
        by_class.append((name, *counts[i, : len(shown)].tolist(), recall))
    header = ("class", *(f"predicted {name}" for name in shown), "recall")
    page.table("Rows by true class and predicted class", header, by_class)
    if logs is None:
        return
    chances = np.exp(logs)
    if len(names) == 2 and len(np.unique(truth)) == 2:
        _draw_roc(page, truth == 1, logs[:, 1] - logs[:, 0], names[1])
    sure, right = chances.max(axis=1), said == truth
    edges = np.linspace(1.0 / len(names), 1.0, 7)  # the likeliest of k classes has at least 1/k
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (sure >= low) & ((sure < high) | (high == 1.0))
        if inside.any():
            means = (f"{of_rows[inside].mean():.0%}" for of_rows in (sure, right))
            rows.append((f"{low:.0%} to {high:.0%}", int(inside.sum()), *means))
    caption = "Calibration: the probability of the predicted class, and the share that is right"
    page.table(caption, ("probability", "rows", "mean probability", "share right"), rows)


def _draw_roc(page: document.Document, positive: BoolArray, scores: AnyArray, name: str) -> None:
    """Draw the ROC curve of two classes, with the area under it."""
    thresholds = np.unique(scores)[::-1]
    # How many scores lie below each threshold; the others, ties included, are called positive.
    found = [np.searchsorted(np.sort(scores[part]), thresholds) for part in (positive, ~positive)]
    true, false = (
        np.append(0.0, 1.0 - at / n) for at, n in zip(found, (positive.sum(), (~positive).sum()), strict=True)
    )
    area = float(np.trapezoid(true, false))
    figure = pictures.figure_of(4.2, 3.6)
    axes = figure.subplots()
    axes.plot(false, true, color=pictures.BLUE, lw=2.0)
    axes.plot([0, 1], [0, 1], **_GUIDE)
    pictures.plain_axes(axes, f"share of other rows that are called {name}", f"share of {name} that is found")
    auc = text.score(area, 3)
    words = f"ROC curve of {name}: the area under it (ROC AUC) is {auc}; 0.5 is chance, 1 is perfect."
    page.picture(pictures.png_of(figure), words, words, shrinks=True)


def _choice_section(page: document.Document, model: models.RidgeModel) -> None:
    page.section("How it was chosen", folded=True)
    page.parts.append(results_models.choice_facts(model))
    about, title = kinds.kind_of(model.feature_map), "Error by penalty (alpha)"
    try:
        figure = pictures.draw_choice(model, title=title, about=about)
    except RFFDistError as error:
        page.say(f"The errors are not drawn: {error}", note=True)
        figure = None
    if figure is not None:
        best = f"alpha = {value_words(model.plain_alpha)}, D = {model.feature_map.n_components:,}"
        alt = f"Error against alpha; the chosen place is {best}."
        page.picture(pictures.png_of(figure, pictures.FILE_DPI), alt, f"Chosen: {best}.")
    candidates = model.card.get("candidates", [])
    if len(candidates) > 1:
        page.parts.append(results_models.candidates_table(candidates, 20))


def _approximation_section(
    page: document.Document, dataset: blocks.Dataset, model: models.RidgeModel
) -> None:
    kernel = kinds.kernel_of(model.feature_map)
    if kernel is None or model.feature_map.n_components > MAX_APPROXIMATED:
        return
    try:
        # the four samples are disjoint
        sampled: Any = {"n_samples": min(200, dataset.n_samples // 4), "n_repeats": 4}
        inputs = dataset.without_targets()
        errors = approximation.approximation_error(kernel, model.feature_map, inputs, **sampled)
    except RFFDistError as error:
        page.section("Approximation of the kernel", f"It was not measured: {error}", folded=True)
        return
    rows = f"{errors.n_repeats} samples of {errors.n_samples:,} rows"
    about = f"How far products of features are from the kernel's values, on {rows}."
    page.section("Approximation of the kernel", about, folded=True)
    if errors.max.high < NEGLIGIBLE:
        page.say(f"They agree to within {NEGLIGIBLE:g}.")
        return
    measured = [(title, *astuple(getattr(errors, name))) for name, title in APPROXIMATION.items()]
    caption = "Error, and the confidence interval of its mean over samples"
    page.table(caption, ("measure", "error", "lower", "upper"), measured)


# -- the section on a model's errors on rows that it was not trained on ----------------------------


def score_section(
    page: document.Document,
    model: models.RidgeModel,
    comparison: verdict.Comparison | None,
    metrics: Facts | None,
    gate: Facts | None,
) -> None:
    """Add the section on a model's errors: on test rows, next to other models, and by cross-validation.

    `metrics`: on all test rows; None without any.
    `gate`: what the gate of an update found.
    """
    page.section("Accuracy")
    whole = comparison is not None and comparison.by == "test" and comparison.n_rows == comparison.n_available
    if metrics is not None and not whole:  # else the table of all models says it
        _own_table(page, f"Test: on all {metrics['n_samples']:,} rows of {metrics['test_data']}", metrics)
    if gate is not None:
        both = [("this model", gate["challenger"]), ("the model before", gate["champion"])]
        page.table(f"Test: on {gate['held_out']}", ("model", describe.TITLES["rmse"]), both)
    if comparison is not None:
        _draw_scores(page, comparison)
        header, rows = comparison.table()
        page.table(f"Compared on {comparison.rows_words}", header, rows)
        for words in comparison.about():
            page.say(words, note=True)
    page.parts += results_models.group_parts(metrics, model.card.get("target_names"))
    estimate = describe.estimate_of(model.card)
    if estimate is not None:
        _own_table(page, "This model by cross-validation", estimate)


def _own_table(page: document.Document, caption: str, errors: Facts) -> None:
    names = [name for name in describe.TITLES if name in errors]
    header = ("model", *(describe.TITLES[name] for name in names))
    shown = (errors_words(errors[name], errors.get(f"{name}_standard_error")) for name in names)
    page.table(caption, header, [("this model", *shown)])


# -- the sections on provenance and on the times of the job ----------------------------------------


def last_sections(page: document.Document, model: AnyModel, made: Facts, times: Times) -> None:
    """Add what a model is for, if its file `card` says it; its data, packages and digests; and all times.

    `made`: facts on how it was made; facts of None are left out.
    """
    card = model.card
    if cards.ABOUT in card:
        page.section("Intended use")
        page.parts.append({name.replace("_", " "): said for name, said in card[cards.ABOUT].items()})
    page.section("Provenance", folded=True)
    packages = card.get("environment", {}).get("packages", {})
    facts = {
        **made,
        "git commit": commit_of_folder(),
        "created": card.get("created"),
        "data version": card.get("data_version"),
        "data table": table_words(card.get("data_table")),
        "data fingerprint": card.get("data_fingerprint"),
        "statistics digest": card.get("statistics_digest"),
        "model digest": model.digest(),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }
    page.parts.append({name: value for name, value in facts.items() if value})
    spent = times()  # the last: the time of the page itself is in it
    if not spent.seconds:  # of a model that was loaded
        return
    page.section("Time", "From the start of the job until this page was made.", folded=True)
    total = spent.seconds["total"]
    phases = [(name, value, f"{value / total:.0%}") for name, value in spent.seconds.items()]
    page.table("Seconds by phase", ("phase", "seconds", "share"), phases)
    if spent.products is not None:
        page.say(
            f"In “accumulate” features were multiplied {clock.products_words(spent.products)}: the speed of "
            "one thread that multiplies in this way, times the number of threads.",
            note=True,
        )


def commit_of_folder() -> str | None:
    """Return the git commit of the working folder, and whether files differ from it; None if it has none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().replace("-dirty", ", with changes that are not committed")
