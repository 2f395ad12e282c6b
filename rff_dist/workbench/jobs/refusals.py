"""Rows that a model lacks, since an update refused them or a version was rolled back.

In goes the location of a model, out come `Refusal`s: ranges of rows, each with a
fingerprint and a reason. Without a record, refused rows would be judged again every
night, or be added as soon as good later rows make up for their errors.

The refusals of updates are in the document `refused.json` next to the model. The rows
of versions that were rolled back are found in the versions' lineage.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from rff_dist.data import blocks, sources
from rff_dist.living.new_rows import NewRows, Refusal
from rff_dist.models import versions
from rff_dist.storage import columns, documents, locations
from rff_dist.storage.records import Pointer

_REFUSED = "refused.json"
_KIND = "refused rows"
_VERSION = 2


def read_refusals(location: locations.Location) -> list[Refusal]:
    """Return the rows that updates kept out of the model at a location.

    Raises IntegrityError if the document was damaged; StorageError if it cannot be
    read.
    """
    content = locations.read_file(location, _REFUSED)
    if content is None:
        return []
    where = f"{_REFUSED} of {location}"
    document = documents.parse_document(
        content, kind=_KIND, version=_VERSION, where=where
    )
    return [Refusal(**row) for row in document["rows"]]


def write_refusals(location: locations.Location, refusals: Sequence[Refusal]) -> None:
    """Write the document; if several refusals have one range, the last one counts."""
    latest = {(refusal.start, refusal.stop): refusal for refusal in refusals}
    rows = [asdict(latest[key]) for key in sorted(latest)]
    content = documents.dump_document({"rows": rows}, kind=_KIND, version=_VERSION)
    locations.write_file(location, _REFUSED, content)


def keep_refusals(
    location: locations.Location, refusals: Sequence[Refusal], rows: NewRows
) -> None:
    """Record those of the known refusals whose rows the updated model still lacks."""
    valid_refusals = [
        refusal
        for refusal in refusals
        if any(_overlap(refusal, *ends) for ends in rows.left_out)
    ]
    if valid_refusals != read_refusals(location):
        write_refusals(location, valid_refusals)


def refusals_of(location: locations.Location) -> list[Refusal]:
    """Return all rows that the model at a location lacks: refused by updates, or added
    by versions that were rolled back.

    Raises IntegrityError, StorageError as `read_refusals`.
    """
    refusals = read_refusals(location)
    registered = versions.RegisteredModel(location.url)
    pointer = registered.pointer()
    return refusals if pointer is None else refusals + _rolled_back(registered, pointer)


def _rolled_back(
    registered: versions.RegisteredModel, pointer: Pointer
) -> list[Refusal]:
    """Return the rows that descendants of the current version had added, if these were
    rolled back.
    """
    refusals: list[Refusal] = []
    # numbers of the current version and of its descendants
    family = {pointer.number}
    # Only a version that was current before was rolled back. Rows of any other, such as
    # a rejected challenger, are still new.
    formerly_current = {*pointer.previous, *pointer.rolled_back}
    # The versions come in ascending order, a parent before its children, so one loop
    # finds all descendants.
    for version in registered.versions():
        if version.parent not in family or version.number not in formerly_current:
            continue
        family.add(version.number)
        facts = version.lineage
        if "added" in facts:  # by an update
            why = f"version {version.number} was rolled back"
            for start, stop in facts["added"]:
                refusal = Refusal(
                    start,
                    stop,
                    n_samples=int(facts["n_seen"]),
                    fingerprint=str(facts["prefix_fingerprint"]),
                    reason=why,
                    refused=version.created,
                    data_version=facts.get("data_version"),
                )
                refusals.append(refusal)
    return refusals


def _overlap(refusal: Refusal, start: int, stop: int) -> bool:
    # the model has the rows of a refused correction, as they were before it
    return not refusal.is_correction and refusal.start < stop and start < refusal.stop


def why_left_out(refusals: Sequence[Refusal], start: int, stop: int) -> str:
    """Return why rows were left out, in words."""
    reasons = [refusal.reason for refusal in refusals if _overlap(refusal, start, stop)]
    return "; ".join(dict.fromkeys(reasons)) or "left out before"


def source_words(dataset: blocks.Dataset, start: int, stop: int) -> str:
    """Return consecutive rows in words: by their files, else by their ids, else by
    their numbers in the dataset.
    """
    ends = np.array([start, stop - 1])
    places = sources.find_rows(dataset.attributes, dataset.n_samples, ends)
    if places is not None:
        first, last = places
        first_row, _, first_file = first.partition(" of ")
        _, _, last_file = last.partition(" of ")
        if first_file == last_file:
            first = first_row
        return f"{first} to {last}"
    ids = columns.ids_of(dataset)
    if ids is not None:
        # ids of consecutive rows need not be in order, so no range of them is named
        shown = ids.take(np.arange(start, min(start + 8, stop)))
        names = ", ".join(map(str, shown))
        return f"{stop - start:,} rows: {names}" + " …" * (stop - start > 8)
    return f"rows {start:,} to {stop - 1:,}"
