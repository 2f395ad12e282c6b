"""Train a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType

from rff_dist.cli import display
from rff_dist.cli.options import PlotPath, ReportPath
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Train
from rff_dist.text import number

if TYPE_CHECKING:
    from rff_dist.features.feature_map import FeatureMap
    from rff_dist.jobs.train import Training
    from rff_dist.ridge.solve import Solved


@command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern --nu 1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --folds 10 --alphas 1e-6:1e3:30 --components 512,1024,2048 --plot cv.png",
)
def fit(
    job: Train,
    where: Where,
    plot: PlotPath = None,
    report: ReportPath = None,
) -> Report:
    """Train a ridge regression or a classifier, chosen by cross-validation."""
    from rff_dist.jobs.train import open_training
    from rff_dist.ridge.options import is_one_alpha

    options = job.to_fit().options
    several = isinstance(options.n_components, list)
    given = is_one_alpha(options.alpha) and options.cv is None and not several
    if plot is not None and given and not options.conformal:
        raise typer.BadParameter(
            "alpha and D are given, so there are no errors to draw; add --select cv",
            param_hint="--plot",
        )
    passes, data = display.Passes(where), job.source.data
    with open_training(job, passes.runner) as run:
        records = passes.run(run.steps())
    document = {
        **display.describe_published(job.destination.model, records["publish"]),
        **_describe_fit(run, job.features.seed),
        "metrics": records["evaluate"],
        "comparison": records["compare"],
        "plot": plot,
        "report": report,
    }
    model = run.trained.model
    if plot is not None:
        from rff_dist.report import save_choice

        save_choice(model, plot, title=data, about=display.kernel_words(document["kernel"]))
    passes.write_page(
        report,
        run.data,
        model,
        job.destination.model,
        comparison=run.comparison,
        metrics=records["evaluate"],
    )
    document |= passes.facts()
    following = display.next_step("rff-dist", "evaluate", job.destination.model, "DATA")
    parts = [_fit_facts(document, model.card), following]
    table = document["cross_validation"]
    if table is not None and len(table["widths"]) > 1:
        parts[1:1] = ["", display.widths_view(table, document["n_components"])]
    return Report(document, Group(display.verdict_view(run.comparison), *parts))


def _describe_features(feature_map: FeatureMap, seed: int) -> dict[str, Any]:
    from rff_dist.features.kernel_of import kernel_of
    from rff_dist.features.nystrom import NystromFeatureMap

    kernel, spec = kernel_of(feature_map), feature_map.spec
    assert kernel is not None  # the map was drawn just now
    facts = {"kernel": kernel.to_dict(), "seed": seed, "design": None, "map": None}
    if isinstance(feature_map, NystromFeatureMap):
        return {"jitter": feature_map.jitter, **facts}
    assert spec is not None
    return {**facts, "design": spec.design.name, "map": spec.map}


def _describe_fit(run: Training, seed: int) -> dict[str, Any]:
    from rff_dist.jobs.fits import describe_fit

    dataset, model, solved = run.data.rows, run.trained.model, run.trained.solved
    feature_map, solution, selection = model.feature_map, solved.solution, solved.selection
    table = solved.cross_validation
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": model.n_targets,
        **describe_fit(model, solved),
        **_describe_features(feature_map, seed),
        "alpha_chosen_by": display.chosen_by(model.card, any_path=bool(model.selection)),
        "alpha_at_end_of_path": _end_of_path(solved),
        "alpha_path": _ends_of_path(solved),
        "gcv": None if selection is None else selection.score,
        "cross_validation": None
        if table is None
        else display.describe_cross_validation(table, feature_map.n_components, solution.alpha),
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


def _end_of_path(solved: Solved) -> str | None:
    """Return which end of the values tried alpha is at, if any: a better one may lie beyond it."""
    import numpy as np

    from rff_dist.selection.alphas import end_of_grid, worst_end

    table, path = solved.cross_validation, solved.leave_one_out
    if table is not None and solved.choice is not None:
        return solved.choice.at_end if len(table.alphas) > 1 else None
    if path is not None:
        places = np.searchsorted(path.alphas, solved.solution.alpha)
        return worst_end([end_of_grid(int(place), len(path.alphas)) for place in places])
    return None if solved.selection is None else solved.selection.at_end


def _ends_of_path(solved: Solved) -> tuple[float, float] | None:
    found = solved.cross_validation or solved.leave_one_out or solved.selection
    return None if found is None else (float(found.alphas[0]), float(found.alphas[-1]))


def _feature_words(found: Mapping[str, Any]) -> str:
    if found["features"] == "nystrom":
        return f"Nyström with jitter {found['jitter']:.3g}"
    return f"{found['design']}, {found['map']}"


def _fit_facts(found: Mapping[str, Any], card: Mapping[str, Any]) -> RenderableType:
    classifier, at_end = found["classifier"], ""
    outputs = display.features_and_targets(found["n_features"], found["n_targets"], classifier)
    if (end := found["alpha_at_end_of_path"]) is not None:
        low, high = found["alpha_path"]
        at_end = f", [yellow]at the {end} end[/] of {number(low)} to {number(high)}"
    facts: display.ShownFacts = {
        "rows": f"{found['n_samples']:,}, {outputs}",
        "features": f"D = {found['n_components']:,}, {_feature_words(found)}, seed {found['seed']}",
        "kernel": display.kernel_words(found["kernel"]),
        "alpha": display.alpha_words(found["alpha"], found["alpha_chosen_by"], classifier) + at_end,
        **display.test_facts(found["metrics"]),
        **display.estimate_facts(card),
        **({} if classifier is None else display.classifier_facts(classifier)),
        **display.solver_facts(found),
        **display.run_facts(found),
        "digest": found["digest"][:16],
        **display.version_facts(found),
    }
    return display.facts_view(f"wrote {found['model']}", **facts)
