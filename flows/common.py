"""What the flows share: parameters of every job, its engine and folder, and the tasks that train a model.

A task is one call into `rff_dist.training` and hands on a small JSON-able summary. How flows run, stop and
are retried is in `flows.running`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Self

from prefect import State, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.states import Completed
from pydantic import Field, field_validator, model_validator

from flows.pictures import show_choice
from flows.running import (
    RunParameters,
    check_location,
    code,
    holding,
    is_transient,
    job_flow,
    lend_engine,
    number,
    open_engine,
    step,
)
from rff_dist import training
from rff_dist.automatic import RidgeOptions
from rff_dist.feature_map import Nystrom
from rff_dist.folds import Folds, GroupFolds, TimeFolds
from rff_dist.pipeline import DEFAULT_FOLDS
from rff_dist.publishing import version_rows
from rff_dist.search import shortened_text
from rff_dist.storage import redact
from rff_dist.storage.registry import RegisteredModel

__all__ = [
    "DataParameters",
    "JobParameters",
    "NonNegative",
    "Positive",
    "Positives",
    "RunParameters",
    "Summary",
    "Widths",
    "check_location",
    "code",
    "facts_markdown",
    "holding",
    "is_transient",
    "job_flow",
    "lend_engine",
    "number",
    "open_engine",
    "place_of",
    "show_versions",
    "step",
    "train_model",
]

_SHOWN_VERSIONS = 20
_DIGEST = re.compile("[0-9a-f]{64}")
_TITLES = {
    "rmse": "RMSE",
    "r2": "R²",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
}

type Summary = dict[str, Any]
type Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
type Positives = Annotated[list[Positive], Field(min_length=1)]
type Widths = Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class DataParameters(RunParameters):
    """On which rows, with which features and where a job runs; every value is checked before a run starts."""

    data: str = Field(description="Path or URL of the training data: a Zarr group with X and y.")
    model: str = Field(description="Path or URL where the model is published.")
    x: str = Field(default="X", description="Name of the array of inputs.")
    sample_weight: str | None = Field(
        default=None, description="Name of the array of weights; all rows weigh alike where left out."
    )
    missing_chunks: Literal["error", "fill"] = Field(
        default="error",
        description="What a chunk that is not in the store means: lost data, or one that held only the fill "
        "value.",
    )
    features: Literal["fourier", "nystrom"] = Field(
        default="fourier",
        description="Random Fourier features, or Nyström features: kernel values at rows of the data.",
    )
    centres: Literal["uniform", "k-means++", "rpcholesky"] = Field(
        default="uniform", description="How Nyström features choose those rows."
    )
    map: Literal["auto", "pairs", "phases"] = Field(
        default="pairs",
        description="Cosines and sines in pairs, or cosines with random phases; 'auto' takes the one with "
        "the lower variance on a sample of the data.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the frequencies and of samples.")
    overwrite: bool = Field(default=False, description="Whether a model that is there may be replaced.")
    # Every class of pydantic's has a method `register`, which a field of that name would hide.
    registered: bool = Field(
        default=False,
        alias="register",
        description="Whether the model is published as the next version of a registered one, whose folder "
        "`model` is; versions are never replaced.",
    )

    @field_validator("data", "model")
    @classmethod
    def _is_location(cls, url: str) -> str:
        return check_location(url)

    @model_validator(mode="after")
    def _suit_each_other(self) -> Self:
        if self.features != "nystrom" and self.centres != "uniform":
            raise ValueError(
                f"`centres` is {self.centres!r}, which only Nyström features have; give features='nystrom'"
            )
        return self

    def to_features(self) -> str | Nystrom:
        """Return the kind of features, as the pipeline takes it."""
        return Nystrom(self.centres) if self.features == "nystrom" else self.features


class JobParameters(DataParameters):
    """What every training takes beyond that: targets, penalty, folds and test data.

    Subclasses add what is to be trained, and say by which `training.Fit`.
    """

    test: str | None = Field(
        default=None,
        description="Path or URL of test data to evaluate the model on; left out, it is not evaluated.",
    )
    y: str = Field(default="y", description="Name of the array of targets, or of labels.")
    n_components: Literal["auto"] | Widths = Field(
        default="auto",
        description="D, the number of features: cost grows with D², error falls as 1/√D. 'auto' takes 2,048, "
        "or fewer for few rows or little memory; of several the smallest within one standard error of the "
        "best.",
    )
    alpha: Literal["auto", "cv", "cv-1se", "gcv", "evidence", "press"] | NonNegative | Positives = Field(
        default="auto",
        description="Ridge penalty of ‖y − Zw‖² + alpha‖w‖²: a number, a list to choose from by "
        "cross-validation, or what chooses it: 'cv' the least k-fold error, 'cv-1se' the largest alpha "
        "within one standard error of that, 'gcv', 'evidence', or 'press', leave-one-out errors by one more "
        "pass. "
        "'auto' is 'cv', or 'press' where memory does not hold the sums of the folds.",
    )
    alphas: Positives | None = Field(
        default=None,
        description="What a named `alpha` chooses from; the whole range where left out.",
    )
    folds: Annotated[int, Field(ge=2, le=1000)] | None = Field(
        default=None,
        description="Number of folds to choose by, whose rows are summed apart; 5 where left out, or fewer "
        "where memory does not hold them.",
    )
    group_by: str | None = Field(
        default=None, description="Name of an array of groups whose rows are in one fold; none if left out."
    )
    time: bool = Field(
        default=False,
        description="Whether rows are in the order of time: each fold is predicted from those before it.",
    )
    design: Literal["orthogonal", "iid", "quasi-monte-carlo", "structured"] | None = Field(
        default=None,
        description="How frequencies are arranged: orthogonal has less variance than iid, quasi-Monte Carlo "
        "least in few columns, structured is fast for hundreds of columns. Left out, each kernel's own.",
    )
    fit_intercept: bool = Field(
        default=True, description="Whether to fit an intercept, which is not penalised."
    )

    standardize: bool | Literal["rank", "auto"] = Field(
        default="auto",
        description="What is done to the input columns first: true takes means and standard deviations out, "
        "false nothing, 'rank' maps each column to a normal law by the ranks of its values, and 'auto' does "
        "that to columns with heavy tails alone.",
    )
    alpha_per_target: bool | Literal["auto"] = Field(
        default="auto",
        description="Whether each target has an alpha of its own; 'auto' gives one to those whose errors it "
        "lowers.",
    )
    sample_weight_kind: Literal["precision", "frequency"] = Field(
        default="precision",
        description="What weights say of a row: how sure it is, or how often it is there.",
    )

    @model_validator(mode="after")
    def _keep_versions(self) -> Self:
        if self.registered and self.overwrite:
            raise ValueError("`overwrite` is true, but versions of a registered model are never replaced")
        if self.time and self.group_by is not None:
            raise ValueError("`group_by` and `time` were both given; folds are of one of them")
        return self

    @field_validator("test")
    @classmethod
    def _is_test_location(cls, url: str | None) -> str | None:
        return url if url is None else check_location(url)

    def to_options(self) -> RidgeOptions:
        """Return the options of the regression, but for kernel and length scale."""
        return RidgeOptions(
            features=self.to_features(),
            n_components=self.n_components,
            alpha=self.alpha,
            alphas=self.alphas,
            cv=self.to_cv(),
            design=self.design,
            map=self.map,
            standardize=self.standardize,
            fit_intercept=self.fit_intercept,
            alpha_per_target=self.alpha_per_target,
            sample_weight_kind=self.sample_weight_kind,
            seed=self.seed,
        )

    def to_cv(self) -> int | Folds | None:
        """Return the folds to choose by; None leaves them to what memory holds."""
        n_folds = self.folds or DEFAULT_FOLDS
        if self.group_by is not None:
            return GroupFolds(n_folds)
        return TimeFolds(n_folds) if self.time else self.folds

    def open_data(self, url: str, *, classify: bool, group_by: str | None = None) -> training.JobData:
        """Open the data or the test data, their arrays named as the parameters say."""
        return training.open_job_data(
            url,
            x=self.x,
            y=self.y,
            sample_weight=self.sample_weight,
            missing_chunks=self.missing_chunks,
            group_by=group_by,
            classify=classify,
        )


# -- the job, and its steps ------------------------------------------------------------------------

# Tasks find what they work on here: an engine and open data are neither to be hashed nor stored by Prefect.
_job: ContextVar[training.Job] = ContextVar("job")


@contextmanager
def _working(parameters: JobParameters, fit: training.Fit, log: Any) -> Iterator[None]:
    """Open the engine and the run's folder for the tasks, and close them after."""
    classify = fit.loss is not None
    data = parameters.open_data(parameters.data, classify=classify, group_by=parameters.group_by)
    test = None if parameters.test is None else parameters.open_data(parameters.test, classify=classify)
    overwrite, register = parameters.overwrite, parameters.registered
    # A cluster takes seconds to start, and a refusal none.
    training.check_place(parameters.model, data.rows, overwrite=overwrite, register=register)
    with (
        holding(parameters.model),
        open_engine(parameters, log) as engine,
        training.open_job(
            fit,
            data,
            parameters.model,
            engine=engine,
            test=test,
            overwrite=overwrite,
            register=register,
        ) as job,
    ):
        token = _job.set(job)
        try:
            yield
        finally:
            _job.reset(token)


