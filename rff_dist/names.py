"""Finding things by the names that users give."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from rff_dist.errors import InvalidParameterError


def find_by_name[T](table: Mapping[str, T], name: object, what: str) -> T:
    """Return the entry of that name.

    Raises
    ------
    InvalidParameterError
        If there is none; the message gives the nearest one.
    """
    if isinstance(name, str) and name in table:
        return table[name]
    close = difflib.get_close_matches(str(name), table, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise InvalidParameterError(
        f"unknown `{what}` {name!r}{hint}; expected one of {sorted(table)} or an object"
    )
