"""Logs for machines: one JSON object per line, with its run, pass and block.

`RFF_DIST_LOG=json`, or `rff-dist … --log-format json`, turns them on. Every line has
`time` (UTC), `level`, `logger` and `message`, `run` where there is one, and in a trace
`trace_id` and `span_id`. Events have more:

=============  =========================================================================
event          and its members
=============  =========================================================================
pass started   pass, n_blocks, rows
pass resumed   pass, kept (rows whose sums were kept), rows
block done     pass, block (its index), seconds, waited (the part of seconds in which it
               waited for rows), worker, start, stop, rows
pass finished  pass, seconds, waiting (the share of the blocks' seconds in which they
               waited for rows)
pass failed    pass, seconds, error, kind
job started    job
job finished   job, seconds
job failed     job, seconds, error, kind
step started   step
remark         pass, text
rounds         pass, limit, done
work           pass, operations, n_components, fixed_point, n_workers, n_threads
=============  =========================================================================

The lines are records of Python's own logging below the logger `rff_dist`, so a program
may send them elsewhere with `JSONFormatter`. User names, passwords and queries in URLs
are left out.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from rff_dist import contexts
from rff_dist.engines import tracing
from rff_dist.errors import InvalidParameterError
from rff_dist.text import without_secrets
from rff_dist.typing import Facts

LOG_VARIABLE = "RFF_DIST_LOG"
FORMATS = ("text", "json")

_run: ContextVar[str | None] = ContextVar("run", default=None)


def log_format(environment: Mapping[str, str] = os.environ) -> str:
    """Return the format in the environment, or raise InvalidParameterError."""
    name = environment.get(LOG_VARIABLE) or "text"
    if name not in FORMATS:
        raise InvalidParameterError(
            f"{LOG_VARIABLE} is {name!r}; expected one of {', '.join(FORMATS)}"
        )
    return name


def of_run(run: str) -> AbstractContextManager[None]:
    """Add the name of a run to all lines that are logged in the context."""
    return contexts.setting(_run, run)


class JSONFormatter(logging.Formatter):
    """Format a record as a JSON object; its mapping `event` becomes members."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        members = dict(getattr(record, "event", {}))
        if record.exc_info and record.exc_info[0] is not None:
            members["traceback"] = self.formatException(record.exc_info)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(
            timespec="milliseconds"
        )
        line = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": _run.get(),
            **tracing.ids(),
            **members,
            "message": record.getMessage(),
        }
        present = {
            name: _plain(value) for name, value in line.items() if value is not None
        }
        return json.dumps(present, ensure_ascii=False)


def json_line(level: str, message: str, *, members: Facts | None = None) -> str:
    """Return one line of the log, without an end of line."""
    record = {
        "name": "rff_dist",
        "levelname": level,
        "msg": message,
        "event": members or {},
    }
    return JSONFormatter().format(logging.makeLogRecord(record))


def _plain(value: Any) -> Any:
    """Return a JSON value without secrets; text for NaN and infinity."""
    if isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return without_secrets(str(value))


@contextmanager
def json_lines(stream: TextIO | None = None, *, debug: bool = False) -> Iterator[None]:
    """Write the package's log as JSON lines while the context lasts.

    Only events, warnings and errors are written, unless `debug` is set. They go to
    standard error by default.
    """

    def is_written(record: logging.LogRecord) -> bool:
        return debug or record.levelno >= logging.WARNING or hasattr(record, "event")

    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    handler.addFilter(is_written)
    logger = logging.getLogger("rff_dist")
    # otherwise the root logger would write every line again
    propagate = logger.propagate
    logger.propagate = False
    try:
        with log_to(handler, logging.DEBUG):
            yield
    finally:
        logger.propagate = propagate


@contextmanager
def log_to(handler: logging.Handler, level: int) -> Iterator[None]:
    """Send the package's log, from `level` up, to a handler while the context lasts."""
    logger = logging.getLogger("rff_dist")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
