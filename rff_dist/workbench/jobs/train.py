"""The job that trains a model: inspect → choose → draw → broadcast → accumulate → solve → evaluate → publish.

A `Fit` says what is trained: a ridge regression, a classifier, or the best of given candidates. Until it is
published, the model lies with its exact sums next to the output, as a checksummed record.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rff_dist import fields
from rff_dist.classify.fit import FittedModel
from rff_dist.data import blocks, labelled
from rff_dist.data.grids import GridDataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, RFFDistError, StorageError
from rff_dist.models import versions
from rff_dist.ridge import choices as ridge_choices
from rff_dist.ridge import models
from rff_dist.ridge.choices import Choices
from rff_dist.storage import datasets, grids, locations, output_places, records
from rff_dist.storage.columns import column_of, fold_by_time, open_labelled
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import (
    cards,
    fits,
    judging,
    publishing,
    specs,
    steps,
    training,
    verdict,
    watching,
)

logger = logging.getLogger(__name__)

_TRAINED, _PLAN = "trained-model", "plan"


@frozen
class Training:
    """What a training job made.

    `data`: the rows that it trained on.
    `plan`, `chosen`, `published`: JSON-able: the data and what the fit was to take; what was chosen, and how
      good it is; where the model is.
    `metrics`: JSON-able errors on test data; None without any.
    `comparison`: with other models; None if nothing was compared.
    """

    data: fits.JobData
    fitted: FittedModel
    plan: Summary
    chosen: Summary
    published: Summary
    metrics: Summary | None
    comparison: verdict.Comparison | None

    @property
    def model(self) -> models.RidgeModel:
        return self.fitted.model

    def describe(self) -> Summary:
        """Return all that is JSON-able, with `metrics` and `comparison`."""
        compared = None if self.comparison is None else self.comparison.describe()
        return {**self.plan, **self.chosen, **self.published, "metrics": self.metrics, "comparison": compared}


type _Opened = tuple[fits.JobData, fits.JobData | None]


@watching.watched
def train(job: specs.Train, do: steps.Runner, rows: _Opened | None = None) -> Training:
    """Train a model and publish it.

    `rows`: to train on, and to test on; by default those that the job names.
    Raises RFFDistError, before the engine starts, if the options do not suit the data, another run writes to
      the same place, or a model cannot be written there; then as each step.
    """
    about, (data, test) = cards.read_about(job.card), rows or open_data(job)
    fit = job.fit.on(data)
    output = publishing.check_place(job.destination, [] if data.rows.url is None else [data.rows.url])
    check_test(data, test)
    fit.check_data(data.rows)
    # The longest pass decides whether a cluster is worth starting.
    n_samples = max(data.rows.n_samples, (test or data).rows.n_samples)
    do.limits.check_before(data.rows, fit.options, do.cluster(n_samples))
    with (
        open_run(output, do.holder) as folder,
        do.open_engine(n_samples) as engine,
        steps.resumable(engine, output),
    ):
        choices, plan = do("inspect", inspect, fit, data, folder, engine=engine)
        do.limits.check(choices.plan)

        # Measure the columns; choose kernel and length scales; draw W and b; broadcast them to every worker;
        # accumulate Z'Z and Z'y; choose alpha and solve (Z'Z + alpha·I) w = Z'y. See `ridge.fit.fit`.
        start = time.perf_counter()
        fitted = fit.train(choices, engine=engine, do=do)
        seconds = time.perf_counter() - start
        fitted = replace(fitted, trained=replace(fitted.trained, model=fitted.model.with_card(**about)))

        # Before evaluation and publication, either of which may fail after hours of work.
        do("keep", models.write_model, fitted.model, folder.place(_TRAINED), overwrite=True)
        chosen = {**fits.describe_fit(fitted.trained), "fit_seconds": round(seconds, 3)}
        metrics = None
        if test is not None:
            metrics = do("evaluate", judging.measure_errors, test, fitted.model, engine=engine)
        published = do.once("publish", publish, job, fitted.model, metrics, data=data, folder=folder)
        # After the publication, so that baselines that fail cost no model.
        comparison = do("compare", judging.compare, fit, fitted, data, test, engine=engine)
    return Training(data, fitted, plan, chosen, published, metrics, comparison)


@dataclass(slots=True)
class RunFolder:
    """Where a run keeps its records, next to its output; `kept` if the folder is to outlive the run."""

    location: locations.Location
    kept: bool = False

    def place(self, name: str) -> str:
        """Return the URL of a record."""
        return self.location.child(name).url


@contextmanager
def open_run(output: locations.Location, holder: str) -> Iterator[RunFolder]:
    """Hold an output, and yield a folder for the run's records, which is removed at the end.

    In a folder no other run can write to the output meanwhile. What killed runs left there is removed, except
    for trained models that were not published.

    `holder`: who runs it, for the error of a second run.
    Raises OutputBusyError if another run writes there.
    """
    with output_places.hold(output, holder=holder):
        _remove_leftovers(output)
        folder = RunFolder(locations.hidden_beside(output, "run"))
        try:
            yield folder
        finally:
            if not folder.kept:
                # A repeated run goes on from the ledger, not from this folder.
                output_places.discard(folder.location)


def _remove_leftovers(output: locations.Location) -> None:
    """Remove the folders of killed runs; in a folder none is alive, since this run has the lock."""
    folders = locations.beside(output, "run-")
    if not output.is_local:
        # No lock holds an object store: a young folder may belong to a run that is at work.
        folders = [folder for folder in folders if locations.is_given_up(folder)]
    published = _published(output) if folders else set()
    for folder in folders:
        # A run may have been killed after it published, before it removed its folder.
        trained = [model for model in trained_models(folder) if _digest(model) not in published]
        if trained:
            logger.warning(
                "an interrupted run left trained models, which are kept: %s",
                ", ".join(redact(model.url) for model in trained),
            )
        else:
            logger.info("removing what an interrupted run left: %s", redact(folder.url))
            output_places.discard(folder)


def _published(output: locations.Location) -> set[str | None]:
    """Return the digests of what is published at an output."""
    if output_places.holds_versions(output):
        return {version.digest for version in versions.RegisteredModel(output.url).versions()}
    return {_digest(output)} - {None}


def _digest(model: locations.Location) -> str | None:
    """Return the digest of a stored model; None if it cannot be read."""
    try:
        return records.peek_record(model.url).metadata.get("digest")
    except RFFDistError:
        return None


def leftover_runs(model_url: str) -> list[locations.Location]:
    """Return the folders of runs for this model that are at work or were interrupted."""
    return locations.beside(locations.parse_location(model_url), "run-")


def trained_models(folder: locations.Location) -> list[locations.Location]:
    """Return the locations of the complete trained models in a run's folder."""
    places = [folder.child(name) for name in locations.list_names(folder) if name.endswith("-model")]
    return [place for place in places if locations.RECORD_FILE in locations.list_names(place)]


