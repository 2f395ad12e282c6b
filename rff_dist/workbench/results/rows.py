"""Documents about datasets: how they were made and changed; and predictions.

Records of jobs go in; documents for terminal, JSON and Prefect come out. They include
the treatment of each column of a table, which a model's errors would not show.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rff_dist import fields
from rff_dist.data import sources as row_sources
from rff_dist.errors import RFFDistError
from rff_dist.recipes import recipes
from rff_dist.storage import datasets, groups, locations
from rff_dist.text import first_few, redact
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Heading, Paragraph, Part

if TYPE_CHECKING:
    from rff_dist.workbench.jobs import ingest, predict, specs


def appended_document(record: Summary) -> Document:
    """Return the document of an append, from the record of `jobs.ingest.append`.

    Among its facts, "skipped" are sources that the dataset has already; "known" are
    rows whose ids it has with the same values; "follows" is the lakehouse table whose
    changes the dataset takes.
    """
    n_new = record["n_new"]
    names = record["ingested"][:8]
    origin = ", ".join(names)
    if record["n_ingested"] > len(names):
        origin += f" … ({record['n_ingested']:,})"
    facts: words.Lines = {
        "rows": words.change_words(record["n_before"], record["n_after"]),
        "from": origin or None,
    }
    if record["n_skipped"]:
        sources = words.plural(record["n_skipped"], "source")
        facts["skipped"] = f"{sources}, in the dataset already"
    if record["n_known"]:
        facts["known"] = f"{words.plural(record['n_known'], 'row')}, skipped"
    if n_rows := record["n_of_other_part"]:
        rows = words.plural(n_rows, "row")
        facts["left out"] = f"{rows} of the dataset that was split off"
    for change in ("replaced", "deleted"):
        if n_rows := record[f"n_{change}"]:
            facts[change] = words.plural(n_rows, "row")
    facts |= {
        "follows": words.table_words(record["table"]),
        "dropped": words.dropped_words(record["dropped_rows"]),
        "version": record["version"] or None,
        "seconds": words.seconds_words(record["seconds"]),
    }
    parts: list[Part] = [facts]
    if record["unlike"]:
        parts.append(_unlike_table(record["unlike"]))

    title = f"nothing new for {record['data']}"
    n_changed = record["n_replaced"] + record["n_deleted"]
    if n_changed:
        title = f"changed {words.plural(n_new + n_changed, 'row')} of {record['data']}"
    elif n_new:
        title = f"added {words.plural(n_new, 'row')} to {record['data']}"
    return Document(title, parts, record=record)


def appended_words(record: Facts) -> str:
    """Return in a few words how many rows were added or changed, in which columns they
    are unlike the rows before, and how many were left out.
    """
    n_changed = record["n_replaced"] + record["n_deleted"]
    n_rows = record["n_new"] + n_changed
    outcome = "Nothing new"
    if n_rows:
        verb = "Changed" if n_changed else "Added"
        outcome = f"{verb}: {words.plural(n_rows, 'row')}"
    if unlike := dict.fromkeys(finding["column"] for finding in record["unlike"]):
        outcome += f", unlike those before in {first_few(list(unlike))}"
    return outcome + words.left_out_words(record["dropped_rows"])


def _unlike_table(findings: Sequence[Facts]) -> words.Table:
    """Return how columns of new rows differ from those of the rows before."""
    rows = []
    for finding in findings:
        n_rows = f"{finding['n_rows']:,}" if finding["n_rows"] else ""
        examples = ", ".join(finding["examples"])
        cells = (finding["column"], finding["what"], n_rows, examples)
        rows.append((*cells, finding["before"]))
    header = ("column", "what", "rows", "such as", "before")
    return words.Table("unlike the rows before", header, rows)


def ingested_document(
    outcome: ingest.Ingested, job: specs.Ingest, seconds: float
) -> Document:
    """Return the document of an ingest: of a new dataset, of two, or of an append."""
    from rff_dist.workbench.jobs import ingest
    from rff_dist.workbench.tables.existing import IngestResult

    if isinstance(outcome, IngestResult):
        appended = appended_document(ingest.describe_appended(job, outcome, seconds))
        # the record names only the first files, the full result all
        return replace(appended, record={**appended.record, **asdict(outcome)})
    dataset, test = outcome if isinstance(outcome, tuple) else (outcome, None)
    recipe = recipes.recipe_of(dataset.attributes)
    record = {
        **describe_dataset(dataset),
        **describe_recipe(recipe),
        "seconds": seconds,
    }
    facts = dataset_facts(dataset)
    fit = ["fit", job.data, "MODEL"]
    if job.weight:
        fit += ["--sample-weight", "sample_weight"]
    if job.targets is not None and not dataset.n_targets:
        facts["labels"] = "text, for a classifier"
        fit.append("--classify")
    facts["seconds"] = words.seconds_words(seconds)
    if test is not None:
        record["test"] = {"path": test.url, "n_samples": test.n_samples}
        facts["test"] = f"{test.n_samples:,} rows in {test.url}"
    return Document(
        f"wrote {job.data}",
        [facts, *recipe_parts(recipe, 20)],
        record=record,
        next=[fit] if job.targets else [],
    )


def forgotten_document(record: Summary, job: specs.Forget) -> Document:
    """Return which rows were forgotten, and what still holds them."""
    facts = {"rows": words.change_words(record["n_before"], record["n_after"])}
    for update in record["updates"]:
        decision = update["decision"]
        holds = f"{update['n_samples']:,} rows"
        if decision == "published":
            if update["version"]:
                decision += f", version {update['version']}"
            holds += f" ({update['n_gone']:,} subtracted)"
        if update["n_left_out"]:
            holds += f"; {words.plural(update['n_left_out'], 'row')} stay refused"
        facts[update["model"]] = f"{decision}: {holds}"
    facts["expired"] = words.plural(len(record["expired"]), "version")
    holders: Part = Paragraph("nothing still holds them")
    if record["holders"]:
        caption = "what still holds them, or was learned from them"
        header = ("where", "what", "until")  # the members of `jobs.remnants.Remnant`
        rows = [[holder[key] for key in header] for holder in record["holders"]]
        holders = words.Table(caption, header, rows, is_text=True)
    note = (
        "Models that `--models` does not name are not searched for: trained on an"
        " earlier version, they hold sums of the rows, and must be fitted again."
    )
    title = f"forgot {words.plural(record['n_rows'], 'row')} of {job.data}"
    return Document(
        title,
        [facts, holders, Paragraph(note, is_note=True)],
        record={"data": job.data, **record},
    )


def held_out_data(data: str | None) -> str:
    """Return where the held-out rows of training data are; DATA if that is unknown."""
    with contextlib.suppress(RFFDistError):
        if data is not None:
            attributes = groups.find_group(data).attributes
            place = str(attributes.get(row_sources.OTHER_PART, ""))
            if "/" not in place:
                place = place and posixpath.join(posixpath.dirname(data), place)
            if place and locations.exists(locations.parse_location(place)):
                return redact(place)
    return "DATA"


def recipe_parts(recipe: recipes.Recipe | None, most: int | None = None) -> list[Part]:
    """Return how columns of a table became numbers; at most `most` changed ones."""
    if recipe is None:
        return []
    facts = recipe_alerts(recipe)
    changed_columns = [
        column for column in recipe.columns if column.words != "as it is"
    ]
    for column in changed_columns[:most]:
        facts[column.column] = column.words
    if most is not None and len(changed_columns) > most:
        facts["…"] = words.plural(len(changed_columns) - most, "more column")
    return [Heading("Treatment of columns"), facts] if facts else []


def recipe_alerts(recipe: recipes.Recipe | None) -> words.Lines:
    """Return doubts about columns of a table, and which were left out."""
    facts: words.Lines = {}
    if recipe is not None:
        for name, notes in list(recipe.notes.items())[:3]:
            facts[name] = words.Alert("; ".join(notes))
        for name, why in recipe.left_out.items():
            facts[name] = words.Alert(f"left out: {why}")
    return facts


def describe_recipe(recipe: recipes.Recipe | None) -> Summary:
    """Return how a table's columns became numbers, for the JSON document."""
    if recipe is None:
        return {}
    columns = [
        {"column": part.column, "becomes": part.names, "how": part.words}
        for part in recipe.columns
    ]
    return {
        "recipe": columns,
        "left_out": dict(recipe.left_out),
        "notes": dict(recipe.notes),
    }


