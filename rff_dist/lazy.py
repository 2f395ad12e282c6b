"""Modules that are imported when they are first used, or that may be missing.

Arrow takes 0.1 s to import, which `rff-dist --help` need not wait for; packages of an
extra may not be installed, which `require` reports with the command that installs them.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from rff_dist.errors import MissingDependencyError


class LazyModule(ModuleType):
    """A module that is imported when one of its members is first used."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # looked up a million times for wide tables
        return value


def require(module: str, why: str, extra: str) -> Any:
    """Import a module of a package that an extra installs.

    Raises MissingDependencyError if it is not installed. The message begins with `why`
    the package is needed, such as "models are logged by the package mlflow".
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{why}, which is not installed: pip install rff_dist[{extra}]"
        ) from error
