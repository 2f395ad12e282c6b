"""Run the main job on a photograph."""

from pathlib import Path
from typing import Annotated

import typer

from rff_dist.workbench.cli import messages, options, shell
from rff_dist.workbench.jobs.options import Features, Where
from rff_dist.workbench.results.document import Document


@shell.command("rff-dist demo", "rff-dist demo --components 1024 --output /tmp/demo")
def demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for data, model and picture.")
    ] = Path("demo-output"),
    n_components: Annotated[
        str, typer.Option("--components", metavar="D", help="D, the number of features.")
    ] = "2048",
    features: Annotated[Features, "seed"],
    where: Annotated[Where, "workers", "threads"],
    as_json: shell.AsJson = False,
) -> Document:
    """Learn a photograph from half of its pixels, in about a minute."""
    from rff_dist.workbench.demo import run_demo

    record = run_demo(
        output,
        n_components=options.read_count(n_components, "--components"),
        seed=features.seed,
        workers=where.workers,
        threads=where.threads,
        console=messages.err if as_json else shell.out,
    )
    return Document("", record=record)  # it has shown everything
