"""An update in words: which rows were new, what was decided, and the errors.

The record of the job goes in; facts, tables and the document come out. The champion is
the current model, the challenger the updated one. If rows were refused, the command
ends with a separate exit code, and the facts show the commands that take them anyway.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rff_dist.ridge.models import RidgeModel
from rff_dist.text import first_few, score_words
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import exits, models, words
from rff_dist.workbench.results.document import Document, Part

if TYPE_CHECKING:
    # `models show` words refusals without the job that updates
    from rff_dist.workbench.jobs import refresh

AFTER_ROLLBACK = (
    "Rows that updates added since stay out of later updates; `update --backfill ROW`"
    " judges them again. The next update applies the data's corrections and deletions"
    " again, and adds rows that had moved into the places of deleted ones before they"
    " were first added."
)
MAX_COLUMNS = 5  # in the table; the record has all
_MODELS = ("champion", "challenger")
#: Titles of the errors of targets, by their names in the record.
_ERRORS = {"rmse": "RMSE", "mae": "MAE", "bias": "bias", "r2": "R²"}


def update_document(update: refresh.UpdateResult, run: Summary) -> Document:
    """Return the document of an update; `run`: see `words.run_facts`."""
    record = {**update.record, **run}
    facts = update_facts(record)
    decision = facts.pop("decision")
    if metrics := record.get("metrics"):
        facts |= models.test_facts(metrics, models.target_names(update.champion))
        before = models.test_facts(update.champion.card.get("metrics"), None)
        facts["test of the version before"] = before.get("test")
    parts: list[Part] = [facts | words.run_facts(run)]
    details: list[Part] = [solution_facts(record) | words.run_details(run)]
    if record["n_new"]:
        details.append(errors_table(record, update.champion))
        if "columns" in record["drift"]["parts"]:
            parts.append(columns_table(record["drift"]["columns"][:MAX_COLUMNS]))
    return Document(
        f"{decision}{waiting_words(record)}: {words.place_words(record)}",
        parts,
        details=details,
        record=record,
        code=exits.REFUSED if is_refused(record) else 0,
    )


def is_refused(record: Facts) -> bool:
    """Return whether the rows were refused; for a dry run, whether they would be."""
    return bool(record["decision"].endswith("kept"))


def update_facts(record: Facts) -> words.Lines:
    """Return `workbench.jobs.refresh.UpdateResult.record` in words."""
    facts: words.Lines = {
        "decision": record["decision"],
        "because": record["reason"],
    }
    if is_refused(record):
        facts["decision"] = words.Alert(record["decision"])
    holds = words.plural(record["n_samples"], "row")
    if record["window"] != "all":
        first = f"from row {record['first_row']:,} on"
        holds += f", of the window {record['window']}: {first}"
    facts["the kept model holds" if is_refused(record) else "holds"] = holds
    if record["n_gone"]:
        facts["removed"] = words.plural(record["n_gone"], "row")
    facts["follows"] = words.table_words(record["table"])
    if record["n_new"]:
        rows = f"{record['n_new']:,}"
        if record["n_replaced"]:
            rows += f", {record['n_replaced']:,} that replaced others"
        facts["new rows"] = rows
        facts["drift"] = _drift_words(record["drift"])
    return facts | refusal_facts(record)


def refusal_facts(record: Facts) -> words.Lines:
    """Return which rows a model lacks and why, which refused ones to check, and the
    commands that correct them, judge them again or accept them anyway.
    """
    facts: words.Lines = {}
    if ranges := record["left_out"]:
        reasons = zip(record["left_out_rows"], record["left_out_because"], strict=True)
        facts["left out"] = "; ".join(f"{rows}: {reason}" for rows, reason in reasons)
        facts["to judge them again"] = update_command(record, ranges[0][0])
    if record["decision"] == "kept":
        ranges = record["new"]
        facts["to check"] = "; ".join(record["new_rows"]) or None
    elif record["decision"] != "nothing new" or not ranges:
        return facts
    # rows that follow a table are corrected there
    if ranges and record["id"] is not None and record["table"] is None:
        correct = ["rff-dist", "data", "correct", record["data"], "corrected.csv"]
        facts["to correct them"] = shlex.join([*correct, "--by", record["id"]])
        facts["in corrected.csv"] = (
            f"all columns of the corrected rows, with {record['id']}; the next update"
            " judges these, the next command the others too"
        )
        again = update_command(record, ranges[0][0])
        facts["to judge them again"] = facts.pop("to judge them again", again)
    # refused corrections and deletions have no row to begin at
    backfill = ranges[0][0] if ranges else None
    accepting = update_command(record, backfill, "--force")
    return facts | {"to accept the rows anyway": accepting}


def update_command(place: Facts, backfill: int | None, *more: str) -> str:
    """Return the command that updates a model with the rows from `backfill` on."""
    command = ["rff-dist", "update", place["model"], place["data"]]
    if backfill is not None:
        command += ["--backfill", str(backfill)]
    return shlex.join([*command, *more])


def waiting_words(record: Facts) -> str:
    """Return how many rows wait after an update that refused none."""
    if is_refused(record):
        return ""
    return words.left_out_words(sum(b - a for a, b in record["left_out"]))


def solution_facts(record: Facts) -> words.Lines:
    """Return alpha before and after an update, and the solver's status, in words."""
    facts: words.Lines = {}
    if (solution := record.get("solution")) is not None:
        alpha = words.value_words(solution["alpha"])
        alpha_before = words.value_words(solution["alpha_before"])
        facts["alpha"] = f"{alpha}, before {alpha_before}"
        facts |= words.solver_facts(solution)
    kept = "digest of the kept model" if is_refused(record) else "digest"
    facts[kept] = record["digest"][:16]
    return facts


