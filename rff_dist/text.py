"""How messages write sizes and URLs."""

from __future__ import annotations

import re


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


def redact(url: str) -> str:
    """Replace user names, passwords, queries and fragments of URLs by `***`, for logs and errors."""
    text = re.sub(r"(://)[^/@]*@", r"\1***@", url)
    if "://" in text and not text.lower().startswith("file://"):
        text = re.sub(r"[?#].*", "?***", text)
    return text
