"""A run of a job as programs elsewhere see it: its places, and what it is part of."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from rff_dist.typing import Summary, frozen

#: Returns the URLs of what a job reads, with the names of arrays that `open_dataset`
#: takes, and of what it writes.
type FindPlaces = Callable[[], tuple[Mapping[str, Summary], Sequence[str]]]


@frozen
class ParentRun:
    """A run of an orchestrator that a job belongs to."""

    namespace: str
    name: str
    id: str


#: The run that the jobs of a context belong to.
parent: ContextVar[ParentRun | None] = ContextVar("parent", default=None)