def describe_dataset(dataset: datasets.ZarrDataset) -> Summary:
    """Return a dataset's facts for the JSON document."""
    return {
        "path": dataset.url,
        **fields.values_of(dataset, "n_samples", "n_features", "n_targets"),
        "dtype": dataset.dtype.name,
        **fields.values_of(
            dataset, "chunk_rows", "feature_names", "target_names", "version"
        ),
        "dropped_rows": dataset.attributes.get("dropped_rows", 0),
    }


def split_words(attributes: Facts) -> str | None:
    """Return how test rows of an ingested table were chosen; None if it is unknown."""
    parts = attributes.get(row_sources.PARTS)
    # an attribute of this name may be another program's
    if not isinstance(parts, Mapping) or "holdout" not in parts:
        return None
    holdout = parts["holdout"]
    share = f"{100 * holdout['share']:g}%"
    if holdout["by"] is not None:
        return f"the latest {share} by {holdout['by']}, or nearly, for a test"
    return f"test rows drawn with a chance of {share} each, seed {holdout['seed']}"


def dataset_facts(dataset: datasets.ZarrDataset) -> words.Lines:
    """Return a dataset's facts in words."""
    columns = words.features_and_targets(dataset.n_features, dataset.n_targets)
    dtype = dataset.dtype.name
    return {
        "rows": f"{dataset.n_samples:,}, {columns}",
        "stored as": f"{dtype}, {dataset.chunk_rows:,} rows per chunk, checksummed",
        "version": dataset.version,
        "features": words.listed(dataset.feature_names),
        "targets": words.listed(dataset.target_names),
        "dropped": words.dropped_words(dataset.attributes.get("dropped_rows", 0)),
        "follows": words.table_words(row_sources.followed_table(dataset.attributes)),
    }


def predicted_document(prediction: predict.PredictionResult, run: Summary) -> Document:
    """Return the document of a job that predicted; `run`: see `words.run_facts`."""
    record = prediction.record | dict(run)
    model: Any = prediction.scoring.model  # its type depends on the kind
    match prediction.scoring.kind:
        case "clusters":
            outputs = words.plural(model.n_clusters, "cluster")
        case "classifier":
            n_classes = len(model.card["classifier"]["classes"])
            outputs = words.plural(n_classes, "class", "classes")
        case _:
            outputs = words.plural(model.n_targets, "target")
    interval = record["interval"]
    facts = {
        "rows": f"{record['n_samples']:,}, {outputs}",
        "data": record["data"],
        "arrays": first_few(record["arrays"]),
        "interval": interval and f"{interval['coverage']:.0%}, from {interval['by']}",
        "model": words.place_words(record),
        **words.run_facts(run),
    }
    details = {"digest": record["model_digest"][:16], **words.run_details(run)}
    title = f"wrote {record['output']}"
    return Document(title, [facts], details=[details], record=record)
