"""What the flows share: parameters of every job, its engine and folder, and tasks that begin and end it.

A task is one call into `rff_dist.training` and hands on a small JSON-able summary. Retries of blocks belong
to the engine, so no task has any.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Self, cast

from prefect import State, Task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rff_dist import training
from rff_dist.blocks import Dataset
from rff_dist.engines import Engine
from rff_dist.engines.dask import DaskEngine
from rff_dist.errors import InvalidParameterError, StorageError
from rff_dist.feature_map import Nystrom
from rff_dist.kernels import Kernel
from rff_dist.progress import LogObserver
from rff_dist.publishing import version_rows
from rff_dist.storage import ZarrDataset, open_dataset, redact
from rff_dist.storage.locations import parse_location
from rff_dist.storage.registry import RegisteredModel

__all__ = [
    "DataParameters",
    "JobParameters",
    "NonNegative",
    "Positive",
    "Positives",
    "Summary",
    "check_location",
    "code",
    "current_job",
    "evaluate",
    "inspect",
    "lend_engine",
    "number",
    "open_engine",
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


class DataParameters(BaseModel):
    """On which rows, with which features and where a job runs; every value is checked before a run starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

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
    standardize: bool = Field(
        default=True, description="Whether the inputs' means and standard deviations are taken out first."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the frequencies and of samples.")
    scheduler: str | None = Field(
        default=None,
        description="Address of a Dask scheduler, tcp://127.0.0.1:8786 say; left out, an embedded local "
        "cluster starts and ends with the flow.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Worker processes of the embedded cluster; by the number of CPUs if left out.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="Threads of each worker process; by the number of CPUs if left out."
    )
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
        if self.scheduler is not None and (self.workers is not None or self.threads is not None):
            raise ValueError(
                "`workers` and `threads` size the embedded cluster, but `scheduler` names an existing one"
            )
        return self

    def to_features(self) -> str | Nystrom:
        """Return the kind of features, as the pipeline takes it."""
        return self.features if self.features == "fourier" else Nystrom(self.centres)


def check_location(url: str) -> str:
    """Return a path or URL, if it is one."""
    try:
        parse_location(url)
    except StorageError as error:
        raise ValueError(str(error)) from error
    return url


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
_lent_engine: ContextVar[Engine | None] = ContextVar("lent_engine", default=None)


def current_job() -> training.Job:
    """Return the job of the flow that runs."""
    return _job.get()


@contextmanager
def lend_engine(engine: Engine) -> Iterator[None]:
    """Let flows that this context calls use `engine`, and leave it open, in the place of one of their own.

    For a process that has a cluster already, or observers to show the passes with.
    """
    token = _lent_engine.set(engine)
    try:
        yield
    finally:
        _lent_engine.reset(token)


def step[**P, R](run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a task of a function, which Prefect neither caches nor stores the result of."""

    def make(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)

    return make


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


@contextmanager
def open_engine(parameters: DataParameters, log: Any) -> Iterator[Engine]:
    """Open the engine that the parameters name, or the one that was lent to the flow."""
    lent = _lent_engine.get()
    if lent is not None:
        if any(v is not None for v in (parameters.scheduler, parameters.workers, parameters.threads)):
            raise InvalidParameterError(
                "an engine was lent to the flow, which `scheduler`, `workers` and `threads` do not change; "
                "leave them out"
            )
        yield lent
        return
    observer = LogObserver(cast("logging.Logger", log))  # an adapter, with the same methods
    with DaskEngine(
        parameters.scheduler,
        n_workers=parameters.workers,
        threads_per_worker=parameters.threads,
        observers=(observer,),
    ) as engine:
        yield engine


@step("inspect")
def inspect() -> Summary:
    """Plan the fit, check every value and measure means and deviations."""
    return training.inspect_data(_job.get())


@step("evaluate")
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


def summary_markdown(title: str, facts: Mapping[str, str], metrics: Mapping[str, Any] | None) -> str:
    """Return facts as a table, and below it the errors on test data where there are some."""
    lines = [f"# {title}", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items()), ""]
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


def code(text: str) -> str:
    """Show a name as it is, whatever it holds: it must not become markup."""
    return "`" + redact(text).replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"
