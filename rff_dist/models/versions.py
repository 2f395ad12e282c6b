"""Registered models: numbered versions that stay, and a pointer to the current one.

A function that writes a model goes in; a new version comes out. Replacing one stored
model would lose the old one, and a failed publisher could leave neither::

    models/
    └── NAME/                        RegisteredModel; readers of this folder get the
                                     current version
        ├── current.json             the pointer: which version is current, and which
        │                            ones were before
        └── versions/N/              a record, as `write_record` makes it, with the
                                     lineage of version N

A publisher writes a record (a stored model) to the first free number. Two cannot write
the same one, because a record appears whole, and only where none is. Then it adds the
lineage in one step: a record without lineage is no version yet. Then it replaces the
pointer in one step, if no one else has replaced it. A publisher that dies on the way
leaves a record that no one reads; the version before stays current.
"""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from rff_dist import __version__
from rff_dist.errors import (
    ConflictError,
    IntegrityError,
    InvalidParameterError,
    NoSuchVersionError,
    OutputBusyError,
    OutputExistsError,
)
from rff_dist.storage import locations, output_places, records
from rff_dist.storage.locations import Location
from rff_dist.storage.records import Pointer, version_place
from rff_dist.text import redact
from rff_dist.typing import Facts, PathLike, Summary

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[1-9][0-9]*")  # the name of a version's folder
_ATTEMPTS = 100  # to change the pointer while others change it
# `prune` keeps a version that was never current for this time.
_YOUNG = timedelta(hours=1)


@dataclass(frozen=True)
class Version:
    """One published version of a registered model."""

    number: int  # counted from 1; some may be missing
    url: str
    kind: str  # such as "ridge model"
    digest: str | None  # covers everything that its predictions depend on
    created: str  # when it was published, as ISO 8601 in UTC
    #: The version that it was made from, or that was current when it was published.
    parent: int | None
    reason: str
    #: Its provenance: `data`, `data_fingerprint`, `n_samples`, `spec`, `code_version`.
    lineage: Facts

    def to_dict(self) -> Summary:
        """Return it as JSON values, its URL without credentials."""
        return {**asdict(self), "url": redact(self.url)}


