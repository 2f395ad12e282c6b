"""Forget rows: in a dataset, in its models and in its old versions."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph


@shell.command(
    "rff-dist forget data.zarr --rows rows.csv --models model",
    "rff-dist forget data.zarr --rows customers.csv --id --models models/prices --days 30",
)
def forget(job: specs.Forget, where: Cluster) -> Document:
    """Delete rows, subtract them from models exactly, remove old versions, and list what still holds them."""
    from rff_dist.workbench.jobs.forget import forget

    record = {"data": job.data, **forget(job, display.Passes(where).runner)}
    facts = {
        "rows": f"{record['n_before']:,} before, {record['n_after']:,} after",
        **{
            update["model"]: f"{update['decision']}, {update['n_samples']:,} rows"
            for update in record["updates"]
        },
        "expired": words.plural(len(record["expired"]), "version"),
    }
    holders = [(holder["what"], holder["why"], holder["until"]) for holder in record["holders"]]
    caption = "what still holds them, or was learned from them"
    table = words.Table(caption, ("where", "what", "until"), holders, is_facts=True)
    still = [table] if holders else [Paragraph("nothing still holds them")]
    title = f"forgot {words.plural(record['n_rows'], 'row')} of {job.data}"
    return Document(title, [facts, *still], record=record)
