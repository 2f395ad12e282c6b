"""What is said of an update: which rows were new, what was decided, and how the errors compare."""

import shlex
from collections.abc import Sequence

from rff_dist.ridge.models import RidgeModel
from rff_dist.text import some
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import refresh
from rff_dist.workbench.results import models, words
from rff_dist.workbench.results.document import Document, Part

_SHOWN_COLUMNS = 5
#: The exit code if rows were refused, so that the model is the one of before.
REFUSED = 3


def update_document(updated: refresh.Updated, run: Summary) -> Document:
    """Return what an update found and decided.

    `run`: what ran it, see `words.run_facts`.
    """
    record, champion = {**updated.record, **run}, updated.champion
    facts = update_facts(record)
    decision = facts.pop("decision")
    parts: list[Part] = [facts | words.run_facts(run)]
    if record["n_new"]:
        parts.append(errors_table(record, champion))
        if "columns" in record["drift"]["parts"]:
            columns, names = record["drift"]["columns"], champion.card.get("feature_names")
            parts.append(columns_table(columns[:_SHOWN_COLUMNS], names))
    code = REFUSED if record["decision"].endswith("kept") else 0
    return Document(f"{decision}: {words.place_words(record)}", parts, record=record, code=code)


def update_facts(record: Facts) -> words.Lines:
    """Return `workbench.jobs.refresh.Updated.record` in words."""
    kept = record["decision"].endswith("kept")
    facts: dict[str, str | None] = {
        "decision": words.Alert(record["decision"]) if kept else record["decision"],
        "because": record["reason"],
    }
    if record["left_out"]:
        why = zip(record["left_out"], record["left_out_because"], strict=True)
        facts["left out"] = "; ".join(f"{words.ranges_words([rows])}: {because}" for rows, because in why)
        again = ["rff-dist", "update", record["model"], record["data"]]
        facts["to judge them again"] = shlex.join([*again, "--backfill", str(record["left_out"][0][0])])
    window = f", of the window {record['window']}: from row {record['first_row']:,} on"
    facts |= {
        "holds": words.plural(record["n_samples"], "row") + ("" if record["window"] == "all" else window),
        "removed": words.plural(record["n_gone"], "row") if record["n_gone"] else None,
    }
    facts["follows"] = words.table_words(record["table"])
    if record["n_new"]:
        n_appended = max(0, record["n_after"] - record["n_before"])
        replaced = f", {record['n_replaced']:,} that replaced others" if record["n_replaced"] else ""
        facts["new rows"] = f"{record['n_new']:,}, of {n_appended:,} appended{replaced}"
        facts["drift"] = _drift_words(record["drift"])
    if record["decision"] == "kept":
        again = ["rff-dist", "update", record["model"], record["data"]]
        again += ["--backfill", str(record["new"][0][0])] if record["new"] else []
        facts["to take the rows nonetheless"] = shlex.join([*again, "--force"])
    if (solution := record.get("solution")) is not None:
        alpha, before = (words.value_words(solution[name]) for name in ("alpha", "alpha_before"))
        facts |= {"alpha": f"{alpha}, before {before}", **words.solver_facts(solution)}
    return facts | {"digest": record["digest"][:16]}


def decision_words(record: Facts) -> str:
    """Return what was decided, and about which version."""
    decision, version = record["decision"], record["version"]
    if decision.endswith("kept"):
        return "Refused: the model stays as it was" if decision == "kept" else "The new rows would be refused"
    about = "" if version is None else f" as version {version}"
    return f"{str(decision).capitalize()}{about}"


def _drift_words(drift: Facts) -> str:
    values = ", ".join(f"{name} {p:.2g}" for name, p in drift["p_values"].items())
    if not drift["drifted"]:
        return f"none at the level {drift['level']:g} (p-values: {values})"
    return words.Alert(f"in {some(drift['parts'])} (p-values: {values})")


def errors_table(record: Facts, champion: RidgeModel) -> words.Table:
    """Return the champion's errors on new rows, and those of champion and challenger on held-out rows."""
    columns = [*map(record["progressive"].get, models.ERRORS), *map(record["gate"].get, _MODELS)]
    caption = f"errors on the new rows before they were added, and RMSE on {record['gate']['held_out']}"
    header = ("target", *models.ERRORS.values(), *_MODELS)
    return words.Table(caption, header, list(zip(models.target_names(champion), *columns, strict=True)))


_MODELS = ("champion", "challenger")


def columns_table(columns: Sequence[Facts], names: Sequence[str] | None) -> words.Table:
    """Return the columns of the new rows that drifted most."""
    rows = []
    for row in columns:
        figures = ["∞" if row[key] is None else f"{row[key]:.3g}" for key in ("shift", "spread", "p_value")]
        rows.append((row["column"] if names is None else names[row["column"]], *figures))
    header = ("column", "shift of the mean", "spread", "p-value")
    return words.Table("columns that moved most, in standard deviations", header, rows)
