"""A sheet of an Excel workbook → a table, read as a whole into memory.

The package python-calamine reads the cells. Left to find is the row with the names of
the columns: a title may stand above it, or there may be no such row.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pyarrow

from rff_dist.errors import StorageError
from rff_dist.lazy import require
from rff_dist.recipes import tables
from rff_dist.recipes.reading import CsvOptions
from rff_dist.workbench.tables.arrow_files import memory_table
from rff_dist.workbench.tables.csv_files import has_names

_N_FIRST_ROWS = 100  # these tell whether the first one holds names


def sheet_table(path: Path, sheet: str | None, reading: CsvOptions) -> tables.RawTable:
    """Return a sheet of a workbook as a table, by default the first one.

    Cells count by what is stored, not by how it is shown: 12 % is 0.12, a formula is
    its last result, and of merged cells the first one has the value. Raises
    StorageError if the file or the sheet cannot be read; MissingDependencyError without
    the package python-calamine.
    """
    why = f"{path.name} needs the package python-calamine"
    calamine = require("python_calamine", why, "excel")
    with tables.opening(path, "a spreadsheet", calamine.CalamineError):
        workbook = calamine.CalamineWorkbook.from_path(path)
        sheets = workbook.sheet_names
        name = sheet or sheets[0]
        if name not in sheets:
            raise StorageError(
                f"{path} has no sheet {name!r}; expected one of {tables.listed(sheets)}"
            )
        # from the first row and column that hold something
        page = workbook.get_sheet_by_name(name)
        rows = page.to_python()

    # a title stands in the first column alone
    above = list(takewhile(lambda row: _is_empty(row[1:] or row), rows))
    n_empty = page.start[0] if page.start else 0
    # the rows of the table by their numbers in the sheet
    body = dict(enumerate(rows[len(above) :], n_empty + len(above) + 1))
    body = {number: row for number, row in body.items() if not _is_empty(row)}
    if not body:
        raise StorageError(f"{path}: sheet {name!r} is empty; expected a table")
    notes = []
    if sheet is None and len(sheets) > 1:
        notes.append(f"sheet {name!r}, the first of {len(sheets)}")
    if above:
        notes.append(f"rows above the names are skipped: {len(above)}")

    has_header = reading.header
    if has_header is None:
        first = islice(body.values(), _N_FIRST_ROWS)
        has_header = has_names([list(map(tables.cell_text, row)) for row in first])
    if has_header:
        names = list(map(tables.cell_text, body.pop(min(body))))
    else:
        names = [str(i) for i in range(len(rows[0]))]
        notes.append("no header: columns are called 0, 1, …")
    columns = [
        tables.column_of([row[i] for row in body.values()]) for i in range(len(names))
    ]
    table = pyarrow.table(columns, tables.numbered(names))
    row_numbers = [*body]
    notes += tables.numbered_note(names)
    return replace(
        memory_table(path.name, table, notes),
        row_lines=range(min(body, default=0), max(body, default=0) + 1),
        line_unit="sheet row",
        place=lambda row: f"sheet row {row_numbers[row]}",
    )


def _is_empty(cells: Sequence[Any]) -> bool:
    return all(cell == "" for cell in cells)
