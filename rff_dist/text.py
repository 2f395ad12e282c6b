"""Write numbers, sizes, URLs and objects in messages.

Values go in; texts come out. Numbers are rounded so that a reader is not misled: a
score below 1 is never shown as 1. URLs lose passwords. Objects with arrays take one
line.
"""

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

#: Titles of errors, by their names in records and documents.
ERROR_TITLES = {
    "rmse": "RMSE",
    "r2": "R²",
    "median_error": "median error",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
}


def human_bytes(n_bytes: float) -> str:
    """Return a size in the unit that a person would use.

    >>> human_bytes(3_328_599_654)
    '3.1 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


_USER = r"[^/@]*"
# A password may have any character, so all up to the URL's last "@" belongs to it.
_USER_AND_PASSWORD = r"[^/@:]*[:@].*"
_CREDENTIALS = re.compile(f"://({_USER_AND_PASSWORD}|{_USER})@")


def redact(url: str) -> str:
    """Replace user names, passwords, queries and fragments of a URL by `***`.

    >>> redact("s3://name:p@ss/word@host/data?key=1"), redact("https://host/page#part")
    ('s3://***@host/data?***', 'https://host/page?***')
    """
    text = _CREDENTIALS.sub("://***@", url)
    if "://" in text and not text.lower().startswith("file://"):
        text = re.sub(r"[?#].*", "?***", text)
    return text


def without_secrets(text: str) -> str:
    """Replace the secrets in the URLs of a text by `***`."""
    return re.sub(r"[\w.+-]+://\S+", lambda url: redact(url[0]), text)


def number(value: Any) -> str:
    """Return a number in four significant digits, or as a whole number.

    Integers, and values from 9,999.5 to 10⁷, are written as whole numbers.

    >>> number(0.123456), number(123456.7), number(12), number(None)
    ('0.1235', '123,457', '12', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if 0.99995 <= value < 1:
        return score(value, 4)
    # ".4g" would write 1e+04
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e7 else f"{value:.4g}"


def score(value: float, digits: int = 2, best: float = 1.0) -> str:
    """Return a score with `digits` decimals; with more if it would round to `best`.

    >>> score(0.9044), score(0.9978), score(1.0)
    ('0.90', '0.998', '1.00')
    """
    while value < best and round(value, digits) >= best and digits < 16:
        digits += 1
    # -0 becomes 0
    return f"{round(value, digits) + 0.0:.{digits}f}"


def share(value: float) -> str:
    """Return a share in percent; a share below 1 is never shown as 100%.

    >>> share(0.9042), share(0.99996), share(1.0)
    ('90.4%', '99.996%', '100.0%')
    """
    return f"{score(100 * value, 1, 100.0)}%"


def score_words(
    name: str, value: float | None, deviation: float | None = None, *, like: Any = None
) -> str:
    """Return an error or a score in the format of its name, as "value ± deviation" if
    there is a deviation.

    RMSE and median error have four digits, or the decimals of the RMSE `like`; shares
    are in percent; R² and log loss have three decimals, with more if R² would round to
    1. A single split has a deviation of None or NaN.

    >>> score_words("r2", 0.9978), score_words("rmse", 4.29, 0.1801)
    ('0.998', '4.290 ± 0.180')
    >>> score_words("accuracy", 0.99, 0.004), score_words("rmse", 11893.2, like=5.0)
    ('99.0% ± 0.4%', '11,893.200')
    """
    if value is None or not math.isfinite(value):
        return "–"
    values = [value]
    if deviation is not None and math.isfinite(deviation) and deviation > 0:
        values.append(deviation)
    if name in ("rmse", "median_error"):
        size = abs(like or value)
        if not 1e-5 < size < 1e7:
            return " ± ".join(map(number, values))
        decimals = max(0, 3 - math.floor(math.log10(size)))
        comma = "," if abs(value) >= 9999.5 else ""  # as in `number`
        return " ± ".join(f"{part:{comma}.{decimals}f}" for part in values)
    write: Callable[[float], str] = share
    if name == "r2":
        write = partial(score, digits=3)
    elif name == "log_loss":
        write = partial(score, digits=3, best=math.inf)  # no value is the best
    return " ± ".join(map(write, values))


def clipped(text: str, most: int = 50) -> str:
    """Return a text, or its beginning if it is long.

    >>> clipped("abcdefg", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name closest to a mistyped one, if any is close."""
    by_lower = {text.casefold(): text for text in known}
    near = difflib.get_close_matches(name.casefold(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def first_few(values: Sequence[Any]) -> str:
    """Return the first eight of some names or numbers."""
    shown = ", ".join(
        number(value) if isinstance(value, float) else str(value)
        for value in values[:8]
    )
    return shown + (f" … ({len(values)})" if len(values) > 8 else "")


def words_by_target(name: str, values: Any, deviations: Any = None) -> str:
    """Return `score_words` of an error, or of a list of errors, one per target."""
    if not isinstance(values, list):
        values = [values]
        deviations = [deviations]
    deviations = deviations or [None] * len(values)
    pairs = zip(values, deviations, strict=True)
    return first_few([score_words(name, *pair) for pair in pairs])


class _OneLine(reprlib.Repr):
    """Writes arrays by dtype and shape, and long objects by their types."""

    def __init__(self) -> None:
        super().__init__(
            maxlevel=2, maxtuple=4, maxlist=4, maxdict=2, maxstring=60, maxlong=30
        )

    def repr_ndarray(self, array: Any, level: int) -> str:
        return f"{array.dtype} {array.shape}"

    def repr_instance(self, value: Any, level: int) -> str:
        text = repr(value)
        return (
            text
            if len(text) <= 60 or not is_dataclass(value)
            else f"{type(value).__name__}(…)"
        )


_one_line = _OneLine()


def short_repr(instance: Any) -> str:
    """Return one line for a dataclass with arrays of any size; for its `__repr__`.

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass
    ... class Pair:
    ...     name: str
    ...     values: np.ndarray
    ...     __repr__ = short_repr
    >>> Pair("weights", np.zeros((1000, 8)))
    Pair(name='weights', values=float64 (1000, 8))
    """
    names = [field.name for field in fields(instance) if field.repr]
    parts = [f"{name}={_one_line.repr(getattr(instance, name))}" for name in names]
    return f"{type(instance).__name__}({', '.join(parts)})"
