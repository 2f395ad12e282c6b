"""From a table to a registered model, compared with other models."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist auto prices.csv --target price",
    "rff-dist auto 'visits/*.parquet' --target ill --groups patient --into visits-model --report page.html",
)
def auto(job: specs.Auto, where: Cluster, report: str | None = shell.REPORT) -> Document:
    """Train and register a model from a table, test it, and compare it with others."""
    from rff_dist.workbench.jobs import auto, train, trees
    from rff_dist.workbench.results.auto import auto_document

    passes = display.Passes(where)
    passes.clock.begin("ingest")
    prepared = auto.prepare_table(job, observer=display.count_rows("ingest"))
    to_train = auto.training_of(job, prepared)
    try:
        training = train.train(to_train, passes.runner)
    except BaseException as error:
        place = auto.folder_of(job)
        error.add_note(f"its rows are ingested in {place}, and the same command goes on from there")
        raise
    passes.at_work("baselines")
    training = trees.with_trees(training, job.seed)
    passes.write_page(report, training, to_train)
    return auto_document(training, to_train, prepared, {"report": report, **passes.facts()})
