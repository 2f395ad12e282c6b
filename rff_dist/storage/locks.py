"""Locks of the operating system on files. A lock ends with the process that holds it."""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rff_dist.errors import OutputBusyError

_log = logging.getLogger(__name__)

_PATIENCE_S = 60.0  # Who is waited for writes one small file.
_STEP_S = 0.02


@contextmanager
def lock_file(path: Path, *, holder: str = "a run", busy: str | None = None) -> Iterator[TextIO]:
    """Hold a lock on a file, which is created if it is missing.

    `holder`: who holds the lock, written to the file for others.
    `busy`: the error's beginning if the lock is taken, such as "another run is changing data.zarr"; None
      waits for the lock, for a minute.
    Raises OutputBusyError if another process, or another part of this one, holds it; OSError if the file
      cannot be opened.
    """
    deadline = time.monotonic() + (_PATIENCE_S if busy is None else 0)
    while True:
        with open(path, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(_STEP_S)
                    continue
                what = busy or f"{path} has been locked for {_PATIENCE_S:g} s"
                raise OutputBusyError(
                    f"{what}: {_holder_of(file)}; expected nobody. Wait until it is done"
                ) from error
            except OSError as error:  # Some network file systems are mounted without locks.
                _log.warning(
                    "%s has no locks (%s): two writers at the same moment could overwrite one another",
                    path.parent,
                    error.strerror or error,
                )
            if not is_at(file, path):
                continue  # The last holder removed the file, so others would lock a new one.
            if busy is not None:
                with suppress(OSError):  # On a full disk the lock holds all the same.
                    os.ftruncate(file.fileno(), 0)
                    os.write(file.fileno(), f"{holder}, process {os.getpid()} on {platform.node()}".encode())
            yield file
            return


def is_at(file: TextIO, path: Path) -> bool:
    """Return whether an open file is the one that a path names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _holder_of(file: TextIO) -> str:
    file.seek(0)
    age = time.time() - os.fstat(file.fileno()).st_mtime
    return f"{file.read(200) or 'a process'}, for {duration(age)}"
