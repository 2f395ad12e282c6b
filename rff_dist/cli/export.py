"""Write a model for programs that do not have this package."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from rff_dist.cli import display
from rff_dist.cli.options import Overwrite
from rff_dist.cli.shell import Report, command


@command("rff-dist export model folder", "rff-dist export models/prices folder --overwrite")
def export(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A regression or a classifier.")],
    output: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write the files.")],
    overwrite: Overwrite = False,
) -> Report:
    """Write two arrays, one JSON document and a reader of 80 lines that needs NumPy and nothing else."""
    from rff_dist.export.write import export as write
    from rff_dist.ridge.model import read_model
    from rff_dist.text import human_bytes

    found = read_model(model)
    place = write(found, output, overwrite=overwrite)
    sizes = {path.name: path.stat().st_size for path in sorted(place.iterdir())}
    document = {"model": model, "folder": output, "files": sizes, "digest": found.digest()}
    facts = {name.replace("_", " "): human_bytes(size) for name, size in sizes.items()}
    how = Text(f'\n  in Python, in {output}: import reader; reader.Model(".").predict(rows)')
    return Report(document, Group(display.facts_view(f"wrote {output}", **facts), how))
