"""The command line, `rff-dist`: every job of the package from a shell.

Each command reads its options, calls the library and returns a `Document`.
`shell.command` does the rest for all commands: it writes a table or one JSON document
to standard output, progress and messages to standard error, and exits with a code that
a script can act on:

====  ==================================================================================
0     done
1     failed: the job does not fit, a block or the solver failed, or a fault of the
      program
2     usage: an unknown command or option, or a value outside its range
3     `update` refused the new rows, and the model is the one of before
65    bad data: an input that is missing, damaged or unfit
69    unavailable: no scheduler answers, the cluster must not be used, or a package is
      missing
73    the output exists or cannot be written
75    the cluster was lost during the job, or another run holds or changed the output:
      try again later
130   stopped by Ctrl-C; 143 by SIGTERM
====  ==================================================================================

Options are given by flags, by the environment, or by a TOML file as `--config`; flags
win over the environment, and the environment over the file. Commands that run a job are
in jobs.py, others in NAME.py. Such a module is imported when its command is used, and
imports slow libraries inside its functions. `help.COMMANDS` lists all commands.
"""

import atexit
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from rff_dist import __version__
from rff_dist.workbench.cli import help, settings


class _Standard(io.FileIO):
    """A standard stream that ends no job: its first failure is kept, and nothing is
    written after it.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return len(data)


def main() -> None:
    """Run the command line and exit."""
    settings.is_program.set(True)
    # without it, Python's last garbage collection takes 0.1 s
    atexit.register(gc.freeze)
    # Python's own handler shows a traceback; a job has one that cleans up.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    shown = _open_streams()
    code = run(sys.argv[1:])
    sys.stdout.flush()
    # A reader that closed the pipe, such as `head`, has read what it wanted.
    if shown.failure is not None and not isinstance(shown.failure, BrokenPipeError):
        from rff_dist.workbench.results.exits import CANNOT_WRITE

        why = shown.failure.strerror
        sys.stderr.write(
            "error: the result is not shown: standard output cannot be written"
            f" ({why})\n"
        )
        code = code or CANNOT_WRITE
    sys.exit(code)


def _open_streams() -> _Standard:
    """Let standard streams take all texts and fail quietly; return that of standard
    output.
    """
    is_closed = sys.stdout is None
    # a job's file must not get the number of a closed stream
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout, shown = _stream(1, sys.stdout, errors="replace")
    sys.stderr, _ = _stream(2, sys.stderr, errors="backslashreplace")
    if is_closed:
        shown.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
    return shown


def _stream(
    number: int, before: Any, *, errors: str
) -> tuple[io.TextIOWrapper, _Standard]:
    raw = _Standard(number, "w", closefd=False)
    encoding = "utf-8" if before is None else before.encoding
    is_seen = number == 2 or raw.isatty()
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors, line_buffering=is_seen), raw


def run(words: Sequence[str]) -> int:
    """Run the program with the words after its name, and return its exit code.

    The overview shows at once: cyclopts is imported when a command is used.
    """
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(f"{help.overview()}\n")
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"rff-dist {__version__}\n")
        return 0
    from rff_dist.workbench.cli import shell

    return shell.run(words)
