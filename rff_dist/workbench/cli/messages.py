"""Messages and errors on standard error, in words or as lines of JSON, and the exit codes of errors."""

import contextlib
import difflib
import itertools
import json
import logging
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rff_dist import errors
from rff_dist.engines import logs
from rff_dist.text import redact, without_secrets
from rff_dist.typing import Facts, PathLike
from rff_dist.workbench.cli import settings
from rff_dist.workbench.results import exits

err = Console(highlight=False, stderr=True)


# an option by its name in Python, in backticks or with a value as Python writes it
_NAMED = re.compile(
    r"(?P<tick>`?)(?<![\w.-])(?P<name>\w+)(?:=(?P<value>\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[\w.+-]*\w))?(?P=tick)"
)


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def in_flags(message: str) -> str:
    """Return a message of the library with the options of the command that runs as its flags.

    >>> from rff_dist import contexts
    >>> with contexts.setting(settings.options, {"n_folds", "impute", "targets"}):
    ...     in_flags("`n_folds` is 1; give `target`, impute='median' or `n_folds=2`, but no loss='logistic'")
    "--n-folds is 1; give --targets, --impute median or --n-folds 2, but no loss='logistic'"
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        # commands for several targets, kernels or sources name them so
        known = [one for one in (name, f"{name}s", name.removesuffix("s")) if one in settings.options.get()]
        if not known or not (found["tick"] or value):
            return found[0]
        flag = flag_of(known[0])
        match value:
            case None | "True":
                return flag
            case "False":
                return f"--no{flag[1:]}"
        return f"{flag} " + re.sub("[\\[\\]'\"]", "", value).replace(", ", ",")

    return _NAMED.sub(flag, message)


def say(kind: str, message: str, style: str) -> None:
    """Show one line on standard error, without secrets."""
    message = in_flags(without_secrets(message))
    if kind == "warning":
        settings.warned.set((*settings.warned.get(), message))
    _show_line(kind, message, Text.assemble((f"{kind}: ", f"bold {style}"), message))


def _show_line(level: str, message: str, view: Text, members: Facts | None = None) -> None:
    if settings.logs_json():
        sys.stderr.write(logs.json_line(level, message, members=members) + "\n")
    else:
        err.print(view, soft_wrap=True)


@contextlib.contextmanager
def show_messages(*, debug: bool) -> Iterator[None]:
    """Show warnings and the package's log on standard error, one line each."""
    level = logging.DEBUG if debug else logging.WARNING
    log = logs.json_lines(debug=debug) if settings.logs_json() else logs.log_to(_LineHandler(), level)
    # it tells of its caches
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings(), log:
        warnings.showwarning = lambda message, *_, **__: say("warning", str(message), "yellow")
        # Zarr leaves coroutines behind where a store fails, of which our error tells.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        say(record.levelname.lower(), record.getMessage(), style)


def report_usage(message: str, title: str, *, as_json: bool) -> int:
    """Report what is wrong with the arguments of a command and where to look; return the exit code."""
    told = {"type": "UsageError", "kind": "usage", "exit_code": exits.USAGE}
    _tell_error(title, told, message.rstrip("."), _see_help(title), as_json=as_json)
    return exits.USAGE


def report_error(
    error: BaseException,
    title: str,
    *,
    outputs: Sequence[PathLike] = (),
    values: Iterable[Any] = (),
    as_json: bool,
    debug: bool = False,
) -> int:
    """Report what went wrong in a command and what to do next; return the exit code.

    `title`: the command's name.
    `outputs`: places that it writes to.
    `values`: of its options, among which are paths.
    """
    if debug:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    code = exits.exit_code(error, outputs=outputs)
    notes, hint = [note for note in getattr(error, "__notes__", []) if "\n" not in note], ""
    noted = f" ({'; '.join(notes)})" if notes else ""
    if isinstance(error, KeyboardInterrupt):
        how = "SIGTERM" if code == exits.TERMINATED else "Ctrl-C"
        message = f"stopped by {how}; {'; '.join(notes) or 'no unfinished output is left'}"
        hint = f"to go on: {this_command()}" if notes else "to start over: the same command again"
    elif isinstance(error, MemoryError):
        message = f"this machine's memory is not enough{noted}"
        hint = "to see how much memory a fit needs: rff-dist plan --help"
    elif type(error).__module__ == "rff_dist.errors":
        is_in_file = any(note.startswith("from ") for note in notes)  # there options have these names
        message = f"{error if is_in_file else in_flags(str(error))}{noted}"
        if code == exits.USAGE:
            hint = _see_help(title)
        elif isinstance(error, errors.ClusterError) and any("goes on from there" in note for note in notes):
            hint = f"to go on: {this_command()}"
        elif near := _near_path(message, values):
            hint = f"did you mean {near}?"
    else:
        message = f"{type(error).__name__}: {error}{noted}"
        hint = "" if debug else "this is unexpected; the same command with --debug shows where it came from"
    told = {"type": type(error).__name__, "kind": errors.kind_of(error), "exit_code": code}
    _tell_error(title, told, message, hint, as_json=as_json)
    return code


def _see_help(title: str) -> str:
    return f"see: {' '.join(filter(None, ['rff-dist', title]))} --help"


def _tell_error(title: str, told: Facts, message: str, hint: str, *, as_json: bool) -> None:
    message = without_secrets(message)
    view = Text.assemble(("error: ", "bold red"), message)
    _show_line("error", message, view, {"kind": told["kind"]})
    if hint:
        _show_line("info", hint, Text(hint, "dim"))
    if as_json:
        write_json({"command": title or None, "error": {**told, "message": message}})


def this_command() -> str:
    """Return the program's command line, without passwords that URLs in it hold."""
    return shlex.join(map(redact, ["rff-dist", *sys.argv[1:]]))


def _near_path(message: str, values: Iterable[Any]) -> str:
    """Return a path on disk that is named nearly like the missing one in a message; "" if there is none."""
    several = itertools.chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
    for path in (Path(value) for value in several if isinstance(value, str) and "://" not in value):
        if str(path.absolute()) in message and path.parent.is_dir() and not path.exists():
            names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
            # With the default cutoff of 0.6, bin.csv was offered for missing.csv.
            if near := difflib.get_close_matches(path.name, names, n=1, cutoff=0.75):
                return str(path.with_name(near[0]))
    return ""


def write_json(document: Facts) -> None:
    """Write a document to standard output, with null for NaN and infinity, which JSON does not have."""
    from pydantic import ConfigDict, TypeAdapter

    adapter = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))
    values = adapter.dump_python(document, mode="json", fallback=_plain)
    sys.stdout.write(json.dumps(values, allow_nan=False, indent=2) + "\n")


def _plain(value: Any) -> Any:
    """Return NumPy's values as Python's, other mappings as dict, and all else as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
