"""Context variables: give one another value inside a `with`, in this context only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


@contextmanager
def setting[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a variable a value, and its former one back when the block ends."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
