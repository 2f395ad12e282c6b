# mypy: allow-untyped-calls
"""The workers of a cluster as the client sees them, and the errors when they or the scheduler are gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import distributed
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError

from rff_dist.engines.dask_cluster import SAME_PACKAGES, check_versions
from rff_dist.errors import ClusterLostError, RFFDistError

logger = logging.getLogger(__name__)

#: Seconds between two looks at the cluster while a pass waits.
POLL_S = 1.0
#: Seconds within which the scheduler must answer.
ANSWER_S = 30.0
#: Seconds within which new workers must tell their versions.
VERSIONS_S = 5.0
#: Seconds after which a silent worker counts as frozen, and seconds between two looks for such workers.
SILENT_S, WATCH_S = 30.0, 10.0


class Workers:
    """The workers of a client's cluster that have the client's versions.

    `patience`: seconds that a pass waits while there is no worker at all.
    """

    def __init__(self, client: distributed.Client, *, patience: float) -> None:
        self._client, self._patience = client, patience
        self._threads: dict[str, int] = {}
        self._looked_at = self._seen_at = self._watched_at = time.monotonic()
        self._looking: Future[dict[str, int]] | None = None
        self._same_versions: set[str] = set()

    @property
    def address(self) -> str:
        """The scheduler's address."""
        scheduler = self._client.scheduler
        return str(scheduler.address) if scheduler is not None else "(closed)"

    def current(self) -> dict[str, int]:
        """Return threads by worker address, as the scheduler last told them; it is asked every `POLL_S`.

        This does not wait for the answer, which takes a second when the scheduler is busy.
        """
        if not self._threads:
            return self.look()
        if self._looking is None and time.monotonic() - self._looked_at > POLL_S:
            loop = cast("Any", self._client.loop).asyncio_loop
            self._looking = asyncio.run_coroutine_threadsafe(self._look(), loop)
        if self._looking is not None and self._looking.done():
            looking, self._looking = self._looking, None
            with self.errors(talking=True):
                looking.result()
        return self._threads

    def look(self) -> dict[str, int]:
        """Ask for threads by worker address; raise ClusterError if workers have other versions."""
        self._looking = None  # an answer that a pass before did not wait for
        with self.errors(talking=True):
            return cast("dict[str, int]", self._client.sync(self._look))

    async def _look(self) -> dict[str, int]:
        if time.monotonic() - self._watched_at > WATCH_S:
            await self._drop_silent()
        found = dict(await self._answer(self._client.nthreads))
        if new := found.keys() - self._same_versions:
            told = await self._versions(list(new))
            check_versions(distributed.versions.get_versions(packages=SAME_PACKAGES), told)
            self._same_versions |= told.keys()
        # Workers that told nothing are asked again at the next look.
        self._threads = {worker: n for worker, n in found.items() if worker in self._same_versions}
        self._looked_at = time.monotonic()
        if self._threads:
            self._seen_at = self._looked_at
        return self._threads

    async def _versions(self, workers: list[str]) -> dict[str, Any]:
        """Return the versions of the workers that tell them within `VERSIONS_S`.

        The scheduler answers when all workers have. It waits half a minute for one that was just killed, and
        without end for a frozen one. So each worker is then asked alone.
        """
        scheduler = cast("Any", self._client.scheduler)
        ask = partial(
            scheduler.broadcast, msg={"op": "versions", "packages": SAME_PACKAGES}, on_error="ignore"
        )
        with self.errors(talking=True):
            try:
                return cast("dict[str, Any]", await asyncio.wait_for(ask(workers=workers), VERSIONS_S))
            except TimeoutError:
                pass  # a scheduler that is silent itself is lost at the next look
        if len(workers) == 1:
            return {}
        alone = await asyncio.gather(*(self._versions([worker]) for worker in workers))
        return {worker: versions for told in alone for worker, versions in told.items()}

    async def _answer(self, call: Callable[[], Any]) -> Any:
        """Await a method of the client, in the client's thread, for at most `ANSWER_S`."""
        with self.errors(talking=True):
            async with asyncio.timeout(ANSWER_S):
                return await call()

    def ask(self, call: Callable[[], Any]) -> Any:
        """Call a method of the client; raise ClusterLostError if it takes longer than `ANSWER_S`."""
        with self.errors(talking=True):
            # In the client's own thread, its methods return coroutines.
            return self._client.sync(call, callback_timeout=ANSWER_S)

    def facts(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker, by address."""
        found = self.ask(lambda: cast("Any", self._client.scheduler).identity(n_workers=-1))
        return cast("dict[str, Any]", found["workers"])

    async def _drop_silent(self) -> None:
        """Have the scheduler restart silent workers, which it gives up only after its `worker-ttl`, 5 min."""
        self._watched_at = time.monotonic()
        drop = make_dropper()
        try:
            silent = await self._answer(partial(self._client.run_on_scheduler, drop, SILENT_S))
        except RFFDistError:
            raise
        except Exception as error:
            # A scheduler may refuse what is pickled.
            logger.info(
                "frozen workers are left to the scheduler at %s: %s: %s",
                self.address,
                type(error).__name__,
                error,
            )
            return
        if silent:
            logger.warning(
                "%s said nothing for %g s: restarted, or left out without a nanny; the blocks run again",
                ", ".join(silent),
                SILENT_S,
            )

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
    def errors(self, *, talking: bool = False) -> Iterator[None]:
        """Turn what distributed raises when it has lost its scheduler into ClusterLostError.

        `talking`: whether the work inside only talks to the cluster, so that any OSError is the connection's.
        """
        if self._client.status == "closed":
            raise ClusterLostError("the engine's Dask client is closed; make a new engine")
        try:
            yield
        except RFFDistError:
            raise
        except (CancelledError, CommClosedError, ClosedClientError, OSError) as error:
            # The status of a client that was cut off from the network is "running" too, so `talking` decides.
            if isinstance(error, OSError) and self._client.status == "running" and not talking:
                raise  # an error of the work itself, of reading data say
            what = f"went away: {type(error).__name__}: {error}"
            if isinstance(error, TimeoutError):
                what = f"has not answered for {ANSWER_S:g} s"
            raise ClusterLostError(
                f"the scheduler at {self.address} {what}; the pass has no result. "
                "Start the cluster again and repeat it"
            ) from error


def make_dropper() -> Callable[..., Any]:
    """Return the function by which a scheduler restarts workers that were silent for too long."""

    def drop(seconds: float, dask_scheduler: Any) -> list[str]:
        # Nested, so that it is pickled by value and runs where rff_dist cannot be imported.
        from time import time

        from distributed.scheduler import heartbeat_interval

        limit = max(seconds, 5 * heartbeat_interval(len(dask_scheduler.workers)))
        silent = [
            address for address, worker in dask_scheduler.workers.items() if time() - worker.last_seen > limit
        ]
        if silent:
            # In the background. Workers without a nanny are removed, and so are those with a silent nanny.
            dask_scheduler.loop.add_callback(
                dask_scheduler.restart_workers,
                silent,
                timeout=10,
                wait_for_workers=False,
                on_error="return",
                stimulus_id="rff_dist-silent-workers",
            )
        return silent

    return drop
