"""What the flows share: parameters of every job, its engine and folder, and tasks that begin and end it.

A task is one call into `rff_dist.training` and hands on a small JSON-able summary. How flows run, stop and
are retried is in `flows.running`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Self

from prefect import State
from prefect.artifacts import create_table_artifact
from prefect.states import Completed
from pydantic import Field, field_validator, model_validator

from flows.running import (
    RunParameters,
    check_location,
    code,
    holding,
    is_transient,
    job_flow,
    lend_engine,
    open_engine,
    step,
)
from rff_dist import training
from rff_dist.blocks import Dataset
from rff_dist.feature_map import Nystrom
from rff_dist.kernels import Kernel
from rff_dist.publishing import version_rows
from rff_dist.storage import ZarrDataset, open_dataset, redact
from rff_dist.storage.registry import RegisteredModel

__all__ = [
    "DataParameters",
    "JobParameters",
    "NonNegative",
    "Positive",
    "Positives",
    "RunParameters",
    "Summary",
    "check_location",
    "code",
    "current_job",
    "evaluate",
    "facts_markdown",
    "holding",
    "inspect",
    "is_transient",
    "job_flow",
    "lend_engine",
    "number",
    "open_engine",
    "place_of",
    "publish",
    "show_versions",
    "step",
    "summary_markdown",
    "working",
]

_SHOWN_VERSIONS = 20
_DIGEST = re.compile("[0-9a-f]{64}")

type Summary = dict[str, Any]
type Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
type Positives = Annotated[list[Positive], Field(min_length=1)]


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
    standardize: bool | Literal["rank", "auto"] = Field(
        default=True,
        description="What is done to the input columns first: true takes means and standard deviations out, "
        "false nothing, 'rank' maps each column to a normal law by the ranks of its values, and 'auto' does "
        "that to columns with heavy tails alone.",
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
        if self.features == "fourier" and self.centres != "uniform":
            raise ValueError(
                f"`centres` is {self.centres!r}, but Fourier features have none; give features='nystrom'"
            )
        return self

    def to_features(self) -> str | Nystrom:
        """Return the kind of features, as the pipeline takes it."""
        return self.features if self.features == "fourier" else Nystrom(self.centres)


class JobParameters(DataParameters):
    """What training takes beyond that: targets, and test data."""

    test: str | None = Field(
        default=None,
        description="Path or URL of test data to evaluate the model on; left out, it is not evaluated.",
    )
    y: str = Field(default="y", description="Name of the array of targets.")
    fit_intercept: bool = Field(
        default=True, description="Whether to fit an intercept, which is not penalised."
    )

    @model_validator(mode="after")
    def _keep_versions(self) -> Self:
        if self.registered and self.overwrite:
            raise ValueError("`overwrite` is true, but versions of a registered model are never replaced")
        return self

    @field_validator("test")
    @classmethod
    def _is_test_location(cls, url: str | None) -> str | None:
        return url if url is None else check_location(url)

    def open_data(self, url: str) -> ZarrDataset:
        """Open the data or the test data, their arrays named as the parameters say."""
        return open_dataset(
            url, x=self.x, y=self.y, sample_weight=self.sample_weight, missing_chunks=self.missing_chunks
        )


# Tasks find what they work on here: an engine and open data are neither to be hashed nor stored by Prefect.
_job: ContextVar[training.Job] = ContextVar("job")


def current_job() -> training.Job:
    """Return the job of the flow that runs."""
    return _job.get()


@contextmanager
def working(
    parameters: JobParameters, dataset: Dataset, kernel: Kernel, *, log: Any, **options: Any
) -> Iterator[None]:
    """Open the engine and the run's folder for the tasks, and close them after.

    Parameters
    ----------
    parameters : JobParameters
    dataset : Dataset
        The training data.
    kernel : Kernel
    log : logger
    **options
        What else `training.open_job` takes.
    """
    test = None if parameters.test is None else parameters.open_data(parameters.test)
    # A cluster takes seconds to start, and a refusal none.
    training.check_place(
        parameters.model, dataset, overwrite=parameters.overwrite, register=parameters.registered
    )
    with (
        holding(parameters.model),
        open_engine(parameters, log) as engine,
        training.open_job(
            dataset,
            kernel,
            parameters.model,
            engine=engine,
            test=test,
            map=parameters.map,
            standardize=parameters.standardize,
            fit_intercept=parameters.fit_intercept,
            seed=parameters.seed,
            overwrite=parameters.overwrite,
            register=parameters.registered,
            features=parameters.to_features(),
            **options,
        ) as job,
    ):
        token = _job.set(job)
        try:
            yield
        finally:
            _job.reset(token)


@step("inspect", retried=True)
def inspect() -> Summary:
    """Plan the fit, check every value and measure means and deviations."""
    return training.inspect_data(_job.get())


@step("evaluate", retried=True)
def evaluate(candidate: Summary) -> Summary | State[None]:
    """Measure the errors on test data; skipped where there are none."""
    if _job.get().test is None:
        return Completed(name="Skipped", message="No test data were given, so the model was not evaluated.")
    return training.evaluate_model(_job.get(), candidate)


@step("publish")
def publish(candidate: Summary, compared: list[Summary], metrics: Summary | None) -> Summary:
    """Write the model where readers find it, whole or not at all."""
    published = training.publish_model(_job.get(), candidate, compared=compared, metrics=metrics)
    if published["version"] is not None:
        show_versions(_job.get().output.url)
    return published


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
    lines += ["| target | RMSE | mean absolute | bias | R² |", "|---|---|---|---|---|"]
    columns = [metrics[name] for name in ("rmse", "mae", "bias", "r2")]
    lines += [f"| {i} | {' | '.join(map(number, row))} |" for i, row in enumerate(zip(*columns, strict=True))]
    return "\n".join([*lines, ""])


def number(value: Any) -> str:
    """Show a number, the first eight of several, or a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(number, value[:8])) + (f" … ({len(value)})" if len(value) > 8 else "")
    return f"{value:.4g}"
