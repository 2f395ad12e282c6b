"""The command line, `rff-dist`: every job of the package from a shell.

Each command reads its options, calls the library and returns a `Report`. What surrounds that is done
once, in `shell.command`: a table or one JSON document on standard output, progress and messages on
standard error, and an exit code that a script can act on:

====  ====================================================================================
0     done
1     failed: the job does not fit, a block or the solver failed, or a fault of the program
2     usage: an unknown command or option, or a value outside its range
65    bad data: an input that is missing, damaged or unfit
69    unavailable: no scheduler answers, the cluster must not be used, or a package is missing
73    the output exists or cannot be written
75    the cluster was lost on the way, or another run holds or changed it: try again later
130   stopped by Ctrl-C; 143 by SIGTERM
====  ====================================================================================

A command's module, rff_dist/cli/NAME.py, is imported when the command is used, and registers itself then;
`help.COMMANDS` lists them all. What takes long to import is imported inside the commands.
"""

import atexit
import gc

from rff_dist.cli.program import app as app


def main() -> None:
    """Run the command line and exit."""
    atexit.register(gc.freeze)  # the collector's last round through all that was imported takes 0.1 s
    app(prog_name="rff-dist")
