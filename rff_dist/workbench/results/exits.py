"""Exit codes of commands and scripts, most of them by the error that ended them.

In goes an error, out comes a code that a script can act on: try again later, correct
the data, or choose another output. Python's own code would be 1 for all of them.
"""

import os
import re
from collections.abc import Sequence

from rff_dist import errors
from rff_dist.typing import PathLike

FAILED = 1
USAGE = 2
# without an error: an update refused the new rows, and kept the model
REFUSED = 3
# from sysexits.h: EX_DATAERR, EX_UNAVAILABLE, EX_CANTCREAT and EX_TEMPFAIL
UNUSABLE_DATA = 65
UNAVAILABLE = 69
CANNOT_WRITE = 73
TRY_AGAIN = 75
# Shells report a process that a signal ended as 128 + the signal: 15 for SIGTERM, 2 for
# Ctrl-C.
TERMINATED = 143
INTERRUPTED = 130
# The first match counts, so subclasses stand before their base classes.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.InvalidParameterError, USAGE),
    (errors.DataError, UNUSABLE_DATA),
    (errors.OutputExistsError, CANNOT_WRITE),
    (errors.ConflictError, TRY_AGAIN),
    # CANNOT_WRITE if it is about an output, see `exit_code`
    (errors.StorageError, UNUSABLE_DATA),
    (errors.ClusterLostError, TRY_AGAIN),
    (errors.ClusterError, UNAVAILABLE),
    (errors.MissingDependencyError, UNAVAILABLE),
)


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM arrived.

    It unwinds like Ctrl-C: clusters are closed and unfinished outputs removed.
    """


def exit_code(error: BaseException, *, outputs: Sequence[PathLike] = ()) -> int:
    """Return the exit code for an error of a command that writes to `outputs`."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, TerminationSignal) else INTERRUPTED
    if isinstance(error, errors.OutputBusyError):
        # Tested first: the error names an output, but the same command works later.
        return TRY_AGAIN
    if isinstance(error, errors.StorageError) and any(
        _is_about(error, output) for output in outputs
    ):
        return CANNOT_WRITE
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


def _is_about(error: errors.StorageError, place: PathLike) -> bool:
    """Return whether an error's message names `place` or something inside it."""
    from rff_dist.storage.locations import parse_location

    try:
        location = str(parse_location(place))
    except errors.StorageError:
        return True  # the error is about the URL, which cannot be parsed
    names = {location, os.fspath(place)}
    # Whole names only: the output r must not be found in missing.zarr.
    return any(
        re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-]|\.\w)", str(error))
        for name in names
    )
