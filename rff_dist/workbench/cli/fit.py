"""Train a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.text import number
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.cli.options import PlotPath, ReportPath
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.options import Where

if TYPE_CHECKING:
    from rff_dist.features import maps
    from rff_dist.ridge import solve
    from rff_dist.ridge.fit import Trained
    from rff_dist.workbench.jobs.train import Training


@shell.command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern --nu 1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --folds 10 --alphas 1e-6:1e3:30 --components 512,1024,2048 --plot cv.png",
)
def fit(
    job: specs.Train,
    where: Where,
    plot: PlotPath = None,
    report: ReportPath = None,
) -> shell.Report:
    """Train a ridge regression or a classifier, chosen by cross-validation."""
    from rff_dist.fitting.options import is_one_alpha

    options = job.fit.options
    several = isinstance(options.n_components, list)
    given = is_one_alpha(options.alpha) and options.cv is None and not several and job.fit.candidates is None
    if plot is not None and given and not options.conformal:
        raise typer.BadParameter(
            "alpha and D are given, so there are no errors to draw; add --select cv",
            param_hint="--plot",
        )
    return report_training(job, where, plot, report)


def report_training(
    job: specs.Train | specs.Tune, where: Where, plot: Path | None, report: Path | None
) -> shell.Report:
    """Train and publish a model, draw what is asked for, and return what a command shows of it."""
    from rff_dist.workbench.jobs.train import train

    passes, place = display.Passes(where), job.destination.model
    found = train(job, passes.runner)
    trained, searched = found.fitted.trained, job.fit.candidates is not None
    document = {
        **display.describe_published(place, found.published),
        **_describe_fit(found, job.features.seed),
        **(_describe_search(trained) if searched else {}),
        "metrics": found.metrics,
        "comparison": found.describe()["comparison"],
        "plot": plot,
        "report": report,
    }
    if plot is not None:
        if searched:
            _draw(plot, trained, job.source.data)
        else:
            from rff_dist.workbench.page.pictures import save_choice

            save_choice(
                found.model, plot, title=job.source.data, about=display.kernel_words(document["kernel"])
            )
    passes.write_page(
        report, found.data, found.model, place, comparison=found.comparison, metrics=found.metrics
    )
    document |= passes.facts()
    parts: list[RenderableType] = [display.verdict_view(found.comparison)]
    if searched:
        parts += [_table(trained, job.source.data), "", _search_facts(document, found.model.card)]
    else:
        parts.append(_fit_facts(document, found.model.card))
        table = document["cross_validation"]
        if table is not None and len(table["widths"]) > 1:
            parts += ["", display.widths_view(table, document["n_components"])]
    return shell.Report(document, Group(*parts, display.next_step("rff-dist", "evaluate", place, "DATA")))


def _describe_features(feature_map: maps.FeatureMap, seed: int) -> dict[str, Any]:
    from rff_dist.features.kinds import kernel_of
    from rff_dist.features.nystrom import NystromFeatureMap

    kernel, spec = kernel_of(feature_map), feature_map.spec
    assert kernel is not None  # the map was drawn just now
    facts = {"kernel": kernel.to_dict(), "seed": seed, "design": None, "map": None}
    if isinstance(feature_map, NystromFeatureMap):
        return {"jitter": feature_map.jitter, **facts}
    assert spec is not None
    return {**facts, "design": spec.design.name, "map": spec.map}


def _describe_fit(found: Training, seed: int) -> dict[str, Any]:
    dataset, model, solved = found.data.rows, found.model, found.fitted.trained.solved
    feature_map, solution, selection = model.feature_map, solved.solution, solved.selection
    table = solved.cross_validation
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": model.n_targets,
        **{name: value for name, value in found.chosen.items() if name != "fit_seconds"},
        **_describe_features(feature_map, seed),
        "alpha_chosen_by": display.chosen_by(model.card),
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


def _end_of_path(solved: solve.Solved) -> str | None:
    """Return which end of the values tried alpha is at, if any: a better one may lie beyond it."""
    import numpy as np

    from rff_dist.selection.grids import end_of_grid, worst_end

    table, path = solved.cross_validation, solved.leave_one_out
    if table is not None and solved.choice is not None:
        return solved.choice.at_end if len(table.alphas) > 1 else None
    if path is not None:
        places = np.searchsorted(path.alphas, solved.solution.alpha)
        return worst_end([end_of_grid(int(place), len(path.alphas)) for place in places])
    return None if solved.selection is None else solved.selection.at_end


def _ends_of_path(solved: solve.Solved) -> tuple[float, float] | None:
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


# -- of candidates that were given ------------------------------------------------------------------


def _describe_search(found: Trained) -> dict[str, Any]:
    return {"n_readings": found.n_readings, "folds": found.model.card["folds"], "best": found.best}


def _draw(plot: Any, found: Trained, data: str) -> None:
    """Draw the best candidate's errors against alpha and D, and those of all candidates."""
    from rff_dist.data.folding import folds_words
    from rff_dist.workbench.page.pictures import save_cross_validation

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


def _table(found: Trained, data: str) -> RenderableType:
    view, table = display.titled_table(
        f"{display.plural(len(found.rows), 'candidate')} on {data}",
        *("kernel", "scale", "D", "alpha", "error", "RMSE", ""),
    )
    several = len({row["features"] for row in found.rows}) > 1
    for i, row in enumerate(found.rows):
        best = i == found.best_index
        table.add_row(
            f"{row['kernel']}, {row['features']}" if several else row["kernel"],
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


def _search_facts(found: Mapping[str, Any], card: Mapping[str, Any]) -> RenderableType:
    from rff_dist.data.folding import folds_words

    best, readings = found["best"], display.plural(found["n_readings"], "reading")
    alpha = display.value_words(best["alpha"])
    classifier = found["classifier"]
    outputs = display.features_and_targets(found["n_features"], found["n_targets"], classifier)
    classes = {} if classifier is None else display.classifier_facts(classifier)
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
        **(display.estimate_facts(card) | classes if classes else {}),
        **display.solver_facts(found),
        **display.run_facts(found),
        "digest": found["digest"][:16],
        **display.version_facts(found),
    }
    return display.facts_view(f"wrote {found['model']}", **facts)
