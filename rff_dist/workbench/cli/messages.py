"""Messages and errors on standard error, and JSON on standard output.

The library's messages name options as Python does; here they are told by the flags of
the command that runs. An error is one line that says what is wrong, at most one more
that says what to do, and the exit code. Standard error has words or lines of JSON.
"""

import contextlib
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
from rff_dist.text import nearest, redact, without_secrets
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
    """Return a message of the library that names options of the command by their flags.

    >>> from rff_dist import contexts
    >>> with contexts.setting(settings.options, {"n_folds", "impute", "targets"}):
    ...     in_flags(
    ...         "`n_folds` is 1; give `target`, impute='median' or `n_folds=2`, but no"
    ...         " loss='logistic'"
    ...     )
    "--n-folds is 1; give --targets, --impute median or --n-folds 2, but no
    loss='logistic'"
    """
    options = settings.options.get()

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        value = match["value"]
        # commands for several targets, kernels or sources name them so
        spellings = (name, f"{name}s", name.removesuffix("s"))
        names = [spelling for spelling in spellings if spelling in options]
        if not names or not (match["tick"] or value):
            return match[0]
        flag = flag_of(names[0])
        if value in (None, "True"):
            return flag
        if value == "False":
            return f"--no{flag[1:]}"
        plain = re.sub("[\\[\\]'\"]", "", value).replace(", ", ",")
        return f"{flag} {plain}"

    return _NAMED.sub(replaced, message)


def say(kind: str, message: str, style: str) -> None:
    """Show one line on standard error, without secrets."""
    message = in_flags(without_secrets(message))
    if kind == "warning":
        settings.warned.set((*settings.warned.get(), message))
    _show_line(kind, message, Text.assemble((f"{kind}: ", f"bold {style}"), message))


def _show_line(
    level: str, message: str, view: Text, members: Facts | None = None
) -> None:
    if settings.logs_json():
        sys.stderr.write(logs.json_line(level, message, members=members) + "\n")
    else:
        err.print(view, soft_wrap=True)


@contextlib.contextmanager
def show_messages(*, debug: bool) -> Iterator[None]:
    """Show warnings and the package's log on standard error, one line each."""
    level = logging.DEBUG if debug else logging.WARNING
    log = (
        logs.json_lines(debug=debug)
        if settings.logs_json()
        else logs.log_to(_LineHandler(), level)
    )
    # it warns of its caches
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings(), log:
        warnings.showwarning = lambda message, *_, **__: say(
            "warning", str(message), "yellow"
        )
        # Zarr leaves coroutines behind if a store fails, which is reported anyway.
        warnings.filterwarnings(
            "ignore", "coroutine .* was never awaited", RuntimeWarning
        )
        yield


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        say(record.levelname.lower(), record.getMessage(), style)


def report_usage(message: str, title: str, *, as_json: bool) -> int:
    """Report what is wrong with a command's arguments, and return the exit code."""
    about = {"type": "UsageError", "kind": "usage", "exit_code": exits.USAGE}
    _show_error(title, about, message.rstrip("."), _see_help(title), as_json=as_json)
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
    """Report what went wrong in a command and what to do; return the exit code.

    `title` is the command's name, `outputs` are the places that it writes to, and
    `values` those of its options, among which are paths.
    """
    if debug:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    code = exits.exit_code(error, outputs=outputs)
    notes = [note for note in getattr(error, "__notes__", []) if "\n" not in note]
    in_brackets = f" ({'; '.join(notes)})" if notes else ""
    if isinstance(error, KeyboardInterrupt):
        message, hint = _words_of_stop(error, code, notes)
    elif isinstance(error, MemoryError):
        message = f"this machine's memory is not enough{in_brackets}"
        hint = "to see how much memory a fit needs: rff-dist plan --help"
    elif isinstance(error, errors.RFFDistError):
        message = f"{error}{in_brackets}"
        # a file has options by their names in Python
        if not error.source:
            message = in_flags(message)
        hint = _hint(error, code, title, message, values)
    else:
        message = f"{type(error).__name__}: {error}{in_brackets}"
        hint = ""
        if not debug:
            hint = (
                "this is unexpected; the same command with --debug shows where it came"
                " from"
            )
    about = {
        "type": type(error).__name__,
        "kind": errors.kind_of(error),
        "exit_code": code,
    }
    _show_error(title, about, message, hint, as_json=as_json)
    return code


def _words_of_stop(
    error: BaseException, code: int, notes: Sequence[str]
) -> tuple[str, str]:
    """Return the message and the hint about a command that a signal stopped."""
    signal = "SIGTERM" if code == exits.TERMINATED else "Ctrl-C"
    if notes:
        hint = _to_go_on() if getattr(error, "can_go_on", False) else ""
        return f"stopped by {signal}; {'; '.join(notes)}", hint
    message = f"stopped by {signal}; no unfinished output is left"
    return message, "to start over: the same command again"


def _hint(
    error: errors.RFFDistError,
    code: int,
    title: str,
    message: str,
    values: Iterable[Any],
) -> str:
    """Return what to do about an error of the library; "" if its message says it."""
    if code == exits.USAGE:
        return _see_help(title)
    if error.can_go_on and isinstance(error, errors.ClusterError):
        return _to_go_on()
    if message.startswith("no model at") and ": it is a file" in message:
        return f"the model comes first: rff-dist {title} MODEL DATA"
    near = _near_path(message, values)
    return f"did you mean {near}?" if near else ""


def _to_go_on() -> str:
    return f"to go on: {this_command()}"


def _see_help(title: str) -> str:
    return f"see: {' '.join(filter(None, ['rff-dist', title]))} --help"


def _show_error(
    title: str, about: Facts, message: str, hint: str, *, as_json: bool
) -> None:
    message = without_secrets(message)
    view = Text.assemble(("error: ", "bold red"), message)
    _show_line("error", message, view, {"kind": about["kind"]})
    if hint:
        _show_line("info", hint, Text(hint, "dim"))
    if as_json:
        write_json({"command": title or None, "error": {**about, "message": message}})


def this_command() -> str:
    """Return the program's command line, without passwords that URLs in it hold."""
    return shlex.join(map(redact, ["rff-dist", *sys.argv[1:]]))


def _near_path(message: str, values: Iterable[Any]) -> str:
    """Return a path on disk that is named nearly like a missing one; "" for none.

    Missing ones are those of a command's values that the message names.
    """
    paths = []
    for value in values:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "://" not in text:
                paths.append(Path(text))
    for path in paths:
        is_named = str(path.absolute()) in message
        # in a folder that `auto` wrote, and a version of a registered model
        for place in (path / "model", path.parent / "versions" / path.name):
            if is_named and message.startswith("no model at") and place.is_dir():
                return str(place)
        if not is_named or path.exists() or not path.parent.is_dir():
            continue
        names = [entry.name for entry in path.parent.iterdir()]
        visible = [name for name in names if not name.startswith(".")]
        # With the default cutoff of 0.6, bin.csv was offered for missing.csv.
        near = nearest(path.name, visible, cutoff=0.75)
        if near:
            return str(path.with_name(near))
    return ""


def write_json(document: Facts) -> None:
    """Write JSON to standard output, with null for NaN and infinity, which it lacks."""
    from pydantic import ConfigDict, TypeAdapter

    adapter = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))
    values = adapter.dump_python(document, mode="json", fallback=_plain)
    sys.stdout.write(json.dumps(values, allow_nan=False, indent=2) + "\n")


def _plain(value: Any) -> Any:
    """Return NumPy's values as Python's, mappings as dict, and everything else as
    text.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
