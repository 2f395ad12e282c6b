"""What flows share: the body of the flows that train a model, and the artifacts that flows make."""

import base64
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from rff_dist.engines.clock import Clock, products_words
from rff_dist.errors import RFFDistError
from rff_dist.features import kinds
from rff_dist.flows import running
from rff_dist.kernels.names import kernel_text, shortened_text
from rff_dist.models import versions
from rff_dist.ridge import models
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs, steps
from rff_dist.workbench.jobs import train as training
from rff_dist.workbench.jobs.verdict import verdict_of
from rff_dist.workbench.page import pages, pictures
from rff_dist.workbench.page.content import Page, to_markdown
from rff_dist.workbench.results import models as results
from rff_dist.workbench.results.rows import version_cell
from rff_dist.workbench.results.words import Table, place_words, value_words

_SHOWN_VERSIONS = 20


def train_model(parameters: running.Form, spec: type[specs.Train | specs.Tune], *, name: str) -> Summary:
    """Run the job that trains a model, and make artifacts about it: the body of a flow.

    `spec`: of the job.
    `name`: of the flow; the keys of its artifacts begin with it.
    Returns: JSON-able: the records of the steps, the `metrics` on test data (None without any), and the
      `comparison` with other models (None if nothing was compared).
    """
    log, job, clock = get_run_logger(), parameters.to(spec), Clock()
    trained = training.train(job, running.runner_of(parameters, log, clock=clock))
    result, model, place = trained.describe(), trained.model, job.destination.model
    facts, chosen = results.training_facts(trained, job.features.seed), trained.chosen
    log.info("%s; %s", facts["kernel"], "; ".join(f"{name} {facts[name]}" for name in ("features", "alpha")))
    log.info("cross-validation: %s", facts.get("cross-validation", "none"))
    for cause in chosen["causes"]:
        log.warning("%s: %s", chosen["status"], cause)
    show_choice(f"{name}-errors", model, title=result["data"], log=log)
    clock.begin("report")
    show_page(
        f"{name}-page",
        lambda: pages.model_page(
            trained.data,
            model,
            place=place,
            times=clock.times,
            comparison=trained.comparison,
            metrics=trained.metrics,
        ),
        log,
    )
    times = clock.times()
    if job.destination.register:
        show_versions(place)
    log.info("test: %s", facts.get("test", "no test data were given, so the model was not evaluated"))
    log.info("published %s", result["model"])
    verdict = verdict_of(trained.comparison)
    log.info("%s", verdict)
    summary = {
        "model": place_words(result),
        "training data": result["data"],
        **facts,
        "test": facts.get("test", "not evaluated: no test data were given"),
        "seconds": f"{times.seconds['total']:.1f}, {result['fit_seconds']:.1f} of them for the fit",
        "products of features": products_words(times.products) or None,
        "peak memory planned": result["peak_memory"],
        "digest": result["digest"],
    }
    metrics = trained.metrics
    tables = [] if metrics is None or "mae" not in metrics else [results.errors_table(metrics, model)]
    show_facts(f"{name}-summary", "Trained model", verdict, summary, *tables)
    if result["candidates"]:
        show_table(f"{name}-candidates", results.candidates_table(result["candidates"]))
    return result


# -- artifacts -------------------------------------------------------------------------------------


def show_text(what: str, text: str, description: str) -> None:
    """Make an artifact from text in Markdown."""
    create_markdown_artifact(text, key=running.key(what), description=description)


def show_table(what: str, table: Table) -> None:
    """Make an artifact from a table."""
    rows = [dict(zip(table.header, row, strict=True)) for row in table.cells()]
    create_table_artifact(rows, key=running.key(what), description=table.caption)


def show_facts(what: str, title: str, lead: str, facts: Mapping[str, Any], *tables: Table) -> None:
    """Make an artifact from a title, a sentence, facts, and the tables below them."""
    page = Page(title, lead)
    page.facts("", facts)
    page.parts.extend(tables)
    show_text(what, to_markdown(page), page.lead)


def show_choice(what: str, model: models.RidgeModel, *, title: str, log: Any) -> None:
    """Make a picture of the errors by which alpha was chosen, or log why there is none.

    `model`: its sums are not needed.
    `title`: above the axes.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            kernel = kinds.kernel_of(model.feature_map)
            about = "features as given" if kernel is None else shortened_text(kernel_text(kernel))
            picture = pictures.save_choice(model, Path(folder) / "errors.png", title=title, about=about)
        except RFFDistError as error:  # such as all errors 0: the model is good all the same
            log.info("the errors are not drawn: %s", error)
            return
        if picture is None:
            log.info("alpha was given, so there are no errors to draw")
            return
        # The picture's bytes are in the artifact, so whoever sees the run sees it, wherever the model is.
        content = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{content}",
        key=running.key(what),
        description=f"The error by which alpha={value_words(model.plain_alpha)} was chosen, against alpha.",
    )


def show_page(what: str, make: Callable[[], Page], log: Any) -> None:
    """Make an artifact from a page with its pictures, or log why it cannot be made.

    The artifact is the page itself, in Markdown: a link to an HTML file would not open, since browsers follow
    no link to a local file or to embedded data from a page that they got over HTTP.

    `make`: returns the page.
    """
    try:
        page = make()
    except RFFDistError as error:  # the model is published all the same
        log.warning("there is no page about it: %s", error)
        return
    show_text(what, to_markdown(page), page.lead)


def show_versions(model: str) -> None:
    """Make a table of the lineage of a registered model's newest versions."""
    rows = steps.version_rows(versions.RegisteredModel(model), last=_SHOWN_VERSIONS)
    header = [name.replace("_", " ") for name in rows[0]]
    cells = [[version_cell(value) for value in row.values()] for row in rows]
    show_table("model-versions", Table(f"The newest versions of {redact(model)}", header, cells))
