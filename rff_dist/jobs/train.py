"""The job that trains a model: inspect → fit → evaluate → publish → compare.

A `Fit` says what is trained: a ridge regression, a classifier, or the best of given candidates. Until it is
published, the model lies with its exact sums beside the output, as a checksummed record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rff_dist.classify import predict as class_prediction
from rff_dist.data.labelled import LabelledDataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, RFFDistError, StorageError
from rff_dist.jobs.fields import values_of
from rff_dist.jobs.fits import Fit, FittedModel, JobData, describe_fit, open_job_data
from rff_dist.jobs.judging import compare
from rff_dist.jobs.publishing import check_place, store
from rff_dist.jobs.specs import Train, Tune
from rff_dist.jobs.steps import Runner, Skipped, Step, made, resumable, run_steps
from rff_dist.jobs.verdict import NOTHING_COMPARED, Comparison
from rff_dist.registry.versions import RegisteredModel
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.model import RidgeModel, write_model
from rff_dist.ridge.plan import check_solver_plan
from rff_dist.storage.leases import hold
from rff_dist.storage.locations import RECORD_FILE, Location, list_names, parse_location
from rff_dist.storage.output_places import beside, discard, hidden_beside, holds_versions
from rff_dist.storage.records import peek_record, write_record
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary

logger = logging.getLogger(__name__)

_TRAINED, _PLAN = "trained-model", "plan"


# -- the job ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Training:
    """A run of the training job: what to do, and what its steps have found.

    `fit`: what to train.
    `data`: the rows to train on.
    `engine`: runs all passes.
    `output`: where the model is published.
    `folder`: where the run keeps its records.
    `test`: rows to evaluate the model on.
    `overwrite`: whether a model at `output` may be replaced.
    `register`: whether the model is published as the next version of a registered one.
    `statistics`: whether the published model keeps its sums.
    `reason`: why it is published, for its lineage.
    `kept`: whether the trained model could not be published; the run's folder then stays.
    `found`, `metrics`, `comparison`: results of the steps; None before.
    """

    fit: Fit
    data: JobData
    engine: Engine
    output: Location
    folder: Location
    test: JobData | None = None
    overwrite: bool = False
    register: bool = False
    statistics: bool = True
    reason: str = "fitted"
    kept: bool = False
    found: FittedModel | None = None
    metrics: Summary | None = None
    comparison: Comparison | None = None

    @property
    def trained(self) -> FittedModel:
        """The result of the step `fit`."""
        return made(self.found)

    def place(self, name: str) -> str:
        """Return the URL of one of the run's records."""
        return self.folder.child(name).url

    def steps(self) -> Iterator[Step]:
        """Yield the steps in their order."""
        yield Step("inspect", partial(inspect_data, self), repeatable=True)
        yield Step("fit", partial(fit_model, self), repeatable=True)
        yield Step("evaluate", partial(evaluate_model, self), repeatable=True)
        yield Step("publish", partial(publish_model, self))
        yield Step("compare", partial(compare_models, self), repeatable=True)


@contextmanager
def open_training(job: Train | Tune, runner: Runner) -> Iterator[Training]:
    """Begin the run of a spec: check all that can be checked, take the lease, then open the engine.

    Raises RFFDistError as `open_run`, or if the data do not suit the options.
    """
    fit, place, source = job.to_fit(), job.destination, job.source
    location = check_place(
        place.model, overwrite=place.overwrite, register=place.register, inputs=[parse_location(source.data)]
    )
    data = open_job_data(source, source.data, group_by=job.folds.group_by, classify=job.classify)
    test = None if job.test is None else open_test_data(job)
    fit.check(data.rows)
    with (
        # Before the engine starts, so that a second run fails at once; `open_run` gets the same lease again.
        hold(location, holder=runner.holder),
        runner.open_engine(max(one.rows.n_samples for one in (data, test) if one is not None)) as engine,
        open_run(
            fit,
            data,
            place.model,
            engine=engine,
            test=test,
            overwrite=place.overwrite,
            register=place.register,
            statistics=job.statistics,
            reason=job.reason,
        ) as run,
    ):
        yield run


