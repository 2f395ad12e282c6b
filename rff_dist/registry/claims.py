"""Claims of version numbers: each is taken once, and tells whether its version was published."""

from __future__ import annotations

import json
import os
import platform
import re
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rff_dist.storage.conditional import create_bytes
from rff_dist.storage.locations import (
    Location,
    list_names,
    open_store,
    read_bytes,
    store_errors,
    write_bytes,
)

_NUMBER = re.compile(r"([1-9][0-9]*)(?:\.json)?")  # of a version's folder, or its claim
_CLAIMED, _PUBLISHED = "claimed", "published"  # what a claim says: when
_GIVEN_UP = timedelta(days=1)  # a record is written in seconds or minutes


def numbers_in(folder: Location) -> list[int]:
    """Return the numbers that a folder of claims or of versions has, ascending."""
    matches = (_NUMBER.fullmatch(name) for name in list_names(folder))
    return sorted(int(match[1]) for match in matches if match)


def writing(location: Location) -> AbstractContextManager[None]:
    """Turn errors of a store into ones that say that the current version is unchanged."""
    return store_errors(f"{location} could not be written", "; the current version is unchanged")


@dataclass(frozen=True)
class Claims:
    """The claims of a model's versions.

    `model`: the model's folder.
    """

    model: Location

    @property
    def place(self) -> Location:
        """The folder of the claims."""
        return self.model.child("claims")

    def take(self, number: int) -> tuple[int, dict[str, Any]]:
        """Take the first free number from `number` on, which nobody else gets; return it and its claim."""
        by = {"host": platform.node(), "process": os.getpid(), "token": uuid.uuid4().hex}
        claim = {**by, _CLAIMED: datetime.now(UTC).isoformat(timespec="seconds")}
        open_store(self.model, read_only=False)  # a name in memory is there from now on
        store = open_store(self.place, read_only=False)
        with writing(self.place):
            while not create_bytes(store, f"{number}.json", json.dumps(claim).encode(), where=self.place):
                number += 1
        return number, claim

    def publish(self, number: int, claim: Mapping[str, Any], *, created: str) -> None:
        """Let a claim tell when its version was published."""
        with writing(self.place):
            store = open_store(self.place, read_only=False)
            write_bytes(store, f"{number}.json", json.dumps({**claim, _PUBLISHED: created}).encode())

    def is_published(self, number: int) -> bool:
        """Tell whether a claim says that its version was published; those of older releases do not tell."""
        return _PUBLISHED in self._read(number)

    def is_given_up(self, number: int) -> bool:
        """Tell whether whoever claimed a number so long ago is not going to publish it any more."""
        try:
            claimed = datetime.fromisoformat(self._read(number)[_CLAIMED])
        except (ValueError, KeyError, TypeError):
            return True
        return datetime.now(UTC) - claimed > _GIVEN_UP

    def _read(self, number: int) -> Mapping[str, Any]:
        """Return what a claim says; nothing where it is lost, or whoever wrote it died meanwhile."""
        content = read_bytes(open_store(self.place, read_only=True), f"{number}.json", where=self.place)
        with suppress(ValueError):
            found = json.loads(content or b"")
            if isinstance(found, dict):
                return found
        return {}
