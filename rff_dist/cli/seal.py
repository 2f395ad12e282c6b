"""Seal plain Zarr that other programs wrote, so that damage to it is noticed."""

from __future__ import annotations

from typing import Annotated

import typer

from rff_dist.cli import display
from rff_dist.cli.shell import Report, command


@command("rff-dist seal data.zarr", "rff-dist seal data.zarr --check")
def seal(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Path or URL of plain Zarr.")],
    check: Annotated[bool, typer.Option("--check", help="Compare all files with the seal.")] = False,
) -> Report:
    """Store the sizes and checksums of all files of plain Zarr beside them. Jobs check what they read."""
    from rff_dist.errors import IntegrityError, StorageError
    from rff_dist.storage.groups import check_existing, find_group
    from rff_dist.storage.locations import parse_location
    from rff_dist.storage.repositories import is_versioned
    from rff_dist.storage.seal import check_seal, write_seal
    from rff_dist.text import human_bytes

    location = parse_location(data)
    check_existing(location)
    if is_versioned(location):
        raise StorageError(
            f"{data} keeps versions, and its files have checksums already; expected plain Zarr"
        )
    if check:
        found = check_seal(location)
        if found.problems:
            shown = "; ".join(found.problems[:5]) + (" …" if len(found.problems) > 5 else "")
            raise IntegrityError(
                f"{len(found.problems):,} of {found.n_files:,} files of {data} have changed since the seal: "
                f"{shown}. Restore them from a copy; if the change was intended, seal the data again"
            )
    else:
        find_group(data, sealed=False).open()
        found = write_seal(location)
    view = display.facts_view(
        f"{'checked' if check else 'sealed'} {data}",
        files=f"{found.n_files:,}",
        size=human_bytes(found.n_bytes),
    )
    return Report({"data": data, "n_files": found.n_files, "n_bytes": found.n_bytes}, view)
