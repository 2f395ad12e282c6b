"""A training run in steps that leave what the next one needs: inspect → fit → evaluate → publish.

What is trained is a `Fit`: a ridge regression, a classifier, or the best of given candidates. `Fit.run` is
the same job in one call. Cut into steps it can be driven by an orchestrator: a step takes and returns small
JSON-able summaries, and the trained model with its exact sums lies beside the output as a checksummed record
until the run has published it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rff_dist import automatic, class_prediction, classification, pipeline, prediction, search
from rff_dist.automatic import RidgeOptions
from rff_dist.blocks import Dataset
from rff_dist.engines import Engine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.feature_map import check_map
from rff_dist.kernels import check_design, default_design
from rff_dist.model import RidgeModel, read_model, write_model
from rff_dist.pipeline import Solved
from rff_dist.plan import human_bytes
from rff_dist.publishing import publish
from rff_dist.storage import ArrayDataset, Column, open_dataset, redact, write_record
from rff_dist.storage.columns import column_of
from rff_dist.storage.labelled import GroupedDataset, LabelledDataset
from rff_dist.storage.leases import Lease, hold
from rff_dist.storage.locations import Location, beside, check_output, children, discard, parse_location
from rff_dist.storage.registry import RegisteredModel

__all__ = [
    "Fit",
    "Job",
    "JobData",
    "Summary",
    "check_place",
    "chosen_candidate",
    "describe_fit",
    "estimate_of",
    "evaluate_model",
    "fit_model",
    "inspect_data",
    "leftover_runs",
    "n_candidates",
    "open_job",
    "open_job_data",
    "publish_model",
    "read_trained",
    "trained_models",
]

logger = logging.getLogger(__name__)

type Summary = dict[str, Any]

_MODEL_FILES = ("model.json",)
_TRAINED, _PLAN = "trained-model", "plan"


# -- what is trained -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobData:
    """The rows of a job, and the labels of a classifier's, which are no targets."""

    rows: Dataset
    labels: Column | None = None


