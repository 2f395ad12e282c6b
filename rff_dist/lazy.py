"""Modules that take long to import, or may be missing, and are imported when they are first used."""

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for the module of its name at the head of a file, and imports it at the first look at it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)