def open_test_data(job: Train | Tune) -> JobData:
    """Open the test data of a job, with groups if their rows have them as those to train on do."""
    assert job.test is not None
    data = open_job_data(job.source, job.test, classify=job.classify)
    try:
        return open_job_data(job.source, job.test, group_by=job.folds.group_by, classify=job.classify)
    except StorageError as error:
        logger.warning("test rows count as independent, for want of groups: %s", error)
        return data


def train(job: Train | Tune, runner: Runner) -> dict[str, Summary | None]:
    """Train and publish a model, and return the records of the steps by name."""
    with open_training(job, runner) as run:
        return run_steps(run.steps(), runner)


@contextmanager
def open_run(
    fit: Fit, data: JobData, model_url: str, *, engine: Engine, holder: str = "a training run", **options: Any
) -> Iterator[Training]:
    """Begin a run; its folder is removed at the end, unless a trained model in it could not be published.

    No other run can write to the same place meanwhile. What killed runs left there is removed, except for
    trained models that were not published.

    `fit`, `data`, `engine`, `**options`: see `Training`.
    `model_url`: where the model is to be published.
    `holder`: who runs it, for the error of a second run.
    Raises OutputBusyError if another run writes there; OutputExistsError if there is something at `model_url`
      and `overwrite` is False; StorageError if a model cannot be written there.
    """
    inputs = [] if data.rows.url is None else [parse_location(data.rows.url)]
    place = {name: options.get(name, False) for name in ("overwrite", "register")}
    output = check_place(model_url, inputs=inputs, **place)
    with hold(output, holder=holder):
        _remove_leftovers(output)
        folder = hidden_beside(output, "run")
        run = Training(fit=fit, data=data, engine=engine, output=output, folder=folder, **options)
        try:
            with resumable(engine, output):
                yield run
        finally:
            if not run.kept:
                # A repeated run goes on from the ledger, not from this folder.
                discard(run.folder)


def _remove_leftovers(output: Location) -> None:
    """Remove the folders of killed runs; none of them is alive, since this run holds the lease."""
    folders = beside(output, "run-")
    published = _published(output) if folders else set()
    for folder in folders:
        trained = [model for model in trained_models(folder) if _digest(model) not in published]
        if trained:
            logger.warning(
                "an interrupted run left trained models, which are kept: %s",
                ", ".join(redact(model.url) for model in trained),
            )
        else:
            logger.info("removing what an interrupted run left: %s", redact(folder.url))
            discard(folder)


def _published(output: Location) -> set[str | None]:
    """Return the digests of what is published at an output."""
    if holds_versions(output):
        return {version.digest for version in RegisteredModel(output.url).versions()}
    return {_digest(output)} - {None}


def _digest(model: Location) -> str | None:
    """Return the digest of a stored model; None if it cannot be read."""
    try:
        return peek_record(model.url).metadata.get("digest")
    except RFFDistError:
        return None


def leftover_runs(model_url: str) -> list[Location]:
    """Return the folders of runs for this model that are at work or were interrupted."""
    return beside(parse_location(model_url), "run-")


def trained_models(folder: Location) -> list[Location]:
    """Return the locations of the complete trained models in a run's folder."""
    found = [folder.child(name) for name in list_names(folder) if name.endswith("-model")]
    return [model for model in found if RECORD_FILE in list_names(model)]


# -- its steps -------------------------------------------------------------------------------------


def inspect_data(run: Training) -> Summary:
    """Compare the columns of training and test data, plan the fit without a pass, and record the plan.

    Returns `summary`: sizes, the data's fingerprint and the plan's figures.
    Raises InvalidParameterError if the parameters do not suit the columns; PlanError if memory does not
      suffice; DataError if the test data have other columns.
    """
    dataset, options = run.data.rows, run.fit.options
    _check_test(run)
    run.fit.check(dataset)
    choices = run.fit.choices(dataset, engine=run.engine)
    n_folds = 1 if choices.folds is None else choices.folds.n_folds
    plan = check_solver_plan(dataset, choices.widths[-1], options, n_folds, engine=run.engine)
    summary = {
        "data": redact(dataset.url or "in memory"),
        "fingerprint": dataset.fingerprint(),
        **values_of(dataset, "n_samples", "n_features", "n_targets"),
        "solver": plan.solver,
        "solver_reason": plan.reason,
        "n_candidates": choices.n_tried,
        **values_of(plan, "n_blocks", "n_workers", "n_threads"),
        "flops_per_pass": plan.flops,
        "peak_memory": human_bytes(plan.peak_bytes),
        "kept": human_bytes(plan.ledger_bytes),
    }
    write_record(run.place(_PLAN), kind=_PLAN, metadata=summary, arrays={}, overwrite=True)
    return summary


