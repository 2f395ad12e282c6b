"""The pages about a regression, a classifier, and clusters.

The result of a job goes in, and a document of sections, tables and pictures comes out,
which HTML and Markdown render. It says what an error alone does not: on which rows the
errors were measured, which rows and columns cause them, and how the model was made.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.data import blocks, memory, samples
from rff_dist.data.columns import Column
from rff_dist.engines import clock, protocol
from rff_dist.errors import RFFDistError
from rff_dist.features import approximation, kinds
from rff_dist.living import new_rows
from rff_dist.living.ranges import count_rows, without_rows
from rff_dist.recipes import recipes
from rff_dist.ridge import fit_result, models
from rff_dist.text import first_few, redact
from rff_dist.typing import Facts, PathLike
from rff_dist.workbench.jobs import (
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
from rff_dist.workbench.jobs.comparison import OURS, ModelComparison
from rff_dist.workbench.page import (
    accuracy,
    advice,
    classes,
    columns,
    distributions,
    importance,
    learning,
    page_sample,
    pictures,
    provenance,
)
from rff_dist.workbench.results import clusters as results
from rff_dist.workbench.results import document, html, updates
from rff_dist.workbench.results import models as results_models
from rff_dist.workbench.results import rows as rows_words
from rff_dist.workbench.results.words import (
    APPROXIMATION,
    Alert,
    place_words,
    plural,
    time_words,
    value_words,
)

type Result = train.TrainingResult | refresh.UpdateResult | cluster.ClusteringResult


def page_of(
    result: Result,
    job: Any,
    *,
    read_times: provenance.ReadTimes,
    command: str | None = None,
    warned: Sequence[str] = (),
) -> document.Document:
    """Return the page about what a job made: a model, an updated model, or clusters.

    `job` is its spec, `command` the line of a shell that repeats it. `warned` are
    warnings of the job: they come first, and then those of the page itself. For
    `read_times` see `model_page`.
    """
    with warnings.catch_warnings(record=True) as caught:
        page = _page_of(result, job, read_times, command)
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    messages = [*warned, *(str(warning.message) for warning in caught)]
    if messages:
        unique = dict.fromkeys(messages)
        page.parts.insert(0, {"warning": Alert("; ".join(unique))})
    return page


def _page_of(
    result: Result, job: Any, read_times: provenance.ReadTimes, command: str | None
) -> document.Document:
    origin = {"command": command, **provenance.options_of(job)}
    if isinstance(result, cluster.ClusteringResult):
        return clusters_page(result, job, read_times=read_times, origin=origin)
    if isinstance(result, refresh.UpdateResult):
        assert result.challenger is not None  # else there is nothing to describe
        return model_page(
            fits.JobData(result.dataset),
            result.challenger,
            place=job.model,
            read_times=read_times,
            update=result.record,
            origin=origin,
        )
    return model_page(
        result.data,
        result.model,
        place=place_words(result.publication),
        read_times=read_times,
        comparison=result.comparison,
        metrics=result.metrics,
        trained=result.fitted.trained,
        origin=origin,
    )


def clusters_page(
    clustering: cluster.ClusteringResult,
    job: specs.Clustering,
    *,
    read_times: provenance.ReadTimes,
    origin: Facts,
) -> document.Document:
    """Return the page about clusters; for `origin` and others see `model_page`."""
    dataset = clustering.dataset
    clusters = clustering.clusters
    n_clusters = f"{clusters.n_clusters:,} clusters"
    lead = f"{n_clusters} of {dataset.n_samples:,} rows, by k-means in features."
    page = document.Document(f"Report: {redact(job.model or job.output)}", lead=lead)

    inertia = value_words(clusters.inertia)
    page.section("Sizes", f"Inertia {inertia} after Lloyd pass {clusters.n_iter:,}.")
    sizes = results.sizes_table(clusters.weights, 50)
    page.parts.append(sizes)
    tables = results.numbers_tables(clustering.record)
    if tables:
        about = (
            "The chosen number is the one beyond which the number of cut links rises"
            " most."
        )
        page.section("Number of clusters", about)
        page.parts += tables

    about = (
        "A sample of rows in the two directions in which their features vary most."
        " Numbers mark centres."
    )
    page.section("Map", about)
    view = pictures.view_clusters(dataset, clusters, seed=job.space.seed)
    figure = pictures.draw_clusters(view, title="Rows and centres")
    shares = " and ".join(f"{share:.0%}" for share in view.shares)
    page.picture(
        figure,
        f"{len(view.labels):,} rows and {clusters.n_clusters:,} centres in two"
        f" principal components, which hold {shares} of the variance.",
        "Similar clusters are neighbours here. Clusters that overlap may differ in"
        " other directions.",
    )
    largest = [number for number, *_ in sizes.rows[:20]]
    _representatives_section(page, clustering, largest, job.space.seed)
    origin = {**origin, **provenance.sources_facts(dataset.attributes)}
    provenance.last_sections(page, clusters, origin, read_times)
    return page


def _representatives_section(
    page: document.Document,
    clustering: cluster.ClusteringResult,
    largest: Sequence[int],
    seed: int,
) -> None:
    """Show the sampled row that is nearest to the centre of each of some clusters."""
    dataset = clustering.dataset.without_targets()
    clusters = clustering.clusters
    X = samples.sample_inputs(dataset, seed, n_rows=pictures.SAMPLE_ROWS)
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    names = list(map(str, dataset.column_names))
    table = page_sample.table_columns(names, recipes.recipe_of(dataset.attributes))
    shown = table[:10]
    about = (
        "For each of the largest clusters: the sampled row that is nearest to its"
        " centre."
    )
    if len(shown) < len(table):
        about += f" Its first {len(shown)} columns are shown."
    page.section("Representatives", about)
    rows = []
    for i in largest:
        nearest = np.square(Z - clusters.centres[i]).sum(axis=1).argmin()
        rows.append((i, *(column.cell(X[nearest]) for column in shown)))
    header = ("cluster", *(column.name for column in shown))
    page.table("Rows that represent their clusters", header, rows)


# -- the page about a regression or a classifier
# ---------------------------------------------------


MAX_APPROXIMATED = 8_192  # largest D whose approximation of the kernel is measured
NEGLIGIBLE = 1e-4  # error of an approximated kernel value that needs no table


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
    """Write the page about a model as an HTML file, from rows it was not trained on.

    `labels` are those of a classifier's rows, `times` those of the fit. For `place` see
    `model_page`. Returns the path of the file. Raises DataError if values are not
    finite; OutputExistsError if a file is there that this package did not write;
    StorageError if the file cannot be written.
    """
    # the check of a command's options: as if `path` were one of them and `--overwrite`
    # were given
    file = fields.OptionDeclaration(
        "The page.", access="writes", suffixes=(".html", ".htm")
    )
    overwrite = fields.OptionDeclaration("")
    places.check([("path", file, os.fspath(path)), ("overwrite", overwrite, True)])
    data = fits.JobData(rows, labels)
    page = model_page(
        data,
        model,
        place=place,
        read_times=lambda: times,
        comparison=judging.compare_new(data, model),
        metrics=judging.measure_errors(data, model, engine=engine),
        are_new=True,
    )
    return html.write_page(page, path)


def model_page(
    data: fits.JobData,
    model: models.RidgeModel,
    *,
    place: str,
    read_times: provenance.ReadTimes,
    comparison: ModelComparison | None = None,
    metrics: Facts | None = None,
    update: Facts | None = None,
    are_new: bool = False,
    trained: fit_result.FitResult | None = None,
    origin: Facts = MappingProxyType({}),
) -> document.Document:
    """Return the page about a regression or a classifier.

    Up to 2,000 rows of `data` are read: those it was trained on, or new ones if
    `are_new`. `place` is where the model is stored. Without a `comparison` with other
    models, rows are left out by the model's own sums, if these allow it. `metrics` are
    errors on test data, `update` the record of an update that made the model; `trained`
    has the sums of folds, from which learning curves are made; and `origin` has facts
    on the job, such as the line of a shell that repeats it. `read_times` is called at
    the end, so that the page's own time is among the job's.
    """
    if comparison is None:
        comparison = judging.compare_left_out(data, model)
    place_of_rows = redact(data.rows.url or "memory")
    missing = () if are_new else new_rows.missing_rows(model)
    held = without_rows([(0, data.rows.n_samples)], missing)
    sample = page_sample.sample_data(data, model, held)
    split = rows_words.split_words(data.rows.attributes)
    title = f"Report: {redact(place)}"
    targets = model.card.get("target_names") or model.card.get("target_columns")
    if targets:
        n_columns = plural(len(sample.columns), "column")
        title = f"Predicting {first_few(targets)} from {n_columns}"
    page = document.Document(
        title,
        lead=verdict.verdict_of(comparison),
        chips=[redact(place), *_chips(model, comparison, split)],
    )
    gate = None
    is_refused = False
    ours = OURS
    if update is not None:
        page.lead = f"{updates.decision_words(update)}: {update['reason']}."
        gate = update["gate"]
        is_refused = updates.is_refused(update)
        if is_refused:
            page.title = f"Refused update: {page.title}"
            ours = "the refused model"
        not_published = (
            "The updated model, which this page describes, was not published."
        )
        page.section("The update", not_published if is_refused else "")
        facts = updates.update_facts(update) | updates.solution_facts(update)
        page.parts.append(facts)

    accuracy.score_section(page, model, comparison, metrics, gate, ours)
    rows_kind = "new rows" if are_new else "training rows"
    shuffled = sample
    shuffled_kind = rows_kind
    tested = None
    if comparison is not None and comparison.rows.origin == "test" and not are_new:
        tested = comparison
        test = comparison.rows
        rows = page_sample.evenly(len(test.X), page_sample.SAMPLE_ROWS)
        # training rows would show what the model memorised
        shuffled = replace(sample, X=test.X[rows], y=test.targets[rows])
        shuffled_kind = "test rows"
    ranking = importance.measure_importance(shuffled, model)
    if comparison is not None and comparison.classes is not None:
        classes.confusion_section(page, comparison, comparison.classes, ranking.columns)
    elif comparison is not None:
        accuracy.residual_section(page, comparison, sample, ranking.columns)
        if comparison.rows.origin == "test":
            accuracy.interval_table(page, comparison, model, sample.targets)
    columns.columns_section(page, sample, model, ranking, shuffled_kind)
    n_held = count_rows(held)
    has_all_rows = len(sample.X) == n_held
    if comparison is not None:
        page.section("What to do")
        if is_refused:
            page.say(
                "Keep the model as it was, and look at the new rows first: updated by"
                " them it errs more."
            )
        else:
            for sentence in advice.advice_on(comparison, is_update=update is not None):
                page.say(sentence)
        if trained is not None:
            learning.show_learning(page, trained, sample.X if has_all_rows else None)
    n_rows = f"All {n_held:,}"
    if not has_all_rows:
        n_rows = f"A sample of {len(sample.X):,} of {n_held:,}"
    whose = f"{rows_kind}, of {place_of_rows}"
    page.section("Data", f"{n_rows} {whose}.", is_folded=True)
    if tested is not None and metrics is not None:
        n_test = metrics["n_samples"]
        n_dropped = data.rows.attributes.get("dropped_rows", 0) + tested.rows.n_dropped
        page.say(
            f"{n_held + n_test + n_dropped:,} rows = {n_held:,} for training +"
            f" {n_test:,} for the test + {n_dropped:,} dropped for missing or infinite"
            " values."
        )
    distributions.data_tables(page, sample, model, tested)
    _choice_section(page, model)
    _approximation_section(page, sample, model)
    test_data = None if metrics is None else metrics["test_data"]
    origin = {
        **origin,
        **provenance.sources_facts(data.rows.attributes, missing),
        "split": split,
        "test data": test_data,
        "compared with": comparison and " ".join(verdict.trainings_of(comparison)),
    }
    provenance.last_sections(page, model, origin, read_times)
    return page


def _chips(
    model: models.RidgeModel,
    comparison: ModelComparison | None,
    split: str | None,
) -> list[str]:
    """Return the short facts below the first sentence of a page."""
    kind = "classifier" if "classifier" in model.card else "regression"
    created = model.card.get("created")
    chips = [
        f"kernel {kind}",
        f"{model.card['n_samples']:,} training rows",
        comparison and verdict.rows_words(comparison),
        split,
        f"model {model.digest()[:8]}",
        created and time_words(created),
        provenance.user_words(),
    ]
    return [chip for chip in chips if chip]


def _choice_section(page: document.Document, model: models.RidgeModel) -> None:
    page.section("How it was chosen", is_folded=True)
    facts = results_models.choice_facts(model)
    if "classifier" not in model.card:
        facts["intervals"] = f"from {predict.intervals_by(model)}"
    page.parts.append(facts)
    about = kinds.kind_of(model.feature_map)
    try:
        figure = pictures.draw_choice(
            model, title="Error by penalty (alpha)", about=about
        )
    except RFFDistError as error:
        page.say(f"The errors are not drawn: {error}", is_note=True)
        figure = None
    if figure is not None:
        alpha = value_words(model.plain_alpha)
        best = f"alpha = {alpha}, D = {model.feature_map.n_components:,}"
        page.picture(
            figure,
            f"Error against alpha; the chosen place is {best}.",
            f"Chosen: {best}.",
        )
    candidates = model.card.get("candidates", [])
    if len(candidates) > 1:
        page.parts.append(results_models.candidates_table(candidates, 20))


def _approximation_section(
    page: document.Document, sample: page_sample.PageSample, model: models.RidgeModel
) -> None:
    """Show how far the features are from the kernel that they approximate."""
    kernel = kinds.kernel_of(model.feature_map)
    if kernel is None or model.feature_map.n_components > MAX_APPROXIMATED:
        return
    title = "Approximation of the kernel"
    try:
        errors = approximation.approximation_error(
            kernel, model.feature_map, memory.ArrayDataset(sample.X), n_samples=500
        )
    except RFFDistError as error:
        page.section(title, f"It was not measured: {error}", is_folded=True)
        return
    about = (
        "How far products of features are from the kernel's values, on a sample of"
        f" {errors.n_samples:,} rows."
    )
    page.section(title, about, is_folded=True)
    if errors.max < NEGLIGIBLE:
        page.say(f"They agree to within {NEGLIGIBLE:g}.")
        return
    measured = [
        (measure, getattr(errors, name)) for name, measure in APPROXIMATION.items()
    ]
    page.table("Error", ("measure", "error"), measured)
