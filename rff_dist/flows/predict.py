"""The Prefect flow that scores a dataset with a model, in one pass that writes predictions or labels to Zarr.

Of a registered model it uses the version that is current when the run begins. Run it in a process of its
own::

    from rff_dist.flows.predict import predict

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        predict(model="models/main", data="new.zarr", output="predictions.zarr")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger

from rff_dist.flows.common import facts_markdown, place_of, show_text
from rff_dist.flows.running import Limits, code, form, job_flow, runner_of
from rff_dist.jobs import score
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Predict
from rff_dist.typing import Summary


class PredictParameters(form(Predict, Where, Limits)):  # type: ignore[misc]  # made of the specs
    """Which rows to score with which model."""


@job_flow(
    "predict",
    PredictParameters,
    resume="It goes on from the rows that were written, if model and data have not changed, and the output "
    "appears when it is complete. If a registered model has another current version by then, or for tables "
    "and in object stores, all rows are scored again.",
)
def predict(parameters: PredictParameters) -> Summary:
    """Write a model's predictions or labels for every row of a dataset to Zarr.

    Returns: JSON-able: what was written where, by which version of which model, and the rows and seconds.
    Raises RFFDistError if something does not fit or the pass fails; an output that was there is unchanged.
    """
    log, job = get_run_logger(), parameters.to(Predict)
    result = score.predict(job, runner_of(parameters, log)).record
    version = "" if result["version"] is None else f", version {result['version']}"
    log.info("%s by %s%s", result["data"], result["model"], version)
    log.info("wrote %s rows to %s", f"{result['n_samples']:_}", result["output"])
    show_text("predict-summary", _summary(result), "What was scored, and with which model.")
    return result


def _summary(result: Mapping[str, Any]) -> str:
    facts = {
        "output": code(result["output"]),
        "arrays": ", ".join(map(code, result["arrays"])),
        "rows": f"{result['n_samples']:,}",
        "data": code(result["data"]),
        "model": f"{place_of(result)} ({result['kind']})",
        "digest": code(result["model_digest"]),
        "seconds": f"{result['seconds']:.1f}",
    }
    return facts_markdown("Scored rows", facts)
