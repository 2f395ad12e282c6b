"""The sections on a model's errors on rows that it was not trained on, and on an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rff_dist.jobs.fits import TITLES, estimate_of
from rff_dist.jobs.verdict import Comparison
from rff_dist.page.content import Page, words_of
from rff_dist.ridge.model import RidgeModel

CHOSEN_BY = {
    "cv": "k-fold cross-validation",
    "press": "leave-one-out cross-validation",
    "gcv": "generalised cross-validation (GCV)",
    "evidence": "the evidence",
    "given": "nothing: it was given",
}


def score_section(
    page: Page,
    model: RidgeModel,
    comparison: Comparison | None,
    metrics: Mapping[str, Any] | None,
    gate: Mapping[str, Any] | None,
) -> None:
    """Add the section on a model's errors: on test rows, next to other models, and by cross-validation.

    `metrics`: on all test rows; None without any.
    `gate`: what the gate of an update found.
    """
    page.section("Accuracy")
    if metrics is not None:
        _own_table(page, f"Test: on all {metrics['n_samples']:,} rows of {metrics['test_data']}", metrics)
    if gate is not None:
        page.table(
            f"Test: on {gate['held_out']}",
            ("model", TITLES["rmse"]),
            [("this model", _cell(gate["challenger"])), ("the model before", _cell(gate["champion"]))],
        )
    if comparison is not None:
        header, rows = comparison.table()
        page.table(f"Compared on {comparison.rows_words}", header, rows)
        for words in comparison.about():
            page.say(words, note=True)
    found = estimate_of(model.card)
    if found is not None:
        _own_table(page, f"This model by {CHOSEN_BY.get(found['by'], found['by'])}", found)


def _own_table(page: Page, caption: str, found: Mapping[str, Any]) -> None:
    names = [name for name in TITLES if name in found]
    header = ("model", *(TITLES[name] for name in names))
    page.table(caption, header, [("this model", *(_cell(found[name]) for name in names))])


def _cell(value: Any) -> str:
    return ", ".join(map(words_of, value[:8])) if isinstance(value, list | tuple) else words_of(value)


def update_section(page: Page, found: Mapping[str, Any]) -> None:
    """Add the section about an update, given `jobs.refresh.Updated.record`."""
    drift = found.get("drift")
    facts = {
        "decision": found["decision"],
        "because": found["reason"],
        "current version": found["version"],
        "rows that came": found["n_new"],
        "rows that went": found["n_gone"],
        "rows left out": sum(stop - start for start, stop in found["left_out"]),
        "alpha before": _cell(found["solution"]["alpha_before"]),
    }
    if drift is not None:
        values = ", ".join(f"{name} {words_of(p)}" for name, p in drift["p_values"].items())
        moved = f"in {', '.join(drift['parts'])}" if drift["drifted"] else "none"
        facts["drift"] = f"{moved} (p-values: {values})"
    refused = found["decision"].endswith("kept")
    told = "The updated model, which this page describes, was not published." if refused else ""
    page.section("The update", told)
    page.facts("What the update found", facts)
