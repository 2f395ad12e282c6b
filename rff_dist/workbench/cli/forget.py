"""Forget rows: in a dataset, in its models and in its old versions."""

from rich.console import Group, RenderableType

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import options, specs
from rff_dist.workbench.results import words


@shell.command(
    "rff-dist forget data.zarr --rows rows.csv --model model",
    "rff-dist forget data.zarr --rows customers.csv --id --model models/prices --days 30",
)
def forget(job: specs.Forget, where: options.Where) -> shell.Report:
    """Delete rows, subtract them from models exactly, remove old versions, and list what still holds them."""
    from rff_dist.workbench.jobs.forget import forget

    document = {"data": job.data, **forget(job, display.Passes(where).runner)}
    holders = document["holders"]
    view: list[RenderableType] = [
        display.facts_view(
            f"forgot {words.plural(document['n_rows'], 'row')} of {job.data}",
            rows=f"{document['n_before']:,} before, {document['n_after']:,} after",
            **{
                update["model"]: f"{update['decision']}, {update['n_samples']:,} rows"
                for update in document["updates"]
            },
            expired=words.plural(len(document["expired"]), "version"),
        ),
        "",
    ]
    title = "what still holds them, or was learned from them" if holders else "nothing still holds them"
    table_view, table = display.titled_table(title, "where", "what", "until", numbers=False)
    for holder in holders:
        table.add_row(holder["what"], holder["why"], holder["until"])
    view.append(table_view if holders else title)
    return shell.Report(document, Group(*view))
