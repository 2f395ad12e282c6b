"""Compare kernels and length scales as a Prefect flow, and publish the best model with its alpha and D.

inspect → draw → accumulate → validate each candidate → evaluate → publish. Candidates share one reading of
the data, or as few as memory allows. Each task is one call into `rff_dist.training`. The sums of all folds of
all candidates stay in the process between the tasks: written out they would be many times the model, and
nothing resumes from them. The best candidate's model lies beside the output before anything is published.

Run it in a process of its own::

    from flows.tune import TuneParameters, tune

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        tune(TuneParameters(data="data.zarr", model="model", n_components=[256, 512, 1024]))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from prefect import State, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field, model_validator

from flows.common import (
    JobParameters,
    Positive,
    Positives,
    Summary,
    code,
    current_job,
    evaluate,
    inspect,
    job_flow,
    number,
    place_of,
    publish,
    step,
    summary_markdown,
    working,
)
from flows.pictures import show_choice
from rff_dist import search, training
from rff_dist.blocks import Dataset
from rff_dist.folds import Folds, GroupFolds, HashFolds, TimeFolds
from rff_dist.kernels import KERNELS, Gaussian
from rff_dist.pipeline import read_widths
from rff_dist.storage.columns import column_of
from rff_dist.storage.labelled import GroupedDataset

__all__ = ["TuneParameters", "tune"]

type Width = Annotated[int, Field(ge=1)]


class TuneParameters(JobParameters):
    """What to compare, on what and where; every value is checked before a run starts."""

    kernels: Annotated[list[str], Field(min_length=1)] = Field(
        default=list(search.DEFAULT_KERNELS),
        description=f"Kernels to compare: each one of {', '.join(KERNELS)}, with parameters as in "
        "'matern:nu=2.5', or a sum such as 'gaussian:length_scale=2 + 0.1 * linear'.",
    )
    length_scales: Annotated[list[Positive | Positives | str], Field(min_length=1)] | None = Field(
        default=None,
        description="What each kernel of one width is tried with: numbers, lists with one per input column, "
        "multiples of the median distance between rows such as '0.5x', or 'evidence'; left out, 0.25x, 0.5x, "
        "1x, 2x and 4x.",
    )
    n_components: Literal["auto"] | Width | Annotated[list[Width], Field(min_length=1)] = Field(
        default=search.DEFAULT_COMPONENTS,
        description="D, the number of features; of several, or 'auto' for 32 to 2,048, each candidate takes "
        "its smallest within one standard error of its best.",
    )
    alpha: Literal["cv", "cv-1se"] | Positive | Positives = Field(
        default="cv",
        description="Ridge penalty of ‖y − Zw‖² + alpha‖w‖²: 'cv' takes the one of the least k-fold error, "
        "'cv-1se' the largest within one standard error of it; or a number, or a list to choose from.",
    )
    alphas: Positives | None = Field(
        default=None, description="What 'cv' and 'cv-1se' choose from; the whole range where left out."
    )
    folds: int = Field(default=5, ge=2, le=1000, description="Number of folds, by a hash of the row.")
    group_by: str | None = Field(
        default=None, description="Name of an array of groups whose rows are in one fold; none if left out."
    )
    time: bool = Field(
        default=False,
        description="Whether rows are in the order of time: each fold is predicted from those before it.",
    )
    design: Literal["orthogonal", "iid", "quasi-monte-carlo", "structured"] | None = Field(
        default=None,
        description="How frequencies are arranged; left out, orthogonal for the kernels that allow it, else "
        "iid.",
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.time and self.group_by is not None:
            raise ValueError("`group_by` and `time` were both given; folds are of one of them")
        read_widths(self.n_components, self.map, self.features)
        search.check_choices(self.alpha, self.alphas, cv=self.to_folds(), n_components=self.n_components)
        self.to_candidates()
        return self

    def to_folds(self) -> Folds:
        """Return the folds that candidates are compared by."""
        if self.group_by is not None:
            return GroupFolds(self.folds)
        return TimeFolds(self.folds) if self.time else HashFolds(self.folds)

    def to_candidates(self) -> list[search.Candidate]:
        """Return what is compared."""
        return search.make_candidates(self.kernels, self.length_scales)

    def open_training_data(self) -> Dataset:
        """Open the training data, with the groups of its rows where folds are of groups."""
        dataset = self.open_data(self.data)
        if self.group_by is None:
            return dataset
        return GroupedDataset(dataset, column_of(dataset, self.group_by))


@step("draw", retried=True)
def draw(candidates: list[search.Candidate]) -> list[Summary]:
    """Draw the frequencies of all candidates."""
    return training.draw_candidates(current_job(), candidates)


@step("accumulate {number} of {total}", retried=True)
def accumulate(candidates: list[Summary], number: int, total: int) -> Summary:
    """Give some candidates' frequencies to every worker, and accumulate all their folds in one reading."""
    return training.accumulate_candidates(current_job(), candidates)


