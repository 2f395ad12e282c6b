"""Spreadsheets: one sheet of an Excel workbook as a table. It is read as a whole, into memory."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow

from rff_dist.errors import StorageError
from rff_dist.lazy import require
from rff_dist.recipes import tables
from rff_dist.recipes.reading import Reading
from rff_dist.storage import locations
from rff_dist.workbench.tables import array_files, csv_files

_NAMED = re.compile(r"(.*\.xls[xm])#(.+)", re.IGNORECASE | re.DOTALL)
_MISSING = frozenset(tables.MISSING_TEXTS)
_LOOKED_AT = 100  # rows that tell whether the first one holds names


def split_sheet(path: str) -> tuple[str, str | None]:
    """Return a path, and the sheet that it names.

    >>> split_sheet("sales.xlsx#May"), split_sheet("sales.csv")
    (('sales.xlsx', 'May'), ('sales.csv', None))
    """
    match = _NAMED.fullmatch(path)
    return (match[1], match[2]) if match else (path, None)


def sheet_table(path: Path, wanted: str | None, reading: Reading) -> tables.Table:
    """Return a sheet of a workbook as a table, by default the first one.

    Cells count by what is stored, not by how it is shown: 12 % is 0.12, a formula is its last result.

    Raises StorageError if the file or the sheet cannot be read, or names stand in several rows or in merged
      cells; MissingDependencyError without the package python-calamine.
    """
    python_calamine = require("python_calamine", f"{path.name} needs the package python-calamine", "excel")
    try:
        workbook = python_calamine.CalamineWorkbook.from_path(path)
        names = workbook.sheet_names
        sheet = workbook.get_sheet_by_name(wanted or names[0])
    except python_calamine.WorksheetNotFound:
        raise StorageError(
            f"{path} has no sheet {wanted!r}; expected one of {tables.listed(names)}"
        ) from None
    except (python_calamine.CalamineError, OSError) as error:
        raise StorageError(f"{path} cannot be read as a spreadsheet: {locations.explain(error)}") from error
    rows = sheet.to_python()  # from the first row and column that hold something
    if not rows:
        raise StorageError(f"{path}: sheet {sheet.name!r} is empty; expected a table")
    # a title stands in the first column alone
    above = next((i for i, row in enumerate(rows) if any(cell != "" for cell in row[1:] or row)), 0)
    top = (sheet.start or (0, 0))[0] + above
    merged = [last for _, (last, _) in sheet.merged_cell_ranges or [] if last >= top]
    if merged:
        raise StorageError(
            f"{path}: sheet {sheet.name!r} has merged cells down to row {min(merged) + 1}; expected one name "
            "above each column, and one value in each cell"
        )
    table = [row for row in rows[above:] if any(cell != "" for cell in row)]
    texts = [[tables.cell_text(cell) for cell in row] for row in table[:_LOOKED_AT]]
    has_header = csv_files.has_names(texts) if reading.header is None else reading.header
    labels, body = texts[0], table[1:]
    if not has_header:
        labels, body = [str(i) for i in range(len(labels))], table
    elif _has_second_names(body):
        raise StorageError(
            f"{path}: sheet {sheet.name!r} has names of columns in rows {top + 1} and {top + 2}; expected "
            "them in one row"
        )
    cells_of = zip(*body, strict=True) if body else [()] * len(labels)
    pairs = list(zip(labels, cells_of, strict=True))
    pairs = [(label, cells) for label, cells in pairs if label or any(cell != "" for cell in cells)]
    labels = [label for label, _ in pairs]
    columns = dict(zip(tables.numbered(labels), (tables.column_of(cells) for _, cells in pairs), strict=True))
    notes = [
        f"sheet {sheet.name!r}, the first of {len(names)}" if wanted is None and len(names) > 1 else "",
        f"rows above the names are skipped: {above}" if above else "",
        "no header: columns are called 0, 1, …" if not has_header else "",
        *tables.numbered_note(labels),
    ]
    return array_files.memory_table(path.name, pyarrow.table(columns), [note for note in notes if note])


def _has_second_names(body: Sequence[Sequence[Any]]) -> bool:
    """Return whether the first row holds text only, and stands above columns of numbers or dates."""
    if len(body) < 2 or not all(isinstance(cell, str) for cell in body[0]):
        return False
    columns = zip(body[0], zip(*body[1:], strict=True), strict=True)
    values = [(top, [cell for cell in cells if cell != ""]) for top, cells in columns]
    above = [top for top, cells in values if cells and not any(isinstance(cell, str) for cell in cells)]
    return bool(above) and not any(top in _MISSING for top in above)
