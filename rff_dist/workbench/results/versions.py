"""The versions of a registered model as a table.

In goes a registered model, out comes a table, the newest version first; the current
version stands out. The numbers alone would not say what each version was made from, and
why.
"""

import textwrap

from rff_dist.models import versions
from rff_dist.ridge import describe
from rff_dist.workbench.results import words

COLUMNS = ("version", "created", "rows", "error", "made of", "reason")
_REASON_WIDTH = 58  # characters


def version_cells(version: versions.Version) -> list[str]:
    """Return a version's cells, in the order of `COLUMNS`."""
    spec = version.lineage.get("spec") or {}
    size = f"D {words.value_words(spec.get('n_components'))}"
    if n_clusters := spec.get("n_clusters"):
        size = f"k {n_clusters:,}"
    # frequencies that the caller gave have no kernel
    kernel = (spec.get("kernel") or {}).get("name") or "features"
    errors = []
    for name, values in version.lineage.get("errors", {}).items():
        errors.append(f"{describe.TITLES[name]} {words.value_words(values)}")
    if errors and (digest := version.lineage.get("judged_on")):
        errors.append(f"rows {digest[:8]}")
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
    """Return the versions of a model, or the `last` ones, the newest first."""
    newest_first = model.versions(last=last)[::-1]
    numbers = [version.number for version in newest_first]
    current = model.pointer()
    current_row = None
    if current is not None and current.number in numbers:
        current_row = numbers.index(current.number)
    rows = [version_cells(version) for version in newest_first]
    return words.Table("", COLUMNS, rows, current_row, is_text=True)