def fit_model(run: Training) -> Summary:
    """Train the model, and keep it with its exact sums as a record in the run's folder.

    Returns `summary`: the facts of `describe_fit`, and the seconds.
    Raises DataError, with row and column, if a value cannot be used.
    """
    start = time.perf_counter()
    run.found = found = run.fit.run(run.data, engine=run.engine)
    seconds = time.perf_counter() - start
    write_model(found.model, run.place(_TRAINED), overwrite=True)
    return {**describe_fit(found.model, found.solved), "fit_seconds": round(seconds, 3)}


def evaluate_model(run: Training) -> Summary | Skipped:
    """Measure the trained model's errors on the job's test data in one pass; skipped without test data.

    Returns `metrics`: rows; for a classifier accuracy, balanced accuracy (the mean recall of classes) and log
      loss in nats (None without probabilities); else per target mean squared, root mean squared and mean
      absolute error, bias (all in the target's units) and R² (None for a constant target).
    Raises DataError if a value cannot be used, or a label is not one of the classes.
    """
    test = run.test
    if test is None:
        return Skipped("No test data were given, so the model was not evaluated.")
    run.metrics = measure_errors(test, run.trained.model, engine=run.engine)
    return run.metrics


def measure_errors(test: JobData, model: RidgeModel, *, engine: Engine) -> Summary:
    """Measure a model's errors on test data in one pass; see `evaluate_model`."""
    about = {"test_data": redact(test.rows.url or "test data in memory"), "n_samples": test.rows.n_samples}
    if test.labels is not None:
        rows = LabelledDataset(test.rows, test.labels, class_prediction.read_classes(model))
        found = class_prediction.evaluate(rows, model, engine=engine)
        return {**about, **values_of(found, "accuracy", "balanced_accuracy", "log_loss")}
    errors = prediction.evaluate(test.rows, model, engine=engine)
    return {**about, "mse": errors.mean_squared_error.tolist(), **errors.to_dict()}


def publish_model(run: Training) -> Summary:
    """Write the trained model to the output; a reader sees it whole or not at all.

    If that fails, the trained model stays in the run's folder, and the error says where.

    Returns `summary`: where the model is, its digest, and its version's number if it is registered.
    """
    model = run.trained.model
    if run.metrics is not None:
        model = model.with_card(metrics=run.metrics)
    try:
        version = store(
            model if run.statistics else model.without_statistics(),
            run.output.url,
            register=run.register,
            overwrite=run.overwrite,
            data=run.data.rows.url,
            reason=run.reason,
            n_samples=run.data.rows.n_samples,
        )
    except Exception as error:
        place = run.place(_TRAINED)
        run.kept = True  # hours of training must not be lost with the run
        error.add_note(f"the trained model is kept at {redact(place)}")
        logger.warning("the model was not published; it is kept at %s", redact(place))
        raise
    return {
        "model": redact(run.output.url),
        "version": None if version is None else version.number,
        "parent": None if version is None else version.parent,
        "digest": model.digest(),
        "statistics": model.card["statistics_digest"],
    }


def compare_models(run: Training) -> Summary | Skipped:
    """Compare the published model with the mean and with a linear model; see `judging.compare`.

    Returns `summary`: the verdict and its figures; see `Comparison.describe`.
    """
    run.comparison = found = compare(run.fit, run.trained, run.data, run.test, engine=run.engine)
    return Skipped(NOTHING_COMPARED) if found is None else found.describe()


def _check_test(run: Training) -> None:
    """Compare the columns of training and test data, before hours of work rather than after."""
    if run.test is None:
        return
    for what in ("n_features", "n_targets"):
        here, there = getattr(run.data.rows, what), getattr(run.test.rows, what)
        if here != there:
            raise DataError(
                f"the test data have {what}={there}, but the training data have {here}; give data with the "
                "same columns"
            )
