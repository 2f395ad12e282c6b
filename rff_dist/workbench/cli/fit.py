"""Train a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.cli.options import PlotPath, ReportPath
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.options import Where
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.features import maps
    from rff_dist.ridge.fit import Trained
    from rff_dist.workbench.jobs.train import Training


@shell.command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern --nu 1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --folds 10 --alphas 1e-6:1e3:30 --components 512,1024,2048 --plot cv.png",
)
def fit(job: specs.Train, where: Where, plot: PlotPath = None, report: ReportPath = None) -> shell.Report:
    """Train a ridge regression or a classifier, chosen by cross-validation."""
    from rff_dist.fitting.options import is_one_alpha

    options = job.fit.options
    several = isinstance(options.n_components, list)
    given = is_one_alpha(options.alpha) and options.cv is None and not several and job.fit.candidates is None
    if plot is not None and given and not options.conformal:
        raise typer.BadParameter(
            "alpha and D are given, so there are no errors to draw; add --select cv", param_hint="--plot"
        )
    return report_training(job, where, plot, report)


def report_training(
    job: specs.Train | specs.Tune, where: Where, plot: Path | None, report: Path | None
) -> shell.Report:
    """Train and publish a model, draw what is asked for, and return what a command shows of it."""
    from rff_dist.workbench.jobs.train import train
    from rff_dist.workbench.jobs.verdict import verdict_of
    from rff_dist.workbench.results import models

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

            about = words.kernel_words(document["kernel"])
            save_choice(found.model, plot, title=job.source.data, about=about)
    passes.write_page(
        report, found.data, found.model, place, comparison=found.comparison, metrics=found.metrics
    )
    document |= passes.facts()
    facts = dict(models.training_facts(found, job.features.seed))
    table, parts = document["cross_validation"], list[RenderableType]()
    if searched:
        parts = ["", display.table_view(models.candidates_table(trained.rows))]
        facts |= _search_facts(trained)
    elif table is not None and len(table["widths"]) > 1:
        parts = ["", display.table_view(models.widths_table(table, document["n_components"]))]
    verdict = Text(verdict_of(found.comparison), "bold")
    view = display.facts_view(f"wrote {place}", **facts, **display.run_facts(document))
    parts = [verdict, view, *parts]
    return shell.Report(document, Group(*parts, display.next_step("rff-dist", "evaluate", place, "DATA")))


def _describe_features(feature_map: maps.FeatureMap, seed: int) -> dict[str, Any]:
    from rff_dist.features import kinds, nystrom

    kernel, spec = kinds.kernel_of(feature_map), feature_map.spec
    assert kernel is not None  # the map was drawn just now
    jitter = {"jitter": feature_map.jitter} if isinstance(feature_map, nystrom.NystromFeatureMap) else {}
    drawn = {"design": None, "map": None} if spec is None else {"design": spec.design.name, "map": spec.map}
    return {**jitter, "kernel": kernel.to_dict(), "seed": seed, **drawn}


def _describe_fit(found: Training, seed: int) -> dict[str, Any]:
    from rff_dist.workbench.results import models

    dataset, model, solved = found.data.rows, found.model, found.fitted.trained.solved
    feature_map, solution, selection = model.feature_map, solved.solution, solved.selection
    table = solved.cross_validation
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": model.n_targets,
        **{name: value for name, value in found.chosen.items() if name != "fit_seconds"},
        **_describe_features(feature_map, seed),
        "alpha_chosen_by": models.chosen_by(model.card),
        "alpha_at_end_of_path": models.end_of_path(solved),
        "alpha_path": models.path_ends(solved),
        "gcv": None if selection is None else selection.score,
        "cross_validation": None
        if table is None
        else display.describe_cross_validation(table, feature_map.n_components, solution.alpha),
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


# -- of candidates that were given ------------------------------------------------------------------


def _describe_search(found: Trained) -> dict[str, Any]:
    return {"n_readings": found.n_readings, "folds": found.model.card["folds"], "best": found.best}


def _draw(plot: Any, found: Trained, data: str) -> None:
    """Draw the best candidate's errors against alpha and D, and those of all candidates."""
    from rff_dist.data.folding import folds_words
    from rff_dist.workbench.page.pictures import save_cross_validation
    from rff_dist.workbench.results.models import candidate_name

    table, folds = found.solved.cross_validation, folds_words(found.model.card["folds"])
    assert table is not None  # candidates are compared by one
    save_cross_validation(
        plot,
        table,
        title=data,
        subtitle=f"{candidate_name(found.best)}, {folds}",
        candidates=found.rows,
        alpha=found.model.plain_alpha,
    )


def _search_facts(trained: Trained) -> words.Facts:
    """Return in words how given candidates were compared, and whether a better one may lie beyond them."""
    from rff_dist.data.folding import folds_words

    ends = [
        f"{name} is the {'smallest' if trained.best[end] == 'lower' else 'largest'} tried"
        for name, end in (("the length scale", "length_scale_at_end"), ("alpha", "alpha_at_end"))
        if trained.best[end] is not None
    ]
    folds, readings = trained.model.card["folds"], words.plural(trained.n_readings, "reading")
    return {
        "compared by": f"{folds_words(folds)}, from {readings}",
        "note": words.Alert(f"{' and '.join(ends)}: a better one may lie beyond") if ends else None,
    }
