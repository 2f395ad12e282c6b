"""Refusals: the error, and what its message must name, whatever its sentence."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def refuses(error: type[BaseException] | tuple[type[BaseException], ...], *names: object) -> Iterator[Any]:
    """Expect an error whose message, or a note to it, has each parameter, figure and name as a whole word."""
    with pytest.raises(error) as caught:
        yield caught
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    absent = [name for name in names if not re.search(rf"(?<!\w)(?<!\d\.){re.escape(str(name))}(?!\w)", said)]
    assert not absent, f"{said!r} does not name {absent}"