def open_job_data(
    url: str,
    *,
    x: str = "X",
    y: str = "y",
    sample_weight: str | None = None,
    missing_chunks: str = "error",
    group_by: str | None = None,
    classify: bool = False,
) -> JobData:
    """Open a stored dataset to train on or to evaluate on.

    Parameters
    ----------
    url : str
        Path or URL of the dataset.
    x, y, sample_weight : str
        Names of its arrays; `y` is that of the labels, where there are classes.
    missing_chunks : str
        See `open_dataset`.
    group_by : str, optional
        Name of an array of groups whose rows are in one fold.
    classify : bool
        Whether `y` holds labels.

    Raises
    ------
    DataError
        If there are no targets.
    StorageError
        If it cannot be opened.
    """
    dataset = open_dataset(
        url,
        x=x,
        y=None if classify else y,
        sample_weight=sample_weight,
        missing_chunks=missing_chunks,
    )
    if dataset.n_targets < 1 and not classify:
        raise DataError(
            f"{redact(url)} has no y, and training needs targets; write them with the data, or name their "
            "array with `y`"
        )
    rows = dataset if group_by is None else GroupedDataset(dataset, column_of(dataset, group_by))
    return JobData(rows, column_of(dataset, y) if classify else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What to train, and how what is left open is chosen.

    Attributes
    ----------
    options : RidgeOptions
        Of the regression, or of ridge on class codes.
    loss : str or None
        Of a classifier, see `classification.fit`; None for a regression.
    class_weight : "balanced" or None
        Of a classifier.
    candidates : sequence of Candidate, or None
        What is compared on all rows and with all components, in the place of the kernel and length scale of
        the options; see `search.search`.
    """

    options: RidgeOptions
    loss: str | None = None
    class_weight: str | None = None
    candidates: tuple[search.Candidate, ...] | None = None

    def check(self, dataset: Dataset | None = None) -> None:
        """Check what can be known to be wrong before any work starts; without a dataset all but its columns.

        Raises
        ------
        InvalidParameterError
            If parameters are out of range or do not go together.
        DataError
            If the folds are of groups and there are none.
        """
        options = self.options
        if options.map != "auto":
            check_map(options.map)
        if self.loss is not None:
            classification.check_loss(self.loss)
            if options.conformal:
                raise InvalidParameterError(
                    "`conformal` is True, but classes have no intervals; leave it out"
                )
        elif self.class_weight is not None:
            raise InvalidParameterError(
                f"`class_weight` is {self.class_weight!r}, but a regression has no classes; leave it out"
            )
        folds = pipeline.folds_for(
            options.cv,
            alpha=options.alpha,
            n_components=options.n_components,
            conformal=bool(options.conformal),
        )
        if self.candidates is not None:
            search.check_choices(
                options.alpha,
                options.alphas,
                cv=options.cv or pipeline.DEFAULT_FOLDS,
                n_components=options.n_components,
            )
        kinds = options.kinds
        if not isinstance(options.n_components, str):
            for kind in kinds:
                pipeline.read_widths(options.n_components, options.map, kind)
        if dataset is not None:
            candidates = list(self.candidates or options.candidates(dataset))
            search.check_candidates(candidates, dataset, design=options.design, features=kinds[0])
            if folds is not None:
                pipeline.check_folds(dataset, folds)
        elif kinds[0] == "fourier":
            # what a kernel allows does not depend on the columns that this one row has
            for one in self.candidates or options.candidates(ArrayDataset(np.zeros((1, 1)), np.zeros(1))):
                check_design(one.kernel, options.design or default_design(one.kernel), 1)
        elif options.design is not None:
            raise InvalidParameterError(
                f"`design` is {options.design!r}, but Nyström features have none; leave it out"
            )

    def choices(self, dataset: Dataset, *, engine: Engine) -> automatic.Choices:
        """Return what the fit begins with, if memory allows it; see `automatic.choices_of`."""
        return automatic.choices_of(dataset, self.options, engine=engine, candidates=self.candidates)

    def run(self, source: JobData, *, engine: Engine) -> tuple[RidgeModel, Solved]:
        """Train the model, and return how it was solved beside it."""
        options = self.options
        if self.loss is not None:
            assert source.labels is not None
            return classification.fit_labels(
                source.rows,
                source.labels,
                options,
                engine=engine,
                loss=self.loss,
                class_weight=self.class_weight,
            )
        if self.candidates is None:
            trained = automatic.fit(source.rows, options, engine=engine)
            return trained.model, trained.best
        found = search.search(
            source.rows,
            self.candidates,
            engine=engine,
            n_components=options.n_components,
            alpha=options.alpha,
            alphas=options.alphas,
            cv=options.cv or pipeline.DEFAULT_FOLDS,
            design=options.design,
            map=options.map,
            standardize=options.standardize,
            fit_intercept=options.fit_intercept,
            seed=options.seed,
            features=options.features,
            alpha_per_target=options.alpha_per_target,
            sample_weight_kind=options.sample_weight_kind,
        )
        return found.model, found.solved


# -- what a trained model says of itself -----------------------------------------------------------


def describe_fit(model: RidgeModel, solved: Solved) -> Summary:
    """Return JSON-able facts of a model that was trained: what was chosen, and how good it is."""
    kernel, status = pipeline.kernel_of(model.feature_map), solved.solution.status
    length_scale = getattr(kernel, "length_scale", None)
    return {
        "kernel": "given" if kernel is None else search.kernel_text(kernel),
        "length_scale": list(length_scale) if isinstance(length_scale, tuple) else length_scale,
        "features": pipeline.kind_of(model.feature_map),
        "n_components": model.feature_map.n_components,
        "alpha": model.plain_alpha,
        "alpha_chosen_by": model.card["chosen_by"],
        "classifier": model.card.get("classifier"),
        "estimate": estimate_of(model.card),
        "candidates": model.card.get("candidates", []),
        "status": status.value,
        "causes": list(status.causes),
        "remedies": list(status.remedies),
    }


def estimate_of(card: Mapping[str, Any]) -> Summary | None:
    """Return what a model's card estimates errors on new rows to be; None where it does not.

    Of a classifier that is accuracy and log loss: errors of the codes that ridge was fitted to say nothing.
    """
    found = card.get("estimate")
    if found is None or "classifier" not in card:
        return found
    told = {key: value for key, value in found.items() if key.startswith(("accuracy", "log_loss"))}
    return {"by": found["by"], **told} if told else None


def chosen_candidate(candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the best of the candidates on a model's card; None where there was no choice."""
    if not candidates:
        return None
    final = [one for one in candidates if one.get("round") != "first"]
    # without a final the best comes first, which is not always the one of the least error
    return min(final, key=lambda one: float(one["score"])) if final else candidates[0]


def n_candidates(candidates: Sequence[Mapping[str, Any]]) -> int:
    """Return how many candidates were tried; finalists were tried twice."""
    first = [one for one in candidates if one.get("round") == "first"]
    return len(first or candidates)


# -- the job ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What a run is to do, with which engine and where.

    Attributes
    ----------
    fit : Fit
        What is trained.
    data : JobData
        On which rows.
    engine : Engine
        Runs all passes.
    output : Location
        Where the model is published.
    folder : Location
        Where the run keeps its records.
    test : JobData, or None
        What the model is evaluated on.
    overwrite : bool
        Whether a model at `output` may be replaced.
    register : bool
        Whether the model is published as the next version of a registered one.
    kept : list of str
        Where a trained model is that could not be published: the run's folder then stays.
    lease : Lease or None
        The right to write to `output`, which is looked at again before the model is published.
    """

    fit: Fit
    data: JobData
    engine: Engine
    output: Location
    folder: Location
    test: JobData | None = None
    overwrite: bool = False
    register: bool = False
    kept: list[str] = field(default_factory=list)
    lease: Lease | None = None

    def place(self, name: str) -> str:
        """Return the URL of one of the run's records."""
        return self.folder.child(name).url


def check_place(
    model_url: str, dataset: Dataset, *, overwrite: bool = False, register: bool = False
) -> Location:
    """Return where a model is to be published, if it can be; before a cluster starts, say.

    Raises
    ------
    OutputExistsError
        If there is something at `model_url` and `overwrite` is False; with `register`, something else than a
        registered model.
    StorageError
        If a model cannot be written there.
    """
    output = parse_location(model_url)
    inputs = [] if dataset.url is None else [parse_location(dataset.url)]
    if register:
        RegisteredModel(model_url).check(inputs=inputs)
    else:
        check_output(output, overwrite=overwrite, inputs=inputs, marker=_MODEL_FILES)
    return output


@contextmanager
def open_job(
    fit: Fit,
    data: JobData,
    model_url: str,
    *,
    engine: Engine,
    test: JobData | None = None,
    overwrite: bool = False,
    register: bool = False,
    holder: str = "a training run",
) -> Iterator[Job]:
    """Begin a run, and remove its folder at the end, unless a trained model could not be published.

    No other run can begin for the same model meanwhile. What runs left that were killed is removed, but for
    models that were trained.

    Parameters
    ----------
    fit : Fit
    data : JobData
    model_url : str
        Where the model is to be published.
    engine : Engine
    test : JobData, optional
        What the model is to be evaluated on.
    overwrite : bool
        Whether a model that is there may be replaced.
    register : bool
        Whether the model is published as the next version of a registered one; then nothing is replaced.
    holder : str
        What a second run is told of this one.

    Raises
    ------
    OutputBusyError
        If another run writes there.
    OutputExistsError
        If there is something at `model_url` and `overwrite` is False.
    StorageError
        If a model cannot be written there.
    """
    output = check_place(model_url, data.rows, overwrite=overwrite, register=register)
    parent, _, name = output.path.rpartition("/")
    hidden = f"{parent}/.{name}" if parent else f".{name}"
    folder = replace(output, path=f"{hidden}.run-{uuid.uuid4().hex[:12]}")
    with hold(output, holder=holder) as lease:
        _remove_leftovers(output)
        job = Job(fit, data, engine, output, folder, test, overwrite, register, lease=lease)
        try:
            yield job
        finally:
            if not job.kept:
                # Nothing resumes from a failed run, and its sums may be gigabytes.
                discard(job.folder)


def _remove_leftovers(output: Location) -> None:
    """Remove the folders of runs that were killed: whoever holds the lease knows that none of them lives."""
    for folder in beside(output, "run-"):
        trained = trained_models(folder)
        if trained:
            logger.warning(
                "a run that did not end left trained models, which stay: %s",
                ", ".join(redact(model.url) for model in trained),
            )
        else:
            logger.info("removing what a run left that did not end: %s", redact(folder.url))
            discard(folder)


def leftover_runs(model_url: str) -> list[Location]:
    """Return the folders of runs for this model that go on, or did not end."""
    return beside(parse_location(model_url), "run-")


def trained_models(folder: Location) -> list[Location]:
    """Return where trained models are in a run's folder, that were not published."""
    return [folder.child(name) for name in children(folder) if name.endswith("-model")]


# -- its steps -------------------------------------------------------------------------------------


def inspect_data(job: Job) -> Summary:
    """Plan the fit, compare the columns of training and test data, and keep the plan as a record; no pass.

    Returns
    -------
    summary : dict
        Sizes, the data's fingerprint and the plan's figures.

    Raises
    ------
    InvalidParameterError
        If the parameters do not suit the columns.
    PlanError
        If memory would not do.
    DataError
        If the test data have other columns.
    """
    dataset, options = job.data.rows, job.fit.options
    _check_test(job)
    job.fit.check(dataset)
    choices = job.fit.choices(dataset, engine=job.engine)
    plan = pipeline.check_plan(
        dataset,
        choices.widths[-1],
        engine=job.engine,
        alpha=choices.penalty.alpha,
        features=options.kinds[-1],
        n_folds=1 if choices.folds is None else choices.folds.n_folds,
    )
    summary = {
        "data": redact(dataset.url or "in memory"),
        "fingerprint": dataset.fingerprint(),
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "n_candidates": choices.n_tried,
        "n_blocks": plan.n_blocks,
        "n_workers": plan.n_workers,
        "n_threads": plan.n_threads,
        "flops_per_pass": plan.flops,
        "peak_memory": human_bytes(plan.peak_bytes),
    }
    write_record(job.place(_PLAN), kind=_PLAN, metadata=summary, arrays={}, overwrite=True)
    return summary


def fit_model(job: Job) -> Summary:
    """Train the model, and keep it with its exact sums as a record in the run's folder.

    Returns
    -------
    summary : dict
        What `describe_fit` says, and the seconds it took.

    Raises
    ------
    DataError
        If a value cannot be used; names row and column.
    StatisticsError
        If a row is missing or was counted twice.
    """
    start = time.perf_counter()
    model, solved = job.fit.run(job.data, engine=job.engine)
    seconds = time.perf_counter() - start
    write_model(model, job.place(_TRAINED), overwrite=True)
    return {**describe_fit(model, solved), "fit_seconds": round(seconds, 3)}


def evaluate_model(job: Job) -> Summary:
    """Measure the trained model's errors on the job's test data in one pass.

    Returns
    -------
    metrics : dict
        Rows, and of a classifier accuracy, balanced accuracy (the mean recall of classes) and log loss in
        nats (None without probabilities); else per target mean squared, root mean squared and mean absolute
        error, bias (all in the target's units) and R² (None for a constant target).

    Raises
    ------
    InvalidParameterError
        If the job has no test data.
    DataError
        If a value cannot be used, or a label is of no class.
    """
    test = job.test
    if test is None:
        raise InvalidParameterError("the job has no test data to evaluate on; open it with `test`")
    model = read_trained(job)
    about = {"test_data": redact(test.rows.url or "in memory"), "n_samples": test.rows.n_samples}
    if test.labels is not None:
        rows = LabelledDataset(test.rows, test.labels, class_prediction.read_classes(model))
        found = class_prediction.evaluate(rows, model, engine=job.engine)
        names = ("accuracy", "balanced_accuracy", "log_loss")
        return {**about, **{name: getattr(found, name) for name in names}}
    errors = prediction.evaluate(test.rows, model, engine=job.engine)
    return {
        **about,
        "mse": errors.mean_squared_error.tolist(),
        "rmse": np.sqrt(errors.mean_squared_error).tolist(),
        "mae": errors.mean_absolute_error.tolist(),
        "bias": errors.bias.tolist(),
        "r2": [None if np.isnan(value) else value for value in errors.r2.tolist()],
    }


def read_trained(job: Job) -> RidgeModel:
    """Return the job's model, which was trained, with its sums."""
    return read_model(job.place(_TRAINED))


def publish_model(job: Job, *, metrics: Mapping[str, Any] | None = None) -> Summary:
    """Write the trained model to the output; a reader sees it whole or not at all.

    Where it cannot be written there, the run's folder stays with the trained model, and the error says where.

    Parameters
    ----------
    metrics : dict, optional
        What `evaluate_model` returned, kept on the model's card.

    Returns
    -------
    summary : dict
        Where the model is, its digest, and the version's number where it is registered.
    """
    model = read_trained(job)
    if metrics is not None:
        model = model.with_card(metrics=dict(metrics))
    try:
        version = _publish(job, model)
    except Exception as error:
        place = job.place(_TRAINED)
        job.kept.append(place)  # what was trained for hours is not lost with it
        error.add_note(f"the trained model is kept at {redact(place)}")
        logger.warning("the model was not published; it is kept at %s", redact(place))
        raise
    return {
        "model": redact(job.output.url),
        "version": version,
        "digest": model.digest(),
        "statistics": model.card["statistics_digest"],
    }


def _publish(job: Job, model: RidgeModel) -> int | None:
    """Write the model to the output, and return its version's number where it is registered."""
    if job.lease is not None:
        job.lease.check()
    if job.register:
        return publish(model, job.output.url, data=job.data.rows.url, reason="trained").number
    write_model(model, job.output.url, overwrite=job.overwrite)
    return None


def _check_test(job: Job) -> None:
    """Compare the columns of training and test data before hours of work, not after."""
    if job.test is None:
        return
    for what in ("n_features", "n_targets"):
        here, there = getattr(job.data.rows, what), getattr(job.test.rows, what)
        if here != there:
            raise DataError(
                f"the test data have {what}={there} but the training data {here}; "
                "give data of the same columns"
            )
