"""Context variables that have another value for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


@contextmanager
def setting[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a variable a value, and the one of before when the context ends."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