def decision_words(record: Facts) -> str:
    """Return the decision in words, with the version."""
    decision = str(record["decision"])
    if decision == "kept":
        version = record["version"]
        return f"Refused: {f'version {version}' if version else 'the model'} stays"
    if is_refused(record):
        return "The new rows would be refused"
    words_of_decision = decision.capitalize()
    if decision == "published" and record["version"] is not None:
        words_of_decision += f" as version {record['version']}"
    return words_of_decision + waiting_words(record)


def _drift_words(drift: Facts) -> str:
    if drift["drifted"]:
        return words.Alert(f"in {drifted_words(drift)}")
    values = ", ".join(f"{name} {p:.2g}" for name, p in drift["p_values"].items())
    limit = drift["level"] / max(1, len(drift["p_values"]))
    return (
        f"none found: no p-value is at most {limit:.2g}, the level"
        f" {drift['level']:g} divided by the tests ({values})"
    )


def drifted_words(drift: Facts) -> str:
    """Return what drifted, such as "area (+1.97 sd); errors unchanged (p = 1)"."""
    p_values = drift["p_values"]
    drifted = [
        f"{column['name']} ({_moved_words(column)})"
        for column in drift["columns"]
        if column["drifted"]
    ]
    if "embedding" in drift["parts"]:
        drifted.append(f"the inputs together ({_p_words(p_values['embedding'])})")
    if "errors" in drift["parts"]:
        drifted.append(f"the errors ({_p_words(p_values['errors'])})")
        return first_few(drifted)
    unchanged = ""
    if "errors" in p_values:
        unchanged = f"; errors unchanged ({_p_words(p_values['errors'])})"
    return first_few(drifted) + unchanged


def _p_words(value: float) -> str:
    return f"p = {value:.2g}" if value >= 1e-16 else "p < 1e-16"


def _moved_words(column: Facts) -> str:
    if "distance" in column:
        return f"{column['distance']:.1%} of the rows in other levels"
    if column["shift"] is None:
        return "constant before"
    return f"{column['shift']:+.3g} sd"


def errors_table(record: Facts, champion: RidgeModel) -> words.Table:
    """Return the errors on new rows, and both models' errors on held-out rows."""
    columns = []
    for name in _ERRORS:
        values = record["progressive"].get(name)
        columns.append([words.score_cell(name, value) for value in values])
    for model in _MODELS:
        columns.append(
            [score_words("rmse", rmse) for rmse in record["gate"].get(model)]
        )
    rows = list(zip(models.target_names(champion), *columns, strict=True))
    caption = (
        "errors on the new rows before they were added (bias: the mean of observed −"
        " predicted), and RMSE on"
        f" {record['gate']['held_out']}"
    )
    header = ("target", *_ERRORS.values(), *_MODELS)
    return words.Table(caption, header, rows)


def columns_table(columns: Sequence[Facts]) -> words.Table:
    """Return the columns of the new rows that moved most, also those of times."""
    rows = [
        (column["name"], _moved_words(column), f"{column['p_value']:.3g}")
        for column in columns
    ]
    header = ("column", "shift of the mean", "p-value")
    return words.Table("columns that moved most", header, rows)
