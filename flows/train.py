"""Train a model as a Prefect flow: inspect → draw → broadcast → accumulate → solve → evaluate → publish.

Each task is one call into `rff_dist.training` and hands on a small JSON-able summary; sums and models
lie beside the output until the model is published, and Prefect never sees them. Retries of blocks
belong to the engine, so no task has any.

Run it in a process of its own::

    from flows.train import TrainParameters, train

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        train(TrainParameters(data="data.zarr", model="model", n_components=4096))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Self, cast

from prefect import State, Task, flow, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rff_dist import training
from rff_dist.drawing import check_width
from rff_dist.engines import Engine
from rff_dist.engines.dask import DaskEngine
from rff_dist.errors import InvalidParameterError, StorageError
from rff_dist.feature_map import Nystrom
from rff_dist.kernels import KERNELS, Kernel, Matern, check_design, find_kernel, with_length_scale
from rff_dist.pipeline import resolve_alpha
from rff_dist.progress import LogObserver
from rff_dist.storage import ZarrDataset, open_dataset, redact
from rff_dist.storage.locations import parse_location

__all__ = ["TrainParameters", "lend_engine", "train"]

type Summary = dict[str, Any]
type Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
type Positives = Annotated[list[Positive], Field(min_length=1)]


class TrainParameters(BaseModel):
    """What to train, on what and where; every value is checked before a run starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str = Field(description="Path or URL of the training data: a Zarr group with X and y.")
    model: str = Field(description="Path or URL where the model is published.")
    test: str | None = Field(
        default=None,
        description="Path or URL of test data to evaluate the model on; left out, it is not evaluated.",
    )
    x: str = Field(default="X", description="Name of the array of inputs, in the data and the test data.")
    y: str = Field(default="y", description="Name of the array of targets.")
    sample_weight: str | None = Field(
        default=None, description="Name of the array of weights; all rows weigh alike where left out."
    )
    missing_chunks: Literal["error", "fill"] = Field(
        default="error",
        description="What a chunk that is not in the store means: lost data, or one that held only the fill "
        "value.",
    )
    kernel: str = Field(
        default="gaussian",
        description=f"One of {', '.join(KERNELS)}, with parameters as in 'matern:nu=2.5', or a sum such as "
        "'gaussian:length_scale=2 + 0.1 * linear'; kernels that are products over the columns (laplacian, "
        "cauchy, sinc) need design 'iid' or 'quasi-monte-carlo'.",
    )
    nu: Positive | None = Field(
        default=None, description="Smoothness of the Matérn kernel; 1.5 where left out."
    )
    length_scale: Literal["auto", "evidence"] | Positive | Positives = Field(
        default="auto",
        description="The kernel's width in units of the (standardised) inputs: one number, a list with one "
        "per input column, 'auto' for the median distance between rows of a sample, or 'evidence' for one "
        "per column, tuned by the marginal likelihood of a sample.",
    )
    length_scale_candidates: Positives | None = Field(
        default=None,
        description="Widths to choose from by generalised cross-validation, in the place of `length_scale`; "
        "each costs one pass over the data and one solve.",
    )
    n_components: int = Field(
        default=2048,
        ge=1,
        description="D, the number of features: cost grows with D², error falls as 1/√D.",
    )
    features: Literal["fourier", "nystrom"] = Field(
        default="fourier",
        description="Random Fourier features, or Nyström features: kernel values at rows of the data.",
    )
    centres: Literal["uniform", "k-means++", "rpcholesky"] = Field(
        default="uniform", description="How Nyström features choose those rows."
    )
    alpha: Literal["auto", "gcv", "evidence"] | NonNegative | Positives = Field(
        default="auto",
        description="Ridge penalty of ‖y − Zw‖² + alpha‖w‖²: a number, a list to choose from by generalised "
        "cross-validation, or 'gcv' or 'evidence' to search the whole range; "
        "'auto' is 'evidence' where the length scale is, else 'gcv'.",
    )
    design: Literal["orthogonal", "iid", "quasi-monte-carlo", "structured"] = Field(
        default="orthogonal",
        description="How frequencies are arranged: orthogonal has less variance than iid, quasi-Monte Carlo "
        "least in few columns, structured is fast for hundreds of columns.",
    )
    map: Literal["auto", "pairs", "phases"] = Field(
        default="pairs",
        description="Cosines and sines in pairs, or cosines with random phases; 'auto' takes the one with "
        "the lower variance on a sample of the data.",
    )
    standardize: bool = Field(
        default=True, description="Whether the inputs' means and standard deviations are taken out first."
    )
    fit_intercept: bool = Field(
        default=True, description="Whether to fit an intercept, which is not penalised."
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

    @field_validator("data", "model", "test")
    @classmethod
    def _is_location(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parse_location(url)
            except StorageError as error:
                raise ValueError(str(error)) from error
        return url

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        check_width(self.n_components, self.map, self.features)
        if self.nu is not None and self.kernel != Matern.name:
            raise ValueError(f"`nu` is {self.nu} but the {self.kernel} kernel has none; leave it out")
        kernel = self.to_kernel()
        if self.features == "fourier":
            # Refuses a design that the kernel does not allow, at no cost.
            check_design(kernel, self.design, 1)
            if self.centres != "uniform":
                raise ValueError(
                    f"`centres` is {self.centres!r}, but Fourier features have none; give features='nystrom'"
                )
        if self.length_scale_candidates and self.length_scale != "auto":
            raise ValueError("`length_scale` and `length_scale_candidates` were both given; give one of them")
        for given in self.length_scales:
            if not isinstance(given, str):
                with_length_scale(kernel, given)
        if len(self.length_scales) > 1 and self.alpha == 0:
            raise ValueError("`alpha` is 0, where length scales cannot be compared; give a number above 0")
        if self.scheduler is not None and (self.workers is not None or self.threads is not None):
            raise ValueError(
                "`workers` and `threads` size the embedded cluster, but `scheduler` names an existing one"
            )
        return self

    def open_data(self, url: str) -> ZarrDataset:
        """Open the data or the test data, their arrays named as the parameters say."""
        return open_dataset(
            url, x=self.x, y=self.y, sample_weight=self.sample_weight, missing_chunks=self.missing_chunks
        )

    def to_kernel(self) -> Kernel:
        """Return the kernel, with a unit length scale where it has a single one."""
        return find_kernel(self.kernel) if self.nu is None else Matern(nu=self.nu)

    def to_features(self) -> str | Nystrom:
        """Return the kind of features, as the pipeline takes it."""
        return self.features if self.features == "fourier" else Nystrom(self.centres)

    @property
    def length_scales(self) -> list[Any]:
        """The length scales that compete: one, unless candidates were given."""
        return self.length_scale_candidates or [self.length_scale]


# Tasks find what they work on here: an engine and open data are neither to be hashed nor stored by Prefect.
_job: ContextVar[training.Job] = ContextVar("job")
_lent_engine: ContextVar[Engine | None] = ContextVar("lent_engine", default=None)


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


def _step[**P, R](run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    def make(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)

    return make


@_step("inspect")
def inspect() -> Summary:
    """Plan the fit, check every value and measure means and deviations."""
    return training.inspect_data(_job.get())


@_step("draw {name}")
def draw(name: str, length_scale: Any) -> Summary:
    """Draw the frequencies of one length scale."""
    return training.draw_features(_job.get(), length_scale, name=name)


@_step("broadcast {candidate[name]}")
def broadcast(candidate: Summary) -> Summary:
    """Give the frequencies to every worker and compare their digests."""
    return training.broadcast_features(_job.get(), candidate)


@_step("accumulate {candidate[name]}")
def accumulate(candidate: Summary) -> Summary:
    """Accumulate the exact statistics."""
    return training.accumulate_statistics(_job.get(), candidate)


@_step("solve {candidate[name]}")
def solve(candidate: Summary) -> Summary:
    """Solve for the coefficients."""
    return training.solve_ridge(_job.get(), candidate)


@_step("evaluate")
def evaluate(candidate: Summary) -> Summary | State[None]:
    """Measure the errors on test data; skipped where there are none."""
    if _job.get().test is None:
        return Completed(name="Skipped", message="No test data were given, so the model was not evaluated.")
    return training.evaluate_model(_job.get(), candidate)


@_step("publish")
def publish(candidate: Summary, compared: list[Summary], metrics: Summary | None) -> Summary:
    """Write the model where readers find it, whole or not at all."""
    return training.publish_model(_job.get(), candidate, compared=compared, metrics=metrics)


@flow(name="train", persist_result=False)
def train(parameters: TrainParameters) -> Summary:
    """Train a ridge regression on random Fourier features and publish the model.

    Returns
    -------
    dict
        JSON-able: where the model is and its digest, sizes, the length scale and alpha chosen, all
        candidates, the metrics on test data (None without any) and the seconds of the passes.

    Raises
    ------
    RFFDistError
        Of the step that failed; then nothing is published.
    """
    log = get_run_logger()
    with _working(parameters, log):
        data = inspect()
        log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])
        solved = []
        passes = []
        for number, length_scale in enumerate(parameters.length_scales, start=1):
            candidate = draw(f"candidate-{number}", length_scale)
            broadcast(candidate)
            passes.append(accumulate(candidate))
            solved.append(solve(candidate))
            _log_solution(log, solved[-1])
        best = training.choose_candidate(solved)
        outcome = evaluate(best)
        metrics = None if isinstance(outcome, State) else outcome
        if metrics is None:
            log.info("no test data were given, so the model is not evaluated")
        published = publish(best, solved, metrics)
    log.info("published %s", published["model"])
    result = {
        **published,
        "kernel": parameters.kernel,
        "features": parameters.features,
        "n_components": parameters.n_components,
        **data,
        "length_scale": best["length_scale"],
        "alpha": best["alpha"],
        "gcv": best["gcv"],
        "candidates": solved,
        "metrics": metrics,
        "accumulate_seconds": round(sum(one["seconds"] for one in passes), 3),
    }
    create_markdown_artifact(
        _summary_markdown(result), key="rff-train-summary", description="What was trained, and how well."
    )
    create_table_artifact(
        _candidate_table(solved, best), key="rff-train-candidates", description="Length scales compared."
    )
    return result


@contextmanager
def _working(parameters: TrainParameters, log: Any) -> Iterator[None]:
    """Open the data, the engine and the run's folder for the tasks, and close them after."""
    dataset = parameters.open_data(parameters.data)
    test = None if parameters.test is None else parameters.open_data(parameters.test)
    # A cluster takes seconds to start, and a refusal none.
    training.check_place(parameters.model, dataset, overwrite=parameters.overwrite)
    with (
        _open_engine(parameters, log) as engine,
        training.open_job(
            dataset,
            parameters.to_kernel(),
            parameters.model,
            engine=engine,
            test=test,
            n_components=parameters.n_components,
            alpha=resolve_alpha(parameters.alpha, parameters.length_scale),
            design=parameters.design,
            map=parameters.map,
            standardize=parameters.standardize,
            fit_intercept=parameters.fit_intercept,
            seed=parameters.seed,
            choosing=len(parameters.length_scales) > 1,
            overwrite=parameters.overwrite,
            features=parameters.to_features(),
        ) as job,
    ):
        token = _job.set(job)
        try:
            yield
        finally:
            _job.reset(token)


@contextmanager
def _open_engine(parameters: TrainParameters, log: Any) -> Iterator[Engine]:
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


def _log_solution(log: Any, solved: Mapping[str, Any]) -> None:
    score = "" if solved["score"] is None else f", GCV error {solved['score']:.4g} of the variance"
    log.info("length scale %s: alpha %.3g%s", _number(solved["length_scale"]), solved["alpha"], score)
    for cause in solved["causes"]:
        log.warning("%s: %s", solved["status"], cause)


# -- artifacts -------------------------------------------------------------------------------------


def _summary_markdown(result: Mapping[str, Any]) -> str:
    rows = {
        "model": _code(result["model"]),
        "digest": _code(result["digest"]),
        "training data": _code(result["data"]),
        "rows": f"{result['n_samples']:,}",
        "inputs, targets": f"{result['n_features']:,}, {result['n_targets']:,}",
        "kernel, D": f"{result['kernel']}, {result['n_components']:,}",
        "length scale": _number(result["length_scale"]),
        "alpha": _number(result["alpha"]),
        "statistics passes": f"{result['accumulate_seconds']:.1f} s",
        "peak memory planned": result["peak_memory"],
    }
    lines = ["# Trained model", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items()), ""]
    metrics = result["metrics"]
    if metrics is None:
        return "\n".join([*lines, "Not evaluated: no test data were given.", ""])
    lines += [f"## Errors on {metrics['n_samples']:,} rows of {_code(metrics['test_data'])}", ""]
    lines += ["| target | RMSE | mean absolute | bias | R² |", "|---|---|---|---|---|"]
    columns = [metrics[name] for name in ("rmse", "mae", "bias", "r2")]
    lines += [
        f"| {i} | {' | '.join(map(_number, row))} |" for i, row in enumerate(zip(*columns, strict=True))
    ]
    return "\n".join([*lines, ""])


def _candidate_table(solved: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "length scale": _number(one["length_scale"]),
            "alpha": _number(one["alpha"]),
            "GCV error / variance": _number(one["score"]),
            "degrees of freedom": _number(one["degrees_of_freedom"]),
            "solver": one["status"],
            "chosen": "yes" if one["name"] == best["name"] else "",
        }
        for one in solved
    ]


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_number, value[:8])) + (f" … ({len(value)})" if len(value) > 8 else "")
    return f"{value:.4g}"


def _code(text: str) -> str:
    """Show a name as it is, whatever it holds: it must not become markup."""
    return "`" + redact(text).replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"