@step("inspect", retried=True)
def inspect() -> Summary:
    """Plan the fit, and compare the columns of training and test data."""
    return training.inspect_data(_job.get())


@step("fit", retried=True)
def fit() -> Summary:
    """Choose what is left open, and train the model on all rows."""
    return training.fit_model(_job.get())


@step("evaluate", retried=True)
def evaluate() -> Summary | State[None]:
    """Measure the errors on test data; skipped where there are none."""
    if _job.get().test is None:
        return Completed(name="Skipped", message="No test data were given, so the model was not evaluated.")
    return training.evaluate_model(_job.get())


@step("publish")
def publish(metrics: Summary | None) -> Summary:
    """Write the model where readers find it, whole or not at all."""
    published = training.publish_model(_job.get(), metrics=metrics)
    if published["version"] is not None:
        show_versions(_job.get().output.url)
    return published


def train_model(parameters: JobParameters, what: training.Fit, *, name: str) -> Summary:
    """Inspect, fit, evaluate and publish, and make artifacts of what was trained: the body of a flow.

    Parameters
    ----------
    parameters : JobParameters
    what : Fit
    name : str
        The flow's, which its artifacts begin with.

    Returns
    -------
    dict
        JSON-able: what the four steps returned, with `metrics`, None without test data.
    """
    log = get_run_logger()
    with _working(parameters, what, log):
        data = inspect()
        log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])
        trained = fit()
        _log_fit(log, trained)
        outcome = evaluate()
        metrics = None if isinstance(outcome, State) else outcome
        if metrics is None:
            log.info("no test data were given, so the model is not evaluated")
        published = publish(metrics)
        model = training.read_trained(_job.get())
        show_choice(model, key=f"rff-{name}-errors", title=data["data"], log=log)
    log.info("published %s", published["model"])
    result = {**data, **trained, **published, "metrics": metrics}
    create_markdown_artifact(
        _summary_markdown(result), key=f"rff-{name}-summary", description="What was trained, and how well."
    )
    if trained["candidates"]:
        create_table_artifact(
            _candidate_table(trained["candidates"]),
            key=f"rff-{name}-candidates",
            description="Candidates compared.",
        )
    return result


