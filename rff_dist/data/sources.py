"""Where the rows of a dataset came from, so that each source is ingested only once.

A source goes in, such as a file's name and digest; its entry in the dataset's
attributes comes out, and is found there again. A list of names would not do: a file may
be renamed, grow, or have to be forgotten.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field

from rff_dist.typing import Facts, Summary, frozen

SOURCES = "sources"  # the attribute of a dataset that lists what was ingested
# the attribute that says how rows were held out, of both datasets that were written
PARTS = "parts"
# member of a source that a dataset follows: its `format`, `id` and `version`, …
TABLE = "table"
_FORGOTTEN = "forgotten name, SHA-256 "


@frozen
class Provenance:
    """Where rows came from.

    A dataset remembers its sources and takes the rows of each only once.
    """

    #: A file's path, for example.
    name: str
    #: Digest of the content, by which a source is recognised.
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
    """Return whether a stored source has a name, which may be forgotten by now."""
    return source.get("name") in (name, _digest_of_name(name))


def without_name(source: Facts) -> Facts:
    """Return a stored source with a digest in place of its name.

    People read the names of files (`info`, `data log`, the list of `forget`), so a
    dataset keeps them until rows are forgotten: a file may be named after the person
    who asked for it. `--append` compares digests as well, so it still skips the files
    that it knows, and an error about one that has changed names the file that was
    given. Whoever guesses a name can compare it.
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


def followed_table(attributes: Facts) -> Summary | None:
    """Return `format`, `id` and `version` of the table that a dataset follows."""
    found = [source[TABLE] for source in known_sources(attributes) if TABLE in source]
    return (
        {name: found[0][name] for name in ("format", "id", "version")}
        if found
        else None
    )
