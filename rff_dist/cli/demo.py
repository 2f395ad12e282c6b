"""Run the main job on a photograph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rff_dist.cli.messages import err
from rff_dist.cli.options import read_count
from rff_dist.cli.shell import AsJson, Report, command, out
from rff_dist.jobs.options import Features, Where


@command("rff-dist demo", "rff-dist demo --components 1024 --output /tmp/demo")
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
    as_json: AsJson = False,
) -> Report:
    """Learn a photograph from half of its pixels, in about a minute."""
    from rff_dist.demo import run_demo

    document = run_demo(
        output,
        n_components=read_count(n_components, "--components"),
        seed=features.seed,
        workers=where.workers,
        threads=where.threads,
        console=err if as_json else out,
    )
    return Report(document)