@step("validate {candidate[name]}")
def validate(candidate: Summary) -> Summary:
    """Cross-validate a candidate, and keep its model if it is the best so far."""
    return training.validate_candidate(current_job(), candidate)


@job_flow("tune")
def tune(parameters: TuneParameters) -> Summary:
    """Compare kernels, length scales, alphas and D by k-fold cross-validation; publish the best model.

    Returns
    -------
    dict
        JSON-able: where the model is and its digest, sizes, the best candidate, all candidates, the number
        of readings, the metrics on test data (None without any) and the seconds of the passes.

    Raises
    ------
    RFFDistError
        Of the step that failed; then nothing is published. Where publishing fails, the trained model is
        kept beside the output, and the error says where.
    """
    log = get_run_logger()
    candidates, dataset = parameters.to_candidates(), parameters.open_training_data()
    search.check_candidates(candidates, dataset, design=parameters.design, features=parameters.to_features())
    widths = read_widths(parameters.n_components, parameters.map, parameters.features)
    options = {
        "n_components": widths[-1],
        "widths": widths,
        "alpha": parameters.alpha,
        "alphas": parameters.alphas,
        "folds": parameters.to_folds(),
        "design": parameters.design,
    }
    with working(parameters, dataset, Gaussian(), log=log, **options):
        data = inspect()
        log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])
        drawn = draw(candidates)
        readings = training.plan_readings(current_job(), drawn)
        rows, passes = [], []
        for i, reading in enumerate(readings, start=1):
            passes.append(accumulate(reading, i, len(readings)))
            for candidate in reading:
                rows.append(validate(candidate))
                _log_candidate(log, rows[-1])
        compared, best_index = search.choose(rows)
        best = compared[best_index]
        outcome = evaluate(best)
        metrics = None if isinstance(outcome, State) else outcome
        if metrics is None:
            log.info("no test data were given, so the model is not evaluated")
        published = publish(best, compared, metrics)
        show_choice(
            training.read_candidate(current_job(), best), key="rff-tune-errors", title=data["data"], log=log
        )
    log.info("published %s", published["model"])
    result = {
        **published,
        "features": parameters.features,
        **data,
        "best": best,
        "candidates": compared,
        "n_readings": len(readings),
        "metrics": metrics,
        "accumulate_seconds": round(sum(one["seconds"] for one in passes), 3),
    }
    create_markdown_artifact(
        _summary_markdown(result, parameters),
        key="rff-tune-summary",
        description="What was chosen, and how well.",
    )
    create_table_artifact(
        _candidate_table(compared, best), key="rff-tune-candidates", description="Candidates compared."
    )
    return result


def _log_candidate(log: Any, row: Mapping[str, Any]) -> None:
    log.info(
        "%s, length scale %s: D = %s, alpha %s, error %.4g of the variance",
        row["kernel"],
        number(row["length_scale"]),
        row["n_components"],
        number(row["alpha"]),
        row["score"],
    )
    for cause in row["causes"]:
        log.warning("%s: %s", row["status"], cause)


# -- artifacts -------------------------------------------------------------------------------------


def _summary_markdown(result: Mapping[str, Any], parameters: TuneParameters) -> str:
    best = result["best"]
    facts = {
        "model": place_of(result),
        "digest": code(result["digest"]),
        "training data": code(result["data"]),
        "rows": f"{result['n_samples']:,}",
        "inputs, targets": f"{result['n_features']:,}, {result['n_targets']:,}",
        "kernel, D": f"{best['kernel']}, {best['n_components']:,}",
        "length scale": number(best["length_scale"]),
        "alpha": number(best["alpha"]),
        "cross-validated RMSE": number(best["rmse"]),
        "compared": f"{len(result['candidates'])} candidates on {parameters.to_folds()}",
        "statistics passes": f"{result['n_readings']}, {result['accumulate_seconds']:.1f} s",
        "peak memory planned": result["peak_memory"],
    }
    return summary_markdown("Tuned model", facts, result["metrics"])


def _candidate_table(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "kernel": row["kernel"],
            "length scale": number(row["length_scale"]),
            "D": row["n_components"],
            "alpha": number(row["alpha"]),
            "error / variance": number(row["score"]),
            "standard error": number(row["standard_error"]),
            "RMSE": number(row["rmse"]),
            "solver": row["status"],
            "chosen": "yes" if row is best else "as good" if row["within_one_standard_error"] else "",
        }
        for row in rows
    ]
