"""The Prefect flow that updates a model, for example every night: the job of `rff-dist update`.

find new rows → score them → hold out rows → sum → drift → solve → gate → publish, or keep the current model
with the reason → report. Each task is a step of `rff_dist.workbench.jobs.refresh`; what the steps work on
stays in this process. Nothing is written before the last step, so a killed run is simply repeated. A run that
finds nothing new says so and starts no cluster.

Run it in a process of its own::

    from rff_dist.flows.refresh import refresh

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        refresh(data="data.zarr", model="models/main")

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect import get_run_logger

from rff_dist.engines.clock import Clock
from rff_dist.flows import common, running
from rff_dist.living import new_rows
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import fits, options, specs
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.page import pages

_RESUME = (
    "Nothing is written before the last step: the next run finds the same new rows, and its model has the "
    "digest of an undisturbed run."
)


class RefreshParameters(running.form(specs.Update, options.Where, running.Limits)):  # type: ignore[misc]  # made of the specs
    """Which model to update with which rows, and how good it must stay."""


@running.job_flow("refresh", RefreshParameters, resume=_RESUME)
def refresh(parameters: RefreshParameters) -> Summary:
    """Add the new rows to a model, exactly, and publish it if it is no worse.

    Returns: JSON-able: `decision` ("published", "kept" or "nothing new") and `reason`; where the model is,
      its version's number, digest and rows; the new rows, and the other members of the record of
      `workbench.jobs.refresh.Updated`.
    Raises the RFFDistError of the step that failed; then nothing is published, and no row is refused.
    """
    log, clock = get_run_logger(), Clock()
    runner = running.runner_of(parameters, log, {"find": _log_rows}, clock=clock)
    found = update(parameters.to(specs.Update), runner)
    result, model = found.record, found.challenger
    if result["decision"] == "published" and result["version"] is not None:
        common.show_versions(parameters.model)
    if model is not None:
        data = fits.JobData(found.dataset)
        clock.begin("report")
        common.show_page(
            "refresh-page",
            lambda: pages.model_page(data, model, place=parameters.model, times=clock.times, update=result),
            log,
        )
    _log(log, result)
    common.show_text("refresh-report", _report(result), "Which rows were new, and what became of the model.")
    if result["n_new"] and (columns := result["drift"]["columns"]):
        about = "Columns of the new rows; those that drifted most come first."
        common.show_table("refresh-columns", _column_table(columns), about)
    return result


def _log_rows(log: Any, rows: new_rows.NewRows) -> None:
    if rows.n_samples:
        log.info("%s new rows", f"{rows.n_samples:_}")


def _log(log: Any, result: Mapping[str, Any]) -> None:
    drift = result.get("drift")
    if drift is not None and drift["drifted"]:
        log.warning("drift in %s, p-value %.2g", ", ".join(drift["parts"]), drift["p_value"])
    if result["n_new"]:
        gate = result["gate"]
        errors = (
            running.number(list(values))
            for values in (result["progressive"]["rmse"], gate["champion"], gate["challenger"])
        )
        log.info("RMSE of new rows %s; held out: champion %s, challenger %s", *errors)
    kept = result["decision"].endswith("kept")
    (log.warning if kept else log.info)("%s: %s", result["decision"], result["reason"])


# -- artifacts -------------------------------------------------------------------------------------


def _report(result: Mapping[str, Any]) -> str:
    facts = {
        "model": common.place_of(result),
        "decision": f"**{result['decision']}**",
        "because": result["reason"],
        "rows of the model": f"{result['n_samples']:,}",
        "new rows": f"{result['n_new']:,}",
        "window": f"{result['window']}, from row {result['first_row']:,} on",
        "half-life": result["half_life"],
        "left out": ", ".join(f"{start:,} to {stop - 1:,}" for start, stop in result["left_out"]) or "none",
        "digest": running.code(result["digest"]),
        "digest of the statistics": running.code(result["statistics_digest"]),
    }
    if result["n_new"]:
        drift, solution = result["drift"], result["solution"]
        alarm = f"**in {', '.join(drift['parts'])}**" if drift["drifted"] else "none"
        p_values = ", ".join(f"{name} {running.number(p)}" for name, p in drift["p_values"].items())
        facts["drift"] = f"{alarm} (p-values: {p_values})"
        facts["alpha"] = (
            f"{running.number(solution['alpha'])}, before {running.number(solution['alpha_before'])}"
        )
        facts["solver"] = " ".join([solution["status"], *solution["causes"]])
    return common.facts_markdown("Refreshed model", facts, _error_lines(result) if result["n_new"] else [])


def _error_lines(result: Mapping[str, Any]) -> list[str]:
    progressive, gate = result["progressive"], result["gate"]
    columns = [
        *(progressive[name] for name in ("rmse", "mae", "bias", "r2")),
        gate["champion"],
        gate["challenger"],
    ]
    return [
        "## Errors",
        "",
        f"Errors of the champion, the current model, on {progressive['n_samples']:,} new rows before they "
        "were added; held out: root mean squared errors of champion and challenger on "
        f"{gate['held_out']}.",
        "",
        "| target | RMSE | mean absolute | bias | R² | held out: champion | challenger |",
        "|---|---|---|---|---|---|---|",
        *common.target_rows(columns),
    ]


def _column_table(columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "column": row["column"],
            "shift of the mean / deviation": running.number(row["shift"]),
            "spread / deviation": running.number(row["spread"]),
            "p-value": running.number(row["p_value"]),
        }
        for row in columns
    ]
