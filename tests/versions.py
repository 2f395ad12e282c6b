"""Versions for tests of registered models, also for the processes that they start."""

from typing import Any

import numpy as np

from rff_dist.models.versions import RegisteredModel, Version
from rff_dist.storage.records import Record, write_record


def publish(url: str, i: int, **options: Any) -> Version:
    """Publish a version whose record says i in each of its three parts."""
    values = np.full(64, i)
    return RegisteredModel(url).publish(
        lambda place: write_record(
            place,
            kind="test",
            metadata={"digest": str(i)},
            arrays={"a": values, "b": values},
        ),
        lineage={"data": "data.zarr", "n_samples": 10 * i},
        **options,
    )


def whole(record: Record) -> int:
    """Return which i a record says, and fail where its parts do not say the same."""
    found = {
        *record.arrays["a"].tolist(),
        *record.arrays["b"].tolist(),
        int(record.metadata["digest"]),
    }
    assert len(found) == 1, found
    number: int = found.pop()
    return number


def keep_publishing(url: str, n_versions: int) -> None:
    """Publish versions, and remove old ones now and then."""
    for i in range(n_versions):
        publish(url, i)
        if i % 4 == 0:
            RegisteredModel(url).prune(2)
