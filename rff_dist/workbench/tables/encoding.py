"""How columns become numbers: options of every job that learns from tables; light, as `recipes.reading`."""

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

    categories: Literal["auto", "one-hot", "target"] = fields.option(
        "How text becomes numbers. one-hot: a column of 0 and 1 for each level. target: the mean target of "
        "the level, from other rows than the row itself. auto: one-hot up to 20 levels, target above.",
        default="auto",
    )
    dates: fields.Names | None = fields.option(
        "Parts of a date that become columns: some of elapsed-days, year, month, day-of-year, weekday and "
        "hour. By default all that vary, except year and month.",
        default=None,
        unit="PART,…",
    )
    impute: Impute = fields.option(
        "Value of the column that replaces missing ones; none replaces nothing. With median and mean, "
        "another column marks them by 0 and 1 where more than 1 % (and at least 10) are missing; median-only "
        "leaves it out. "
        "Missing text becomes a level of its own, or with most-frequent the most frequent one.",
        default="none",
        unit="median|mean|median-only|most-frequent|none",
    )
    keep_index: bool = fields.option(
        "Keep a first column that only numbers the rows, such as the index that pandas writes. By default it "
        "is left out.",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.dates is not None:
            from rff_dist.recipes.recipes import DATE_PARTS
            from rff_dist.recipes.tables import listed

            if self.dates == [] or not set(self.dates) <= set(DATE_PARTS):
                raise InvalidParameterError(f"`dates`={self.dates!r}; expected some of {listed(DATE_PARTS)}")
