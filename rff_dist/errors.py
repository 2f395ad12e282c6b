"""Every error that rff_dist raises on purpose, in one tree.

::

    RFFDistError
    ├── InvalidParameterError (ValueError)      a parameter outside its range, or an unknown name
    ├── DataError (ValueError)                  values that cannot be used: NaN, wrong shape, wrong dtype
    │   ├── NotFiniteError                      NaN, infinity or a value too large for the data's type
    │   └── FingerprintMismatchError            the first rows of the data are not the ones a model holds
    ├── PlanError (ValueError)                  the job cannot run as asked: too much memory, bad block sizes
    ├── StatisticsError (ValueError)            statistics that do not belong together, or do not add up
    ├── SolveError (numpy.linalg.LinAlgError)   no usable solution; names causes and remedies
    ├── StorageError (OSError)                  a dataset or model that cannot be opened or written
    │   ├── OutputExistsError (FileExistsError) the output is there already
    │   ├── OutputBusyError (BlockingIOError)   another run is writing the output
    │   ├── IntegrityError                      the stored bytes differ from those that were written
    │   ├── UnsafeModelError                    a file that could run code when loaded, such as a pickle
    │   ├── VersionError                        written by a newer release
    │   ├── NoSuchVersionError (LookupError)    a registered model has no such version
    │   └── ConflictError                       somebody else changed the same thing at the same time
    ├── BlockError (RuntimeError)               the work on a block failed; names its rows
    ├── BroadcastError (RuntimeError)           a worker holds another feature map than the client
    ├── ClusterError (ConnectionError)          the Dask cluster cannot be used
    │   ├── ClusterUnavailableError             no scheduler answers
    │   └── ClusterLostError                    the scheduler or all workers went away during a pass
    ├── JobTimeoutError (TimeoutError)          a run took longer than its time limit
    └── MissingDependencyError (ImportError)    an optional package is needed

Each error is also a built-in error, which callers can catch without knowing rff_dist.
Messages say what is wrong, the values got, what was expected, and what to do.
"""

import numpy as np


class RFFDistError(Exception):
    """Base of all errors raised on purpose by rff_dist.

    `kind`: a name for programs, which stays as it is when classes and messages change.
    """

    kind = "failed"


class InvalidParameterError(RFFDistError, ValueError):
    """A parameter is outside its range, or names something unknown."""

    kind = "parameter"


class DataError(RFFDistError, ValueError):
    """The data hold values, shapes or types that cannot be used."""

    kind = "data"


class NotFiniteError(DataError):
    """A value is missing (NaN), infinite, or too large for its type."""

    kind = "data.nan"


class FingerprintMismatchError(DataError):
    """The first rows of the data are not the ones a model holds."""

    kind = "data.fingerprint"


class PlanError(RFFDistError, ValueError):
    """The job cannot run as asked."""

    kind = "plan"


class StatisticsError(RFFDistError, ValueError):
    """Statistics do not belong together, or do not add up."""

    kind = "statistics"


class SolveError(RFFDistError, np.linalg.LinAlgError):
    """A linear system has no usable solution."""

    kind = "solve"


class StorageError(RFFDistError, OSError):
    """A dataset or a model cannot be opened or written."""

    kind = "storage"


class OutputExistsError(StorageError, FileExistsError):
    """The output exists, and the job was not told to overwrite it."""

    kind = "storage.exists"


class OutputBusyError(StorageError, BlockingIOError):
    """Another run is writing the output."""

    kind = "storage.busy"


class IntegrityError(StorageError):
    """Stored bytes differ from those that were written."""

    kind = "storage.damaged"


class UnsafeModelError(StorageError):
    """The file could run code when loaded, so it is not loaded."""

    kind = "storage.unsafe"


class VersionError(StorageError):
    """The model was written by a newer release."""

    kind = "storage.newer"


class NoSuchVersionError(StorageError, LookupError):
    """A registered model has no such version, or no earlier one to go back to."""

    kind = "storage.no-version"


class ConflictError(StorageError):
    """Somebody else changed the same thing at the same time."""

    kind = "storage.conflict"


class BlockError(RFFDistError, RuntimeError):
    """The work on one block of rows failed."""

    kind = "block"


class BroadcastError(RFFDistError, RuntimeError):
    """A worker holds another feature map than the client."""

    kind = "cluster.broadcast"


class ClusterError(RFFDistError, ConnectionError):
    """The Dask cluster cannot be used."""

    kind = "cluster"


class ClusterUnavailableError(ClusterError):
    """No scheduler answers at the address given."""

    kind = "cluster.unavailable"


class ClusterLostError(ClusterError):
    """The scheduler, or every worker, went away during a pass."""

    kind = "cluster.lost"


class JobTimeoutError(RFFDistError, TimeoutError):
    """A run took longer than its time limit."""

    kind = "timeout"


class MissingDependencyError(RFFDistError, ImportError):
    """An optional package is needed and not installed."""

    kind = "dependency"


def kind_of(error: BaseException) -> str:
    """Return the kind of any error: "stopped" by a signal, "memory", or "unexpected" if it is not ours."""
    if isinstance(error, RFFDistError):
        return error.kind
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    return "memory" if isinstance(error, MemoryError) else "unexpected"
