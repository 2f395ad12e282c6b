"""Make one model of several that were trained apart."""

from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist merge model_a model_b --model both",
    "rff-dist merge north south west --model models/all --register",
)
def merge(job: specs.Merge) -> Document:
    """Merge models of one spec and different rows: add up their exact sums and solve; no data are read."""
    from rff_dist.workbench.jobs.merge import merge_models

    record, output = merge_models(job), job.destination.model
    facts = {
        "holds": f"{record['n_samples']:,} rows of {words.plural(len(record['rows']), 'dataset')}",
        "alpha": words.value_words(record["alpha"]),
        "digest": record["digest"][:16],
    }
    title = f"merged {words.plural(len(job.models), 'model')} into {output}"
    following = [["evaluate", output, "DATA"]]
    return Document(title, [facts], record={"models": job.models, **record}, next=following)
