"""Turn files and queries into datasets."""

import logging
import time
from dataclasses import asdict, replace

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

logger = logging.getLogger(__name__)


@shell.command(
    "rff-dist ingest bikes.csv bikes.zarr --targets rentals",
    "rff-dist ingest sales.csv sales.zarr --targets price --id order --impute median --holdout 10%",
    "rff-dist ingest measurements/ data.zarr --targets x,y --columns a,b,c",
    "rff-dist ingest 'new/*.parquet' data.zarr --append --message 'Monday'",
    "RFF_DIST_SQL=sqlite:///shop.db rff-dist ingest data.zarr --targets price --sql file:sales.sql",
)
def ingest(job: specs.Ingest) -> Document:
    """Turn files or a query into a dataset, or append them to one; memory does not grow with the rows."""
    from rff_dist.recipes.recipes import recipe_of
    from rff_dist.workbench.jobs.ingest import describe_appended, ingest
    from rff_dist.workbench.results import rows
    from rff_dist.workbench.tables.ingest import Ingested
    from rff_dist.workbench.tables.queries import holds_password

    if job.connection is not None and holds_password(job.connection):
        logger.warning(
            "`connection` holds a password, which all users of this machine can see while the command runs; "
            "give the connection as env:NAME or file:PATH, or by RFF_DIST_SQL in the environment"
        )
    start = time.perf_counter()
    outcome = ingest(job, observer=display.count_rows("ingest"))
    seconds = time.perf_counter() - start
    if isinstance(outcome, Ingested):
        found = rows.appended_document(describe_appended(job, outcome, seconds))
        return replace(found, record={**found.record, **asdict(outcome)})  # of all files
    dataset, test = outcome if isinstance(outcome, tuple) else (outcome, None)
    labelled = job.targets is not None and not dataset.n_targets
    recipe = recipe_of(dataset.attributes)
    record = {**rows.describe_dataset(dataset), **rows.describe_recipe(recipe), "seconds": seconds}
    if test is not None:
        record["test"] = {"path": test.url, "n_samples": test.n_samples}
    facts = {
        **rows.dataset_facts(dataset),
        "labels": "text, for a classifier" if labelled else None,
        "seconds": words.seconds_words(seconds),
        "test": None if test is None else f"{test.n_samples:,} rows in {test.url}",
    }
    weights = ["--sample-weight", "sample_weight"] if job.weight else []
    classes = ["--classify"] if labelled else []
    following = [["fit", job.data, "MODEL", *weights, *classes]] if job.targets else []
    parts = [facts, *rows.recipe_parts(recipe, 20)]
    return Document(f"wrote {job.data}", parts, record=record, next=following)