# -- its steps -------------------------------------------------------------------------------------


def open_data(job: specs.Train) -> _Opened:
    """Open the data to train on, and test data if there are any, with groups if their rows have them too."""
    group_by = job.folds.groups
    data = _open(job, job.source.data, group_by)
    if job.test is None:
        return data, None
    try:
        return data, _open(job, job.test, group_by)
    except StorageError as error:
        if group_by is None:
            raise
        alone = _open(job, job.test, None)
        logger.warning("test rows count as independent, for want of groups: %s", error)
        return data, alone


def _open(job: specs.Train, url: str, group_by: str | None) -> fits.JobData:
    """Open data to train on or to evaluate on.

    `url`: of the job's own data, or of test data.
    `group_by`: name of an array of groups. Rows of one group are in one fold.
    Raises DataError if there are no targets.
    """
    source, classify, folds = job.source, job.classes.classify, job.folds
    names = source.names() if url == source.data else source.names() | {"version": None}
    labels = None
    dataset: datasets.ZarrDataset | GridDataset
    if classify:
        dataset, labels = open_labelled(url, source.y, names)
    else:
        dataset = datasets.open_dataset(url, **names)
    if dataset.n_targets < 1 and not classify:
        raise DataError(
            f"{redact(url)} has no targets to train on; write them with the data, or name their array with "
            "`y`"
        )
    rows: blocks.Dataset = dataset  # with the groups that folds need
    if group_by is not None:
        rows = labelled.GroupedDataset(dataset, column_of(dataset, group_by))
    elif isinstance(dataset, GridDataset) and folds.group_by_block is not None:
        rows = grids.group_by_blocks(dataset, folds.group_by_block)
    elif isinstance(dataset, GridDataset) and folds.time:
        rows = grids.fold_by_time(dataset, folds.n_folds or training.DEFAULT_FOLDS)
    elif folds.group_by_block is not None:
        raise InvalidParameterError(
            f"`group_by_block` is {folds.group_by_block}, but the rows are no cells of a grid; give "
            "`inputs`, or `groups`"
        )
    is_trained_on = url == source.data and group_by is None
    if is_trained_on and (job.fit.candidates or ridge_choices.needs_folds(job.fit.options)):
        by_time = fold_by_time(dataset, folds.n_folds)
        if by_time is not None:
            return fits.JobData(by_time[0], labels, by_time[1])
    return fits.JobData(rows, labels)


