"""Exit codes of commands and scripts, by the error that ended them."""

import os
import re
from collections.abc import Sequence

from rff_dist import errors
from rff_dist.typing import PathLike

FAILED, USAGE = 1, 2
# From sysexits.h: 65 unusable data, 69 no service, 73 no output, 75 try again.
# The first that matches counts, so subclasses stand before their bases.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.InvalidParameterError, USAGE),
    (errors.DataError, 65),
    (errors.OutputExistsError, 73),
    (errors.ConflictError, 75),
    (errors.StorageError, 65),  # 73 if it is about an output, see `exit_code`
    (errors.ClusterLostError, 75),
    (errors.ClusterError, 69),
    (errors.MissingDependencyError, 69),
)
# Shells report a process that a signal ended as 128 + the signal: 15 for SIGTERM, 2 for Ctrl-C.
CANNOT_WRITE, BUSY, TERMINATED = 73, 75, 143
INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. It unwinds like Ctrl-C: clusters are closed and unfinished outputs removed."""


def exit_code(error: BaseException, *, outputs: Sequence[PathLike] = ()) -> int:
    """Return the exit code for an error of a command that writes to `outputs`."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, errors.OutputBusyError):
        return BUSY  # before the test for outputs: the same command works later
    if isinstance(error, errors.StorageError) and any(_is_about(error, output) for output in outputs):
        return CANNOT_WRITE
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


def _is_about(error: errors.StorageError, place: PathLike) -> bool:
    """Return whether a message names `place` or something inside it, and not just a longer name."""
    from rff_dist.storage.locations import parse_location

    try:
        location = str(parse_location(place))
    except errors.StorageError:
        return True
    names = {location, os.fspath(place)}
    # Whole names only: the output r must not be found in missing.zarr.
    return any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-]|\.\w)", str(error)) for name in names)
