# mypy: allow-untyped-calls
"""The workers of a cluster as the client sees them, and what is said when they or the scheduler are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import distributed
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError

from rff_dist.engines.dask_cluster import SAME_PACKAGES, check_versions
from rff_dist.errors import ClusterLostError, RFFDistError

#: Seconds between two looks at the cluster while a pass waits.
POLL_S = 1.0


class Workers:
    """The workers of a client's cluster, all of them of the versions that are here.

    `patience`: seconds that a pass waits while there is no worker at all.
    """

    def __init__(self, client: distributed.Client, *, patience: float) -> None:
        self._client, self._patience = client, patience
        self._threads: dict[str, int] = {}
        self._looked_at = self._seen_at = time.monotonic()
        self._same_versions: set[str] = set()

    @property
    def address(self) -> str:
        """The scheduler's."""
        scheduler = self._client.scheduler
        return str(scheduler.address) if scheduler is not None else "(closed)"

    def current(self) -> dict[str, int]:
        """Return threads by worker address, at most `POLL_S` old."""
        age = time.monotonic() - self._looked_at
        return self._threads if self._threads and age < POLL_S else self.look()

    def look(self) -> dict[str, int]:
        """Return threads by worker address, as they are now; raise ClusterError for other versions."""
        with self.errors():
            self._threads = dict(self._client.nthreads())
            self._looked_at = time.monotonic()
            if self._threads:
                self._seen_at = self._looked_at
            if self._threads.keys() - self._same_versions:
                found: Any = self._client.get_versions(packages=SAME_PACKAGES)
                check_versions(found["client"], found["workers"])
                self._same_versions |= found["workers"].keys()
        return self._threads

    def check_patience(self) -> None:
        """Raise ClusterLostError if there has been no worker for too long."""
        waited = time.monotonic() - self._seen_at
        if not self._threads and waited > self._patience:
            raise ClusterLostError(
                f"the cluster at {self.address} has had no worker for {waited:.0f} s "
                f"(`patience`={self._patience:g}); the pass has no result. Start workers "
                f"(`dask worker {self.address}`) and repeat it"
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate what distributed raises when it has lost its scheduler."""
        if self._client.status == "closed":
            raise ClusterLostError("the engine's Dask client is closed; make a new engine")
        try:
            yield
        except RFFDistError:
            raise
        except (CancelledError, CommClosedError, ClosedClientError, OSError) as error:
            if isinstance(error, OSError) and self._client.status == "running":
                raise
            raise ClusterLostError(
                f"the scheduler at {self.address} went away: {type(error).__name__}: {error}; "
                "the pass has no result. Start the cluster again and repeat it"
            ) from error
