"""What a dataset remembers of the tables that it was made from, as JSON attributes.

`ingest` writes them, and `ingest_more` reads them. So columns need not be named again,
and all rows are made with the same options.
"""

from dataclasses import asdict

from rff_dist.data.sources import SOURCES, known_sources
from rff_dist.recipes.recipes import RECIPE
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.tables.inputs import Journal
from rff_dist.workbench.tables.options import TableOptions
from rff_dist.workbench.tables.roles import Roles

WEIGHT_COLUMN = "weight_column"
GROUPS_COLUMN = "groups_column"
#: how many rows were dropped for missing values
DROPPED = "dropped_rows"
#: the options that all rows share
SHARED_OPTIONS = "made_with"


def shared_options(roles: Roles, options: TableOptions) -> Summary:
    """Return the options that all rows of a dataset share."""
    return {
        **asdict(options.encoding),
        "drop": list(roles.drop),
        "date_order": options.reading.date_order,
        "missing": options.reading.missing,
        "weight": roles.weight,
        "groups": roles.groups,
        "id": roles.id,
    }


def attributes_after(roles: Roles, journal: Journal, before: Facts) -> Summary:
    """Return the attributes that change when the rows of a journal are added.

    `before`: the dataset's attributes before these rows; empty for a new dataset.
    """
    changed: Summary = {SOURCES: [*known_sources(before), *journal.entries]}
    for key, name in ((WEIGHT_COLUMN, roles.weight), (GROUPS_COLUMN, roles.groups)):
        if name is not None and key not in before:
            changed[key] = name
    if journal.recipe is not None and RECIPE in before:
        changed[RECIPE] = journal.recipe.to_dict()
    if roles.on_nan == "drop":
        changed[DROPPED] = int(before.get(DROPPED, 0)) + journal.n_dropped
    return changed
