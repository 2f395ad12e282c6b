"""Set a context variable inside a `with` block, in this context only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


@contextmanager
def setting[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable to a value, and back to its former one when the block ends."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
