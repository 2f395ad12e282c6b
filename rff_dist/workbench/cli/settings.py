"""What one run of the program was asked about its messages.

Options go in when a command begins, and all that writes messages reads them here.
Arguments would have to pass through the library, which knows of no command; and this
module is light, since `--help` waits for it.
"""

from collections.abc import Set
from contextvars import ContextVar

log_format: ContextVar[str] = ContextVar("log_format", default="text")
#: Whether standard error gets only warnings and errors.
quiet: ContextVar[bool] = ContextVar("quiet", default=False)
#: Whether the process runs one command only, whose time is then that of the process.
is_program: ContextVar[bool] = ContextVar("is_program", default=False)

#: Names of the options of the command that runs.
options: ContextVar[Set[str]] = ContextVar("options", default=frozenset())
#: Warnings that it has shown.
warned: ContextVar[tuple[str, ...]] = ContextVar("warned", default=())


def logs_json() -> bool:
    """Return whether standard error gets one JSON object a line, instead of words and
    progress bars.
    """
    return log_format.get() == "json"
