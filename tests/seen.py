"""A module as one file sees it: some of its names replaced there, and nowhere else."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


def seen(module: ModuleType, **names: Any) -> SimpleNamespace:
    """Return what stands in for a module in one file: its names, with some of them
    replaced.
    """
    return SimpleNamespace(**{**vars(module), **names})
