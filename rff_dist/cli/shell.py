"""What all commands share: output as a table or JSON, messages, signals, errors, exit codes."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import logging
import math
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.models import OptionInfo

from rff_dist.cli import program
from rff_dist.cli.help import LAST
from rff_dist.cli.options import SpecOptions
from rff_dist.cli.program import INTERRUPTED, Command, UsageError, app, log_format
from rff_dist.engines.logs import json_line, json_lines, log_to, of_run
from rff_dist.errors import (
    ClusterError,
    ClusterLostError,
    ConflictError,
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    OutputBusyError,
    OutputExistsError,
    StorageError,
)
from rff_dist.text import redact
from rff_dist.typing import PathLike

FAILED, USAGE = 1, 2
# The first that matches counts, so subclasses stand before their bases.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidParameterError, USAGE),
    (DataError, 65),
    (OutputExistsError, 73),
    (ConflictError, 75),
    (StorageError, 65),  # 73 if it is about an output, see `exit_code`
    (ClusterLostError, 75),
    (ClusterError, 69),
    (MissingDependencyError, 69),
)
CANNOT_WRITE, BUSY, TERMINATED = 73, 75, 143
AGAIN_AFTER = 1.0  # seconds; a signal sooner than this after the first is the same one

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)

out, err = Console(highlight=False), Console(highlight=False, stderr=True)


@dataclass(frozen=True)
class Report:
    """The result of a command.

    `document`: what `--json` shows. It may hold NumPy's numbers and arrays; NaN and infinity become null.
    `view`: what people see; None if the command has already shown everything.
    `code`: the program's exit code.
    """

    document: Mapping[str, Any]
    view: RenderableType | None = None
    code: int = 0


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. It unwinds like Ctrl-C: clusters are closed and unfinished outputs removed."""


AsJson = Annotated[bool, typer.Option("--json", help="Show one JSON document.", rich_help_panel=LAST)]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no next step.", rich_help_panel=LAST),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the log, and errors' tracebacks.", rich_help_panel=LAST)
]
HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show all options.",
        is_eager=True,
        callback=program.show_everything,
        rich_help_panel=LAST,
    ),
]


def command(
    *examples: str, group: typer.Typer = app, name: str | None = None
) -> Callable[[Callable[..., Report]], Callable[..., Report]]:
    """Make a function a command, with options from its signature, and `--json` and the like.

    `examples`: lines for the help.
    `group`: the program or group of commands that it belongs to.
    `name`: of the command; by default the function's.
    """

    def register(function: Callable[..., Report]) -> Callable[..., Report]:
        def run(
            context: typer.Context, as_json: bool, quiet: bool, debug: bool, help_all: bool, **given: Any
        ) -> None:
            from rff_dist.cli.display import progress  # here, because display imports this module

            _quiet.set(quiet)
            if "as_json" in own:
                given["as_json"] = as_json
            words = _words(context)
            # A command that takes `--json` itself shows its own progress.
            shown = contextlib.nullcontext() if "as_json" in own else progress(words)
            with _run_in_log():
                try:
                    with _signals(), _messages(names, debug=debug), _stdout_free(as_json), shown:
                        values = {name: spec.read(given) for name, spec in specs.items()}
                        report = function(**values, **given)
                except (UsageError, typer.Exit):
                    raise  # to `Program.main`, which reports mistakes in the arguments
                except BaseException as error:
                    places = [context.params.get(name) for name in names.written]
                    code = exit_code(error, outputs=[place for place in places if place is not None])
                    _report_error(error, context, code, names, as_json=as_json, debug=debug)
                    raise typer.Exit(code) from None
            show(report, words, as_json=as_json)
            if report.code:
                raise typer.Exit(report.code)

        # typer reads options from the signature, so those of specs and the shared ones are added to it.
        own = dict(inspect.signature(function, eval_str=True).parameters)
        found = {name: SpecOptions.of(parameter.annotation) for name, parameter in own.items()}
        specs = {name: spec for name, spec in found.items() if spec is not None}
        names = Names.of(own, specs.values())
        shared = {"as_json": AsJson, "quiet": Quiet, "debug": Debug, "help_all": HelpAll}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        for key, parameter in own.items():
            if key in specs:
                parameters += specs[key].parameters(names.flags)
            elif key not in shared:
                parameters.append(parameter.replace(kind=keyword))
        parameters.append(inspect.Parameter("context", keyword, annotation=typer.Context))
        for key, annotation in shared.items():
            parameters.append(inspect.Parameter(key, keyword, default=False, annotation=annotation))
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        group.command(name, cls=Command, epilog="\n\n".join(examples))(run)
        return function

    return register


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a command's options in the library's messages, and which options name an output.

    `flags`: the flag for each parameter of the library.
    `written`: names of parameters that say where something is written.
    """

    flags: dict[str, str]
    written: list[str]

    @classmethod
    def of(cls, own: Mapping[str, inspect.Parameter], specs: Iterable[SpecOptions]) -> Names:
        """Return the names for a command's own parameters and those of its specs."""
        flags, written = {}, [name for name in ("output", "plot", "report") if name in own]
        for name, parameter in own.items():
            for info in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(info, OptionInfo):
                    # In an annotation, typer keeps the first flag as the option's default.
                    given = [info.default, *(info.param_decls or ()), f"--{name.replace('_', '-')}"]
                    flags[name] = next(one for one in map(str, given) if one.startswith("--"))
        for spec in specs:
            flags |= spec.flags()
            written += [one.name for one in spec.options if one.shown.writes]
        return cls(flags, written)

    def translated(self, message: str) -> str:
        """Return a message of the library with its parameters replaced by the command's options."""
        # Neither is of use at the command line.
        message = message.replace(" (--overwrite at the command line)", "").replace(" or an object", "")
        for name, flag in self.flags.items():
            pattern = rf"(?<![-\w]){re.escape(name)}"
            message = re.sub(rf"`{name}`", flag, message)
            message = re.sub(rf"{pattern}=True\b", flag, message)
            message = re.sub(rf"{pattern}=(['\"])(\w+)\1", rf"{flag} \2", message)
            for found in re.findall(rf"{pattern}=(\['[^]]*'\])", message):
                words = ",".join(re.findall(r"'([^']*)'", found))
                message = message.replace(f"{name}={found}", f"{flag} {words}")
        return message


