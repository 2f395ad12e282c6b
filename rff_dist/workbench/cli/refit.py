"""Train on other rows with a model's features, so that the two models can be merged."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document


@shell.command("rff-dist refit model_a b.zarr model_b")
def refit(job: specs.Refit, where: Cluster) -> Document:
    """Train on other rows with a model's features, offsets and alpha, so that the two can be merged."""
    from rff_dist.workbench.jobs.merge import refit_model

    passes = display.Passes(where)
    record = refit_model(job, passes.runner)
    model, run = job.destination.model, passes.facts()
    facts = {
        "holds": words.plural(record["n_samples"], "row"),
        "alpha": words.value_words(record["alpha"]),
        **words.run_facts(run),
        "digest": record["digest"][:16],
    }
    record = {"like": job.like, "data": job.source.data, **record, **run}
    following = [["merge", job.like, model, "--model", "BOTH"]]
    return Document(f"trained {model} like {job.like}", [facts], record=record, next=following)
