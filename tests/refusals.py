"""Refusals: the error, and what its message must name, whatever its sentence."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from rff_dist.errors import InvalidParameterError

type Errors = type[BaseException] | tuple[type[BaseException], ...]
type Cases = list[Any]
WRONG = InvalidParameterError


@contextlib.contextmanager
def refuses(error: Errors, *names: object) -> Iterator[Any]:
    """Expect an error whose message, or a note to it, has each parameter, figure and
    name as a whole word.
    """
    with pytest.raises(error) as caught:
        yield caught
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    absent = [
        name
        for name in names
        if not re.search(rf"(?<!\w)(?<!\d\.){re.escape(str(name))}(?!\w)", said)
    ]
    assert not absent, f"{said!r} does not name {absent}"


def _id_of(names: Sequence[object]) -> str:
    # without addresses in memory, by which the processes of one run would name a test
    # differently
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(map(str, names)))


def each(
    call: Callable[[Any], object],
    values: Iterable[Any],
    *names: object,
    error: Errors = WRONG,
) -> Cases:
    """Make a case of each wrong value: the call that it is given to, the error, and
    what that must name.
    """
    return [
        pytest.param(
            partial(call, value), error, names, id=_id_of((*names[:2], repr(value)))
        )
        for value in values
    ]


def once(call: Callable[[], object], *names: object, error: Errors = WRONG) -> Cases:
    """Make one case, of a call without a value."""
    return [pytest.param(call, error, names, id=_id_of(names))]


def for_each_refusal(*cases: Cases) -> pytest.MarkDecorator:
    """Give a test `call`, `error` and `names` of each case."""
    return pytest.mark.parametrize(
        ("call", "error", "names"), list(itertools.chain(*cases))
    )
