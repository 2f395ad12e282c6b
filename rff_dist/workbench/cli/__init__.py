"""The command line, `rff-dist`: every job of the package from a shell.

Each command reads its options, calls the library and returns a `Document`. `shell.command` does the rest for
all commands: it writes a table or one JSON document to standard output, progress and messages to standard
error, and exits with a code that a script can act on:

====  ====================================================================================
0     done
1     failed: the job does not fit, a block or the solver failed, or a fault of the program
2     usage: an unknown command or option, or a value outside its range
3     `update` refused the new rows, and the model is the one of before
65    bad data: an input that is missing, damaged or unfit
69    unavailable: no scheduler answers, the cluster must not be used, or a package is missing
73    the output exists or cannot be written
75    the cluster was lost during the job, or another run holds or changed the output: try again later
130   stopped by Ctrl-C; 143 by SIGTERM
====  ====================================================================================

Options are given by flags, by the environment, or by a TOML file as `--config`; flags count most, and the
file least. Commands that run a job are in jobs.py, others in NAME.py. Such a module is imported when its
command is used, and imports slow libraries inside its functions. `help.COMMANDS` lists all commands.
"""

import atexit
import gc
import sys
from collections.abc import Sequence

from rff_dist import __version__
from rff_dist.workbench.cli import help, settings


def main() -> None:
    """Run the command line and exit."""
    settings.is_program.set(True)
    atexit.register(gc.freeze)  # without it, Python's last garbage collection takes 0.1 s
    sys.exit(run(sys.argv[1:]))


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
