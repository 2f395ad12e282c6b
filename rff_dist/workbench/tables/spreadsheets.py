"""A sheet of an Excel workbook → a table, read as a whole into memory.

The package python-calamine reads the cells; here names are told from a title and from
values.
"""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow

from rff_dist.errors import StorageError
from rff_dist.lazy import require
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import (
    RawTable,
    cell_text,
    column_of,
    listed,
    numbered,
    numbered_note,
)
from rff_dist.storage.locations import explain
from rff_dist.workbench.tables.arrow_files import memory_table
from rff_dist.workbench.tables.csv_files import has_names

_NAMED = re.compile(r"(.*\.xls[xm])#(.+)", re.IGNORECASE | re.DOTALL)
_LOOKED_AT = 100  # rows that tell whether the first one holds names


def split_sheet(path: str) -> tuple[str, str | None]:
    """Return a path, and the sheet that it names.

    >>> split_sheet("sales.xlsx#May"), split_sheet("sales.csv")
    (('sales.xlsx', 'May'), ('sales.csv', None))
    """
    match = _NAMED.fullmatch(path)
    return (match[1], match[2]) if match else (path, None)


def sheet_table(path: Path, sheet: str | None, reading: CsvOptions) -> RawTable:
    """Return a sheet of a workbook as a table, by default the first one.

    Cells count by what is stored, not by how it is shown: 12 % is 0.12, a formula is
    its last result. Raises StorageError if the file or the sheet cannot be read, or
    cells are merged; MissingDependencyError without the package python-calamine.
    """
    calamine = require(
        "python_calamine", f"{path.name} needs the package python-calamine", "excel"
    )
    try:
        workbook = calamine.CalamineWorkbook.from_path(path)
        sheets = workbook.sheet_names
        page = workbook.get_sheet_by_name(sheet or sheets[0])
    except calamine.WorksheetNotFound:
        raise StorageError(
            f"{path} has no sheet {sheet!r}; expected one of {listed(sheets)}"
        ) from None
    except (calamine.CalamineError, OSError) as error:
        raise StorageError(
            f"{path} cannot be read as a spreadsheet: {explain(error)}"
        ) from error

    place = f"{path}: sheet {page.name!r}"
    rows = page.to_python()  # from the first row and column that hold something
    # a title stands in the first column alone
    above = list(takewhile(lambda row: not any(map(_is_filled, row[1:] or row)), rows))
    body = [row for row in rows[len(above) :] if any(map(_is_filled, row))]
    if not body:
        raise StorageError(f"{place} is empty; expected a table")
    top = (page.start or (0, 0))[0] + len(above)
    merged = [last for _, (last, _) in page.merged_cell_ranges or [] if last >= top]
    if merged:
        raise StorageError(
            f"{place} has merged cells down to row {min(merged) + 1}; expected one name"
            " above each column, and one value in each cell"
        )

    notes = []
    if sheet is None and len(sheets) > 1:
        notes.append(f"sheet {page.name!r}, the first of {len(sheets)}")
    if above:
        notes.append(f"rows above the names are skipped: {len(above)}")
    texts = [list(map(cell_text, row)) for row in body[:_LOOKED_AT]]
    if has_names(texts) if reading.header is None else reading.header:
        names = texts[0]
        del body[0]
    else:
        names = [str(i) for i in range(len(body[0]))]
        notes.append("no header: columns are called 0, 1, …")
    cells = zip(*body, strict=True) if body else [()] * len(names)
    columns = [
        (name, values)
        for name, values in zip(names, cells, strict=True)
        if name or any(map(_is_filled, values))
    ]
    names = [name for name, _ in columns]
    table = pyarrow.table([column_of(values) for _, values in columns], numbered(names))
    return memory_table(path.name, table, [*notes, *numbered_note(names)])


def _is_filled(cell: Any) -> bool:
    return bool(cell != "")
