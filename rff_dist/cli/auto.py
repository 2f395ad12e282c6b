"""From a table to a registered model, compared with other models."""

from __future__ import annotations

import shlex
import time
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
from rff_dist.text import number

if TYPE_CHECKING:
    from rff_dist.cli.baselines import Baselines
    from rff_dist.jobs.auto import AutoData

_OURS = "this model"
_PREPARED = ("train", "test", "n_train", "n_test", "dropped_rows", "held_out", "ingested")


@command(
    "rff-dist auto prices.csv --target price",
    "rff-dist auto 'visits/*.parquet' --target ill --groups patient --into visits-model --report page.html",
)
def auto(job: Auto, where: Where, report: ReportPath = None) -> Report:
    """Train and register a model from a table, test it on held-out rows, and compare it with others."""
    from rff_dist.cli.baselines import fit_baselines
    from rff_dist.jobs.auto import folder_of, prepare_table, training_of
    from rff_dist.jobs.train import open_training
    from rff_dist.page.comparison import HeldOutErrors

    start = time.perf_counter()
    prepared = prepare_table(job, observer=display.count_rows("ingest"))
    passes = display.Passes(where)
    try:
        with open_training(training_of(job, prepared), passes.runner) as run:
            records = passes.run(run.steps())
    except BaseException as error:
        error.add_note(f"its rows are ingested in {folder_of(job)}, and the same command goes on from there")
        raise
    model = run.trained.model
    ours = _scores(records["evaluate"])
    display.at_work("a linear model and boosted trees, to compare with")
    others = fit_baselines(prepared.train, prepared.test, classify=prepared.classify, seed=job.seed)
    scores = {_OURS: ours, **others.scores}
    seconds = time.perf_counter() - start
    following = _following(prepared)
    document = {
        "task": "classification" if prepared.classify else "regression",
        "why": prepared.why,
        **{name: getattr(prepared, name) for name in _PREPARED},
        **display.describe_published(prepared.model, records["publish"]),
        "fit": records["fit"],
        "scores": scores,
        "compared_on": {"n_train": others.n_train, "n_test": others.n_test},
        "verdict": verdict(scores),
        "next": following,
        "report": report,
        "seconds": seconds,
    }
    compared = HeldOutErrors.on(records["evaluate"], others.scores)
    display.write_page(report, run.data, model, prepared.model, passes.times(), compared=compared)
    return Report(document, _view(document, prepared, others, model.card))


def _scores(found: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the figures of the test that the baselines have too."""
    assert found is not None  # there is a test
    if "accuracy" in found:
        return {name: found[name] for name in ("accuracy", "log_loss")}
    return {name: found[name][0] for name in ("rmse", "r2")}


def verdict(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Say in one sentence how the model compares with the others, by RMSE or by log loss."""
    name = "rmse" if "rmse" in scores[_OURS] else "log_loss"
    ours, linear, trees = (scores[model].get(name) for model in (_OURS, "linear", "boosted trees"))
    if ours is None or linear is None or trees is None:
        return "This model has no probabilities, so it cannot be compared by log loss."
    explained = [scores[model].get("r2") or 0.0 for model in (_OURS, "boosted trees")]
    if name == "rmse" and not any(one > 0.02 for one in explained):
        return "No signal was found: the mean of the target predicts it as well."
    if ours > 1.005 * linear:
        return "A linear model is better here: the signal is linear, or there are few rows."
    if ours > 0.995 * linear:
        return "A linear model is as good here: the signal seems to be linear."
    if ours > 1.02 * trees:
        return "It is better than a linear model; boosted trees are better still."
    return "It is better than a linear model" + (
        " and than boosted trees." if ours < 0.98 * trees else ", and as good as boosted trees."
    )


def _following(prepared: AutoData) -> list[str]:
    std = [] if prepared.classify else ["--std"]
    commands = [
        ["rff-dist", "predict", prepared.model, "NEW.csv", "predictions.csv"],
        ["rff-dist", "evaluate", prepared.model, prepared.test, *std],
        ["rff-dist", "models", "show", prepared.model],
    ]
    return [shlex.join(words) for words in commands]


def _view(
    document: Mapping[str, Any], prepared: AutoData, others: Baselines, card: Mapping[str, Any]
) -> RenderableType:
    from rff_dist.jobs.fits import TITLES
    from rff_dist.kernels.text import shortened_text

    fit = document["fit"]
    facts = {
        "task": f"{document['task']}: {prepared.why}",
        "rows": f"{prepared.n_train:,} to train on, {prepared.n_test:,} to test on",
        "test rows": f"chosen {prepared.held_out}",
        "ingested": None if prepared.ingested == "now" else prepared.ingested,
        "features": f"D = {fit['n_components']:,}, {fit['features']}, {shortened_text(fit['kernel'])}",
        "alpha": display.alpha_words(fit["alpha"], fit["alpha_chosen_by"], fit["classifier"]),
        **display.estimate_facts(card),
        **display.version_facts(document),
        "seconds": display.seconds_words(document["seconds"]),
        "dropped": display.dropped_words(prepared.dropped_rows),
    }
    title = f"on {prepared.n_test:,} held-out rows"
    if (others.n_train, others.n_test) != (prepared.n_train, prepared.n_test):
        title += f"; the others on {others.n_test:,} of them, trained on {others.n_train:,}"
    names = list(document["scores"][_OURS])
    view, table = display.titled_table(title, "model", *(TITLES[name] for name in names))
    for model, found in document["scores"].items():
        table.add_row(model, *(number(found[name]) for name in names))
    commands = [Text.assemble(("\n  next: ", "dim"), document["next"][0], overflow="fold")]
    commands += [Text(f"        {words}", overflow="fold") for words in document["next"][1:]]
    parts: list[RenderableType] = [display.facts_view(f"wrote {prepared.model}", **facts)]
    parts += [*recipe_views(prepared.recipe), "", view, Text(document["verdict"], "bold"), *commands]
    return Group(*parts)
