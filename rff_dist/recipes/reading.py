"""How CSV files are read: options of jobs that take tables.

The command line imports this file, so it imports nothing that takes long.
"""

import codecs
from typing import ClassVar, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError


@fields.group
class CsvOptions:
    """How CSV files are written; what is not given is detected in each file.

    Raises InvalidParameterError if the delimiter or the encoding is not valid.
    """

    panel: ClassVar[str] = "Tables"

    format: Literal["csv", "json", "parquet", "arrow", "xlsx"] | None = fields.option(
        "Format of a file, whatever its name. By default inferred from its name or its"
        " first bytes.",
        default=None,
    )
    header: bool | None = fields.option(
        "Column names in the first line of a CSV file. Without them (`--no-header`) the"
        " columns are called 0, 1, …. Detected by default.",
        default=None,
    )
    delimiter: str | None = fields.option(
        "Separator of the cells of a CSV file. Detected by default.",
        default=None,
        placeholder="CHARACTER",
    )
    encoding: str | None = fields.option(
        "Text encoding of a CSV file, such as latin-1. By default utf-8, or cp1252 if"
        " the file is not valid utf-8.",
        default=None,
    )
    missing: fields.Names | None = fields.option(
        "Texts of a CSV file that mean missing in columns of numbers and dates, such as"
        " -999, in addition to empty cells, NA, NaN, null and ?.",
        default=None,
        placeholder="TEXT,…",
    )
    date_order: Literal["dmy", "mdy", "ymd"] | None = fields.option(
        "Order of day, month and year in dates such as 03/04/2024 or 03/04/05, if"
        " several would do.",
        default=None,
    )

    @property
    def kind(self) -> str | None:
        """The kind of a file, see `files.File`, if its format is given."""
        if self.format is None:
            return None
        return ".jsonl" if self.format == "json" else f".{self.format}"

    def __post_init__(self) -> None:
        if self.delimiter is not None and (
            len(self.delimiter) != 1 or self.delimiter in '"\r\n'
        ):
            raise InvalidParameterError(
                f"`delimiter` is {self.delimiter!r}; expected one character, such"
                " as ';'"
            )
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise InvalidParameterError(
                    f"`encoding` is {self.encoding!r}, which is not known; expected one"
                    " such as 'utf-8', 'latin-1' or 'cp1251'"
                ) from None
