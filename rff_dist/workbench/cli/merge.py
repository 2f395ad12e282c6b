"""Make one model of several that were trained apart."""

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words


@shell.command(
    "rff-dist merge model_a model_b --model both",
    "rff-dist merge north south west --model models/all --register",
)
def merge(job: specs.Merge) -> shell.Report:
    """Merge models of one spec and different rows: add up their exact sums and solve; no data are read."""
    from rff_dist.workbench.jobs.merge import merge_models

    record = merge_models(job)
    view = display.facts_view(
        f"merged {words.plural(len(job.models), 'model')} into {job.destination.model}",
        holds=f"{record['n_samples']:,} rows of {words.plural(len(record['rows']), 'dataset')}",
        alpha=words.value_words(record["alpha"]),
        digest=record["digest"][:16],
    )
    following = ["evaluate", job.destination.model, "DATA"]
    return shell.Report({"models": job.models, **record}, [view], next=following)