def check_test(data: fits.JobData, test: fits.JobData | None) -> None:
    """Compare the columns of training and test data, before hours of work rather than after.

    Raises DataError if they differ.
    """
    for what in ("n_features", "n_targets"):
        here, there = getattr(data.rows, what), getattr((test or data).rows, what)
        if here != there:
            raise DataError(
                f"the test data have {what}={there}, but the training data have {here}; give data with the "
                "same columns"
            )


def inspect(fit: fits.Fit, data: fits.JobData, folder: RunFolder, engine: Engine) -> tuple[Choices, Summary]:
    """Plan the fit, without a pass over X, and record the plan in the run's folder.

    Returns the fit that begins, and a summary: sizes, the data's fingerprint and the plan's figures.
    Raises InvalidParameterError if the parameters do not suit the columns; PlanError if memory does not
      suffice.
    """
    dataset, choices = data.rows, fit.begin(data, engine=engine)
    plan = choices.plan
    summary = {
        "data": redact(dataset.url or "in memory"),
        "fingerprint": dataset.fingerprint(),
        **fields.values_of(dataset, "n_samples", "n_features", "n_targets"),
        "solver": plan.solver,
        "solver_reason": plan.reason,
        "n_candidates": choices.n_tried,
        **fields.values_of(plan, "n_blocks", "n_workers", "n_threads"),
        "flops_per_pass": plan.flops,
        "peak_memory": human_bytes(plan.peak_bytes),
        "kept": human_bytes(plan.ledger_bytes),
    }
    records.write_record(folder.place(_PLAN), kind=_PLAN, metadata=summary, arrays={}, overwrite=True)
    return choices, summary


def publish(
    job: specs.Train,
    model: models.RidgeModel,
    metrics: Summary | None,
    *,
    data: fits.JobData,
    folder: RunFolder,
) -> Summary:
    """Write the trained model to the output; a reader sees it whole or not at all.

    If that fails, the trained model stays in the run's folder, and the error says where.

    Returns: JSON-able: where the model is, its digest, and its version's number if it is registered.
    """
    place = job.destination
    if metrics is not None:
        model = model.with_card(metrics=metrics)
    try:
        kept = model if job.statistics else model.without_statistics()
        version = publishing.store(kept, place, data.rows.url, job.reason, data.rows.n_samples)
    except Exception as error:
        folder.kept = True  # hours of training must not be lost with the run
        trained = redact(folder.place(_TRAINED))
        error.add_note(f"the trained model is kept at {trained}")
        logger.warning("the model was not published; it is kept at %s", trained)
        raise
    return {
        "model": redact(locations.parse_location(place.model).url),
        "version": None if version is None else version.number,
        "parent": None if version is None else version.parent,
        "digest": model.digest(),
        "statistics_digest": model.card["statistics_digest"],
    }