def _words(context: typer.Context) -> str:
    """Return a command's name, with that of its group: all words after the program's name."""
    return context.command_path.removeprefix(context.find_root().command_path).strip()


def show(report: Report, command: str, *, as_json: bool) -> None:
    """Write a command's report to standard output."""
    try:
        if as_json:
            _write_json({"command": command, **report.document})
        elif report.view is not None:
            out.print(report.view)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader, such as `head`, closed the pipe (rich then raises SystemExit). Python would complain
        # when it flushes standard output at its end, so that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(_as_json(document), allow_nan=False, indent=2) + "\n")


def _as_json(value: Any) -> Any:
    """Return JSON values: NumPy's as Python's, and null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(member) for key, member in value.items()}
    if hasattr(value, "tolist"):
        return _as_json(value.tolist())
    if isinstance(value, list | tuple):
        return [_as_json(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else str(value)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn the first SIGTERM or Ctrl-C into an exception; a later one ends the process at once.

    Some programs signal the process and then its group, so a repetition within a second is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread set handlers
        return

    first: list[float] = []

    def stop(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if first and now - first[0] < AGAIN_AFTER:
            return
        if first:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first.append(now)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def logs_json() -> bool:
    """Return whether standard error gets one JSON object a line, instead of words and progress bars."""
    return log_format.get() == "json"


def is_quiet() -> bool:
    """Return whether standard error gets only warnings and errors."""
    return _quiet.get()


def _run_in_log() -> contextlib.AbstractContextManager[Any]:
    """Give this run a name in the JSON lines of the log."""
    return of_run(uuid.uuid4().hex[:12]) if logs_json() else contextlib.nullcontext()


@contextlib.contextmanager
def _messages(names: Names, *, debug: bool) -> Iterator[None]:
    """Show warnings and the package's log on standard error, one line each."""

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        say("warning", str(message) if logs_json() else names.translated(str(message)), "yellow")

    level = logging.DEBUG if debug else logging.WARNING
    log = json_lines(debug=debug) if logs_json() else log_to(_LineHandler(names), level)
    with warnings.catch_warnings(), log:
        warnings.showwarning = show_warning
        yield


class _LineHandler(logging.Handler):
    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        say(record.levelname.lower(), self._names.translated(record.getMessage()), style)


