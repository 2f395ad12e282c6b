"""The workers of a cluster as its client sees them: which are there, and can work.

A client of Dask goes in; the workers' addresses and threads come out. Dask's own
`nthreads` knows neither which workers have other versions, nor which are frozen or
cannot begin their tasks. And the error that Dask raises when the scheduler is gone
depends on the moment: here it is always ClusterLostError.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

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
#: Seconds within which a scheduler must remove an engine's topic.
FORGET_S = 3.0
#: Seconds within which new workers must answer with their versions.
VERSIONS_S = 5.0
#: Seconds after which a silent worker counts as frozen, and seconds between two looks
#: for such workers.
SILENT_S = 30.0
WATCH_S = 5.0
#: Seconds after which a worker that does none of its tasks is left out, and seconds
#: until it is tried again. It may be fetching the state of a pass: in 40 s, 1 GB comes
#: at 25 MB/s.
STUCK_S = 40.0
LEFT_OUT_S = 600.0


class Workers:
    """The workers of a cluster that have the client's versions and can work.

    A pass waits up to `patience` seconds while there is no worker at all.
    """

    def __init__(self, client: distributed.Client, *, patience: float) -> None:
        self._client = client
        self._patience = patience
        self._threads: dict[str, int] = {}
        now = time.monotonic()
        #: When the scheduler was last asked for workers, last had any, and was last
        #: asked which are idle.
        self._looked_at = now
        self._had_workers_at = now
        self._watched_at = now
        #: The question to the scheduler that is under way.
        self._looking: Future[dict[str, int]] | None = None
        self._same_versions: set[str] = set()
        self._other_versions: set[str] = set()
        #: Since when each state of a worker holds: pairs of a worker, and when the
        #: scheduler last heard of it, or why it is idle.
        self._since: dict[tuple[str, object], float] = {}
        #: Why workers are left out, and until when.
        self._left_out: dict[str, tuple[str, float]] = {}

    @property
    def _scheduler(self) -> Any:
        return self._client.scheduler

    @property
    def address(self) -> str:
        """The scheduler's address."""
        scheduler = self._scheduler
        return "(closed)" if scheduler is None else str(scheduler.address)

    def current(self) -> dict[str, int]:
        """Return threads by worker address, as of the scheduler's last answer.

        The scheduler is asked every `POLL_S`. This does not wait for the answer, which
        takes a second when the scheduler is busy.
        """
        if not self._threads:
            return self.look()
        looking = self._looking  # in a variable, as another thread may change it
        if looking is None and time.monotonic() - self._looked_at > POLL_S:
            loop: Any = self._client.loop
            looking = asyncio.run_coroutine_threadsafe(self._look(), loop.asyncio_loop)
            self._looking = looking
        if looking is not None and looking.done():
            self._looking = None
            with self.lost_cluster_errors(only_talks=True):
                looking.result()
        return self._threads

    def look(self) -> dict[str, int]:
        """Ask for threads by worker address, and wait for the answer.

        Raises ClusterError if all workers have other versions.
        """
        self._looking = None  # drops a question that an earlier pass left open
        with self.lost_cluster_errors(only_talks=True):
            return self._client.sync(self._look)

    async def _look(self) -> dict[str, int]:
        if time.monotonic() - self._watched_at > WATCH_S:
            await self._watch()
        threads = dict(await self._answer(self._client.nthreads))
        self._other_versions &= threads.keys()
        new = threads.keys() - self._same_versions - self._other_versions
        if new:
            await self._compare_versions(list(new))
        # Workers that did not answer are asked again at the next look.
        fit = self._same_versions - self._left_out.keys()
        self._threads = {worker: n for worker, n in threads.items() if worker in fit}
        self._looked_at = time.monotonic()
        if self._threads:
            self._had_workers_at = self._looked_at
        return self._threads

    async def _compare_versions(self, workers: list[str]) -> None:
        packages = dask_cluster.SAME_PACKAGES
        ask = partial(
            self._scheduler.broadcast,
            msg={"op": "versions", "packages": packages},
            on_error="ignore",
        )
        versions = await self._ask_each(ask, workers)
        here = distributed.versions.get_versions(packages=packages)
        wrong, table = dask_cluster.compare_versions(here, versions)
        self._other_versions |= wrong
        self._same_versions |= versions.keys() - wrong
        if wrong and not self._same_versions:
            raise ClusterError(table)
        if wrong:
            logger.warning("%s", table)

    async def _ask_each(
        self, ask: Callable[..., Any], workers: list[str]
    ) -> dict[str, Any]:
        """Return the answers of those workers that answer within `VERSIONS_S`.

        Each is asked alone: the scheduler answers when all have, and waits without end
        for a frozen one.
        """

        async def ask_one(worker: str) -> Any:
            # if the scheduler itself is silent, the next look raises
            with suppress(TimeoutError):
                return await asyncio.wait_for(ask(workers=[worker]), VERSIONS_S)
            return {}

        with self.lost_cluster_errors(only_talks=True):
            answers = await asyncio.gather(*map(ask_one, workers))
        return {
            worker: answer
            for answer_of in answers
            for worker, answer in answer_of.items()
        }

    def where(self) -> dict[str, Any]:
        """Return options of Dask that keep tasks away from left-out workers.

        Those may be out of other workers' reach, or lack packages. If no worker is left
        out, the options are empty: Dask gives a task with such options to no worker
        that comes later.
        """
        if not self._threads:
            self.look()
        if not self._left_out and not self._other_versions:
            return {}
        return {"workers": list(self._threads), "allow_other_workers": True}

    def run(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Run a function on each worker; return results or errors by address."""
        workers = list(self.look())
        if not workers:
            return {}
        ask = partial(self._client.run, function, on_error="return")
        return self._client.sync(self._ask_each, ask, workers)

    async def _answer(self, call: Callable[[], Any]) -> Any:
        """Await a method of the client, in its thread, for at most `ANSWER_S`."""
        with self.lost_cluster_errors(only_talks=True):
            async with asyncio.timeout(ANSWER_S):
                return await call()

    def ask(self, call: Callable[[], Any]) -> Any:
        """Call a method of the client, or raise ClusterLostError after `ANSWER_S`."""
        return self._client.sync(self._answer, call)

    def forget(self, topic: str) -> None:
        """Remove a topic from the scheduler, which would keep its last events."""

        # A nested function is pickled by value, and so runs on a scheduler without
        # rff_dist.
        async def remove(dask_scheduler: Any) -> None:
            topics = dask_scheduler._broker._topics
            for _ in range(100):
                if topics[topic].subscribers:  # the client's farewell is under way
                    await asyncio.sleep(0.01)
            del topics[topic]

        async def ask() -> None:
            async with asyncio.timeout(FORGET_S):
                removal: Any = self._client.run_on_scheduler(remove)
                await removal

        self._client.unsubscribe_topic(topic)
        try:
            self._client.sync(ask)
        except Exception as error:
            # A scheduler that is frozen or gone must not hide the result of the work,
            # or its error.
            logger.info(
                "the topic %s stays on the scheduler: %s: %s",
                topic,
                type(error).__name__,
                error,
            )

    def facts(self) -> Summary:
        """Return the scheduler's facts about each worker, by address."""
        return self._client.sync(self._facts)

    async def _facts(self) -> Summary:
        identify = partial(self._scheduler.identity, n_workers=-1)
        return (await self._answer(identify))["workers"]

    async def _watch(self) -> None:
        """Restart silent workers, and leave out stuck ones.

        The scheduler itself gives up silent ones after 5 min.
        """
        now = time.monotonic()
        # After a pause, between two passes or while this process slept, old states say
        # nothing about the time since.
        if now - self._watched_at > SILENT_S:
            self._since = {}
        self._watched_at = now
        workers = await self._facts()
        last_seen = [(worker, facts["last_seen"]) for worker, facts in workers.items()]
        reasons = [(worker, why_idle(facts)) for worker, facts in workers.items()]
        states = [*last_seen, *reasons]
        self._since = {state: self._since.get(state, now) for state in states}
        self._left_out = {
            worker: (reason, until)
            for worker, (reason, until) in self._left_out.items()
            if worker in workers and until > now
        }
        for worker, reason in reasons:
            if reason is not None and now - self._since[worker, reason] > STUCK_S:
                if worker not in self._left_out:
                    logger.warning(
                        "worker %s %s: left out for %g s", worker, reason, LEFT_OUT_S
                    )
                self._left_out[worker] = reason, now + LEFT_OUT_S

        limit = max(SILENT_S, 5 * heartbeat_interval(len(workers)))
        silent = [state[0] for state in last_seen if now - self._since[state] > limit]
        if silent:
            logger.warning(
                "%s did not respond for %g s: restarted, or left out without a nanny;"
                " the"
                " blocks run again",
                ", ".join(silent),
                SILENT_S,
            )
            # Workers without a nanny are removed, and so are those with a silent nanny.
            restart = partial(
                self._scheduler.restart_workers,
                workers=silent,
                timeout=10,
                wait_for_workers=False,
                on_error="return",
                stimulus_id="rff_dist-silent-workers",
            )
            await self._answer(restart)

    def check_patience(self) -> None:
        """Raise ClusterLostError if all workers are left out, or none came in time."""
        waited = time.monotonic() - self._had_workers_at
        if not self._threads and self._left_out:
            workers = list(self._left_out)
            reasons = {reason for reason, _ in self._left_out.values()}
            more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
            raise ClusterLostError(
                f"no worker of the cluster at {self.address} can go on:"
                f" {', '.join(workers[:5])}{more} {' or '.join(reasons)}; the pass has"
                " no result"
            )
        if not self._threads and waited > self._patience:
            raise ClusterLostError(
                f"the cluster at {self.address} has had no worker for {waited:.0f} s"
                f" (`patience`={self._patience:g}); the pass has no result. Start"
                f" workers (`dask worker {self.address}`) and repeat it"
            )

    @contextmanager
    def lost_cluster_errors(self, *, only_talks: bool = False) -> Iterator[None]:
        """Turn errors that distributed raises without its scheduler into
        ClusterLostError.

        With `only_talks`, work that only talks to the cluster, each OSError is one of
        the connection.
        """
        if self._client.status == "closed":
            raise ClusterLostError(
                "the engine's Dask client is closed; make a new engine"
            )
        try:
            yield
        except RFFDistError:
            raise
        except (CancelledError, CommClosedError, ClosedClientError, OSError) as error:
            # A client that was cut off from the network has the status "running" too,
            # so `only_talks` is needed.
            is_connected = self._client.status == "running" and not only_talks
            if isinstance(error, OSError) and is_connected:
                raise  # an error of the work itself, of reading data say
            failure = f"went away: {type(error).__name__}: {error}"
            if isinstance(error, TimeoutError):
                failure = f"has not answered for {ANSWER_S:g} s"
            raise ClusterLostError(
                f"the scheduler at {self.address} {failure}; the pass has no result. "
                "Start the cluster again and repeat it"
            ) from error


def why_idle(facts: Facts) -> str | None:
    """Return why a worker does nothing though there are tasks for it; None otherwise.

    The scheduler knows these facts from the worker's heartbeats.
    """
    tasks = facts["metrics"].get("task_counts", {})
    for state in ("executing", "long-running", "cancelled", "resumed"):
        if tasks.get(state):
            return None
    if facts["status"] == "paused":  # the scheduler then keeps its tasks back
        return (
            "cannot begin a task with full memory (give more by `dask worker"
            " --memory-limit`)"
        )
    if tasks.get("waiting"):
        return (
            "cannot fetch data from other workers (open the workers' ports to one"
            " another, which `dask worker --worker-port` sets, or look at their logs)"
        )
    return None
