"""Bring a model up to date as a Prefect flow, every night say: the job of `rff-dist update`.

find new rows → score them → hold out rows → sum → drift → solve → gate → publish, or keep the current model
with the reason → report. Each task is one call into `rff_dist.refresh` and hands on a small JSON-able
summary; what they work on stays in the process. Before the last step nothing is written: a run that was
killed is repeated, and a run after one that was completed finds nothing new, says so and starts no cluster.

Run it in a process of its own::

    from flows.refresh import RefreshParameters, refresh

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        refresh(RefreshParameters(data="data.zarr", model="models/main"))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field, field_validator

from flows.common import NonNegative, Summary, number, place_of, show_versions
from flows.running import RunParameters, check_location, code, holding, job_flow, open_engine, step
from rff_dist import refresh as steps
from rff_dist.drift import LEVEL
from rff_dist.engines import Engine
from rff_dist.storage import ZarrDataset, open_dataset
from rff_dist.update import TOLERANCE

__all__ = ["RefreshParameters", "refresh"]

_RESUME = (
    "Nothing is written before the last step: the next run finds the same new rows, and ends with the digest "
    "of an undisturbed one."
)

type Probability = Annotated[float, Field(gt=0, lt=1)]


class RefreshParameters(RunParameters):
    """Which model, by which rows, and how good it must stay; every value is checked before a run starts."""

    data: str = Field(
        description="Path or URL of the data that the model was trained on, with more rows at their end."
    )
    model: str = Field(
        description="Path or URL of a model with its statistics, which is replaced, or of a registered "
        "model, models/NAME, whose next version is published."
    )
    test: str | None = Field(
        default=None,
        description="Path or URL of test data to compare the new model with the current one on; left out, "
        "the newest rows that the current one holds are kept out of both.",
    )
    x: str = Field(default="X", description="Name of the array of inputs.")
    y: str = Field(default="y", description="Name of the array of targets.")
    sample_weight: str | None = Field(
        default=None, description="Name of the array of weights; all rows weigh alike where left out."
    )
    missing_chunks: Literal["error", "fill"] = Field(
        default="error",
        description="What a chunk that is not in the store means: lost data, or one that held only the fill "
        "value.",
    )
    tolerance: NonNegative = Field(
        default=TOLERANCE,
        description="By how much the mean squared error of a target may rise on the held-out rows, as a "
        "share of it; else the current model is kept and the new rows are refused.",
    )
    drift_level: Probability = Field(
        default=LEVEL, description="Probability of a drift alarm for rows that have not drifted."
    )
    backfill: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Number of a row: from there on, rows that were refused before are judged again. Left "
        "out, they are passed over.",
    )
    force: bool = Field(
        default=False,
        description="Whether the new model is published even if it is worse than tolerated.",
    )
    dry_run: bool = Field(
        default=False, description="Whether the run only says what it would do, and writes nothing."
    )

    @field_validator("data", "model", "test")
    @classmethod
    def _is_location(cls, url: str | None) -> str | None:
        return url if url is None else check_location(url)

    def open_data(self, url: str) -> ZarrDataset:
        """Open the data or the test data, their arrays named as the parameters say."""
        return open_dataset(
            url, x=self.x, y=self.y, sample_weight=self.sample_weight, missing_chunks=self.missing_chunks
        )


@dataclass
class _Work:
    """What the tasks of a run work on."""

    job: steps.Refresh
    open_engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        assert self.open_engine is not None  # the flow opens it where there are new rows
        return self.open_engine


_work: ContextVar[_Work] = ContextVar("work")


@contextmanager
def _working(parameters: RefreshParameters) -> Iterator[_Work]:
    """Open the model and the data for the tasks."""
    test = None if parameters.test is None else parameters.open_data(parameters.test)
    with (
        holding(parameters.model),
        steps.open_refresh(
            parameters.model,
            parameters.open_data(parameters.data),
            test=test,
            tolerance=parameters.tolerance,
            level=parameters.drift_level,
            backfill=parameters.backfill,
            force=parameters.force,
            dry_run=parameters.dry_run,
        ) as job,
    ):
        work = _Work(job)
        token = _work.set(work)
        try:
            yield work
        finally:
            _work.reset(token)


@step("find new rows", retried=True)
def find() -> Summary:
    """Check that the data begin with the rows that the model was trained on, and find those after them."""
    return steps.find_rows(_work.get().job)


@step("score", retried=True)
def score() -> Summary:
    """Measure the current model's errors on the new rows, which it has not seen."""
    return steps.score_rows(_work.get().job, _work.get().engine)


@step("hold out", retried=True)
def hold_out() -> Summary:
    """Measure the current model's errors on held-out rows."""
    return steps.hold_out_rows(_work.get().job, _work.get().engine)


@step("sum", retried=True)
def add_up() -> Summary:
    """Bring the exact statistics up to date."""
    return steps.sum_rows(_work.get().job, _work.get().engine)


