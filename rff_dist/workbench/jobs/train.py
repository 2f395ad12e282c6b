"""Train a model and publish it: the job around `ridge.fit` and `classify.fit`.

In goes a `Train` spec: where the rows are, what to fit, and where the model goes. Out
come the published model and a `TrainingResult` with everything that a report shows.
`RFFRidge().fit` followed by writing the model would find the same coefficients. But it
would work for hours before it finds that memory does not suffice or the output cannot
be written, lose a trained model if publishing fails, and compare it with no simpler
one.

Its steps are inspect → measure → choose → draw → broadcast → accumulate → solve → keep
→ evaluate → publish → compare; those from measure to solve are in `ridge/fit.py`.
"""

import logging
import time
from dataclasses import replace

from rff_dist import fields
from rff_dist.classify.fit import FittedModel
from rff_dist.engines.protocol import Engine
from rff_dist.ridge import models
from rff_dist.ridge.choices import Choices
from rff_dist.storage import locations, records
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import (
    cards,
    fits,
    judging,
    publishing,
    run_folders,
    specs,
    steps,
    training_data,
    verdict,
    watching,
)
from rff_dist.workbench.jobs.comparison import ModelComparison

logger = logging.getLogger(__name__)


@frozen
class TrainingResult:
    """The result of a training job; a `Summary` has JSON values."""

    #: the rows that the model was trained on
    data: fits.JobData
    fitted: FittedModel
    #: the data's size, and the planned memory and work
    plan: Summary
    #: what was chosen, and the errors by cross-validation
    fit_record: Summary
    #: where the model is
    publication: Summary
    #: errors on test data; None without any
    metrics: Summary | None
    #: the comparison with other models; None if nothing was compared
    comparison: ModelComparison | None

    @property
    def model(self) -> models.RidgeModel:
        return self.fitted.model

    def describe(self) -> Summary:
        """Return all JSON values, also of the comparison."""
        comparison = None
        if self.comparison is not None:
            comparison = verdict.describe(self.comparison)
        return {
            **self.plan,
            **self.fit_record,
            **self.publication,
            "metrics": self.metrics,
            "comparison": comparison,
        }


@watching.watched
def train(
    job: specs.Train,
    do: steps.Runner,
    rows: training_data.TrainingRows | None = None,
) -> TrainingResult:
    """Train a model and publish it.

    `rows`: to train and to test on; by default those that the job names. Raises
    RFFDistError, before the engine starts, if the options do not suit the data, another
    run writes to the same place, or a model cannot be written there; then as each step.
    """
    card_texts = cards.read_about(job.card)
    if rows is None:
        rows = training_data.open_rows(job)
    data, test = rows
    fit = job.fit
    if data.folds is not None:
        fit = replace(fit, options=replace(fit.options, cv=data.folds))

    # Everything that can be refused is refused before a cluster starts.
    inputs = [] if data.rows.url is None else [data.rows.url]
    output = publishing.check_place(job.destination, inputs)
    training_data.check_same_columns(data, test)
    fit.check_data(data.rows)
    # The longest pass decides whether a cluster is worth starting.
    n_samples = max(part.rows.n_samples for part in rows if part is not None)
    do.limits.check_before(data.rows, fit.options, do.cluster(n_samples))

    with (
        run_folders.open_run(output, do.holder) as folder,
        do.open_engine(n_samples) as engine,
    ):
        with steps.resumable(engine, output):
            choices, plan = do("inspect", inspect, fit, data, folder, engine=engine)
            do.limits.check(choices.plan)

            start = time.perf_counter()
            fitted_model = fit.train(
                choices, engine=engine, do=do
            )  # from "measure" to "solve"
            seconds = time.perf_counter() - start
            fit_record = {
                **fits.describe_fit(fitted_model.trained),
                "fit_seconds": round(seconds, 3),
            }
            model = fitted_model.model.with_card(**card_texts)
            fitted_model = replace(
                fitted_model, trained=replace(fitted_model.trained, model=model)
            )

            # kept, since evaluation and publication may fail after hours of work
            do("keep", models.write_model, model, folder.trained, overwrite=True)

            metrics = None
            if test is not None:
                metrics = do(
                    "evaluate", judging.measure_errors, test, model, engine=engine
                )

            publication = do.once(
                "publish", publish, job, model, metrics, data=data, folder=folder
            )

        # after the publication: if a baseline fails, the model is there all the same
        with steps.after_publication(publication["model"]):
            comparison = do(
                "compare", judging.compare, fit, fitted_model, data, test, engine=engine
            )
    return TrainingResult(
        data, fitted_model, plan, fit_record, publication, metrics, comparison
    )


def inspect(
    fit: fits.Fit, data: fits.JobData, folder: run_folders.RunFolder, engine: Engine
) -> tuple[Choices, Summary]:
    """Plan the fit, without a pass over X, and record the plan in the run's folder.

    Returns what the fit chooses from, and a summary: sizes, the data's fingerprint and
    the plan's figures. Raises InvalidParameterError if the parameters do not suit the
    columns; PlanError if memory does not suffice.
    """
    dataset = data.rows
    choices = fit.begin(data, engine=engine)
    plan = choices.plan
    summary = {
        "data": redact(dataset.url or "in memory"),
        "fingerprint": dataset.fingerprint(),
        **fields.values_of(dataset, "n_samples", "n_features", "n_targets"),
        "solver": plan.solver,
        "solver_reason": plan.reason,
        "n_candidates": len(choices.candidates),
        **fields.values_of(plan, "n_blocks", "n_workers", "n_threads"),
        "flops_per_pass": plan.flops,
        "peak_memory": human_bytes(plan.peak_bytes),
        "kept": human_bytes(plan.ledger_bytes),
    }
    records.write_record(
        folder.plan, kind="plan", metadata=summary, arrays={}, overwrite=True
    )
    return choices, summary


def publish(
    job: specs.Train,
    model: models.RidgeModel,
    metrics: Summary | None,
    *,
    data: fits.JobData,
    folder: run_folders.RunFolder,
) -> Summary:
    """Write the trained model to the output; a reader sees it whole or not at all.

    If that fails, the trained model stays in the run's folder, and the error says
    where. Returns JSON values: where the model is, its digest, and its version's number
    if it is registered.
    """
    if metrics is not None:
        model = model.with_card(metrics=metrics)
    stored_model = model if job.statistics else model.without_statistics()
    place = job.destination
    try:
        version = publishing.store(
            stored_model, place, data.rows.url, "fitted", data.rows.n_samples
        )
    except Exception as error:
        folder.is_kept_after_run = True
        folder_url = redact(folder.trained)
        error.add_note(f"the trained model is kept at {folder_url}")
        logger.warning("the model was not published; it is kept at %s", folder_url)
        raise
    return {
        "model": redact(locations.parse_location(place.model).url),
        "version": None if version is None else version.number,
        "parent": None if version is None else version.parent,
        "digest": model.digest(),
        "statistics_digest": model.card["statistics_digest"],
    }
