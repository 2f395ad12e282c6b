"""What a flow shows of its job in Prefect: a summary, the page about a model, versions.

In goes a job's result; out come artifacts in Markdown. Whoever can see the run can read
them, even without access to the model. The summary's facts are in the run's log too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from rff_dist.errors import RFFDistError
from rff_dist.flows import names, outcomes, stop_reports
from rff_dist.flows.running import FlowRun
from rff_dist.models.versions import RegisteredModel
from rff_dist.storage import locations, output_places
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import cluster, refresh, specs, train
from rff_dist.workbench.results import clusters, markdown, models, updates, words
from rff_dist.workbench.results.document import Document, Part, Picture
from rff_dist.workbench.results.versions import versions_table

if TYPE_CHECKING:
    from rff_dist.workbench.page import pages

_N_VERSIONS = 20  # the newest; with all of them the artifact would grow without end


def show_training(
    trained: train.TrainingResult, job: specs.Train, run: FlowRun
) -> Summary:
    """Show a trained model's page, versions and summary; return the result as JSON
    values.
    """
    show_page(trained, job, run)
    if job.destination.register:
        show_versions(job.destination.model)
    document = models.training_document(trained, job, run.describe())
    candidates = trained.model.card.get("candidates", [])
    # the document has a table of candidates if the job was given some
    if job.fit.candidates is None and len(candidates) > 1:
        document.details.append(models.candidates_table(candidates))
    show_summary(f"{run.name}-summary", document)
    return trained.describe()


def find_picture(job: specs.Clustering) -> Path | None:
    """Return the file for a picture of labels; None if these are on no local disk.

    Raises StorageError if the file cannot be written or replaced: without this check
    the run would fail after all its work.
    """
    location = locations.parse_location(job.output)
    if not location.is_local:
        return None
    picture = Path(f"{location.path}.png")
    if picture.parent.is_dir():  # else the job makes the folder
        place = locations.parse_location(picture)
        output_places.check_file(place, overwrite=job.overwrite)
    return picture


def show_clustering(
    clustered: cluster.ClusteringResult,
    job: specs.Clustering,
    run: FlowRun,
    picture: Path | None,
) -> Summary:
    """Show the clusters' page, versions and summary, draw the picture, and return the
    record.
    """
    if job.register and job.model is not None:
        show_versions(job.model)
    run.clock.begin("report")
    if picture is not None:
        from rff_dist.workbench.page import pictures

        figure = pictures.draw_clustering(
            clustered.dataset,
            clustered.clusters,
            seed=job.space.seed,
            title=Path(job.output).name,
        )
        pictures.save(figure, picture)
    show_page(clustered, job, run)
    picture_path = None if picture is None else str(picture)
    # the members that `words.run_facts` reads
    run_facts = {"plot": picture_path, **run.describe()}
    document = clusters.clustering_document(clustered, job, run_facts)
    show_summary("cluster-summary", document)
    return {**clustered.record, "picture": picture_path}


def show_update(
    updated: refresh.UpdateResult, job: specs.Update, run: FlowRun
) -> Summary:
    """Show the result of an update, and return its record."""
    record = updated.record
    if record["version"] is not None:
        show_versions(job.model)
    if updated.challenger is not None:
        show_page(updated, job, run)
    report = updates.update_document(updated, run.describe())
    show_summary("refresh-report", report)
    # in place of the sentence that `show_summary` set: this one has the reason
    outcomes.say(f"{updates.decision_words(record)}: {record['reason']}.")
    return record


def show_summary(key: str, document: Document) -> None:
    """Show a document, and log its facts: alerts as warnings.

    `key`: the part of the artifact's key that says what it is about; see `names.key`.
    The document's first sentence becomes the message of the run's last state, unless
    another is set later.
    """
    log = get_run_logger()
    log.log(logging.WARNING if document.code else logging.INFO, document.title)
    if document.lead:
        log.info(document.lead)
    outcomes.say(document.lead or document.title)
    for part in document.all_parts():
        facts = part if isinstance(part, dict) else {}
        for name, fact in facts.items():
            if fact is not None:
                # the page of a run colours warnings
                is_alert = isinstance(fact, words.Alert)
                log.log(
                    logging.WARNING if is_alert else logging.INFO, "%s: %s", name, fact
                )
    _show(key, document)


def show_page(result: pages.Result, job: Any, run: FlowRun) -> None:
    """Show the page about a result, with its pictures, or log why there is none."""
    # matplotlib takes a second, for which updates without new rows need not wait
    from rff_dist.workbench.page import pages

    run.clock.begin("report")
    try:
        page = pages.page_of(result, job, read_times=run.clock.times)
    except RFFDistError as error:  # the model is published all the same
        get_run_logger().warning("there is no page about it: %s", error)
        return
    _show(f"{run.name}-page", page)


def show_versions(model: str) -> None:
    """Show a registered model's newest versions, and their errors as a line."""
    registered = RegisteredModel(model)
    newest = registered.versions(last=_N_VERSIONS)
    parts: list[Part] = [versions_table(registered, last=_N_VERSIONS)]
    if len(newest) > 1:
        # matplotlib takes a second, for which a first version need not wait
        from rff_dist.workbench.page import pictures

        figure = pictures.draw_versions(newest, title="Errors of versions")
        if figure is not None:
            caption = (
                "Each version's error on the rows that it was judged by: those of its"
                " test, of cross-validation, or the newest rows of an update. Where the"
                " line is dotted, these rows differ, which may be why the error does."
            )
            parts.append(Picture(figure, "Errors of versions, as a line", caption))
    title = f"The newest versions of {names.name_of(model)}"
    lead = stop_reports.served_version(model)
    _show("model-versions", Document(title, parts, lead=lead))


def _show(key: str, document: Document) -> None:
    full_key = names.key(key)
    number = create_markdown_artifact(
        markdown.to_markdown(document),
        key=full_key,
        description=document.lead or document.title,
    )
    link = names.link_to(f"artifacts/artifact/{number}", full_key)
    outcomes.links_shown.get().append(link)
