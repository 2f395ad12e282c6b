"""What is said of datasets: how they were made, changed and split, and what was predicted for their rows."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from rff_dist import fields
from rff_dist.data import sources as row_sources
from rff_dist.recipes import recipes
from rff_dist.storage import datasets
from rff_dist.text import some
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import ingest, predict, specs, split
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Heading, Paragraph, Part
from rff_dist.workbench.tables.ingest import PARTS, Ingested


def appended_document(record: Summary) -> Document:
    """Return what was appended to a dataset: the record of `workbench.jobs.ingest.append`."""
    skipped = f"{words.plural(record['n_skipped'], 'source')}, in the dataset already"
    named, n_ingested = record["ingested"][:8], record["n_ingested"]
    more = f" … ({n_ingested:,})" if n_ingested > len(named) else ""
    facts = {
        "rows": words.change_words(record["n_before"], record["n_after"]),
        "from": ", ".join(named) + more or None,
        "skipped": skipped if record["n_skipped"] else None,
        "known": words.plural(record["n_known"], "row") + ", skipped" if record["n_known"] else None,
        "replaced": words.plural(record["n_replaced"], "row") if record["n_replaced"] else None,
        "deleted": words.plural(record["n_deleted"], "row") if record["n_deleted"] else None,
        "follows": words.table_words(record["table"]),
        "dropped": words.dropped_words(record["dropped_rows"]),
        "version": record["version"] or None,
        "seconds": words.seconds_words(record["seconds"]),
    }
    added = f"added {words.plural(record['n_new'], 'row')} to" if record["n_new"] else "nothing new for"
    if n_changed := record["n_replaced"] + record["n_deleted"]:
        added = f"changed {words.plural(record['n_new'] + n_changed, 'row')} of"
    findings = []
    for one in record["unlike"]:
        n_rows = f"{one['n_rows']:,}" if one["n_rows"] else ""
        findings.append((one["column"], one["what"], n_rows, ", ".join(one["examples"]), one["before"]))
    columns = ("column", "what", "rows", "such as", "before")
    table = words.Table("unlike the rows before", columns, findings)
    return Document(f"{added} {record['data']}", [facts, table] if findings else [facts], record=record)


def ingested_document(outcome: ingest.Made, job: specs.Ingest, seconds: float) -> Document:
    """Return what became of files or a query: a dataset, perhaps with one for a test, or rows of one."""
    if isinstance(outcome, Ingested):
        found = appended_document(ingest.describe_appended(job, outcome, seconds))
        return replace(found, record={**found.record, **asdict(outcome)})  # of all files
    dataset, test = outcome if isinstance(outcome, tuple) else (outcome, None)
    labelled = job.targets is not None and not dataset.n_targets
    recipe = recipes.recipe_of(dataset.attributes)
    record = {**describe_dataset(dataset), **describe_recipe(recipe), "seconds": seconds}
    if test is not None:
        record["test"] = {"path": test.url, "n_samples": test.n_samples}
    facts = {
        **dataset_facts(dataset),
        "labels": "text, for a classifier" if labelled else None,
        "seconds": words.seconds_words(seconds),
        "test": None if test is None else f"{test.n_samples:,} rows in {test.url}",
    }
    weights = ["--sample-weight", "sample_weight"] if job.weight else []
    classes = ["--classify"] if labelled else []
    following = [["fit", job.data, "MODEL", *weights, *classes]] if job.targets else []
    return Document(f"wrote {job.data}", [facts, *recipe_parts(recipe, 20)], record=record, next=following)


def split_document(halves: split.Parts, job: specs.Split) -> Document:
    """Return which rows a dataset was split into."""
    share = halves.n_test / (halves.n_test + halves.n_train)
    facts = {
        "train": f"{halves.n_train:,} rows in {halves.train}",
        "test": f"{halves.n_test:,} rows in {halves.test}, {share:.1%}",
    }
    in_order = ["--time"] if job.by == "time" and job.time is None else []
    following = [["fit", halves.train, "MODEL", *in_order]]
    return Document(f"split {job.data} by {job.by}", [facts], record=asdict(halves), next=following)


def forgotten_document(found: Summary, job: specs.Forget) -> Document:
    """Return which rows were forgotten, and what still holds them: the record of `workbench.jobs.forget`."""
    updates = found["updates"]
    facts = {
        "rows": words.change_words(found["n_before"], found["n_after"]),
        **{update["model"]: f"{update['decision']}, {update['n_samples']:,} rows" for update in updates},
        "expired": words.plural(len(found["expired"]), "version"),
    }
    holders = [(holder["what"], holder["why"], holder["until"]) for holder in found["holders"]]
    caption = "what still holds them, or was learned from them"
    table = words.Table(caption, ("where", "what", "until"), holders, is_facts=True)
    still = table if holders else Paragraph("nothing still holds them")
    title = f"forgot {words.plural(found['n_rows'], 'row')} of {job.data}"
    return Document(title, [facts, still], record={"data": job.data, **found})


def recipe_parts(recipe: recipes.Recipe | None, most: int | None = None) -> list[Part]:
    """Return how a table's columns became numbers; at most so many that changed are shown."""
    if recipe is None:
        return []
    facts: dict[str, str | None] = {
        name: words.Alert("; ".join(notes)) for name, notes in list(recipe.notes.items())[:3]
    }
    facts |= {name: words.Alert(f"left out: {why}") for name, why in recipe.left_out.items()}
    changed = [column for column in recipe.columns if column.words != "as it is"]
    facts |= {column.column: column.words for column in changed[:most]}
    if most is not None and len(changed) > most:
        facts["…"] = words.plural(len(changed) - most, "more column")
    return [Heading("Treatment of columns"), facts] if facts else []


