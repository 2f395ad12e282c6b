"""Train on other rows with a model's features, so that the two models can be merged."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words


@shell.command("rff-dist refit model_a b.zarr model_b")
def refit(job: specs.Refit, where: Cluster) -> shell.Report:
    """Train on other rows with a model's features, offsets and alpha, so that the two can be merged."""
    from rff_dist.workbench.jobs.merge import refit_model

    passes = display.Passes(where)
    record = refit_model(job, passes.runner)
    model, run = job.destination.model, passes.facts()
    view = display.facts_view(
        f"trained {model} like {job.like}",
        holds=words.plural(record["n_samples"], "row"),
        alpha=words.value_words(record["alpha"]),
        **display.run_facts(run),
        digest=record["digest"][:16],
    )
    document = {"like": job.like, "data": job.source.data, **record, **run}
    return shell.Report(document, [view], next=["merge", job.like, model, "--model", "BOTH"])
