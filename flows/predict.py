"""Score a dataset with a model as a Prefect flow: one pass that writes predictions or labels to Zarr.

The model may be a registered one, of which the version that is current when the run begins is used. Run it
in a process of its own::

    from flows.predict import PredictParameters, predict

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        predict(PredictParameters(model="models/main", data="new.zarr", output="predictions.zarr"))
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from pydantic import Field, field_validator

from flows.common import Summary, facts_markdown
from flows.running import (
    RunParameters,
    check_location,
    code,
    holding,
    job_flow,
    lend_engine,
    open_engine,
    step,
)
from rff_dist import scoring
from rff_dist.engines import Engine
from rff_dist.scoring import ScoringModel, Wanted
from rff_dist.storage import ZarrDataset, redact
from rff_dist.storage.locations import check_output, parse_location

__all__ = ["PredictParameters", "lend_engine", "predict"]


class PredictParameters(RunParameters):
    """Which rows are scored by which model; every value is checked before a run starts."""

    model: str = Field(
        description="Path or URL of a model: a regression, a classifier or clusters. Of a registered model "
        "the current version is used."
    )
    data: str = Field(description="Path or URL of the rows: a Zarr group with X, its columns the model's.")
    output: str = Field(
        description="Path or URL of the Zarr group that is written: `predictions`, or `labels`, and what "
        "else is wanted."
    )
    x: str = Field(default="X", description="Name of the array of inputs.")
    missing_chunks: Literal["error", "fill"] = Field(
        default="error",
        description="What a chunk that is not in the store means: lost data, or one that held only the fill "
        "value.",
    )
    std: bool = Field(
        default=False,
        description="Whether a regression's standard deviations are written too, at the cost of a Cholesky "
        "factor.",
    )
    interval: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="Writes the ends of intervals, `lower` and `upper`, that hold a new value with this "
        "probability, 0.9 say; of a regression.",
    )
    probabilities: bool = Field(
        default=False, description="Whether a classifier's probabilities of the classes are written."
    )
    distances: bool = Field(default=False, description="Whether distances to all clusters are written.")
    overwrite: bool = Field(default=False, description="Whether an output that is there may be replaced.")

    @field_validator("model", "data", "output")
    @classmethod
    def _is_location(cls, url: str) -> str:
        return check_location(url)

    def to_wanted(self) -> Wanted:
        """Return what is written beside the predictions, as the library takes it."""
        return Wanted(self.std, self.interval, self.probabilities, self.distances)


@dataclass(frozen=True, slots=True)
class _Work:
    parameters: PredictParameters
    model: ScoringModel
    dataset: ZarrDataset
    engine: Engine


# Tasks find what they work on here: an engine and open data are neither to be hashed nor stored by Prefect.
_work: ContextVar[_Work] = ContextVar("work")


@contextmanager
def _working(parameters: PredictParameters, log: Any) -> Iterator[_Work]:
    """Check all that can be checked before a cluster starts, and open it."""
    check_output(
        parse_location(parameters.output),
        overwrite=parameters.overwrite,
        inputs=[parse_location(parameters.data), parse_location(parameters.model)],
    )
    model = scoring.open_model(parameters.model)
    dataset = scoring.open_rows(
        parameters.data, model, x=parameters.x, missing_chunks=parameters.missing_chunks
    )
    scoring.check_wanted(model, parameters.to_wanted())
    with holding(parameters.output), open_engine(parameters, log) as engine:
        work = _Work(parameters, model, dataset, engine)
        token = _work.set(work)
        try:
            yield work
        finally:
            _work.reset(token)


@step("score", retried=True)
def score() -> Summary:
    """Write what the model says of each row; the output appears when it is complete."""
    work = _work.get()
    start = time.perf_counter()
    written = scoring.score(
        work.dataset,
        work.model,
        work.parameters.output,
        wanted=work.parameters.to_wanted(),
        engine=work.engine,
        overwrite=work.parameters.overwrite,
    )
    return {**written, "seconds": round(time.perf_counter() - start, 3)}


@job_flow(
    "predict",
    resume="All rows are scored again, and the output appears when it is complete: of a registered model by "
    "the version that is current then.",
)
def predict(parameters: PredictParameters) -> Summary:
    """Score every row of a dataset with a model and write what it says to Zarr.

    Returns
    -------
    dict
        JSON-able: what was written where, by which version of which model, and the rows and seconds.

    Raises
    ------
    RFFDistError
        If something does not fit or the pass fails; then there is no output, or that of before.
    """
    log = get_run_logger()
    with _working(parameters, log) as work:
        version = "" if work.model.version is None else f", version {work.model.version}"
        log.info("%s by %s%s", redact(parameters.data), redact(parameters.model), version)
        result: Summary = {
            "output": redact(parameters.output),
            "model": redact(parameters.model),
            "kind": work.model.kind,
            "version": work.model.version,
            "model_digest": work.model.digest,
            "data": redact(parameters.data),
            "fingerprint": work.dataset.fingerprint(),
            "interval": parameters.interval,
            **score(),
        }
    log.info("wrote %s rows to %s", f"{result['n_samples']:_}", result["output"])
    create_markdown_artifact(
        _summary(result), key="rff-predict-summary", description="What was scored, and by which model."
    )
    return result


def _summary(result: Mapping[str, Any]) -> str:
    version = "" if result["version"] is None else f", version {result['version']}"
    facts = {
        "output": code(result["output"]),
        "arrays": ", ".join(map(code, result["arrays"])),
        "rows": f"{result['n_samples']:,}",
        "data": code(result["data"]),
        "model": f"{code(result['model'])}{version} ({result['kind']})",
        "digest": code(result["model_digest"]),
        "seconds": f"{result['seconds']:.1f}",
    }
    return facts_markdown("Scored rows", facts)
