"""The sections on a model's errors on rows that it was not trained on, and on an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rff_dist.jobs.fits import TITLES
from rff_dist.page.content import Page, words_of

_OURS = "this model"


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Errors of several models on held-out rows.

    `rows`: which rows, in words.
    `errors`: by the model's name and a key of `TITLES`: a number, or one for each target.
    """

    rows: str
    errors: Mapping[str, Mapping[str, Any]]

    @classmethod
    def on(cls, metrics: Mapping[str, Any] | None, others: Mapping[str, Any] | None = None) -> Self | None:
        """Return a job's errors on its test data, beside those of others; None if it had no test data."""
        if metrics is None:
            return None
        rows = f"{metrics['n_samples']:,} rows of {metrics['test_data']}"
        return cls(rows, {_OURS: metrics, **(others or {})})

    @classmethod
    def by_gate(cls, gate: Mapping[str, Any]) -> Self:
        """Return the errors that the gate of an update compared."""
        errors = {_OURS: {"rmse": gate["challenger"]}, "the model before": {"rmse": gate["champion"]}}
        return cls(gate["held_out"], errors)

    def show(self, page: Page) -> None:
        """Add a table of the errors."""
        names = [name for name in TITLES if name in self.errors[_OURS]]
        rows = [
            (model, *(_cell(errors.get(name)) for name in names)) for model, errors in self.errors.items()
        ]
        page.table(f"On {self.rows}", ("model", *(TITLES[name] for name in names)), rows)


def _cell(value: Any) -> str:
    return ", ".join(map(words_of, value[:8])) if isinstance(value, list | tuple) else words_of(value)


def update_section(page: Page, found: Mapping[str, Any]) -> None:
    """Add the section about an update, given what `jobs.refresh.outcome` returns."""
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