def _log_fit(log: Any, trained: Mapping[str, Any]) -> None:
    log.info(
        "%s, length scale %s: %s features, D = %s, alpha %s; on held-out rows: %s",
        trained["kernel"],
        number(trained["length_scale"]),
        trained["features"],
        trained["n_components"],
        number(trained["alpha"]),
        _estimate(trained["estimate"]),
    )
    for cause in trained["causes"]:
        log.warning("%s: %s", trained["status"], cause)


# -- artifacts -------------------------------------------------------------------------------------


def show_versions(model: str) -> None:
    """Make an artifact of the lineage of a registered model's newest versions."""
    rows = version_rows(RegisteredModel(model), last=_SHOWN_VERSIONS)
    create_table_artifact(
        [{name.replace("_", " "): _cell(value) for name, value in row.items()} for row in rows],
        key="rff-model-versions",
        description=f"The newest versions of {redact(model)}: what each was made of.",
    )


def _cell(value: Any) -> Any:
    """Return what a table shows of a value of `version_rows`."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if value is None or isinstance(value, float | list):
        return number(value)
    # Digests are told apart by their beginning.
    return f"{value[:12]}…" if isinstance(value, str) and _DIGEST.fullmatch(value) else value


def place_of(published: Mapping[str, Any]) -> str:
    """Show where a model is, and as which version it was registered there."""
    version = published["version"]
    return code(published["model"]) + ("" if version is None else f", version {version}")


def _summary_markdown(result: Mapping[str, Any]) -> str:
    outputs = f"{result['n_targets']:,} targets"
    if result["classifier"] is not None:
        outputs = f"{len(result['classifier']['classes']):,} classes, {result['classifier']['loss']}"
    facts = {
        "model": place_of(result),
        "digest": code(result["digest"]),
        "training data": code(result["data"]),
        "rows": f"{result['n_samples']:,}",
        "inputs, outputs": f"{result['n_features']:,}, {outputs}",
        "kernel": shortened_text(result["kernel"]),
        "length scale": number(result["length_scale"]),
        "features": f"{result['features']}, D = {result['n_components']:,}",
        "alpha": f"{number(result['alpha'])}, by {result['alpha_chosen_by']}",
        "on held-out rows": _estimate(result["estimate"]),
        "seconds of the fit": f"{result['fit_seconds']:.1f}",
        "peak memory planned": result["peak_memory"],
    }
    if n_tried := training.n_candidates(result["candidates"]):
        facts["chosen from"] = f"{n_tried} candidates"
    return summary_markdown("Trained model", facts, result["metrics"])


def _estimate(found: Mapping[str, Any] | None) -> str:
    """Show what a model's card estimates of new rows."""
    if found is None:
        return "not estimated"
    errors = {name: found[name] for name in ("rmse", "r2", "accuracy", "log_loss") if name in found}
    shown = [
        f"{_TITLES[name]} {number(value)}"
        + (f" ± {number(found[f'{name}_standard_error'])}" if f"{name}_standard_error" in found else "")
        for name, value in errors.items()
    ]
    return ", ".join(shown)


