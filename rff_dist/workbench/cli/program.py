"""The program `rff-dist`: its overview shows at once; cyclopts is imported when a command is used."""

import sys
from collections.abc import Sequence

from rff_dist import __version__
from rff_dist.workbench.cli import help


def run(words: Sequence[str]) -> int:
    """Run the program with the words after its name, and return its exit code."""
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(f"{help.overview()}\n")
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"rff-dist {__version__}\n")
        return 0
    from rff_dist.workbench.cli import shell

    return shell.run(words)
