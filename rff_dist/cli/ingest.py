"""Files and queries as datasets."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Group

from rff_dist.cli import display
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.specs import Ingest

if TYPE_CHECKING:
    from rff_dist.ingest.ingest import Ingested

logger = logging.getLogger(__name__)


@command(
    "rff-dist ingest bikes.csv bikes.zarr --target rentals",
    "rff-dist ingest measurements/ data.zarr --target x --target y --columns a,b,c",
    "rff-dist ingest 'new/*.parquet' data.zarr --append --message 'Monday'",
    "RFF_DIST_SQL=sqlite:///shop.db rff-dist ingest data.zarr --target price --sql file:sales.sql",
)
def ingest(job: Ingest) -> Report:
    """Turn files or a query into a dataset or more rows of one, in memory that does not grow with them."""
    from rff_dist.ingest.ingest import Ingested
    from rff_dist.ingest.queries import holds_password
    from rff_dist.jobs.ingest import ingest

    if job.connection is not None and holds_password(job.connection):
        logger.warning(
            "--connection holds a password, which all users of this machine see while the command runs; "
            "give it as env:NAME or file:PATH, or by RFF_DIST_SQL in the environment"
        )
    start = time.perf_counter()
    with display.count_rows("ingest") as counter:
        found = ingest(job, observer=counter)
    seconds = time.perf_counter() - start
    if isinstance(found, Ingested):
        return _appended_report(job.data, found, seconds)
    labelled = job.targets is not None and not found.n_targets
    labels = {"labels": "text, for a classifier"} if labelled else {}
    document = {**display.describe_dataset(found), "seconds": seconds}
    facts = {**display.dataset_facts(found), **labels, "seconds": display.seconds_words(seconds)}
    view = display.facts_view(f"wrote {job.data}", **facts)
    weights = ("--weights", "sample_weight") if job.weight else ()
    following = display.next_step("rff-dist", "fit", job.data, "MODEL", *weights)
    return Report(document, Group(view, following) if job.targets and not labelled else view)


def _appended_report(output: str, found: Ingested, seconds: float) -> Report:
    document = {"path": output, **asdict(found), "seconds": seconds}
    n_new = found.n_after - found.n_before
    skipped = {"skipped": f"{display.some(found.skipped)}, there already"} if found.skipped else {}
    dropped = (
        {"dropped": f"[yellow]{found.dropped_rows:,} rows[/] with missing or infinite values"}
        if found.dropped_rows
        else {}
    )
    view = display.facts_view(
        f"added {n_new:,} rows to {output}" if n_new else f"nothing new for {output}",
        rows=f"{found.n_before:,} before, {found.n_after:,} after",
        **({"from": display.some(found.ingested)} if found.ingested else {}),
        **skipped,
        **dropped,
        **({"version": found.version} if found.version else {}),
        seconds=display.seconds_words(seconds),
    )
    return Report(document, view)
