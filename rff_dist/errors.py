"""Every error that rff_dist raises on purpose, in one tree.

::

    RFFDistError
    ├── InvalidParameterError (ValueError)      a parameter outside its range, or an
    │                                           unknown name
    ├── DataError (ValueError)                  values that cannot be used: NaN, wrong
    │                                           shape, wrong dtype
    │   ├── NotFiniteError                      NaN, infinity or a value too large for
    │   │                                       the data's type
    │   └── FingerprintMismatchError            the first rows of the data are not the
    │                                           ones a model holds
    ├── PlanError (ValueError)                  the job cannot run as asked: too much
    │                                           memory, bad block sizes
    ├── StatisticsError (ValueError)            statistics that do not belong together,
    │                                           or do not add up
    ├── SolveError (numpy.linalg.LinAlgError)   no usable solution; names causes and
    │                                           remedies
    ├── StorageError (OSError)                  a dataset or model that cannot be opened
    │                                           or written
    │   ├── OutputExistsError (FileExistsError) the output is there already
    │   ├── OutputBusyError (BlockingIOError)   another run is writing the output
    │   ├── IntegrityError                      the stored bytes differ from those that
    │   │                                       were written
    │   ├── UnsafeModelError                    a file that could run code when loaded
    │   ├── VersionError                        written by a newer release
    │   ├── NoSuchVersionError (LookupError)    a registered model has no such version
    │   └── ConflictError                       somebody else changed the same thing at
    │                                           the same time
    ├── BlockError (RuntimeError)               the work on a block failed; names its
    │                                           rows
    ├── BroadcastError (RuntimeError)           a worker holds another feature map than
    │                                           the client
    ├── ClusterError (ConnectionError)          the Dask cluster cannot be used
    │   ├── ClusterUnavailableError             no scheduler answers
    │   └── ClusterLostError                    the scheduler or all workers went away
    │                                           during a pass
    ├── JobTimeoutError (TimeoutError)          a run took longer than its time limit
    └── MissingDependencyError (ImportError)    an optional package is needed

Each error is also a built-in error, which callers can catch without knowing rff_dist.
Messages have the problem, the values got, the expected values and a remedy.
"""

import os
import warnings

import numpy as np


class RFFDistError(Exception):
    """Base of all errors raised on purpose by rff_dist.

    `kind`: a name for programs, which stays the same if classes and messages change; by
      default the base's.
    `source`: the file or variable that a refused option comes from; "" for flags.
    `can_go_on`: whether the same job, run again, continues from kept sums.
    """

    kind = "failed"
    source = ""
    can_go_on = False

    def __init_subclass__(cls, *, kind: str = "") -> None:
        cls.kind = kind or cls.kind


class InvalidParameterError(RFFDistError, ValueError, kind="parameter"):
    """A parameter is outside its range, or names something unknown."""


class DataError(RFFDistError, ValueError, kind="data"):
    """The data hold values, shapes or types that cannot be used."""


class NotFiniteError(DataError, kind="data.nan"):
    """A value is missing (NaN), infinite, or too large for its type."""


class FingerprintMismatchError(DataError, kind="data.fingerprint"):
    """The first rows of the data are not the ones a model holds."""


class PlanError(RFFDistError, ValueError, kind="plan"):
    """The job cannot run as asked."""


class StatisticsError(RFFDistError, ValueError, kind="statistics"):
    """Statistics do not belong together, or do not add up."""


class SolveError(RFFDistError, np.linalg.LinAlgError, kind="solve"):
    """A linear system has no usable solution."""


class StorageError(RFFDistError, OSError, kind="storage"):
    """A dataset or a model cannot be opened or written."""


class OutputExistsError(StorageError, FileExistsError, kind="storage.exists"):
    """The output exists, and the job was not told to overwrite it."""


class OutputBusyError(StorageError, BlockingIOError, kind="storage.busy"):
    """Another run is writing the output."""


class IntegrityError(StorageError, kind="storage.damaged"):
    """Stored bytes differ from those that were written."""


class UnsafeModelError(StorageError, kind="storage.unsafe"):
    """The file could run code when loaded, so it is not loaded."""


class VersionError(StorageError, kind="storage.newer"):
    """The model was written by a newer release."""


class NoSuchVersionError(StorageError, LookupError, kind="storage.no-version"):
    """A registered model has no such version, or no earlier one to go back to."""


class ConflictError(StorageError, kind="storage.conflict"):
    """Somebody else changed the same thing at the same time."""


class BlockError(RFFDistError, RuntimeError, kind="block"):
    """The work on one block of rows failed."""


class BroadcastError(RFFDistError, RuntimeError, kind="cluster.broadcast"):
    """A worker holds another feature map than the client."""


class ClusterError(RFFDistError, ConnectionError, kind="cluster"):
    """The Dask cluster cannot be used."""


class ClusterUnavailableError(ClusterError, kind="cluster.unavailable"):
    """No scheduler answers at the address given."""


class ClusterLostError(ClusterError, kind="cluster.lost"):
    """The scheduler, or every worker, went away during a pass."""


class JobTimeoutError(RFFDistError, TimeoutError, kind="timeout"):
    """A run took longer than its time limit."""


class MissingDependencyError(RFFDistError, ImportError, kind="dependency"):
    """An optional package is needed and not installed."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package, not at one of its own."""
    warnings.warn(message, category, skip_file_prefixes=(os.path.dirname(__file__),))


def kind_of(error: BaseException) -> str:
    """Return the kind of any error, also of one from another package."""
    if isinstance(error, RFFDistError):
        return error.kind
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    return "memory" if isinstance(error, MemoryError) else "unexpected"