class RegisteredModel:
    """The versions of one model, in a folder that need not exist yet.

    >>> model = RegisteredModel('models/main')
    >>> model.name, model.current(), model.versions()
    ('main', None, [])
    """

    def __init__(self, url: PathLike) -> None:
        self.location = locations.parse_location(url)
        self._versions = self.location.child("versions")

    @property
    def url(self) -> str:
        """Where readers get the current version."""
        return self.location.url

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.location.name

    def check(self, *, inputs: Sequence[Location] = ()) -> None:
        """Refuse a place where no version can be published, or that overlaps an input.

        Called before hours of work.
        """
        self._refuse_others()
        # Each version has its own folder below the model.
        place = version_place(self.location, self._next_number())
        output_places.check_output(place, overwrite=False, inputs=inputs)

    def versions(self, *, last: int | None = None) -> list[Version]:
        """Return the published versions, or the `last` newest, in the order of their
        numbers.
        """
        # Lazily from the newest on, so that only the `last` ones are read.
        newest_first = map(self._read_version, reversed(self._numbers()))
        published = (version for version in newest_first if version is not None)
        return list(islice(published, last))[::-1]

    def version(self, number: int) -> Version:
        """Return one version; NoSuchVersionError lists the newest ones."""
        version = self._read_version(number)
        if version is None:
            newest = self._numbers()[-8:]
            raise NoSuchVersionError(
                f"{self.location} has no version {number}; the newest are {newest}"
            )
        return version

    def pointer(self) -> Pointer | None:
        """Return which version is current, since when and why, if any."""
        return records.read_pointer(self.location)[0]

    def current(self) -> Version | None:
        """Return the version that readers get; None if no version was promoted yet."""
        pointer = self.pointer()
        return None if pointer is None else self.version(pointer.number)

    def publish(
        self,
        write: Callable[[str], object],
        *,
        lineage: Facts,
        reason: str = "",
        promote: bool = True,
    ) -> Version:
        """Store the next version, whole or not at all, and make it the current one.

        `write` stores a record at the URL that it gets, as `write_record` does. In the
        lineage, `parent` is by default the current version, and `code_version` this
        release's.

        Raises OutputBusyError if this run locked the model, and another run has
        published since. After any error the current version stays.
        """
        values = {"code_version": __version__, **lineage}
        facts = records.plain_json(values, "the lineage is")
        if isinstance(facts.get("data"), str):
            facts["data"] = redact(facts["data"])
        self._refuse_others()
        number = self._write_next(write)
        # Before the pointer moves: a record without lineage is no version, and could
        # not become current.
        version = self._add_lineage(number, facts, reason)
        logger.info("published version %d of %s", number, self.location)
        if promote:
            try:
                self.promote(number, reason=reason)
            except OutputBusyError:
                # Another run has published since, and its version is the current one.
                output_places.discard(version_place(self.location, number))
                raise
        return version

    def _write_next(self, write: Callable[[str], object]) -> int:
        """Write a record to the first free number, and return the number."""
        first = self._next_number()
        for number in range(first, first + _ATTEMPTS):
            # If several publishers want a number, one gets it; the others try the next.
            with suppress(OutputExistsError, OutputBusyError, ConflictError):
                write(version_place(self.location, number).url)
                return number
        raise ConflictError(
            f"others keep publishing versions of {self.location}; stop them and try"
            " again"
        )

    def _add_lineage(self, number: int, facts: Facts, reason: str) -> Version:
        """Make a version of a written record; remove the record if that fails."""
        place = version_place(self.location, number)
        try:
            record = records.peek_record(place.url)
            # Read only now, as writing the record may have taken minutes: the parent is
            # the version that is current when this one is published.
            pointer = self.pointer()
            facts = {"parent": None if pointer is None else pointer.number, **facts}
            document = {
                "number": number,
                "kind": record.kind,
                "digest": record.metadata.get("digest"),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "parent": facts["parent"],
                "reason": reason,
                "lineage": facts,
            }
            output_places.check_held(self.location)
            with _writing(place):
                records.add_lineage(place, document)
                if place.is_local:
                    # the version's folder, "versions" and the model's folder
                    folders = list(Path(place.path).parents)[:3]
                    locations.sync_published(*folders)
        except BaseException:
            output_places.discard(place)
            raise
        return Version(url=place.url, **document)

    def promote(self, number: int, *, reason: str = "") -> Version:
        """Make a version the current one, which readers get from now on.

        The version before stays, for `rollback`. Two promotions at the same moment are
        both recorded, in the order of their success, so that neither is lost.

        Raises NoSuchVersionError if there is no such version; OutputBusyError if this
        run locked the model, and another run has published since.
        """
        version = self.version(number)

        def change(now: Pointer) -> Pointer:
            # Look for it again after the pointer was read: `prune` changes the pointer
            # before it removes a version.
            self.version(number)
            if number in now.removed:
                raise NoSuchVersionError(
                    f"version {number} of {self.location} is being removed"
                )
            previous = now.previous
            # Promoting the current version again must not make it its own predecessor:
            # a rollback would change nothing.
            if now.number != number:
                previous = (*previous, now.number)
            return now.moved(number, previous, reason)

        self._swap(change, Pointer(number=number, previous=(), promoted="", reason=""))
        return version

    def rollback(self, *, reason: str = "") -> Version:
        """Make the previously current version current again, and return it; repeat to
        go back further.

        Raises NoSuchVersionError if there is nothing to roll back to; ConflictError if
        another version became current at the same moment: the caller wants to replace
        the version before that one.
        """
        pointer, stored_pointer = records.read_pointer(self.location)
        if pointer is not None:
            # `previous` loses its end: the version that becomes current, and all after
            # it. So a second rollback goes further back, and not forth again.
            previous = list(pointer.previous)
            reason = reason or f"rolled back from version {pointer.number}"
            while previous:
                number = previous.pop()
                version = self._read_version(number)
                if version is None:
                    continue
                after = pointer.moved(number, tuple(previous), reason)
                after = replace(
                    after, rolled_back=(*pointer.rolled_back, pointer.number)
                )
                with _writing(self.location):
                    records.swap_pointer(self.location, after, expected=stored_pointer)
                return version
        raise NoSuchVersionError(
            f"nothing to roll back to: no version of {self.location} that was current"
            " before is left; promote another one"
        )

    def prune(self, keep: int) -> list[int]:
        """Remove all but the `keep` newest versions, and return their numbers.

        The current version and the one that a rollback goes back to always stay, and
        newer ones that were current: updates read there which rows to leave out.
        Versions that were never current stay for an hour. Also removed, and not in the
        result: versions that a dead prune had marked, and folders of dead publishers a
        day after they began.
        """
        if keep < 1:
            raise InvalidParameterError(
                f"`keep` is {keep}; expected at least 1, the newest version"
            )
        old: list[int] = []

        def mark(now: Pointer) -> Pointer:
            needed = {now.number, *now.previous[-1:]}
            formerly_current = {*now.previous, *now.rolled_back}
            young_since = datetime.now(UTC) - _YOUNG
            old.clear()  # `_swap` calls this again after each conflict
            for version in self.versions()[:-keep]:
                number = version.number
                if number in formerly_current:
                    is_old = number < now.number
                else:
                    # A young one may be about to be promoted.
                    is_old = datetime.fromisoformat(version.created) < young_since
                if is_old and number not in needed:
                    old.append(number)
            removed = sorted({*now.removed, *old})
            previous = tuple(n for n in now.previous if n not in removed)
            return replace(now, previous=previous, removed=tuple(removed))

        # Marked in the pointer first: otherwise another run could promote a version
        # between this choice and its removal. A prune that died may have marked some.
        removed = self._swap(mark).removed
        for number in self._numbers():
            place = version_place(self.location, number)
            if number in removed:
                # The metadata go first: without them a half-removed folder is not a
                # version.
                locations.delete_file(place, "zarr.json")
                output_places.discard(place)
            elif self._read_version(number) is None and locations.is_abandoned(place):
                output_places.discard(place)
        return old

    def _swap(
        self, change: Callable[[Pointer], Pointer], first: Pointer | None = None
    ) -> Pointer:
        """Replace the pointer by `change` of it; again if others replace it meanwhile.

        Without a pointer, `first` is changed.
        """
        for _ in range(_ATTEMPTS):
            pointer, stored_pointer = records.read_pointer(self.location)
            before = pointer or first
            if before is None:
                raise NoSuchVersionError(
                    f"{self.location} has no current version; promote one first"
                )
            after = change(before)
            with suppress(ConflictError), _writing(self.location):
                if after != before:
                    records.swap_pointer(self.location, after, expected=stored_pointer)
                return after
        raise ConflictError(
            f"others keep changing {self.location}; stop them and try again"
        )

    def _refuse_others(self) -> None:
        """Refuse a folder that is no registered model, nor the beginning of one."""
        # List once: between two listings another publisher may create the pointer, and
        # its folder would look like something else.
        names = locations.list_names(self.location)
        others = [name for name in names if name[0] != "." and name != "versions"]
        if others and locations.POINTER_FILE not in others:
            raise OutputExistsError(
                f"{self.location} holds something else than versions of a registered"
                " model; choose another name, or publish without register=True"
            )

    def _numbers(self) -> list[int]:
        """Return the numbers in the folder of versions, ascending."""
        names = locations.list_names(self._versions)
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _next_number(self) -> int:
        # The numbers of killed publishers count too, as their folders may have files.
        return max(self._numbers(), default=0) + 1

    def _read_version(self, number: int) -> Version | None:
        place = version_place(self.location, number)
        document = records.read_lineage(place)
        if document is None:
            return None
        version = Version(url=place.url, **document)
        if version.number != number:
            raise IntegrityError(
                f"the record of {place} belongs to version {version.number}; restore it"
                " from a copy"
            )
        return version


def find_registered(folder: PathLike) -> list[RegisteredModel]:
    """Return the models in a folder that have a current version, by their names.

    The folder may be in an object store.
    """
    location = locations.parse_location(folder)
    return [
        RegisteredModel(location.child(name).url)
        for name in locations.list_names(location)
        if output_places.is_registered_model(location.child(name))
    ]


def _writing(location: Location) -> AbstractContextManager[None]:
    """Add to errors of a store that the current version stays."""
    return locations.store_errors(
        f"{location} could not be written", "; the current version is unchanged"
    )
