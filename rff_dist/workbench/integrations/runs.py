"""A run of a job as other programs see it: its places, and the run that it belongs to.

A flow of Prefect sets `parent` for its job; lineage events name it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from rff_dist.typing import Summary, frozen

#: Returns the URLs that a job reads, with the arguments of `open_dataset` for each, and
#: the URLs that it writes.
type FindPlaces = Callable[[], tuple[Mapping[str, Summary], Sequence[str]]]


@frozen
class ParentRun:
    """A run of an orchestrator that a job belongs to."""

    namespace: str
    name: str
    id: str


#: The run that the jobs of a context belong to.
parent: ContextVar[ParentRun | None] = ContextVar("parent", default=None)