@step("drift")
def check_drift() -> Summary:
    """Test whether inputs or errors have drifted; an alarm stops nothing."""
    return steps.check_drift(_work.get().job)


@step("solve")
def solve() -> Summary:
    """Solve for the new model."""
    return steps.solve_model(_work.get().job)


@step("gate", retried=True)
def judge() -> Summary:
    """Compare the new model with the current one on the held-out rows."""
    return steps.judge_model(_work.get().job, _work.get().engine)


@step("publish")
def publish() -> Summary:
    """Publish the new model, or keep the current one and record the refused rows."""
    job = _work.get().job
    published = steps.publish_update(job)
    if published["decision"] == "published" and published["version"] is not None:
        show_versions(job.location.url)
    return published


@job_flow("refresh", resume=_RESUME)
def refresh(parameters: RefreshParameters) -> Summary:
    """Add the rows that are new to a model, exactly, and publish it if it is no worse.

    Returns
    -------
    dict
        JSON-able: `decision` ("published", "kept" or "nothing new") and `reason`; where the model is, its
        version's number, digest and rows; the new rows, and of these what `rff_dist.refresh.run_steps` tells.

    Raises
    ------
    RFFDistError
        Of the step that failed; then nothing is published, and no row is refused.
    """
    log = get_run_logger()
    with _working(parameters) as work:
        result = find()
        if result["n_new"]:
            log.info("%s new rows", f"{result['n_new']:_}")
            with open_engine(parameters, log) as engine:
                work.open_engine = engine
                result["progressive"] = score()
                result["held_out"] = hold_out()
                result["statistics"] = add_up()
                result["drift"] = check_drift()
                result["solution"] = solve()
                result["gate"] = judge()
                result |= publish()
        else:
            result |= publish()
    _log(log, result)
    _report(result)
    return result


def _log(log: Any, result: Mapping[str, Any]) -> None:
    drift = result.get("drift")
    if drift is not None and drift["drifted"]:
        log.warning("drift in %s, p-value %.2g", ", ".join(drift["parts"]), drift["p_value"])
    kept = result["decision"].endswith("kept")
    (log.warning if kept else log.info)("%s: %s", result["decision"], result["reason"])


# -- artifacts -------------------------------------------------------------------------------------


def _report(result: Mapping[str, Any]) -> None:
    create_markdown_artifact(
        _report_markdown(result),
        key="rff-refresh-report",
        description="What was new, and what became of the model.",
    )
    if result["n_new"] and result["drift"]["columns"]:
        create_table_artifact(
            _column_table(result["drift"]["columns"]),
            key="rff-refresh-columns",
            description="Columns of the new rows, those that moved most first.",
        )


def _report_markdown(result: Mapping[str, Any]) -> str:
    facts = {
        "model": place_of(result),
        "decision": f"**{result['decision']}**",
        "because": result["reason"],
        "rows of the model": f"{result['n_samples']:,}",
        "new rows": f"{result['n_new']:,}",
        "left out": ", ".join(f"{start:,} to {stop - 1:,}" for start, stop in result["left_out"]) or "none",
        "digest": code(result["digest"]),
        "digest of the statistics": code(result["statistics_digest"]),
    }
    if result["n_new"]:
        drift, solution = result["drift"], result["solution"]
        alarm = f"**in {', '.join(drift['parts'])}**" if drift["drifted"] else "none"
        p_values = ", ".join(f"{name} {number(p)}" for name, p in drift["p_values"].items())
        facts["drift"] = f"{alarm} (p-values: {p_values})"
        facts["alpha"] = f"{number(solution['alpha'])}, before {number(solution['alpha_before'])}"
        facts["solver"] = " ".join([solution["status"], *solution["causes"]])
    lines = ["# Refreshed model", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items()), ""]
    return "\n".join(lines + (_error_lines(result) if result["n_new"] else []))


def _error_lines(result: Mapping[str, Any]) -> list[str]:
    progressive, gate = result["progressive"], result["gate"]
    columns = [*(progressive[name] for name in ("rmse", "mae", "bias", "r2")), gate["current"], gate["new"]]
    return [
        "## Errors",
        "",
        f"Of the current model on {progressive['n_samples']:,} new rows before they were added, and root "
        f"mean squared errors of both models on {gate['held_out']}.",
        "",
        "| target | RMSE | mean absolute | bias | R² | held out: current | new model |",
        "|---|---|---|---|---|---|---|",
        *(f"| {i} | {' | '.join(map(number, row))} |" for i, row in enumerate(zip(*columns, strict=True))),
        "",
    ]


def _column_table(columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "column": row["column"],
            "shift of the mean / deviation": number(row["shift"]),
            "spread / deviation": number(row["spread"]),
            "p-value": number(row["p_value"]),
        }
        for row in columns
    ]
