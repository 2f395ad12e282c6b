"""Modules that take long to import, or may be missing, and are imported when they are first used."""

from importlib import import_module
from types import ModuleType
from typing import Any

from rff_dist.errors import MissingDependencyError


class LazyModule(ModuleType):
    """Stands for the module of its name at the head of a file, and imports it at the first look at it."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # tables of thousands of columns ask a million times
        return value


def require(module: str, why: str, extra: str, where: str = "") -> Any:
    """Import a module of a package that an extra installs.

    `why`: what needs it, such as "models are logged by the package mlflow".
    `where`: what else to say about where to install it.
    Raises MissingDependencyError if it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{why}, which is not installed: pip install rff_dist[{extra}]{where}"
        ) from error
