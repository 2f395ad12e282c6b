"""What all commands share: options, output as a table or JSON, signals, and exit codes."""

import contextlib
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from rff_dist.workbench.cli import display, help, messages, options, program, settings
from rff_dist.workbench.results import terminal
from rff_dist.workbench.results.document import Document

AGAIN_AFTER = 1.0  # seconds; a signal sooner than this after the first is the same one

out = Console(highlight=False)


AsJson = Annotated[bool, typer.Option("--json", help="Show one JSON document.", rich_help_panel=help.LAST)]

_QUIET = typer.Option("--quiet", "-q", help="Show no progress and no next step.", rich_help_panel=help.LAST)
_DEBUG = typer.Option("--debug", help="Show the log, and errors' tracebacks.", rich_help_panel=help.LAST)
_EVERYTHING: dict[str, Any] = {"callback": program.show_everything, "is_eager": True}
_HELP_ALL = typer.Option("--help-all", help="Show all options.", rich_help_panel=help.LAST, **_EVERYTHING)
#: The options that every command has besides its own.
_SHARED: dict[str, Any] = {
    "as_json": AsJson,
    "quiet": Annotated[bool, _QUIET],
    "debug": Annotated[bool, _DEBUG],
    "help_all": Annotated[bool, _HELP_ALL],
}


def command(
    *examples: str, group: typer.Typer = program.app, name: str | None = None
) -> Callable[[Callable[..., Document]], Callable[..., Document]]:
    """Make a function a command, with options from its signature, and `--json` and the like.

    `examples`: lines for the help.
    `group`: the program or group of commands that it belongs to.
    `name`: of the command; by default the function's.
    """

    def register(function: Callable[..., Document]) -> Callable[..., Document]:
        def run(
            context: typer.Context, as_json: bool, quiet: bool, debug: bool, help_all: bool, **asked: Any
        ) -> None:
            settings.quiet.set(quiet)
            if "as_json" in declared:
                asked["as_json"] = as_json
            words = messages.command_words(context)
            # A command that takes `--json` itself shows its own progress.
            shown = contextlib.nullcontext() if "as_json" in declared else display.progress(words)
            with messages.run_in_log():
                try:
                    with _signals(), messages.show_messages(names, debug=debug), _stdout_free(as_json), shown:
                        values = {name: spec.read(asked) for name, spec in specs.items()}
                        found = function(**values, **asked)
                except (program.UsageError, typer.Exit):
                    raise  # to `Program.main`, which reports mistakes in the arguments
                except BaseException as error:
                    places = [context.params.get(name) for name in names.written]
                    code = messages.exit_code(error, outputs=[place for place in places if place is not None])
                    messages.report_error(error, context, code, names, as_json=as_json, debug=debug)
                    raise typer.Exit(code) from None
            show(found, words, as_json=as_json)
            if found.code:
                raise typer.Exit(found.code)

        # typer reads options from the signature, so those of specs and the shared ones are added to it.
        declared = dict(inspect.signature(function, eval_str=True).parameters)
        read = {name: options.SpecOptions.of(parameter.annotation) for name, parameter in declared.items()}
        specs = {name: spec for name, spec in read.items() if spec is not None}
        names = messages.Names.of(declared, specs.values())
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        for key, parameter in declared.items():
            if key in specs:
                parameters += specs[key].parameters(names.flags)
            elif key not in _SHARED:
                parameters.append(parameter.replace(kind=keyword))
        parameters.append(inspect.Parameter("context", keyword, annotation=typer.Context))
        for key, annotation in _SHARED.items():
            parameters.append(inspect.Parameter(key, keyword, default=False, annotation=annotation))
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        group.command(name, cls=program.Command, epilog="\n\n".join(examples))(run)
        return function

    return register


def show(found: Document, command: str, *, as_json: bool) -> None:
    """Write what a command found to standard output."""
    try:
        if as_json:
            messages.write_json({"command": command, **found.record})
        elif found.title:
            out.print(terminal.to_rich(found, next=not settings.is_quiet()))
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader, such as `head`, closed the pipe (rich then raises SystemExit). Python would complain
        # when it flushes standard output at its end, so that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        raise messages.Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stdout_free(as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """With `--json`, send what libraries print to standard error: standard output gets the document only."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
