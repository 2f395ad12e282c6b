"""The columns of the user's table that a page is about, with sampled rows of it.

Rows of X and a recipe go in; columns, levels and cells as the table had them come out,
and axes that name them. X alone would show places of levels and days since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist.living.ranges import Range
from rff_dist.recipes import encoders, recipes
from rff_dist.ridge import models
from rff_dist.text import clipped
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen
from rff_dist.workbench.jobs import fits
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results.models import target_names
from rff_dist.workbench.results.words import value_words

MAX_LEVELS = 12

# the fewest rows of a level that is shown, unless it is one of the first two
_LEVEL_ROWS = 5

# letters of names that stand side by side beneath a panel
_LETTERS_IN_A_LINE = 28

SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same

SAMPLE_ROWS = 2_000


@frozen
class TableColumn:
    """A column of the table that X was made of."""

    name: str
    #: the columns of X that it became
    members: tuple[int, ...]
    #: of text: the first member holds their places in this list
    levels: tuple[str, ...] = ()
    #: whether the first member is in days since 1970
    is_date: bool = False
    #: what it was read as
    treatment: str = "number"
    #: what its missing values became; None if none did
    fill: float | None = None
    #: whether the last member is 1 where a value was missing
    is_marked: bool = False
    #: missing values in the rows that the recipe was learned from
    n_missing: int = 0

    def cell(self, row: AnyArray) -> str:
        """Return what a row of X has in this column, and whether it was filled in."""
        value = row[self.members[0]]
        words = self._value_words(float(value))
        # float32 has days to three minutes only
        if self.is_date and row.dtype == np.float64:
            words = moment_words(float(value))
        if self.is_marked:
            return f"{words} (filled in)" if row[self.members[-1]] else words
        # as X holds it, which may be float32
        if self.fill is not None and value == row.dtype.type(self.fill):
            return f"{words} (perhaps filled in)"
        return words

    def observed(self, X: AnyArray) -> AnyArray:
        """Return the first member's values without those that were filled in.

        If no column marks these, as many values that equal the fill are left out as
        were missing, or all.
        """
        values = X[:, self.members[0]]
        if self.is_marked:
            return np.extract(X[:, self.members[-1]] == 0, values)
        if self.fill is None:
            return values
        filled = np.flatnonzero(values == X.dtype.type(self.fill))[: self.n_missing]
        return np.delete(values, filled)

    def _value_words(self, value: float) -> str:
        if self.levels:
            is_known = 0 <= value < len(self.levels)
            return self.levels[int(value)] if is_known else "(new)"
        return date_words(value) if self.is_date else value_words(value)

    def shown_values(self, X: AnyArray, most: int) -> tuple[AnyArray, Sequence[str]]:
        """Return values to set the first member to, and their names.

        Numbers of more than two values have no names. Of text the most frequent levels
        are returned; names have their shares of the rows.
        """
        values = X[:, self.members[0]]
        shown, counts = np.unique(values, return_counts=True)
        if self.levels:
            order = np.argsort(-counts, kind="stable")
            # dots of a few rows each would hide the others
            n_frequent = max(2, int((counts >= _LEVEL_ROWS).sum()))
            order = order[: min(most, MAX_LEVELS, n_frequent)]
            names = []
            for level, count in zip(shown[order], counts[order], strict=True):
                share = share_words(count / len(X))
                names.append(f"{self._value_words(float(level))} {share}")
            return shown[order], names
        if len(shown) > 2:
            # By quantiles, which lie where rows are; outliers at the ends would stretch
            # the axis.
            return np.unique(np.quantile(values, np.linspace(0.02, 0.98, most))), []
        return shown, [self._value_words(float(value)) for value in shown]

    def title(self, X: AnyArray, n_shown: int) -> str:
        """Return the name, and how many levels are not shown."""
        n_more = len(np.unique(X[:, self.members[0]])) - n_shown
        return self.name + (f", … {n_more:,} more" if self.levels and n_more else "")


@frozen(eq=False)
class PageSample:
    """Rows of the data to describe: X of shape (n_rows, n_features), and targets y."""

    X: AnyArray
    y: FloatArray
    #: those of the table that X was made of; X's own without a recipe
    columns: list[TableColumn]
    targets: list[str]


def sample_data(
    data: fits.JobData, model: models.RidgeModel, held: Sequence[Range] | None = None
) -> PageSample:
    """Sample about 2,000 rows of the data, or of those in the ranges `held`."""
    dataset = data.rows
    _, X, y, _ = data.sample(model, SAMPLE_ROWS, SEED, held)
    names = list(
        dataset.feature_names or model.card.get("feature_names") or dataset.column_names
    )
    return PageSample(
        X,
        y,
        table_columns(names, recipes.recipe_of(model.card)),
        target_names(model),
    )


def table_columns(
    names: Sequence[str], recipe: recipes.Recipe | None
) -> list[TableColumn]:
    """Return the columns that a recipe read.

    These are X's own columns if no recipe made them, or a transformer of scikit-learn,
    which does not tell the columns that it read.
    """
    if recipe is None or recipe.transformer is not None or recipe.names != list(names):
        return [TableColumn(name, (i,)) for i, name in enumerate(names)]
    columns = []
    first = 0
    for encoder in recipe.columns:
        members = tuple(range(first, first + len(encoder.names)))
        first += len(members)
        name = encoder.names[0] if len(members) == 1 else encoder.column
        levels: tuple[str, ...] = ()
        is_date = False
        fill: float | None = None
        is_marked = False
        n_missing = 0
        if isinstance(encoder, encoders.Category):
            levels = tuple(encoder.levels)
        elif isinstance(encoder, encoders.Date) and encoder.parts[0] == "elapsed-days":
            name = encoder.column
            is_date = True
        if isinstance(encoder, encoders.Number) and encoder.n_missing:
            fill = encoder.fill
            is_marked = encoder.indicator
            n_missing = encoder.n_missing
        elif isinstance(encoder, encoders.Date) and encoder.n_missing and encoder.fill:
            fill = encoder.fill[0]
            is_marked = encoder.indicator
            n_missing = encoder.n_missing
        treatment = encoder.words
        if encoder.kind != "category":
            treatment = f"{encoder.kind}, {treatment}"
        column = TableColumn(
            name, members, levels, is_date, treatment, fill, is_marked, n_missing
        )
        columns.append(column)
    return columns


def evenly(n_rows: int, most: int) -> IndexArray:
    """Return the numbers of at most so many rows, evenly apart."""
    return np.arange(n_rows)[:: -(-n_rows // most)]


def share_words(share: float) -> str:
    """Return a share above 0 as a percentage; one of up to 0.5% as <1%."""
    return f"{share:.0%}" if share > 0.005 else "<1%"


def label_levels(axes: Any, levels: Sequence[str]) -> None:
    """Put the names of levels at 0, 1, …; they are slanted if they are long or many."""
    names = [clipped(level, 24) for level in levels]
    look: Any = {"parse_math": False, "fontsize": 8}
    if max(map(len, names)) * len(names) > _LETTERS_IN_A_LINE:
        look |= {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **look)


def label_values(axes: Any, X: AnyArray, column: TableColumn) -> None:
    """Put ticks at values of a column: two dates, 0 and 1, or round numbers."""
    pictures.round_ticks(axes, column.observed(X))
    values = np.unique(X[:, column.members[0]])
    if column.is_date:
        label_dates(axes, values[[0, -1]])
    elif {*values} <= {0.0, 1.0}:
        axes.set_xticks([0, 1])
        axes.set_xlim(-0.5, 1.5)


def label_dates(axes: Any, days: AnyArray) -> None:
    """Put the first and last days at the axis, within its ends."""
    axes.set_xticks(days, [date_words(day) for day in days])
    first, last = axes.get_xticklabels()
    first.set_ha("left")
    last.set_ha("right")


def date_words(days: float) -> str:
    """Return a day by its number since 1970."""
    return str(np.datetime64(int(np.floor(days)), "D"))


def moment_words(days: float) -> str:
    """Return a day by its number since 1970, with the time unless it is midnight."""
    words = str(np.datetime64(round(days * 86_400), "s"))
    return words.removesuffix("T00:00:00").replace("T", " ")
