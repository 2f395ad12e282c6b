"""Choose kernel, length scale, alpha and D: compare candidates by cross-validation, and store the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli import display
from rff_dist.cli.options import PlotPath, ReportPath
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Tune

if TYPE_CHECKING:
    from rff_dist.data.blocks import Dataset
    from rff_dist.ridge.search import Search


@command(
    "rff-dist tune data.zarr model",
    "rff-dist tune data.zarr model --kernels gaussian,matern:nu=1.5 --length-scales 0.5x,1x,2x "
    "--components 256,512,1024,2048 --plot cv.png",
    "rff-dist tune data.zarr model --folds 10 --group-by patient --alphas 1e-6:1e3:30",
)
def tune(
    job: Tune,
    where: Where,
    plot: PlotPath = None,
    report: ReportPath = None,
) -> Report:
    """Compare kernels, length scales, alphas and D by cross-validation in one reading; store the best."""
    from rff_dist.jobs.train import open_training

    passes, model = display.Passes(where), job.destination.model
    with open_training(job, passes.runner) as run:
        records = passes.run(run.steps())
    found = run.trained.search
    assert found is not None  # candidates were given
    document = {
        **display.describe_published(model, records["publish"]),
        **_describe_search(found, run.data.rows, job.features.seed),
        "metrics": records["evaluate"],
        "comparison": records["compare"],
        "plot": plot,
        "report": report,
    }
    if plot is not None:
        _draw(plot, found, job.source.data)
    passes.write_page(
        report, run.data, found.model, model, comparison=run.comparison, metrics=records["evaluate"]
    )
    document |= passes.facts()
    following = display.next_step("rff-dist", "evaluate", model, "DATA")
    parts = [
        display.verdict_view(run.comparison),
        _table(found, job.source.data),
        "",
        _facts(document),
        following,
    ]
    return Report(document, Group(*parts))


def _describe_search(found: Search, dataset: Dataset, seed: int) -> dict[str, Any]:
    model, status = found.model, found.solved.solution.status
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "n_readings": found.n_readings,
        "folds": model.card["folds"],
        "seed": seed,
        "best": found.best,
        "candidates": found.rows,
        "status": status.value,
        "causes": status.causes,
        "remedies": status.remedies,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


def _draw(plot: Any, found: Search, data: str) -> None:
    """Draw the best candidate's errors against alpha and D, and those of all candidates."""
    from rff_dist.data.folds import folds_words
    from rff_dist.report import save_cross_validation

    table, folds = found.solved.cross_validation, folds_words(found.model.card["folds"])
    assert table is not None  # candidates are compared by one
    save_cross_validation(
        plot,
        table,
        title=data,
        subtitle=f"{_kernel_words(found.best)}, {folds}",
        candidates=found.rows,
        alpha=found.model.plain_alpha,
    )


def _kernel_words(row: Mapping[str, Any]) -> str:
    scale = row["length_scale"]
    return row["kernel"] if scale is None else f"{row['kernel']}, length scale {display.value_words(scale)}"


def _table(found: Search, data: str) -> RenderableType:
    view, table = display.titled_table(
        f"{display.plural(len(found.rows), 'candidate')} on {data}",
        *("kernel", "scale", "D", "alpha", "error", "RMSE", ""),
    )
    for i, row in enumerate(found.rows):
        best = i == found.best_index
        table.add_row(
            row["kernel"],
            display.value_words(row["length_scale"]),
            f"{row['n_components']:,}",
            display.value_words(row["alpha"]),
            display.plus_minus(row["score"], row["standard_error"]),
            display.some(row["rmse"]),
            "← best" if best else "as good" if row["within_one_standard_error"] else "",
            style="bold" if best else None,
        )
    note = (
        "scale: the length scale; error: share of the variance, at the best alpha and D; "
        "as good: within one standard error of the best"
    )
    return Group(view, Text(note, "dim"))


def _facts(found: Mapping[str, Any]) -> RenderableType:
    from rff_dist.data.folds import folds_words

    best, readings = found["best"], display.plural(found["n_readings"], "reading")
    alpha = display.value_words(best["alpha"])
    outputs = display.features_and_targets(found["n_features"], found["n_targets"])
    ends = [
        f"{name} is the {'smallest' if best[end] == 'lower' else 'largest'} tried"
        for name, end in (("the length scale", "length_scale_at_end"), ("alpha", "alpha_at_end"))
        if best[end] is not None
    ]
    facts: display.ShownFacts = {
        "best": f"{_kernel_words(best)}, D = {best['n_components']:,}, alpha {alpha}",
        "rows": f"{found['n_samples']:,}, {outputs}",
        "compared by": f"{folds_words(found['folds'])}, from {readings}",
        "note": f"[yellow]{' and '.join(ends)}[/]: a better one may lie beyond" if ends else None,
        **display.test_facts(found["metrics"]),
        **display.solver_facts(found),
        **display.run_facts(found),
        "digest": found["digest"][:16],
        **display.version_facts(found),
    }
    return display.facts_view(f"wrote {found['model']}", **facts)
