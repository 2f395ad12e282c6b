"""Train on other rows with a model's features, so that the two models can be merged."""

from __future__ import annotations

from rich.console import Group

from rff_dist.cli import display
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Refit


@command("rff-dist refit model_a b.zarr model_b")
def refit(job: Refit, where: Where) -> Report:
    """Train on other rows with a model's features, offsets and alpha, so that the two can be merged."""
    from rff_dist.jobs.merge import refit_model

    passes = display.Passes(where)
    found = refit_model(job, passes.runner)
    model = job.destination.model
    view = display.facts_view(
        f"trained {model} like {job.like}",
        holds=display.plural(found["n_samples"], "row"),
        alpha=display.value_words(found["alpha"]),
        **display.run_facts(passes.facts()),
        digest=found["digest"][:16],
    )
    following = display.next_step("rff-dist", "merge", job.like, model, "--output", "BOTH")
    return Report(
        {"like": job.like, "data": job.source.data, **found, **passes.facts()}, Group(view, following)
    )
