"""Turn files and queries into datasets."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.recipes import recipes
    from rff_dist.workbench.tables.ingest import Ingested

logger = logging.getLogger(__name__)

_SHOWN_COLUMNS = 20


@shell.command(
    "rff-dist ingest bikes.csv bikes.zarr --targets rentals",
    "rff-dist ingest sales.csv sales.zarr --targets price --id order --impute median --holdout 10%",
    "rff-dist ingest measurements/ data.zarr --targets x,y --columns a,b,c",
    "rff-dist ingest 'new/*.parquet' data.zarr --append --message 'Monday'",
    "RFF_DIST_SQL=sqlite:///shop.db rff-dist ingest data.zarr --targets price --sql file:sales.sql",
)
def ingest(job: specs.Ingest) -> shell.Report:
    """Turn files or a query into a dataset, or append them to one; memory does not grow with the rows."""
    from rff_dist.recipes.recipes import recipe_of
    from rff_dist.workbench.jobs.ingest import ingest
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
        return _appended_report(job, outcome, seconds)
    dataset, test = outcome if isinstance(outcome, tuple) else (outcome, None)
    labelled = job.targets is not None and not dataset.n_targets
    recipe = recipe_of(dataset.attributes)
    document = {**display.describe_dataset(dataset), **describe_recipe(recipe), "seconds": seconds}
    if test is not None:
        document["test"] = {"path": test.url, "n_samples": test.n_samples}
    facts: words.Facts = {
        **display.dataset_facts(dataset),
        "labels": "text, for a classifier" if labelled else None,
        "seconds": words.seconds_words(seconds),
        "test": None if test is None else f"{test.n_samples:,} rows in {test.url}",
    }
    weights = ["--sample-weight", "sample_weight"] if job.weight else []
    classes = ["--classify"] if labelled else []
    following = ["fit", job.data, "MODEL", *weights, *classes] if job.targets else []
    parts = [display.facts_view(f"wrote {job.data}", **facts), *recipe_views(recipe)]
    return shell.Report(document, parts, next=following)


def describe_recipe(recipe: recipes.Recipe | None) -> dict[str, Any]:
    """Return what was done to a table's columns, for the JSON document."""
    if recipe is None:
        return {}
    columns = [
        {"column": column.column, "becomes": column.names, "how": column.words} for column in recipe.columns
    ]
    return {"recipe": columns, "left_out": dict(recipe.left_out), "notes": dict(recipe.notes)}


def recipe_views(recipe: recipes.Recipe | None, *, n_shown: int = _SHOWN_COLUMNS) -> list[Text]:
    """Return what was done to a table's columns, and notes on how its files were read."""
    if recipe is None:
        return []
    notes = list(recipe.notes.items())[:3]
    lines = [Text(f"{name}: {'; '.join(texts)}", "yellow") for name, texts in notes]
    lines += [Text(f"left out {name!r}: {why}", "yellow") for name, why in recipe.left_out.items()]
    changed = [column for column in recipe.columns if column.words != "as it is"]
    lines += [Text(f"{column.column}: {column.words}") for column in changed[:n_shown]]
    if len(changed) > n_shown:
        lines.append(Text(f"and {len(changed) - n_shown:,} columns more"))
    return lines


def _appended_report(job: specs.Ingest, ingested: Ingested, seconds: float) -> shell.Report:
    from rff_dist.workbench.jobs.ingest import describe_appended
    from rff_dist.workbench.results.rows import appended_facts

    document = {"path": job.data, **asdict(ingested), "seconds": seconds}
    n_new = ingested.n_after - ingested.n_before
    title = f"added {n_new:,} rows to {job.data}" if n_new else f"nothing new for {job.data}"
    facts = appended_facts(describe_appended(job, ingested, seconds))
    if ingested.skipped:
        facts["skipped"] = f"{words.listed(ingested.skipped)}, in the dataset already"
    return shell.Report(document, [display.facts_view(title, **facts)])