def _candidate_table(candidates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    best = training.chosen_candidate(candidates)
    return [
        {
            "round": one.get("round", ""),
            "kernel": shortened_text(one["kernel"]),
            "length scale": number(one["length_scale"]),
            "features": one["features"],
            "D": one["n_components"],
            "alpha": number(one["alpha"]),
            "error / variance": number(one["score"]),
            "standard error": number(one["standard_error"]),
            "chosen": "yes" if one is best else "as good" if one.get("within_one_standard_error") else "",
        }
        for one in candidates
    ]


def facts_markdown(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as a table below a title."""
    return "\n".join(
        [f"# {title}", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items()), ""]
    )


def summary_markdown(title: str, facts: Mapping[str, str], metrics: Mapping[str, Any] | None) -> str:
    """Return facts as a table, and below it the errors on test data where there are some."""
    lines = facts_markdown(title, facts).split("\n")
    if metrics is None:
        return "\n".join([*lines, "Not evaluated: no test data were given.", ""])
    lines += [f"## Errors on {metrics['n_samples']:,} rows of {code(metrics['test_data'])}", ""]
    if "accuracy" in metrics:
        shown = {_TITLES[name]: metrics[name] for name in ("accuracy", "balanced_accuracy", "log_loss")}
        lines += [f"- {name}: {number(value)}" for name, value in shown.items()]
        return "\n".join([*lines, ""])
    lines += ["| target | RMSE | mean absolute | bias | R² |", "|---|---|---|---|---|"]
    columns = [metrics[name] for name in ("rmse", "mae", "bias", "r2")]
    lines += [f"| {i} | {' | '.join(map(number, row))} |" for i, row in enumerate(zip(*columns, strict=True))]
    return "\n".join([*lines, ""])
