"""What is said of rows that were appended or predicted, and of versions of models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rff_dist.text import some
from rff_dist.typing import Summary
from rff_dist.workbench.results import words

if TYPE_CHECKING:  # `models --help` must not wait for it
    from rff_dist.workbench.jobs import predict

_DIGEST = re.compile("[0-9a-f]{64}")


def appended_facts(record: Summary) -> words.Facts:
    """Return what was appended to a dataset, the record of `workbench.jobs.ingest.append`, in words."""
    skipped = f"{words.plural(record['n_skipped'], 'source')}, in the dataset already"
    named, n_ingested = record["ingested"][:8], record["n_ingested"]
    more = f" … ({n_ingested:,})" if n_ingested > len(named) else ""
    return {
        "rows": f"{record['n_before']:,} before, {record['n_after']:,} after",
        "from": ", ".join(named) + more or None,
        "skipped": skipped if record["n_skipped"] else None,
        "dropped": words.dropped_words(record["dropped_rows"]),
        "version": record["version"] or None,
        "seconds": words.seconds_words(record["seconds"]),
    }


def predicted_facts(predicted: predict.Predicted) -> words.Facts:
    """Return what a job wrote for the rows that it predicted, in words."""
    record, model = predicted.record, predicted.model
    stored: Any = model.model  # a type for each kind
    if model.kind == "clusters":
        outputs = words.plural(stored.n_clusters, "cluster")
    elif model.kind == "classifier":
        outputs = words.plural(len(stored.card["classifier"]["classes"]), "class", "classes")
    else:
        outputs = words.plural(stored.n_targets, "target")
    return {
        "rows": f"{record['n_samples']:,}, {outputs}",
        "data": record["data"],
        "arrays": some(record["arrays"]),
        "model": f"{words.place_words(record)} ({record['model_digest'][:16]})",
    }


def version_cell(value: Any) -> str:
    """Return a value of `version_rows` as a table shows it: digests by the digits that tell them apart."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str):
        return f"{value[:8]}…" if _DIGEST.fullmatch(value) else value
    return words.value_words(value)
