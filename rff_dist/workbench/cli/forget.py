"""Forget rows: in a dataset, in its models and in its old versions."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words


@shell.command(
    "rff-dist forget data.zarr --rows rows.csv --models model",
    "rff-dist forget data.zarr --rows customers.csv --id --models models/prices --days 30",
)
def forget(job: specs.Forget, where: Cluster) -> shell.Report:
    """Delete rows, subtract them from models exactly, remove old versions, and list what still holds them."""
    from rff_dist.workbench.jobs.forget import forget

    document = {"data": job.data, **forget(job, display.Passes(where).runner)}
    view = display.facts_view(
        f"forgot {words.plural(document['n_rows'], 'row')} of {job.data}",
        rows=f"{document['n_before']:,} before, {document['n_after']:,} after",
        **{
            update["model"]: f"{update['decision']}, {update['n_samples']:,} rows"
            for update in document["updates"]
        },
        expired=words.plural(len(document["expired"]), "version"),
    )
    if not document["holders"]:
        return shell.Report(document, [view, "", "nothing still holds them"])
    title = "what still holds them, or was learned from them"
    holders = [(holder["what"], holder["why"], holder["until"]) for holder in document["holders"]]
    table = words.Table(title, ("where", "what", "until"), holders, is_facts=True)
    return shell.Report(document, [view, table])
