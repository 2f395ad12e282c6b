"""Open Icechunk repositories, and say what went wrong in this package's words.

A location goes in; Icechunk's repository comes out, whose requests to a silent store
end in bounded time. Icechunk alone would wait for ever, warn about uses that are safe
here, and panic on some damaged files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rff_dist.errors import (
    ConflictError,
    IntegrityError,
    NoSuchVersionError,
    RFFDistError,
    StorageError,
)
from rff_dist.storage import locations
from rff_dist.storage.locations import Location, explain

if TYPE_CHECKING:
    from icechunk import Repository

_REQUEST_S = 30


def load_icechunk() -> Any:
    """Import Icechunk, and silence its warnings and logs."""
    import icechunk

    # Icechunk warns that folders have no locks, but `repositories` locks them. Errors
    # are raised, so logs need not repeat them.
    icechunk.set_logs_filter("off")
    locations.wait_at_exit()  # for Icechunk's threads
    return icechunk


def open_repository(location: Location, *, caching: Any = None) -> Repository:
    """Open the repository at a location."""
    repository: Repository = load_icechunk().Repository.open(
        storage_of(location), config=bounded_config(caching)
    )
    return repository


def bounded_config(caching: Any = None) -> Any:
    """Return a configuration: requests to a silent store fail in bounded time."""
    icechunk = load_icechunk()
    # By default AWS's client waits for ever for an answer. These are the bounds that
    # `open_objects` gives obstore, in milliseconds.
    each = 1000 * _REQUEST_S
    all_tries = 1000 * locations.RETRIED_S
    timeouts = icechunk.StorageTimeoutSettings(
        connect_timeout_ms=each,
        read_timeout_ms=each,
        operation_timeout_ms=all_tries,
        operation_attempt_timeout_ms=each,
    )
    settings = icechunk.StorageSettings(timeouts=timeouts)
    return icechunk.RepositoryConfig(storage=settings, caching=caching)


def storage_of(location: Location) -> Any:
    """Return Icechunk's storage; credentials come from the environment."""
    icechunk = load_icechunk()
    env = os.environ.get
    bucket, _, prefix = location.path.partition("/")
    match location.scheme:
        case "file":
            return icechunk.local_filesystem_storage(location.path)
        case "s3":
            endpoint = env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
            return icechunk.s3_storage(
                bucket=bucket,
                prefix=prefix or None,
                region=env("AWS_REGION") or env("AWS_DEFAULT_REGION"),
                endpoint_url=endpoint,
                allow_http=env("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
                force_path_style=endpoint is not None,
                from_env=True,
            )
        case "gs":
            return icechunk.gcs_storage(
                bucket=bucket, prefix=prefix or None, from_env=True
            )
        case "az":
            account = env("AZURE_STORAGE_ACCOUNT_NAME", "")
            # here Icechunk takes no None as a prefix
            return icechunk.azure_storage(
                account=account, container=bucket, prefix=prefix, from_env=True
            )
    return icechunk.http_storage(location.url)


@contextmanager
def icechunk_errors(
    failure: str, consequence: str = "", *, version: str | None = None
) -> Iterator[None]:
    """Turn Icechunk's errors into this package's.

    Messages begin with `failure`. That of a StorageError goes on with `consequence`,
    such as "; the dataset is unchanged". `version` is the version that is read, if any:
    a missing file then means that it has expired.
    """
    icechunk = load_icechunk()
    try:
        yield
    except RFFDistError:
        raise
    except icechunk.ConflictError as error:
        raise ConflictError(
            f"{failure}: another program changed it meanwhile, and it stays as that"
            " wrote it. Look at what the other one wrote (`rff-dist data log`), and"
            " repeat this"
        ) from error
    except icechunk.SnapshotNotFoundError as error:
        raise NoSuchVersionError(
            f"{failure}: there is no such version, or it has expired; expected one that"
            " `rff-dist data log` lists"
        ) from error
    except (icechunk.IcechunkError, OSError) as error:
        is_missing = isinstance(
            error, icechunk.InvalidInputError | icechunk.NotFoundError
        )
        if version is not None and is_missing:
            raise NoSuchVersionError(
                f"{failure}: it has expired, or belongs to another dataset"
            ) from error
        text = f"{failure}: {explain(error)}{consequence}"
        # Icechunk has the system's error in its text only.
        if isinstance(error, OSError) or "os error" in str(error):
            text += f". {locations.writing_advice(error)}"
        raise StorageError(text) from error
    except BaseException as error:
        # Icechunk panics on some damaged files; a PanicException is not an Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise IntegrityError(
            f"{failure}: its files are damaged ({explain(error)}). Restore them from a"
            " copy"
        ) from error
