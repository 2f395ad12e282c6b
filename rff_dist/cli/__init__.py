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

What takes long to import is imported inside the commands, so that `--help` is quick.
"""

# Importing a module registers its commands, and `--help` lists them in this order.
from rff_dist.cli import demo as demo  # isort: skip
from rff_dist.cli import ingest as ingest  # isort: skip
from rff_dist.cli import data as data  # isort: skip
from rff_dist.cli import generate as generate  # isort: skip
from rff_dist.cli import approximate as approximate  # isort: skip
from rff_dist.cli import plan as plan  # isort: skip
from rff_dist.cli import fit as fit  # isort: skip
from rff_dist.cli import evaluate as evaluate  # isort: skip
from rff_dist.cli import predict as predict  # isort: skip
from rff_dist.cli import tune as tune  # isort: skip
from rff_dist.cli import update as update  # isort: skip
from rff_dist.cli import cluster as cluster  # isort: skip
from rff_dist.cli import info as info  # isort: skip
from rff_dist.cli import models as models  # isort: skip
from rff_dist.cli.shell import app as app


def main() -> None:
    """Run the command line and exit."""
    app(prog_name="rff-dist")
