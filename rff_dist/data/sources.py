"""Where the rows of a dataset came from, so that each source is ingested only once.

A source goes in, such as a file's name and digest; its entry in the dataset's
attributes comes out, and is found there again. A list of names is not enough: a file
may be renamed or grow, and its name may have to be removed with forgotten rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from rff_dist.typing import Facts, IntArray, Summary, frozen

SOURCES = "sources"  # the attribute of a dataset that lists its ingested sources
# the attribute that says how rows were held out, in both datasets that were written
PARTS = "parts"
# the attribute with the other dataset: its name in the same folder, or its URL
OTHER_PART = "other_part"
# the member of a source that is a followed table: its `format`, `id`, `version`, …
TABLE = "table"
# member of a source of which not all rows were taken: their numbers, None if many
ROWS = "rows"
MOST_ROWS = 5_000  # in 30 kB of the dataset's attributes
# member of a text file or sheet each of whose rows is a line: the line of its first
# row, from 1; by what lines are called
FIRST_LINES = {"line": "first_line", "sheet row": "first_sheet_row"}
_FORGOTTEN = "forgotten name, SHA-256 "


@frozen
class Provenance:
    """A source of rows.

    A dataset lists its sources and takes the rows of each only once.
    """

    #: A file's path, for example.
    name: str
    #: Digest of the content: the same content is the same source.
    sha256: str
    #: Further JSON values to keep in the dataset's attribute `sources`.
    facts: Facts = field(default_factory=dict)

    def to_dict(self, n_samples: int) -> Summary:
        """Return the entry of this source in the dataset's attribute `sources`."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "n_samples": n_samples,
            **self.facts,
        }


def is_named(source: Facts, name: str) -> bool:
    """Return whether a stored source has this name, or the digest of it instead."""
    return source.get("name") in (name, _digest_of_name(name))


def without_name(source: Facts) -> Facts:
    """Return a stored source with a digest in place of its name.

    Names of files are shown to people (`info`, `data log`, the list of `forget`), so a
    dataset keeps them until rows are forgotten: a file may be named after the person
    who wants to be forgotten. `--append` also compares digests, so it still skips known
    files, and an error about a changed file has the name that was given. The digest
    does not hide a name from someone who guesses it.
    """
    name = str(source.get("name"))
    return {
        **source,
        "name": name if name.startswith(_FORGOTTEN) else _digest_of_name(name),
    }


def is_forgotten(sources: Sequence[Facts], name: str) -> bool:
    """Return whether rows of a source were forgotten, which it may still contain."""
    return any(source.get("name") == _digest_of_name(name) for source in sources)


def _digest_of_name(name: str) -> str:
    return _FORGOTTEN + hashlib.sha256(name.encode()).hexdigest()[:32]


def known_sources(attributes: Facts) -> list[Facts]:
    """Return the sources that a dataset's attributes list."""
    sources = attributes.get(SOURCES)
    return (
        [source for source in sources if isinstance(source, Mapping)]
        if isinstance(sources, list)
        else []
    )


def known_digests(attributes: Facts) -> set[str]:
    """Return the digests of a dataset's sources."""
    return {str(source.get("sha256")) for source in known_sources(attributes)}


def find_rows(attributes: Facts, n_samples: int, numbers: IntArray) -> list[str] | None:
    """Return the places of rows in a dataset's sources, such as "line 3 of sales.csv".

    Where lines are unknown, it is "row 2": rows count from 1, without a header. None if
    rows are unknown too, such as after some were deleted.
    """
    sources = known_sources(attributes)
    ends = np.cumsum([source["n_samples"] for source in sources])
    if not sources or ends[-1] != n_samples:
        return None
    source_of_row = np.searchsorted(ends, numbers, side="right")
    places = np.empty(len(numbers), object)
    for i in np.unique(source_of_row).tolist():
        source = sources[i]
        is_of_source = source_of_row == i
        first = ends[i] - source["n_samples"]
        rows = _rows_of(source, numbers[is_of_source] - first)
        if rows is None:
            return None
        unit = "row"
        for line_unit, member in FIRST_LINES.items():
            if member in source:
                unit = line_unit
                rows = rows + source[member] - 1
        name = str(source["name"]).rpartition("/")[2]
        places[is_of_source] = [f"{unit} {row} of {name}" for row in rows.tolist()]
    return places.tolist()


def _rows_of(source: Facts, numbers: IntArray) -> IntArray | None:
    """Return which rows of a source, from 1, some of the taken ones are; None if that
    is unknown.
    """
    if ROWS in source:
        taken = source[ROWS]
        return None if taken is None else np.array(taken)[numbers] + 1
    return numbers + 1


def followed_table(attributes: Facts) -> Summary | None:
    """Return `format`, `id` and `version` of the table that a dataset follows; None
    without one.
    """
    for source in known_sources(attributes):
        if TABLE in source:
            table = source[TABLE]
            return {name: table[name] for name in ("format", "id", "version")}
    return None
