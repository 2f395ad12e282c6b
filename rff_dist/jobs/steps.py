"""How jobs run: named steps that leave records, taken alike by the command line, the flows and Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rff_dist.engines.protocol import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import InvalidParameterError
from rff_dist.typing import Summary

if TYPE_CHECKING:
    from rff_dist.storage.writing import Progress


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a step returns that had nothing to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job.

    `name`: it is told by that name, and so is its record.
    `run`: takes the step and returns its record: small and JSON-able.
    `repeatable`: whether a second try does no harm, since it reads, or writes again what it wrote.
    """

    name: str
    run: Callable[[], Summary | Skipped]
    repeatable: bool = False


def take(step: Step) -> Summary | None:
    """Take a step, and return its record; None where it was skipped."""
    found = step.run()
    return None if isinstance(found, Skipped) else found


@dataclass(frozen=True, slots=True)
class Runner:
    """By what a job is driven.

    `open_engine`: takes the number of rows that the job passes over, and returns a context that gives the
      engine; it is opened when all that can be refused has been.
    `take`: takes a step, as a task of an orchestrator say.
    `holder`: who runs the job, for the message that others get who would write to the same place.
    `elsewhere`: whether workers may be on machines that do not see temporary files of this one.
    `observer`: told how many rows of a table were made, which a job makes before its engine is opened.
    """

    open_engine: Callable[[int], AbstractContextManager[Engine]]
    take: Callable[[Step], Summary | None] = take
    holder: str = "a job"
    elsewhere: bool = False
    observer: Progress | None = None


def in_this_process(engine: Engine | None = None) -> Runner:
    """Return what drives a job in Python: by the engine, which is left open, or without Dask."""
    from contextlib import nullcontext

    return Runner(lambda _: SerialEngine() if engine is None else nullcontext(engine))


def made[T](value: T | None) -> T:
    """Return what an earlier step made.

    Raises InvalidParameterError if that was not taken.
    """
    if value is None:
        raise InvalidParameterError("the steps of a job were not taken in their order; see its `steps`")
    return value


def run_steps(steps: Iterable[Step], runner: Runner) -> dict[str, Summary | None]:
    """Take all steps in their order, and return their records by name."""
    return {step.name: runner.take(step) for step in steps}
