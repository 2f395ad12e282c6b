"""The page about a regression or a classifier: its errors, its choices, and the columns that matter."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.costs.clock import Times
from rff_dist.data.blocks import Dataset
from rff_dist.data.columns import Column
from rff_dist.engines.protocol import Engine
from rff_dist.errors import RFFDistError
from rff_dist.features.approximation import approximation_error
from rff_dist.features.kernel_of import kernel_of, kind_of, length_scale_of
from rff_dist.ingest.recipe import recipe_of
from rff_dist.jobs.fits import JobData
from rff_dist.jobs.judging import compare_left_out, compare_new
from rff_dist.jobs.train import measure_errors
from rff_dist.jobs.verdict import NOTHING_COMPARED, Comparison
from rff_dist.kernels.text import kernel_text, shortened_text
from rff_dist.page.columns import CURVES, MAX_COLUMNS, columns_section
from rff_dist.page.comparison import CHOSEN_BY, score_section, update_section
from rff_dist.page.content import Page, png_of, words_of
from rff_dist.page.html import write_page
from rff_dist.page.origin import lineage_section, time_section
from rff_dist.page.sample import SAMPLE_ROWS, PageSample, sample_data
from rff_dist.report import BLUE, INK, MUTED, figure_of, plain_axes, round_ticks, save_choice
from rff_dist.ridge.model import RidgeModel
from rff_dist.text import redact
from rff_dist.typing import PathLike

MAX_APPROXIMATED = 8_192  # largest D whose approximation of the kernel is measured


def write_report(
    rows: Dataset,
    labels: Column | None,
    model: RidgeModel,
    path: PathLike,
    *,
    place: str,
    times: Times,
    engine: Engine,
) -> Path:
    """Write the page about a model as an HTML file, from rows that it was not trained on.

    `labels`: of the rows, for a classifier.
    `place`, `times`: see `model_page`.
    Returns the path of the file.
    Raises DataError if values are not finite; StorageError if the file cannot be written.
    """
    data = JobData(rows, labels)
    page = model_page(
        data,
        model,
        place=place,
        times=lambda: times,
        comparison=compare_new(data, model),
        metrics=measure_errors(data, model, engine=engine),
        are_new=True,
    )
    return write_page(page, path)


def model_page(
    data: JobData,
    model: RidgeModel,
    *,
    place: str,
    times: Callable[[], Times],
    comparison: Comparison | None = None,
    metrics: Mapping[str, Any] | None = None,
    update: Mapping[str, Any] | None = None,
    are_new: bool = False,
) -> Page:
    """Return the page about a regression or a classifier.

    `data`: the rows it was trained on; up to 2,000 of them are read. Or new rows, if `are_new`.
    `place`: where the model is stored.
    `times`: returns the times of the job that made the model; called at the end.
    `comparison`: with other models. By default rows are left out by the model's own sums, if these allow it.
    `metrics`: its errors on test data.
    `update`: what `jobs.refresh.Updated.record` holds, if an update made the model.
    """
    classifier = "classifier" in model.card
    comparison = comparison or compare_left_out(data, model)
    lead = NOTHING_COMPARED if comparison is None else comparison.verdict
    lead = lead if update is None else f"The update: {update['decision']}, since {update['reason']}."
    page = Page(f"Report: {redact(place)}", lead)
    sample = sample_data(data, model)
    kind = "classifier" if classifier else "regression"
    whose = "rows that it was not trained on" if are_new else "them"
    page.section(
        "Data",
        f"A kernel {kind}, trained on {model.card['n_samples']:,} rows"
        f"{'' if are_new else ' of ' + redact(data.rows.url or 'memory')}; {len(sample.X):,} of {whose} are "
        "summarised here.",
    )
    _data_tables(page, sample, model)
    if update is not None:
        update_section(page, update)
    score_section(page, model, comparison, metrics, None if update is None else update["gate"])
    if comparison is not None and comparison.classes is not None:
        _confusion_section(page, comparison, comparison.classes)
    elif comparison is not None:
        _residual_section(page, comparison, sample.targets)
    _choice_section(page, model)
    columns_section(page, sample, model)
    _approximation_section(page, data.rows, model)
    lineage_section(page, model.card, model.digest())
    time_section(page, times)
    return page


def _data_tables(page: Page, sample: PageSample, model: RidgeModel) -> None:
    rows: list[Sequence[Any]] = [
        (name, *_spread(sample.X[:, i])) for i, name in enumerate(sample.columns[:MAX_COLUMNS])
    ]
    if "classifier" not in model.card:
        rows += [(f"{name} (target)", *_spread(sample.y[:, i])) for i, name in enumerate(sample.targets)]
    page.table("Columns", ("column", "mean", "deviation", "least", "median", "largest"), rows)
    recipe = recipe_of(model.card)
    if recipe is not None:
        done = {one.column: one.words for one in recipe.columns if one.words != "as it is"}
        done |= {name: f"left out: {why}" for name, why in recipe.left_out.items()}
        if done:
            page.facts("What was done to the table's columns", done)


def _spread(values: NDArray[Any]) -> list[float]:
    values = np.asarray(values, np.float64)
    return [float(f(values)) for f in (np.mean, np.std, np.min, np.median, np.max)]


def _residual_section(page: Page, comparison: Comparison, targets: Sequence[str]) -> None:
    page.section("Predicted and observed", f"{comparison.rows_words}.")
    shown = slice(None, None, -(-comparison.n_rows // SAMPLE_ROWS))
    for target, name in enumerate(targets[:CURVES]):
        observed, fitted = comparison.y[shown, target], comparison.ours.values[shown, target]
        residuals = observed - fitted
        figure = figure_of(9.2, 3.9)
        left, right = figure.subplots(1, 2)
        left.scatter(fitted, observed, s=9, alpha=0.45, color=BLUE, linewidths=0)
        ends = [min(observed.min(), fitted.min()), max(observed.max(), fitted.max())]
        left.plot(ends, ends, color=INK, lw=1.2, ls="--")
        left.set_xlabel(f"predicted {name}", color=MUTED, parse_math=False)
        left.set_ylabel(f"observed {name}", color=MUTED, parse_math=False)
        right.hist(
            residuals, bins=min(40, max(5, len(residuals) // 10)), color=BLUE, edgecolor="white", lw=0.5
        )
        right.axvline(0.0, color=INK, lw=1.2, ls="--")
        right.set_xlabel("observed − predicted", color=MUTED)
        right.set_ylabel("rows", color=MUTED)
        for axes in (left, right):
            plain_axes(axes)
            round_ticks(axes)
        low, middle, high = map(words_of, np.quantile(residuals, [0.05, 0.5, 0.95]))
        words = f"Nine of ten residuals lie between {low} and {high}; their median is {middle}."
        page.picture(
            png_of(figure),
            f"Left: observed against predicted {name}, around the diagonal. Right: histogram of the "
            f"residuals. {words}",
            words,
        )


def _confusion_section(page: Page, comparison: Comparison, names: Sequence[str]) -> None:
    page.section("Classes", f"{comparison.rows_words}.")
    truth, said, logs = comparison.y, comparison.ours.values, comparison.ours.log_probabilities
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (truth, said), 1)
    shown = names[:30]
    page.table(
        "Rows by true class and predicted class",
        ("class", *(f"predicted {name}" for name in shown), "recall"),
        [
            (name, *counts[i, : len(shown)].tolist(), _share(counts[i, i], counts[i].sum()))
            for i, name in enumerate(shown)
        ],
    )
    if logs is None:
        return
    chances = np.exp(logs)
    sure, right = chances.max(axis=1), said == truth
    edges = np.linspace(1.0 / len(names), 1.0, 7)  # the likeliest of k classes has at least 1/k
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (sure >= low) & ((sure < high) | (high == 1.0))
        if inside.any():
            means = (float(of_rows[inside].mean()) for of_rows in (sure, right))
            rows.append((f"{low:.0%} to {high:.0%}", int(inside.sum()), *means))
    page.table(
        "Calibration: the probability of the predicted class, and how often it is right",
        ("probability", "rows", "mean probability", "share right"),
        rows,
    )


def _share(part: int, whole: int) -> float | None:
    return None if whole == 0 else float(part / whole)


def _choice_section(page: Page, model: RidgeModel) -> None:
    page.section("What was chosen")
    kernel = kernel_of(model.feature_map)
    scale = None if kernel is None else length_scale_of(model.feature_map)
    page.facts(
        "The model",
        {
            "kernel": "given features" if kernel is None else kernel_text(kernel),
            **({} if scale is None else {"length scale": scale if np.isscalar(scale) else "one a column"}),
            "features": kind_of(model.feature_map),
            "D, the number of features": model.feature_map.n_components,
            "alpha, the penalty": model.plain_alpha,
            "alpha chosen by": CHOSEN_BY[model.card["chosen_by"]],
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            drawn = save_choice(
                model,
                Path(folder) / "choice.png",
                title="The errors that alpha was chosen by",
                about=kind_of(model.feature_map),
            )
        except RFFDistError as error:
            page.say(f"The errors are not drawn: {error}", note=True)
        else:
            if drawn is not None:
                best = f"alpha = {words_of(model.plain_alpha)}, D = {model.feature_map.n_components:,}"
                page.picture(
                    drawn.read_bytes(),
                    f"Cross-validated error against alpha for each D; the chosen place is {best}.",
                    f"Chosen: {best}.",
                )
    # The first round's come last: they are errors of fewer rows and components.
    candidates = sorted(
        model.card.get("candidates", []), key=lambda one: (one.get("round") == "first", one["score"])
    )
    if len(candidates) > 1:
        page.table(
            "Candidates that were compared, by error as a share of the variance",
            ("kernel", "length scale", "features", "round", "D", "alpha", "error", "standard error"),
            [
                (
                    shortened_text(one["kernel"]),
                    "one a column" if isinstance(one["length_scale"], list) else one["length_scale"],
                    one["features"],
                    one.get("round", "final"),
                    one["n_components"],
                    one["alpha"],
                    one["score"],
                    one["standard_error"],
                )
                for one in candidates[:20]
            ],
        )


def _approximation_section(page: Page, dataset: Dataset, model: RidgeModel) -> None:
    kernel = kernel_of(model.feature_map)
    if kernel is None or model.feature_map.n_components > MAX_APPROXIMATED:
        return
    try:
        found = approximation_error(
            kernel,
            model.feature_map,
            dataset.without_targets(),
            n_samples=min(200, dataset.n_samples // 4),  # the four samples are disjoint
            n_repeats=4,
        )
    except RFFDistError as error:
        page.section("Approximation of the kernel", f"It was not measured: {error}")
        return
    page.section(
        "Approximation of the kernel",
        f"How far products of features are from the kernel's values, on {found.n_repeats} samples of "
        f"{found.n_samples:,} rows.",
    )
    measures = {
        "mean, of an entry": found.mean,
        "largest, of an entry": found.max,
        "operator norm, as a share of the kernel's": found.relative_operator_norm,
    }
    page.table(
        "Error, and the confidence interval of its mean over samples",
        ("measure", "error", "lower", "upper"),
        [(name, *astuple(one)) for name, one in measures.items()],
    )
