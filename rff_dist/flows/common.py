"""What flows share: the body of the flows that train a model, and the artifacts that flows make."""

from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from rff_dist import fields
from rff_dist.engines.clock import Clock
from rff_dist.errors import RFFDistError
from rff_dist.flows import outcomes, running
from rff_dist.models import versions
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import publishing, specs, trees
from rff_dist.workbench.jobs import train as training
from rff_dist.workbench.page import pages
from rff_dist.workbench.results import markdown, models, words
from rff_dist.workbench.results.document import Document

_SHOWN_VERSIONS = 20


def train_model(parameters: running.Form, spec: type[specs.Train], *, name: str) -> Summary:
    """Run the job that trains a model, and make artifacts about it: the body of a flow.

    `spec`: of the job.
    `name`: of the flow; the keys of its artifacts begin with it.
    Returns: JSON-able: the records of the steps, the `metrics` on test data (None without any), and the
      `comparison` with other models (None if nothing was compared).
    """
    job, clock = parameters.to(spec), Clock()
    do = running.runner_of(parameters, clock=clock)
    trained = training.train(job, do)
    if job.test is not None:
        clock.begin("baselines")
        trained = do("baselines", trees.with_trees, trained, job.options.seed)
    place, tried = job.destination.model, trained.model.card.get("candidates", [])
    clock.begin("report")
    show_page(f"{name}-page", trained, job, clock)
    if job.destination.register:
        show_versions(place)
    found = models.training_document(trained, job, run_of(clock))
    if job.fit.candidates is None and len(tried) > 1:
        found.parts.append(models.candidates_table(tried))
    show(f"{name}-summary", found)
    return trained.describe()


def run_of(clock: Clock) -> Summary:
    """Return where a flow's time went, for `words.run_facts`; its log says where it ran."""
    return {"engine": {}, **fields.values_of(clock.times(), "seconds", "products")}


# -- artifacts -------------------------------------------------------------------------------------


def show(what: str, found: Document) -> None:
    """Make an artifact of what a job found, and log its facts; those that ask for attention as warnings."""
    log = get_run_logger()
    # Facts that ask for attention become warnings, which the page of a run colours.
    log.info(found.title)
    if found.lead:
        log.info(found.lead)
    outcomes.say(found.lead or found.title)
    for part in found.parts:
        for name, fact in part.items() if isinstance(part, dict) else ():
            if fact is not None:
                log.log(30 if isinstance(fact, words.Alert) else 20, "%s: %s", name, fact)
    show_text(what, found)


def show_text(what: str, found: Document) -> None:
    """Make an artifact of a document, in Markdown: whoever sees the run sees it, wherever the model is."""
    text, about = markdown.to_markdown(found), found.lead or found.title
    create_markdown_artifact(text, key=running.key(what), description=about)


def show_page(what: str, result: pages.Result, job: Any, clock: Clock) -> None:
    """Make an artifact of the page about what a job made, with its pictures, or log why there is none."""
    try:
        page = pages.page_of(result, job, times=clock.times)
    except RFFDistError as error:  # the model is published all the same
        get_run_logger().warning("there is no page about it: %s", error)
        return
    show_text(what, page)


def show_versions(model: str) -> None:
    """Make a table of the lineage of a registered model's newest versions."""
    rows = publishing.version_rows(versions.RegisteredModel(model), last=_SHOWN_VERSIONS)
    header = [name.replace("_", " ") for name in rows[0]]
    cells = [[words.version_cell(value) for value in row.values()] for row in rows]
    table = words.Table("", header, cells, is_facts=True)
    show_text("model-versions", Document(f"The newest versions of {redact(model)}", [table]))
