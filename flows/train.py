"""Train a model as a Prefect flow: inspect → draw → broadcast → accumulate → solve → evaluate → publish.

Each task is one call into `rff_dist.training` and hands on a small JSON-able summary; sums and models
lie beside the output until the model is published, and Prefect never sees them.

Run it in a process of its own::

    from flows.train import TrainParameters, train

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        train(TrainParameters(data="data.zarr", model="model", n_components=4096))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from prefect import State, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field, model_validator

from flows.common import (
    JobParameters,
    NonNegative,
    Positive,
    Positives,
    Summary,
    code,
    current_job,
    evaluate,
    inspect,
    job_flow,
    lend_engine,
    number,
    place_of,
    publish,
    step,
    summary_markdown,
    working,
)
from flows.pictures import show_choice
from rff_dist import training
from rff_dist.drawing import check_width
from rff_dist.kernels import KERNELS, Kernel, Matern, check_design, find_kernel, with_length_scale
from rff_dist.pipeline import resolve_alpha

__all__ = ["TrainParameters", "lend_engine", "train"]


class TrainParameters(JobParameters):
    """What to train, on what and where; every value is checked before a run starts."""

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

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        check_width(self.n_components, self.map, self.features)
        if self.nu is not None and self.kernel != Matern.name:
            raise ValueError(f"`nu` is {self.nu} but the {self.kernel} kernel has none; leave it out")
        kernel = self.to_kernel()
        if self.features == "fourier":
            # Refuses a design that the kernel does not allow, at no cost.
            check_design(kernel, self.design, 1)
        if self.length_scale_candidates and self.length_scale != "auto":
            raise ValueError("`length_scale` and `length_scale_candidates` were both given; give one of them")
        for given in self.length_scales:
            if not isinstance(given, str):
                with_length_scale(kernel, given)
        if len(self.length_scales) > 1 and self.alpha == 0:
            raise ValueError("`alpha` is 0, where length scales cannot be compared; give a number above 0")
        return self

    def to_kernel(self) -> Kernel:
        """Return the kernel; parts that the text gives no length scale have none."""
        return find_kernel(self.kernel) if self.nu is None else Matern(nu=self.nu)

    @property
    def length_scales(self) -> list[Any]:
        """The length scales that compete: one, unless candidates were given."""
        return self.length_scale_candidates or [self.length_scale]


@step("draw {name}", retried=True)
def draw(name: str, length_scale: Any) -> Summary:
    """Draw the frequencies of one length scale."""
    return training.draw_features(current_job(), length_scale, name=name)


@step("broadcast {candidate[name]}", retried=True)
def broadcast(candidate: Summary) -> Summary:
    """Give the frequencies to every worker and compare their digests."""
    return training.broadcast_features(current_job(), candidate)


@step("accumulate {candidate[name]}", retried=True)
def accumulate(candidate: Summary) -> Summary:
    """Accumulate the exact statistics."""
    return training.accumulate_statistics(current_job(), candidate)


@step("solve {candidate[name]}", retried=True)
def solve(candidate: Summary) -> Summary:
    """Solve for the coefficients."""
    return training.solve_ridge(current_job(), candidate)


@job_flow("train")
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
    dataset = parameters.open_data(parameters.data)
    options = {
        "n_components": parameters.n_components,
        "alpha": resolve_alpha(parameters.alpha, parameters.length_scale),
        "design": parameters.design,
        "choosing": len(parameters.length_scales) > 1,
    }
    with working(parameters, dataset, parameters.to_kernel(), log=log, **options):
        data = inspect()
        log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])
        solved = []
        passes = []
        for i, length_scale in enumerate(parameters.length_scales, start=1):
            candidate = draw(f"candidate-{i}", length_scale)
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
        show_choice(
            training.read_candidate(current_job(), best), key="rff-train-errors", title=data["data"], log=log
        )
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


def _log_solution(log: Any, solved: Mapping[str, Any]) -> None:
    score = "" if solved["score"] is None else f", GCV error {solved['score']:.4g} of the variance"
    log.info("length scale %s: alpha %s%s", number(solved["length_scale"]), number(solved["alpha"]), score)
    for cause in solved["causes"]:
        log.warning("%s: %s", solved["status"], cause)


# -- artifacts -------------------------------------------------------------------------------------


def _summary_markdown(result: Mapping[str, Any]) -> str:
    facts = {
        "model": place_of(result),
        "digest": code(result["digest"]),
        "training data": code(result["data"]),
        "rows": f"{result['n_samples']:,}",
        "inputs, targets": f"{result['n_features']:,}, {result['n_targets']:,}",
        "kernel, D": f"{result['kernel']}, {result['n_components']:,}",
        "length scale": number(result["length_scale"]),
        "alpha": number(result["alpha"]),
        "statistics passes": f"{result['accumulate_seconds']:.1f} s",
        "peak memory planned": result["peak_memory"],
    }
    return summary_markdown("Trained model", facts, result["metrics"])


def _candidate_table(solved: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "length scale": number(one["length_scale"]),
            "alpha": number(one["alpha"]),
            "GCV error / variance": number(one["score"]),
            "degrees of freedom": number(one["degrees_of_freedom"]),
            "solver": one["status"],
            "chosen": "yes" if one["name"] == best["name"] else "",
        }
        for one in solved
    ]