def _stdout_free(as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """With `--json`, send what libraries print to standard error: standard output gets the document only."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def say(kind: str, message: str, style: str) -> None:
    """Show one line on standard error."""
    _show_line(kind, message, Text.assemble((f"{kind}: ", f"bold {style}"), message))


def _show_line(level: str, message: str, view: Text) -> None:
    if logs_json():
        sys.stderr.write(json_line(level, message) + "\n")
    else:
        err.print(view, soft_wrap=True)


def exit_code(error: BaseException, *, outputs: Sequence[PathLike] = ()) -> int:
    """Return the exit code for an error of a command that writes to `outputs`."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, OutputBusyError):
        return BUSY  # before the test for outputs: the same command works later
    if isinstance(error, StorageError) and any(_is_about(error, output) for output in outputs):
        return CANNOT_WRITE
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


def _is_about(error: StorageError, place: PathLike) -> bool:
    """Return whether a message names `place` or something inside it, and not just a longer name."""
    from rff_dist.storage.locations import parse_location

    try:
        location = str(parse_location(place))
    except StorageError:
        return True
    names = {location, os.fspath(place)}
    # Whole names only: the output r must not be found in missing.zarr.
    return any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-]|\.\w)", str(error)) for name in names)


def report_usage(error: Exception, *, as_json: bool) -> int:
    """Report what is wrong with the arguments and where to look; return the exit code."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    # pydantic's errors leave the value out of their message.
    found: list[Any] = getattr(error.__cause__ or error.__context__, "errors", list)()
    message = message.replace("Value error, ", "")
    if found and repr(found[0]["input"]) not in message:
        message += f", not {found[0]['input']!r}"
    # typer puts several near names into other words than a single one.
    message = re.sub(r" \(Possible options: (.*)\)$", r"; did you mean \1?", message)
    hint = f"see: {'rff-dist' if context is None else context.command_path} --help"
    _tell_error(context, "UsageError", USAGE, message, hint, as_json=as_json)
    return USAGE


def _report_error(
    error: BaseException, context: typer.Context, code: int, names: Names, *, as_json: bool, debug: bool
) -> None:
    """Report what went wrong and what to do next."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    notes, hint = [note for note in getattr(error, "__notes__", []) if "\n" not in note], ""
    if isinstance(error, KeyboardInterrupt):
        how = "SIGTERM" if code == TERMINATED else "Ctrl-C"
        message = f"stopped by {how}; {'; '.join(notes) or 'no unfinished output is left'}"
        hint = _again() if notes else "to start over: the same command again"
    elif isinstance(error, MemoryError):
        message = "this machine's memory is not enough"
        hint = "to see how much memory a fit needs: rff-dist plan --help"
    elif type(error).__module__ == "rff_dist.errors":
        message = names.translated(str(error) + (f" ({'; '.join(notes)})" if notes else ""))
        if code == USAGE:
            hint = f"see: {context.command_path} --help"
        elif isinstance(error, ClusterError) and any("goes on from there" in note for note in notes):
            hint = _again()
        elif near := _near_path(message, context.params.values()):
            hint = f"did you mean {near}?"
    else:
        message = f"{type(error).__name__}: {error}"
        hint = "" if debug else "this is unexpected; the same command with --debug shows where it came from"
    _tell_error(context, type(error).__name__, code, message, hint, as_json=as_json)


def _tell_error(
    context: typer.Context | None, kind: str, code: int, message: str, hint: str, *, as_json: bool
) -> None:
    say("error", message, "red")
    if hint:
        _show_line("info", hint, Text(hint, "dim"))
    if as_json:
        name = None if context is None else _words(context) or None
        _write_json({"command": name, "error": {"type": kind, "message": message, "exit_code": code}})


def _again() -> str:
    """Return a hint with the command that goes on where this one was stopped."""
    # URLs in the arguments may hold passwords.
    return f"to go on: {shlex.join(map(redact, ['rff-dist', *sys.argv[1:]]))}"


def _near_path(message: str, given: Iterable[Any]) -> str:
    """Return a path on disk that is named nearly like the missing one in a message; "" if there is none."""
    for path in (Path(value) for value in given if isinstance(value, str) and "://" not in value):
        if str(path.absolute()) in message and path.parent.is_dir() and not path.exists():
            names = [one.name for one in path.parent.iterdir() if not one.name.startswith(".")]
            # With the default cutoff of 0.6, bin.csv was offered for missing.csv.
            if near := difflib.get_close_matches(path.name, names, n=1, cutoff=0.75):
                return str(path.with_name(near[0]))
    return ""
