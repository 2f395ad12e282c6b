"""What a job may take: its time and its tries.

In go two options, out come a time limit around the job and retries of its steps. A time
limit alone would stop a hopeless job only after hours. So a fit whose planned time is
too long is refused: before a cluster starts, if the options tell the cluster's size,
else before the first pass.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from rff_dist import errors, fields

if TYPE_CHECKING:
    from rff_dist.data import blocks
    from rff_dist.engines.cluster import Cluster
    from rff_dist.fitting.options import RidgeOptions
    from rff_dist.fitting.plan import Plan
    from rff_dist.fitting.sizes import Machines

#: Seconds before the first retry, enough after a lost connection, and before each later
#: one: in a minute workers or a store may have started again.
RETRY_DELAYS_S = (10.0, 60.0)
_AGAIN_S = 1.0  # between further signals, when a job's time is over
_MOST_CAUSES = 20  # of an error; a chain of causes may lead back to itself


@fields.group
class JobLimits:
    """How long a job may take, and how many times its steps are tried again."""

    panel: ClassVar[str] = "Where it runs"

    timeout_minutes: fields.Positive | None = fields.optional(
        "Minutes after which an unfinished job fails. A fit that is estimated to take"
        " longer is refused before it starts. By default there is no limit."
    )
    retries: fields.WholeNumber = fields.option(
        "Number of times that a step is tried again, after an error that may be"
        " temporary: a cluster without workers, a store out of reach.",
        0,
    )

    @property
    def delays(self) -> list[float]:
        """Seconds to wait before each retry."""
        first, later = RETRY_DELAYS_S
        return [first, *[later] * (self.retries - 1)] if self.retries else []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Raise JobTimeoutError in a `with` block that takes too long; only in the main
        thread.
        """
        if self.timeout_minutes is None:
            yield
            return
        old_handler = signal.signal(signal.SIGALRM, _stop)
        seconds = min(60 * self.timeout_minutes, threading.TIMEOUT_MAX)
        old_timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
        try:
            try:
                yield
            finally:
                # up to here the signal may still come, which `except` below catches
                signal.setitimer(signal.ITIMER_REAL, *old_timer)
        except _OutOfTimeError:
            raise self.exceeded() from None
        finally:
            signal.signal(signal.SIGALRM, old_handler)

    def exceeded(self) -> errors.JobTimeoutError:
        """Return the error of a job that took too long."""
        return errors.JobTimeoutError(
            f"the run took longer than `timeout_minutes`={self.timeout_minutes:g} and"
            " was stopped; what it had published by then stays, everything else is"
            " unchanged."
            " Give it more time or more workers, and run it again"
        )

    def check(self, plan: Plan) -> None:
        """Raise PlanError if by the plan the sums of a fit alone take longer than the
        job may.
        """
        if self.timeout_minutes is None:
            return
        from rff_dist.products import choice

        # The lowest estimate: this machine's fastest products, and no time for reading
        # and solving. A fit that is refused by it has no chance.
        minutes = plan.seconds(choice.rate_for(plan.n_components).gflops) / 60
        if minutes > self.timeout_minutes:
            raise errors.PlanError(
                f"the sums of n_components={plan.n_components:_} alone are estimated to"
                f" take"
                f" {minutes:.3g} minutes on {plan.n_workers} × {plan.n_threads}"
                f" threads, but `timeout_minutes` is {self.timeout_minutes:g}; give it"
                " more time or more workers, or fewer components"
            )

    def check_before(
        self, rows: blocks.Dataset, options: RidgeOptions, cluster: Cluster | None
    ) -> None:
        """Raise PlanError, before its cluster starts, if a fit needs more memory or
        time than there is; see `check`.

        Nothing is checked if the size of the cluster is not known yet: `cluster` is
        None, or it does not start here.
        """
        machines = None if cluster is None else machines_of(cluster)
        n_components = options.n_components
        if machines is None or isinstance(n_components, str):
            return  # "auto" chooses a number that fits into memory
        from rff_dist.fitting.solver_plan import plan_regression

        largest = n_components if isinstance(n_components, int) else max(n_components)
        self.check(plan_regression(rows, largest, options, machines=machines))


class _OutOfTimeError(BaseException):
    """The time of a job is over. It is no `Exception`: code that reads a file would
    catch that, and report a damaged file.
    """


def _stop(_: int, __: FrameType | None) -> None:
    """Raise the error that ends a job whose time is over.

    The signal comes again each second, in case a destructor or a callback swallowed the
    error.
    """
    error = sys.exception()
    while error is not None:
        if isinstance(error, _OutOfTimeError):
            return  # it is being raised already, and contexts are cleaning up
        error = error.__context__
    raise _OutOfTimeError


def machines_of(cluster: Cluster) -> Machines | None:
    """Return the processes of a cluster that would start here; None for any other
    cluster.
    """
    if cluster.scheduler is not None or cluster.cluster is not None:
        return None
    from rff_dist.fitting.sizes import Machines
    from rff_dist.numerics import machine

    here = machine.available_memory()
    memory = cluster.memory_bytes
    n_workers, n_threads = cluster.size()
    return Machines(
        n_workers=n_workers,
        n_threads=n_threads,
        has_separate_client=not cluster.serial,
        # Workers that start here share this machine's memory.
        memory_limit=memory or (here if cluster.serial else here // n_workers),
        client_memory_limit=memory or here,
    )


def is_transient(error: BaseException) -> bool:
    """Return whether an error may be gone a minute later: a cluster without workers, a
    store out of reach.
    """
    if isinstance(error, errors.ClusterLostError | errors.ClusterUnavailableError):
        return True
    # Errors of this package are decisions about data and parameters, which stay as they
    # are. Only a StorageError may come from a network, so its causes decide; but not
    # its subclasses, for what exists, is damaged or belongs to another run.
    if (
        isinstance(error, errors.RFFDistError)
        and type(error) is not errors.StorageError
    ):
        return False
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            return False
        if not isinstance(cause, errors.RFFDistError) and _is_of_the_network(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_of_the_network(error: BaseException) -> bool:
    if type(error).__module__.startswith("obstore"):
        # the class of all errors that have no special class, such as a store that does
        # not answer, or answers 503
        return type(error).__name__ == "GenericError"
    # errors of file systems on a network
    unreachable = (errno.ESTALE, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in unreachable