def describe_recipe(recipe: recipes.Recipe | None) -> Summary:
    """Return how a table's columns became numbers, for the JSON document."""
    if recipe is None:
        return {}
    columns = [{"column": part.column, "becomes": part.names, "how": part.words} for part in recipe.columns]
    return {"recipe": columns, "left_out": dict(recipe.left_out), "notes": dict(recipe.notes)}


def describe_dataset(dataset: datasets.ZarrDataset) -> Summary:
    """Return a dataset's facts for the JSON document."""
    return {
        "path": dataset.url,
        **fields.values_of(dataset, "n_samples", "n_features", "n_targets"),
        "dtype": dataset.dtype.name,
        **fields.values_of(dataset, "chunk_rows", "feature_names", "target_names", "version"),
        "dropped_rows": dataset.attributes.get("dropped_rows", 0),
    }


def split_words(attributes: Facts) -> str | None:
    """Return how rows for a test were chosen when a table was ingested; None if that is unknown."""
    parts = attributes.get(PARTS)
    if not isinstance(parts, Mapping) or "holdout" not in parts:  # another program's attribute
        return None
    holdout = parts["holdout"]
    by_time = holdout["by"] is not None
    how = f"the latest by {holdout['by']}" if by_time else f"at random, seed {holdout['seed']}"
    return f"about {100 * holdout['share']:g} % of the rows for a test, {how}"


def dataset_facts(dataset: datasets.ZarrDataset) -> words.Lines:
    """Return a dataset's facts in words."""
    return {
        "rows": f"{dataset.n_samples:,}, {words.features_and_targets(dataset.n_features, dataset.n_targets)}",
        "stored as": f"{dataset.dtype.name}, {dataset.chunk_rows:,} rows per chunk, checksummed",
        "version": dataset.version,
        "features": words.listed(dataset.feature_names),
        "targets": words.listed(dataset.target_names),
        "dropped": words.dropped_words(dataset.attributes.get("dropped_rows", 0)),
        "follows": words.table_words(row_sources.followed_table(dataset.attributes)),
    }


def predicted_document(predicted: predict.Predicted, run: Summary) -> Document:
    """Return what a job wrote for the rows that it predicted.

    `run`: what ran it, see `words.run_facts`.
    """
    record, model = predicted.record | dict(run), predicted.model
    interval = record["interval"]
    stored: Any = model.model  # a type for each kind
    if model.kind == "clusters":
        outputs = words.plural(stored.n_clusters, "cluster")
    elif model.kind == "classifier":
        outputs = words.plural(len(stored.card["classifier"]["classes"]), "class", "classes")
    else:
        outputs = words.plural(stored.n_targets, "target")
    facts = {
        "rows": f"{record['n_samples']:,}, {outputs}",
        "data": record["data"],
        "arrays": some(record["arrays"]),
        "interval": interval and f"{interval['coverage']:.0%}, from {interval['by']}",
        "model": f"{words.place_words(record)} ({record['model_digest'][:16]})",
        **words.run_facts(run),
    }
    return Document(f"wrote {record['output']}", [facts], record=record)
