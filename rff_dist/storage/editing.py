"""Open a versioned dataset for changes, and commit them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from rff_dist.data.columns import is_text
from rff_dist.data.memory import canonical_bytes
from rff_dist.errors import DataError, StorageError
from rff_dist.storage.arrays import EVERY_CHUNK, Header
from rff_dist.storage.binding import complete
from rff_dist.storage.columns import ID
from rff_dist.storage.generations import LINE, LOADS, MANIFEST, manifest_of
from rff_dist.storage.groups import OpenGroup, StoredGroup, require_versions
from rff_dist.storage.loads import Load, describe_loads, read_loads, with_load
from rff_dist.storage.locations import Location
from rff_dist.storage.repositories import Change, changing
from rff_dist.storage.sources import RowBatch
from rff_dist.storage.writing import can_hold, name_parts

ROLES = ("X", "y", "sample_weight", "groups", ID)
TEXT_ROLES = ("y", "groups", ID)  # arrays that may hold text
_LONGEST_LINE = 1000  # how many earlier versions of a line of appends the manifest lists


@dataclass(frozen=True, slots=True)
class Editing:
    """A dataset that is open for changes, made by `editing`.

    `n_before`: rows before the change.
    `attributes`: the group's attributes.
    `headers`: the arrays' headers by name.
    """

    location: Location
    n_before: int
    attributes: Mapping[str, Any]
    headers: Mapping[str, Header]
    group: zarr.Group
    _change: Change

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return the column names of X or y (`key`: "feature_names" or "target_names"), if there are any."""
        found = self.attributes.get(key)
        return tuple(map(str, found)) if isinstance(found, list) else None

    def loads(self) -> list[Load]:
        """Return the loads before the change."""
        return read_loads(self.attributes, self.n_before)

    def check_names(self, features: Sequence[str] | None, targets: Sequence[str] | None) -> None:
        """Raise DataError if column names of X or y differ from the dataset's."""
        for key, given in (("feature_names", features), ("target_names", targets)):
            known = self.names(key)
            if given is None or known is None or tuple(given) == known:
                continue
            differing = next(pair for pair in itertools.zip_longest(given, known) if pair[0] != pair[1])
            raise DataError(
                f"`{key}`: {differing[0]!r} where {self.location} has {differing[1]!r}; expected the columns "
                f"{_listed(known)}{' …' if len(known) > 10 else ''} in this order. Choose and sort them "
                "by name"
            )

    def array(self, name: str) -> zarr.Array[Any]:
        """Return an array for writing."""
        found: Any = self.group[name]
        array: zarr.Array[Any] = found.with_config(EVERY_CHUNK)
        return array

    def label(self, name: str) -> str:
        """Return an array's name in errors."""
        return f"array {name!r} of {self.location}"

    def fit_batch(self, batch: RowBatch, first_row: int) -> dict[str, np.ndarray]:
        """Return a batch's arrays by name, in the dtypes of the dataset's arrays.

        Raises DataError if the dataset has other arrays, or does not hold the values without rounding.
        """
        parts = name_parts(batch, first_row)
        if parts.keys() != self.headers.keys():
            raise DataError(
                f"the new rows have the arrays {', '.join(parts)}, and {self.location} has "
                f"{', '.join(self.headers)}; expected the same arrays"
            )
        return {name: self._fit(name, values, len(parts["X"])) for name, values in parts.items()}

    def _fit(self, name: str, values: np.ndarray, n_rows: int) -> np.ndarray:
        header, label = self.headers[name], self.label(name)
        expected = (n_rows, *header.shape[1:])
        if values.shape != expected:
            raise DataError(f"{name} has shape {values.shape}; expected {expected}, as in {label}")
        if not can_hold(header.dtype, values.dtype):
            raise DataError(
                f"{name} is {_kind(values.dtype)}, but {label} holds {_kind(header.dtype)}; expected a type "
                "that converts without rounding. Convert the values first"
            )
        return values.astype(header.dtype, copy=False)

    def commit(
        self,
        what: str,
        n_after: int,
        *,
        digest: str,
        message: str,
        facts: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        loads: Sequence[Load] | None = None,
    ) -> str:
        """Make the change the current version, and return its name.

        `what`: the kind of change, such as "append".
        `digest`: digest of the changed rows.
        `attributes`: attributes of the group that change.
        `loads`: the loads after the change; None: the loads before, and one more for new rows.
        """
        manifest = manifest_of(self.attributes)
        chain = hashlib.sha256(f"{manifest['sha256']}|{digest}".encode()).hexdigest()
        # After any other change, an earlier version's rows are not the first rows any more.
        line = manifest[LINE][-_LONGEST_LINE:] if what == "append" else []
        state = {
            "n_samples": n_after,
            "sha256": chain,
            LINE: [*line, [n_after, chain]],
            LOADS: describe_loads(with_load(self.loads(), n_after) if loads is None else loads),
        }
        found = {**(attributes or {}), MANIFEST: {**manifest, **state}}
        changed = self._change.changed_chunks()
        complete(self._change.store, self.headers, found, place=self.location, changed=changed)
        told = {"change": what, "n_before": self.n_before, "n_after": n_after, "sha256": chain, **facts}
        return self._change.commit(message, told)


@contextmanager
def editing(location: Location) -> Iterator[Editing]:
    """Open a versioned dataset for one change.

    Raises OutputBusyError if another run is changing it; StorageError if there is no versioned dataset.
    """
    require_versions(location)
    with changing(location) as change:
        stored = StoredGroup(change.store, "", str(location), location.url, None).open()
        headers, group = read_headers(stored), zarr.open_group(change.store, mode="r+")
        _check(stored, headers)
        yield Editing(location, stored.n_samples, stored.attributes, headers, group, change)


def digest_rows(*parts: np.ndarray) -> str:
    """Return a digest of arrays."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(canonical_bytes(part))
    return digest.hexdigest()


def read_headers(group: OpenGroup) -> dict[str, Header]:
    """Return the checked headers of a dataset's arrays by name."""
    found = {name: group.read_header(name, text=name in TEXT_ROLES) for name in ROLES}
    return {name: header for name, header in found.items() if header is not None}


def _check(dataset: OpenGroup, headers: Mapping[str, Header]) -> None:
    """Refuse a repository that this package did not write, or whose arrays disagree with the manifest."""
    if "X" not in headers or not manifest_of(dataset.attributes):
        raise StorageError(
            f"{dataset.place} is a repository that rff_dist did not write; expected a versioned dataset. "
            "Open its arrays with Icechunk, and write them with write_dataset"
        )
    shapes = {name: array.shape for name, array in dataset.group.arrays() if name in headers}
    if {shape[:1] for shape in shapes.values()} != {(dataset.n_samples,)}:
        raise StorageError(
            f"the arrays of {dataset.place} have the shapes {shapes}, and its manifest says "
            f"{dataset.n_samples:_} rows; expected as many rows in all arrays. Go back to an earlier version "
            "(`rff-dist data rollback`)"
        )
    refuse_others(dataset)


def refuse_others(dataset: OpenGroup) -> None:
    """Refuse a group with further arrays, which a change or a conversion would leave behind."""
    others = sorted(set(dataset.group.array_keys()).difference(ROLES))
    if others:
        raise StorageError(
            f"{dataset.place} also holds {_listed(others)}; expected only {', '.join(ROLES)}. "
            "Write other arrays to another group"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10]))


def _kind(dtype: np.dtype[Any]) -> str:
    return "text" if is_text(dtype) else str(dtype)
