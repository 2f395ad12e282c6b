"""From a table to a registered model, compared with other models."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli import display
from rff_dist.cli.ingest import recipe_views
from rff_dist.cli.options import ReportPath
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Auto

if TYPE_CHECKING:
    from rff_dist.jobs.auto import AutoData
    from rff_dist.jobs.verdict import Comparison

_PREPARED = ("train", "test", "n_train", "n_test", "dropped_rows", "held_out", "ingested")


@command(
    "rff-dist auto prices.csv --target price",
    "rff-dist auto 'visits/*.parquet' --target ill --groups patient --into visits-model --report page.html",
)
def auto(job: Auto, where: Where, report: ReportPath = None) -> Report:
    """Train and register a model from a table, test it, and compare it with others."""
    from rff_dist.cli.baselines import fit_trees
    from rff_dist.jobs.auto import folder_of, prepare_table, training_of
    from rff_dist.jobs.train import train
    from rff_dist.jobs.verdict import TREES
    from rff_dist.numerics.machine import available_memory

    passes = display.Passes(where)
    passes.clock.begin("ingest")
    prepared = prepare_table(job, observer=display.count_rows("ingest"))
    try:
        found = train(training_of(job, prepared), passes.runner)
    except BaseException as error:
        error.add_note(f"its rows are ingested in {folder_of(job)}, and the same command goes on from there")
        raise
    model, comparison = found.model, found.comparison
    assert comparison is not None  # there are test rows
    passes.at_work("baselines")
    trees = fit_trees(
        found.data,
        model,
        comparison,
        seconds=found.chosen["fit_seconds"],
        seed=job.seed,
        most_bytes=available_memory() // 3,
    )
    comparison = comparison.with_model(TREES, trees)
    following = _following(prepared)
    document = {
        "task": "classification" if prepared.classify else "regression",
        "why": prepared.why,
        **{name: getattr(prepared, name) for name in _PREPARED},
        **display.describe_published(prepared.model, found.published),
        "fit": found.chosen,
        "metrics": found.metrics,
        "comparison": comparison.describe(),
        "next": following,
        "report": report,
    }
    passes.write_page(report, found.data, model, prepared.model, comparison=comparison, metrics=found.metrics)
    document |= passes.facts()
    return Report(document, _view(document, prepared, comparison, model.card))


def _following(prepared: AutoData) -> list[str]:
    std = [] if prepared.classify else ["--std"]
    commands = [
        ["rff-dist", "predict", prepared.model, "NEW.csv", "predictions.csv"],
        ["rff-dist", "evaluate", prepared.model, prepared.test, *std],
        ["rff-dist", "models", "show", prepared.model],
    ]
    return [shlex.join(words) for words in commands]


def _view(
    document: Mapping[str, Any], prepared: AutoData, comparison: Comparison, card: Mapping[str, Any]
) -> RenderableType:
    from rff_dist.kernels.text import shortened_text

    fit = document["fit"]
    facts = {
        "task": f"{document['task']}: {prepared.why}",
        "rows": f"{prepared.n_train:,} to train on, {prepared.n_test:,} to test on",
        "test rows": f"chosen {prepared.held_out}",
        "ingested": None if prepared.ingested == "now" else prepared.ingested,
        "features": f"D = {fit['n_components']:,}, {fit['features']}, {shortened_text(fit['kernel'])}",
        "alpha": display.alpha_words(fit["alpha"], fit["alpha_chosen_by"], fit["classifier"]),
        **display.test_facts(document["metrics"]),
        **display.estimate_facts(card),
        **display.version_facts(document),
        **display.run_facts(document),
        "dropped": display.dropped_words(prepared.dropped_rows),
    }
    header, rows = comparison.table()
    view, table = display.titled_table(f"compared on {comparison.rows_words}", *header)
    for row in rows:
        table.add_row(*row)
    commands = [Text.assemble(("\n  next: ", "dim"), document["next"][0], overflow="fold")]
    commands += [Text(f"        {words}", overflow="fold") for words in document["next"][1:]]
    parts: list[RenderableType] = [display.verdict_view(comparison)]
    parts += [display.facts_view(f"wrote {prepared.model}", **facts), *recipe_views(prepared.recipe)]
    parts += ["", view, *(Text(words, "dim") for words in comparison.about()), *commands]
    return Group(*parts)
