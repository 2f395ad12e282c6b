# mypy: allow-untyped-calls
"""The workers of a cluster as the client sees them, and the errors when they or the scheduler are gone."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import distributed
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.scheduler import heartbeat_interval

from rff_dist.engines import dask_cluster
from rff_dist.errors import ClusterError, ClusterLostError, RFFDistError
from rff_dist.typing import Facts, Summary

logger = logging.getLogger(__name__)

#: Seconds between two looks at the cluster while a pass waits.
POLL_S = 1.0
#: Seconds within which the scheduler must answer.
ANSWER_S = 30.0
#: Seconds within which a scheduler must take leave of an engine.
FORGET_S = 3.0
#: Seconds within which new workers must tell their versions.
VERSIONS_S = 5.0
#: Seconds after which a silent worker counts as frozen, and seconds between two looks for such workers.
SILENT_S, WATCH_S = 30.0, 5.0
#: Seconds after which a worker that does none of its tasks is left out, and seconds until it is tried again.
#: It may be waiting for the function or the state of a pass, of which 25 MB/s bring 1 GB in time.
STUCK_S, LEFT_OUT_S = 40.0, 600.0


class Workers:
    """The workers of a client's cluster that have the client's versions; others are left out.

    `patience`: seconds that a pass waits while there is no worker at all.
    """

    def __init__(self, client: distributed.Client, *, patience: float) -> None:
        self._client, self._patience = client, patience
        self._threads: dict[str, int] = {}
        self._looked_at = self._seen_at = self._watched_at = time.monotonic()
        self._looking: Future[dict[str, int]] | None = None
        self._same_versions: set[str] = set()
        self._other_versions: set[str] = set()
        #: Since when each worker has been as it is: when it was last seen, or why it does nothing.
        self._since: dict[tuple[str, object], float] = {}
        #: Why workers are left out, and until when.
        self._left_out: dict[str, tuple[str, float]] = {}

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
        looking = self._looking  # another thread may take in the answer, too
        if looking is None and time.monotonic() - self._looked_at > POLL_S:
            loop = cast("Any", self._client.loop).asyncio_loop
            self._looking = looking = asyncio.run_coroutine_threadsafe(self._look(), loop)
        if looking is not None and looking.done():
            self._looking = None
            with self.errors(talking=True):
                looking.result()
        return self._threads

    def look(self) -> dict[str, int]:
        """Ask for threads by worker address; raise ClusterError if all workers have other versions."""
        self._looking = None  # an answer that a pass before did not wait for
        with self.errors(talking=True):
            return cast("dict[str, int]", self._client.sync(self._look))

    async def _look(self) -> dict[str, int]:
        if time.monotonic() - self._watched_at > WATCH_S:
            await self._watch()
        threads = dict(await self._answer(self._client.nthreads))
        self._other_versions &= threads.keys()
        if new := threads.keys() - self._same_versions - self._other_versions:
            packages = dask_cluster.SAME_PACKAGES
            message = {"op": "versions", "packages": packages}
            ask = partial(cast("Any", self._client.scheduler).broadcast, msg=message, on_error="ignore")
            versions = await self._tell(ask, list(new))
            here = distributed.versions.get_versions(packages=packages)
            wrong, table = dask_cluster.compare_versions(here, versions)
            self._other_versions |= wrong
            self._same_versions |= versions.keys() - wrong
            if wrong and not self._same_versions:
                raise ClusterError(table)
            if wrong:
                logger.warning("%s", table)
        # Workers that told nothing are asked again at the next look.
        fit = self._same_versions - self._left_out.keys()
        self._threads = {worker: n for worker, n in threads.items() if worker in fit}
        self._looked_at = time.monotonic()
        if self._threads:
            self._seen_at = self._looked_at
        return self._threads

    async def _tell(self, ask: Callable[..., Any], workers: list[str]) -> dict[str, Any]:
        """Return what `ask(workers=[worker])` finds out from those workers that answer within `VERSIONS_S`.

        Each is asked alone: the scheduler answers when all have, and waits without end for a frozen one.
        """

        async def tell(worker: str) -> Any:
            with suppress(TimeoutError):  # a scheduler that is silent itself is lost at the next look
                return await asyncio.wait_for(ask(workers=[worker]), VERSIONS_S)
            return {}

        with self.errors(talking=True):
            answers = await asyncio.gather(*map(tell, workers))
        return {worker: answer for one in answers for worker, answer in one.items()}

    def where(self) -> dict[str, Any]:
        """Return options of Dask that keep tasks from workers that are left out, if there are any.

        Others may not reach those, or they lack packages. Where all workers die, Dask would not give a task
        with such options to new ones.
        """
        if not self._threads:
            self.look()
        if not self._left_out and not self._other_versions:
            return {}
        return {"workers": list(self._threads), "allow_other_workers": True}

    def run(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Run a function on each worker; return its result or error by the address of each that answers."""
        workers = list(self.look())
        ask = partial(self._client.run, function, on_error="return")
        return cast("dict[str, Any]", self._client.sync(self._tell, ask, workers)) if workers else {}

    async def _answer(self, call: Callable[[], Any]) -> Any:
        """Await a method of the client, in the client's thread, for at most `ANSWER_S`."""
        with self.errors(talking=True):
            async with asyncio.timeout(ANSWER_S):
                return await call()

    def ask(self, call: Callable[[], Any]) -> Any:
        """Call a method of the client; raise ClusterLostError if it takes longer than `ANSWER_S`."""
        return self._client.sync(self._answer, call)

    def forget(self, topic: str) -> None:
        """Remove a topic from the scheduler, which would keep its last events as long as it runs."""

        # Nested, so that it is pickled by value and runs where rff_dist cannot be imported.
        async def remove(dask_scheduler: Any) -> None:
            topics = dask_scheduler._broker._topics
            for _ in range(100):
                if topics[topic].subscribers:  # the client's farewell is under way
                    await asyncio.sleep(0.01)
            del topics[topic]

        async def ask() -> None:
            async with asyncio.timeout(FORGET_S):
                await cast("Any", self._client.run_on_scheduler(remove))

        self._client.unsubscribe_topic(topic)
        try:
            self._client.sync(ask)
        except Exception as error:
            # A scheduler that is frozen or gone must not hide the result of the work, or its error.
            logger.info("the topic %s stays on the scheduler: %s: %s", topic, type(error).__name__, error)

    def facts(self) -> Summary:
        """Return what the scheduler knows of each worker, by address."""
        identity = self.ask(lambda: cast("Any", self._client.scheduler).identity(n_workers=-1))
        return cast("dict[str, Any]", identity["workers"])

    async def _watch(self) -> None:
        """Restart silent workers, which the scheduler gives up after 5 min only, and leave out stuck ones."""
        now = time.monotonic()
        if now - self._watched_at > SILENT_S:  # no one looked between two passes, or while this process slept
            self._since = {}
        self._watched_at = now
        scheduler = cast("Any", self._client.scheduler)
        workers = (await self._answer(partial(scheduler.identity, n_workers=-1)))["workers"]
        seen = [(worker, facts["last_seen"]) for worker, facts in workers.items()]
        states = [*seen, *((worker, why_idle(facts)) for worker, facts in workers.items())]
        self._since = {state: self._since.get(state, now) for state in states}
        limit = max(SILENT_S, 5 * heartbeat_interval(len(workers)))
        silent = [state[0] for state in seen if now - self._since[state] > limit]
        left_out = {worker: out for worker, out in self._left_out.items() if worker in workers}
        self._left_out = {worker: (why, until) for worker, (why, until) in left_out.items() if until > now}
        for worker, why in self._since:
            if isinstance(why, str) and now - self._since[worker, why] > STUCK_S:
                if worker not in self._left_out:
                    logger.warning("worker %s %s: left out for %g s", worker, why, LEFT_OUT_S)
                self._left_out[worker] = why, now + LEFT_OUT_S
        if silent:
            logger.warning(
                "%s said nothing for %g s: restarted, or left out without a nanny; the blocks run again",
                ", ".join(silent),
                SILENT_S,
            )
            # Workers without a nanny are removed, and so are those with a silent nanny.
            restart = partial(scheduler.restart_workers, workers=silent, timeout=10, wait_for_workers=False)
            await self._answer(partial(restart, on_error="return", stimulus_id="rff_dist-silent-workers"))

    def check_patience(self) -> None:
        """Raise ClusterLostError if there has been no worker for too long, or if all are left out."""
        waited = time.monotonic() - self._seen_at
        if not self._threads and self._left_out:
            workers, reasons = list(self._left_out), {why for why, _ in self._left_out.values()}
            more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
            raise ClusterLostError(
                f"no worker of the cluster at {self.address} can go on: {', '.join(workers[:5])}{more} "
                f"{' or '.join(reasons)}; the pass has no result"
            )
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


def why_idle(facts: Facts) -> str | None:
    """Return why a worker does nothing though there are tasks for it; None if it works, or there are none.

    `facts`: what the scheduler knows of it, from its heartbeats.
    """
    tasks = facts["metrics"].get("task_counts", {})
    if any(tasks.get(state) for state in ("executing", "long-running", "cancelled", "resumed")):
        return None
    if facts["status"] == "paused":  # the scheduler then keeps its tasks back
        return "cannot begin a task with full memory (give more by `dask worker --memory-limit`)"
    if tasks.get("waiting"):
        return (
            "cannot fetch data from other workers (open the workers' ports to one another, which "
            "`dask worker --worker-port` sets, or look at their logs)"
        )
    return None
