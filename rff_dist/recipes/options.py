"""How columns of a table become numbers: options of jobs that take tables.

The command line imports this file, so it imports nothing that takes long.
"""

from typing import ClassVar, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError

type Impute = Literal["none", "median", "mean", "median-only", "most-frequent"]


@fields.group
class Encoding:
    """How text, dates and missing values become numbers.

    Raises InvalidParameterError if there is no such part of a date.
    """

    panel: ClassVar[str] = "Tables"

    categories: fields.Names | None = fields.option(
        "Columns of numbers that are codes, such as zip: each value is a category, as"
        " text always is. Columns that are named here are kept, however many"
        " levels they have.",
        default=None,
        placeholder="COLUMN,…",
    )
    dates: fields.Names | None = fields.option(
        "Parts of a date that become columns: some of elapsed-days, year, month,"
        " day-of-year, weekday and hour. By default all that vary, except year and"
        " month.",
        default=None,
        placeholder="PART,…",
    )
    impute: Impute = fields.option(
        "Value of the column that replaces missing ones; none replaces nothing. With"
        " median and mean, another column marks them by 0 and 1 where more than 1 %"
        " (and at least 10) are missing; median-only leaves it out. A missing text is"
        " always a separate level.",
        default="none",
        placeholder="median|mean|median-only|most-frequent|none",
    )
    keep_index: bool = fields.option(
        "Keep a first column that only numbers the rows, such as the index that pandas"
        " writes. By default it is left out.",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.dates is None:
            return

        from rff_dist.recipes.encoders import DATE_PARTS
        from rff_dist.recipes.tables import listed

        if self.dates == [] or not set(self.dates) <= set(DATE_PARTS):
            raise InvalidParameterError(
                f"`dates`={self.dates!r}; expected some of {listed(DATE_PARTS)}"
            )
