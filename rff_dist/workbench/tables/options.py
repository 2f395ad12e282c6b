"""How tables are read and become numbers: the options of every job that takes tables.

The command line and Prefect's forms are made from these groups of options, so this file
imports nothing that takes long.
"""

import re
from dataclasses import astuple
from typing import Any, ClassVar

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.recipes.options import Encoding
from rff_dist.recipes.reading import CsvOptions

_SHEET = re.compile(r"(.*\.xls[xm])#(.+)", re.IGNORECASE | re.DOTALL)


@fields.group
class TableOptions:
    """How tables are read, and how their columns become numbers."""

    panel: ClassVar[str] = "Tables"

    reading: CsvOptions = CsvOptions()
    encoding: Encoding = Encoding()
    #: in a job's spec a URL; the job replaces it by the `Recipe` that it reads there
    recipe: Any = fields.option(
        "Path or URL of a model or a dataset whose recipe makes the inputs, or of a"
        " .skops file with a fitted scikit-learn transformer. Nothing is then learned"
        " from the table.",
        default=None,
        placeholder="PATH",
        access="reads",
        takes=str | None,
    )

    def __post_init__(self) -> None:
        if self.recipe is not None and astuple(self.encoding) != astuple(Encoding()):
            raise InvalidParameterError(
                f"`recipe` is {self.recipe!r}, which already says how columns become"
                " numbers; leave out `categories`, `dates`, `impute` and `keep_index`"
            )


def split_sheet(path: str) -> tuple[str, str | None]:
    """Return a path, and the sheet that it names.

    >>> split_sheet("sales.xlsx#May"), split_sheet("sales.csv")
    (('sales.xlsx', 'May'), ('sales.csv', None))
    """
    match = _SHEET.fullmatch(path)
    return (match[1], match[2]) if match else (path, None)
