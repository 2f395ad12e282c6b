"""Registered models: numbered versions that stay, and a pointer to the one that readers get.

::

    models/                          Registry
    └── NAME/                        RegisteredModel; whoever reads this folder reads the current version
        ├── current.json             which version is current, and which ones were before
        └── versions/N/              a record, as `write_record` makes it, with the lineage of version N

A publisher writes a record to the first number that is free. No two can, because a record appears whole, and
only where none is. Then it adds the lineage, in one step: a record without one is no version yet. Then it
replaces the pointer in one step, if no one else has replaced it. A publisher that dies on the way leaves
a record that no one reads; the version before stays current.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice

from rff_dist import __version__, errors
from rff_dist.storage import locations, output_places, records
from rff_dist.text import redact
from rff_dist.typing import Facts, PathLike, Summary

logger = logging.getLogger(__name__)

_STORED = ("kind", "digest", "created", "parent", "lineage", "reason")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ATTEMPTS = 100  # to change the pointer while others change it
_YOUNG = timedelta(hours=1)  # how long a version that was never current is safe from `prune`
_NUMBER = re.compile(r"[1-9][0-9]*")  # the name of a version's folder


@dataclass(frozen=True)
class Version:
    """One published version of a registered model.

    `number`: counted from 1; some may be missing.
    `kind`: the kind of model, such as "ridge model".
    `digest`: digest of all that its predictions depend on.
    `created`: when it was published, as ISO 8601 in UTC.
    `parent`: the version that it was made from, or that was current when it was published.
    `reason`: why it was published; may be empty.
    `lineage`: JSON values: what it was made of (`data`, `data_fingerprint`, `n_samples`, `spec`) and by which
      code (`code_version`).
    """

    number: int
    url: str
    kind: str
    digest: str | None
    created: str
    parent: int | None
    reason: str
    lineage: Facts

    def to_dict(self) -> Summary:
        """Return it as JSON values, its URL without credentials."""
        return {**asdict(self), "url": redact(self.url)}


class RegisteredModel:
    """The versions of one model.

    `url`: the model's folder, such as `models/NAME`; it need not exist yet.

    >>> model = RegisteredModel('memory://models/main')
    >>> model.name, model.current(), model.versions()
    ('main', None, [])
    """

    def __init__(self, url: PathLike) -> None:
        self.location = locations.parse_location(url)

    @property
    def url(self) -> str:
        """Where readers get the current version."""
        return self.location.url

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.location.path.rpartition("/")[2]

    def check(self, *, inputs: Sequence[locations.Location] = ()) -> None:
        """Refuse a place where no version can be published; for use before hours of work.

        `inputs`: what is read while a version is written.
        Raises OutputExistsError if something other than a registered model is there; StorageError if it
          cannot be written, or overlaps one of `inputs`.
        """
        self._refuse_others()
        # Each version has its own folder below the model.
        place = records.version_place(self.location, self._last_number() + 1)
        output_places.check_output(place, overwrite=False, inputs=inputs)

    def versions(self, *, last: int | None = None) -> list[Version]:
        """Return the published versions, in the order of their numbers.

        `last`: how many of the newest to read; None: all.
        """
        # The newest first and one by one, so that no more than the `last` ones are read.
        newest_first = (self._read_version(number) for number in reversed(_numbers_in(self._versions)))
        whole = (version for version in newest_first if version is not None)
        return list(islice(whole, last))[::-1]

    def version(self, number: int) -> Version:
        """Return one version.

        Raises NoSuchVersionError, which lists the existing ones, if there is no such version.
        """
        version = self._read_version(number)
        if version is None:
            numbers = [version.number for version in self.versions()]
            newest = f"{'… ' if len(numbers) > 8 else ''}{', '.join(map(str, numbers[-8:]))}"
            known = f"has {newest}" if numbers else "has no versions"
            raise errors.NoSuchVersionError(f"{self.location} has no version {number}; it {known}")
        return version

    def pointer(self) -> records.Pointer | None:
        """Return which version is current, since when and why; None if there is none."""
        return records.read_pointer(self.location)[0]

    def current(self) -> Version | None:
        """Return the version that readers get; None if no version was promoted yet."""
        pointer = self.pointer()
        return None if pointer is None else self.version(pointer.number)

    def publish(
        self, write: Callable[[str], object], *, lineage: Facts, reason: str = "", promote: bool = True
    ) -> Version:
        """Store the next version, whole or not at all, and make it the current one.

        `write`: stores a record at the URL that it is given, as `write_record` or `write_model` does.
        `lineage`: JSON values: what the version was made of. `parent` is the version that it was made from,
          by default the current one; `code_version` is by default this release's; `data` is a URL, which is
          stored without credentials.
        `promote`: whether to make it the current version now; if not, call `promote` later.
        Raises OutputBusyError if this context holds the model, and another run has published since;
          StorageError if it cannot be written, or something else is at this place (the current version then
          stays); InvalidParameterError if the lineage is not JSON.
        """
        facts = _checked_lineage(lineage)
        self._refuse_others()
        # The numbers of killed publishers count too: something may be left in their folders.
        first = self._last_number() + 1
        for number in range(first, first + _ATTEMPTS):
            # Of publishers that want the same number one gets it; the others go on to the next.
            taken = (errors.OutputExistsError, errors.OutputBusyError, errors.ConflictError)
            with suppress(*taken):
                write(records.version_place(self.location, number).url)
                break
        else:
            raise errors.ConflictError(
                f"others keep publishing versions of {self.location}; stop them and try again"
            )
        # Before the pointer moves: a record without lineage is no version, and could not become current.
        version = self._add_lineage(number, facts, reason)
        logger.info("published version %d of %s", number, self.location)
        if promote:
            try:
                self.promote(number, reason=reason)
            except errors.OutputBusyError:
                # Another run has published since: its version is the next one, not this.
                output_places.discard(records.version_place(self.location, number))
                raise
            except BaseException as error:
                error.add_note(
                    f"version {number} of {self.location} was published, but is not the current one"
                )
                raise
        return version

    def _add_lineage(self, number: int, facts: Facts, reason: str) -> Version:
        """Make a version of the record that was written for it; remove the record if that fails."""
        place = records.version_place(self.location, number)
        try:
            record = records.peek_record(place.url)
            # after the record is written, which may take minutes: the parent is what is current now
            pointer = self.pointer()
            facts = {"parent": None if pointer is None else pointer.number, **facts}
            created, digest = datetime.now(UTC).isoformat(timespec="seconds"), record.metadata.get("digest")
            version = Version(number, place.url, record.kind, digest, created, facts["parent"], reason, facts)
            output_places.check_held(self.location)
            with _writing(place):
                records.add_lineage(place, {name: getattr(version, name) for name in ("number", *_STORED)})
                locations.sync_names(place, 3)  # of the version, of `versions` and of the model
        except BaseException:
            output_places.discard(place)
            raise
        return version

    def promote(self, number: int, *, reason: str = "") -> Version:
        """Make a version the current one: whoever reads the model from now on gets it.

        The version before stays, for `rollback`. Two promotions at the same moment are both recorded, in the
        order of their success, so that neither is lost.

        Raises NoSuchVersionError if there is no such version; OutputBusyError if this context holds
          the model, and another run has published since; StorageError if the pointer cannot be written.
        """
        version = self.version(number)

        def change(now: records.Pointer) -> records.Pointer:
            # Look for it again after reading the pointer: whoever removes it changes the pointer first.
            self.version(number)
            if number in now.removing:
                raise errors.NoSuchVersionError(f"version {number} of {self.location} is being removed")
            # Promoting the current version again must not make it its own predecessor: a rollback would stay.
            previous = now.previous if now.number == number else (*now.previous, now.number)
            return now.moved(number, previous, reason)

        self._swap(change, records.Pointer(number, (), "", ""))
        return version

    def rollback(self, *, reason: str | None = None) -> Version:
        """Make the previously current version current again, and return it; repeat to go back further.

        `reason`: why; by default it names the version that was left.
        Raises NoSuchVersionError if there is nothing to roll back to; ConflictError if another version became
          current at the same moment.
        """
        before, tagged = records.read_pointer(self.location)
        if before is None:
            raise errors.NoSuchVersionError(
                f"nothing to roll back: {self.location} has no current version; promote one"
            )
        why = f"rolled back from version {before.number}" if reason is None else reason
        # a version that was rolled back from stays known as published, though `previous` no longer names it
        left = tuple(sorted({*before.left, before.number}))
        # `previous` is cut at the version gone back to: a second rollback goes further, not to and fro.
        # A conflict is not tried again, unlike in `promote`: the caller meant the version that was current.
        for i, number in reversed([*enumerate(before.previous)]):
            # Versions that were removed since are skipped.
            if number not in before.removing and (version := self._read_version(number)) is not None:
                pointer = replace(before.moved(number, before.previous[:i], why), left=left)
                with _writing(self.location):
                    records.swap_pointer(self.location, pointer, expected=tagged)
                return version
        raise errors.NoSuchVersionError(
            f"nothing to roll back to: no version of {self.location} was current before version "
            f"{before.number}; promote another one"
        )

    def left_versions(self) -> list[Version]:
        """Return the versions that were current once and are not now."""
        pointer = self.pointer()
        if pointer is None:
            return []
        left = {*pointer.previous, *pointer.left} - {pointer.number}
        return [version for version in self.versions() if version.number in left]

    def prune(self, keep: int) -> list[int]:
        """Remove all but the newest versions, and return the removed versions' numbers.

        The current version and the one that a rollback goes back to always stay. Versions that were never
        current stay for an hour. What dead publishers left is removed a day after they began.

        `keep`: how many of the newest versions stay; at least 1.
        Raises InvalidParameterError if `keep` is below 1; NoSuchVersionError if no version is current.
        """
        if keep < 1:
            raise errors.InvalidParameterError(f"`keep` is {keep}; expected at least 1, the newest version")
        old: list[int] = []

        def mark(now: records.Pointer) -> records.Pointer:
            young = datetime.now(UTC) - _YOUNG
            kept = {now.number, *now.previous[-1:]}
            candidates = [version for version in self.versions()[:-keep] if version.number not in kept]
            # A young version that was never current may be about to be promoted.
            # Replaced, not extended: `_swap` calls this again after each conflict.
            old[:] = [
                version.number
                for version in candidates
                if version.number in now.previous or datetime.fromisoformat(version.created) < young
            ]
            return replace(now, removing=tuple(sorted({*now.removing, *old})))

        # Marked in the pointer first: a version that is promoted just before its removal would be current
        # and gone. Others may have marked some before.
        marked = self._swap(mark).removing
        for number in marked:
            # The document goes first: without it a half-removed folder is not a version.
            place = records.version_place(self.location, number)
            locations.delete_bytes(locations.open_store(place, read_only=False), locations.RECORD_FILE)
        whole = {version.number for version in self.versions()}
        left_behind = set(_numbers_in(self._versions)) - whole - set(marked)
        places = {number: records.version_place(self.location, number) for number in (*marked, *left_behind)}
        for number, place in places.items():
            if number in marked or locations.is_given_up(place):
                output_places.discard(place)
        # Only now, since a version must not become current while its folder is being removed.
        self._swap(lambda now: replace(now, removing=tuple(n for n in now.removing if n not in marked)))
        return old

    def _swap(
        self, change: Callable[[records.Pointer], records.Pointer], first: records.Pointer | None = None
    ) -> records.Pointer:
        """Change the pointer, `first` if there is none; repeat that if others change it meanwhile."""
        for _ in range(_ATTEMPTS):
            known, tagged = records.read_pointer(self.location)
            before = known or first
            if before is None:
                raise errors.NoSuchVersionError(f"{self.location} has no current version; promote one first")
            after = change(before)
            with suppress(errors.ConflictError), _writing(self.location):
                if after != before:
                    records.swap_pointer(self.location, after, expected=tagged)
                return after
        raise errors.ConflictError(f"others keep changing {self.location}; stop them and try again")

    def _refuse_others(self) -> None:
        """Raise OutputExistsError if the folder holds neither a registered model nor the beginning of one."""
        if not locations.exists(self.location):
            return
        # one look: between two of them the first of other publishers may make its version the current one
        names = {name for name in locations.list_names(self.location) if not name.startswith(".")}
        if locations.POINTER_FILE not in names and names - {"versions"}:
            raise errors.OutputExistsError(
                f"{self.location} holds something else than versions of a registered model; choose another "
                "name, or publish without register=True"
            )

    def _last_number(self) -> int:
        return max((0, *_numbers_in(self._versions)))

    @property
    def _versions(self) -> locations.Location:
        return self.location.child("versions")

    def _read_version(self, number: int) -> Version | None:
        place = records.version_place(self.location, number)
        document = records.read_lineage(place)
        if document is None:
            return None
        if (other := document["number"]) != number:
            raise errors.IntegrityError(
                f"the record of {place} belongs to version {other}; restore it from a copy"
            )
        return Version(number, place.url, **{name: document[name] for name in _STORED})


class Registry:
    """The registered models in a folder.

    `url`: a local path, `memory://name` or a URL of an object store.
    """

    def __init__(self, url: PathLike) -> None:
        self.location = locations.parse_location(url)

    def names(self) -> list[str]:
        """Return the sorted names of the models that have a current version."""
        names = (name for name in locations.list_names(self.location) if _NAME.fullmatch(name))
        return [name for name in names if output_places.holds_versions(self.location.child(name))]

    def model(self, name: str) -> RegisteredModel:
        """Return the model of that name, which need not exist yet.

        Raises InvalidParameterError if the name is not valid.
        """
        if not _NAME.fullmatch(name):
            raise errors.InvalidParameterError(
                f"{name!r} cannot name a model; expected letters, digits, dots, hyphens and underscores, "
                "beginning with a letter or digit"
            )
        return RegisteredModel(self.location.child(name).url)


def code_version() -> dict[str, str]:
    """Return the package's release and, if known, the commit that it was installed from.

    Installers record the commit of what they fetched from version control (PEP 610, `direct_url.json`).
    """
    facts = {"code_version": __version__}
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):  # not from version control
        recorded = json.loads(distribution("rff_dist").read_text("direct_url.json") or "")
        facts["code_commit"] = str(recorded["vcs_info"]["commit_id"])
    return facts


def _checked_lineage(lineage: Facts) -> Summary:
    facts = records.plain_json({**code_version(), **lineage}, "the lineage is")
    if isinstance(facts.get("data"), str):
        facts["data"] = redact(facts["data"])
    return facts


def _numbers_in(folder: locations.Location) -> list[int]:
    """Return the numbers in a folder of versions, ascending."""
    return sorted(int(name) for name in locations.list_names(folder) if _NUMBER.fullmatch(name))


def _writing(location: locations.Location) -> AbstractContextManager[None]:
    """Turn errors of a store into errors that say that the current version is unchanged."""
    return locations.store_errors(f"{location} could not be written", "; the current version is unchanged")
