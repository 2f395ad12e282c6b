"""The page about a regression or a classifier: its errors, its choices, and the columns that matter."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.predict import calibration_of, class_of, decide, read_classes
from rff_dist.costs.clock import Times
from rff_dist.data.blocks import Dataset
from rff_dist.errors import RFFDistError
from rff_dist.features.approximation import approximation_error
from rff_dist.features.kernel_of import kernel_of, kind_of, length_scale_of
from rff_dist.ingest.recipe import recipe_of
from rff_dist.jobs.fits import JobData, estimate_of
from rff_dist.kernels.text import kernel_text, shortened_text
from rff_dist.page.columns import CURVES, MAX_COLUMNS, columns_section
from rff_dist.page.comparison import HeldOutErrors, update_section
from rff_dist.page.content import Page, png_of, words_of
from rff_dist.page.origin import origin_sections
from rff_dist.page.sample import MAX_FACTOR, PageSample, linear_errors, sample_data
from rff_dist.report import BLUE, INK, MUTED, figure_of, plain_axes, round_ticks, save_choice
from rff_dist.ridge.model import RidgeModel
from rff_dist.text import redact

_CHOSEN_BY = {
    "cv": "k-fold cross-validation",
    "press": "leave-one-out cross-validation",
    "gcv": "generalised cross-validation (GCV)",
    "evidence": "the evidence",
    "given": "nothing: it was given",
}


def model_page(
    data: JobData,
    model: RidgeModel,
    *,
    place: str,
    times: Times,
    compared: HeldOutErrors | None = None,
    update: Mapping[str, Any] | None = None,
) -> Page:
    """Return the page about a regression or a classifier.

    `data`: the rows it was trained on; up to 2,000 of them are read.
    `place`: where the model is stored.
    `times`: of the job that made the model.
    `compared`: its errors on held-out rows, and those of other models.
    `update`: what `jobs.refresh.outcome` returned, if an update made the model. Its gate replaces `compared`.
    """
    classifier = model.card.get("classifier")
    kind = "classifier" if classifier else "regression"
    page = Page(f"Report: {redact(place)}", f"A kernel {kind}, trained on {model.card['n_samples']:,} rows.")
    sample = sample_data(data, model)
    _data_section(page, data.rows, sample, model)
    if update is not None:
        update_section(page, update)
        compared = HeldOutErrors.by_gate(update["gate"])
    _score_section(page, sample, model, compared)
    if classifier:
        _confusion_section(page, sample, model)
    else:
        _residual_section(page, sample)
    _choice_section(page, model)
    columns_section(page, sample, model)
    _approximation_section(page, data.rows, model)
    origin_sections(page, model.card, model.digest(), times)
    return page


def _data_section(page: Page, dataset: Dataset, sample: PageSample, model: RidgeModel) -> None:
    page.section(
        "Data",
        f"{redact(dataset.url or 'Rows in memory')}: {dataset.n_samples:,} rows. This page is made from "
        f"{len(sample.X):,} of them.",
    )
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


def _score_section(page: Page, sample: PageSample, model: RidgeModel, compared: HeldOutErrors | None) -> None:
    page.section("How good it is", "Errors on rows that were held out, beside those of simpler models.")
    if compared is not None:
        compared.show(page)
    found = estimate_of(model.card)
    if "classifier" in model.card:
        share = np.bincount(class_of(sample.y)).max() / len(sample.y)
        ours = ("this model", (found or {}).get("accuracy"), (found or {}).get("log_loss"))
        rows = [ours, ("the most frequent class", float(share), None)]
        page.table("Share of rows classified correctly", ("model", "accuracy", "log loss"), rows)
        return
    linear = linear_errors(sample)
    for target, name in enumerate(sample.targets):
        deviation = float(sample.y[:, target].std())
        estimated = (None, None) if found is None else (found["rmse"][target], found["r2"][target])
        explained = None if deviation == 0 else 1 - (linear[target] / deviation) ** 2
        rows = [("this model", *estimated), ("linear", linear[target], explained), ("the mean", deviation, 0)]
        page.table(f"Root mean squared error of {name}", ("model", "RMSE", "R²"), rows)
    how = "was not estimated when alpha was chosen"
    if found is not None:
        how = f"was estimated by {_CHOSEN_BY.get(found['by'], found['by'])}"
    page.say(
        f"This model's error {how}. Linear: least squares on the {len(sample.X):,} sampled rows, "
        "each left out in turn.",
        note=True,
    )


def _residual_section(page: Page, sample: PageSample) -> None:
    how = "each predicted from all other rows" if sample.left_out else "which the model was trained on"
    page.section("Predicted and observed", f"{len(sample.X):,} rows, {how}.")
    for target, name in enumerate(sample.targets[:CURVES]):
        observed, fitted = sample.y[:, target], sample.fitted[:, target]
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


def _confusion_section(page: Page, sample: PageSample, model: RidgeModel) -> None:
    page.section(
        "Classes",
        f"{len(sample.X):,} rows that the model was trained on. New rows are classified less well, as the "
        "table above says.",
    )
    names, calibration = [str(name) for name in read_classes(model)], calibration_of(model)
    truth, said = class_of(sample.y), decide(sample.fitted, calibration)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (truth, said), 1)
    shown = names[:30]
    page.table(
        "Rows by true class and predicted class",
        ("class", *(f"predicted {name}" for name in shown), "recall"),
        [
            (name, *counts[i, : len(shown)].tolist(), float(counts[i, i] / max(1, counts[i].sum())))
            for i, name in enumerate(shown)
        ],
    )
    if calibration is None:
        return
    chances = np.exp(calibration.log_probabilities(sample.fitted))
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == truth
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
            "alpha chosen by": _CHOSEN_BY.get(by := model.card.get("chosen_by", "–"), by),
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
                    f"Held-out error against alpha for each D; the chosen place is {best}.",
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
                    one.get("features", "fourier"),
                    one.get("round", "final"),
                    one["n_components"],
                    one["alpha"],
                    one["score"],
                    one.get("standard_error"),
                )
                for one in candidates[:20]
            ],
        )


def _approximation_section(page: Page, dataset: Dataset, model: RidgeModel) -> None:
    kernel = kernel_of(model.feature_map)
    if kernel is None or model.feature_map.n_components > 2 * MAX_FACTOR:
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
