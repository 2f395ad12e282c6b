"""The versions of a registered model as a table.

In goes a registered model, out comes a table, the newest version first; the current
version stands out. The numbers alone would not say what each version was made from, and
why.
"""

import textwrap
from itertools import pairwise

from rff_dist.models import versions
from rff_dist.text import ERROR_TITLES
from rff_dist.workbench.results import words

COLUMNS = ("version", "created", "rows", "error", "made of", "reason")
_REASON_WIDTH = 58  # characters


def version_cells(version: versions.Version) -> list[str]:
    """Return a version's cells, in the order of `COLUMNS`."""
    spec = version.lineage.get("spec") or {}
    n_clusters = spec.get("n_clusters")
    if n_clusters is None:
        size = f"D {words.value_words(spec.get('n_components'))}"
    else:
        size = f"k {n_clusters:,}"
    # frequencies that the caller gave have no kernel
    kernel = (spec.get("kernel") or {}).get("name") or "features"
    errors = []
    errors_before = version.lineage.get("errors_before", {})
    for name, values in version.lineage.get("errors", {}).items():
        error = f"{ERROR_TITLES[name]} {words.value_words(values)}"
        if name in errors_before:
            error += f" (before {words.value_words(errors_before[name])})"
        errors.append(error)
    return [
        str(version.number),
        words.time_words(version.created),
        words.value_words(version.lineage.get("n_samples")),
        ", ".join(errors) or "–",
        f"{size}, {kernel}",
        textwrap.shorten(version.reason, _REASON_WIDTH, placeholder=" …"),
    ]


def versions_table(
    model: versions.RegisteredModel, *, last: int | None = None
) -> words.Table:
    """Return the versions of a model, or the `last` ones, the newest first.

    An update's error is next to that of the version before, on the same rows. Other
    errors are marked if those of the version before are on other rows.
    """
    newest_first = model.versions(last=last)[::-1]
    numbers = [version.number for version in newest_first]
    current = model.pointer()
    current_row = None
    if current is not None and current.number in numbers:
        current_row = numbers.index(current.number)
    rows = [version_cells(version) for version in newest_first]
    for cells, (version, older) in zip(rows, pairwise(newest_first), strict=False):
        on, on_before = (v.lineage.get("judged_on") for v in (version, older))
        has_errors = version.lineage.get("errors") and older.lineage.get("errors")
        if has_errors and on != on_before and "errors_before" not in version.lineage:
            cells[COLUMNS.index("error")] += " (other rows)"
    judged_on = {v.lineage.get("judged_on") for v in newest_first}
    caption = ""
    if len(judged_on) > 1:
        caption = (
            "errors of versions are on different rows: compare each with the one in its"
            " brackets"
        )
    elif len(rows) > 1 and judged_on != {None}:
        caption = "errors of versions are on the same rows"
    return words.Table(caption, COLUMNS, rows, current_row, is_text=True)
