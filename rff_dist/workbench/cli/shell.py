"""What all commands share: options, output as a table or JSON, signals, and exit codes."""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from cyclopts import App, Group, Parameter
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnusedCliTokensError,
)
from rich.console import Console

from rff_dist import contexts, errors, fields
from rff_dist.engines import logs
from rff_dist.typing import Summary
from rff_dist.workbench.cli import display, help, messages, settings, sources
from rff_dist.workbench.jobs import places
from rff_dist.workbench.results import exits, terminal
from rff_dist.workbench.results.document import Document

AGAIN_AFTER = 1.0  # seconds; a signal sooner than this after the first is the same one

out = Console(highlight=False)


#: An option of several commands.
OVERWRITE = fields.flag("Replace what is there, once the job is done.")


@fields.group
class Shown:
    """What every command takes in addition to its own options."""

    panel: ClassVar[str] = "What is shown, and where options come from"

    json: bool = fields.flag("Show one JSON document.")
    quiet: bool = fields.flag("Show no progress and no next step.")
    debug: bool = fields.flag("Show the log, and errors' tracebacks.")
    log_format: Literal["text", "json"] | None = fields.optional(
        "Format of messages on standard error: text for people, or one JSON object a line. By default "
        "RFF_DIST_LOG in the environment, or text."
    )
    config: str | None = fields.optional(
        "TOML file with options by name, such as n_components = 512. Flags count more, and so does the "
        "environment: RFF_DIST_FIT_N_COMPONENTS is the variable of `n_components` of fit.",
        unit="FILE",
    )
    print_config: bool = fields.flag(
        "Only show what each option is and where it comes from, as a TOML file for `config`."
    )
    help_all: bool = fields.flag("Show all options.")


_SHARED = tuple(fields.options_of(Shown))
_ABOUT_SOURCES = ("config", "print_config", "help_all")


class Command:
    """A command: a function of specs and of options of its own, which its signature declares.

    `title`: its name, with that of its group.
    `parts`: for each parameter of the function, a spec and those of its options that the command takes; or no
      spec and one option.
    `progress`: whether its progress is shown for it.
    """

    def __init__(self, function: Callable[..., Document], title: str, *, progress: bool) -> None:
        self.function, self.title, self.progress = function, title, progress
        self.parts: dict[str, tuple[type | None, Sequence[fields.Option]]] = {}
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if isinstance(parameter.default, dataclasses.Field):
                self.parts[name] = None, [fields.declared(name, parameter.annotation, parameter.default)]
                continue
            is_annotated = get_origin(parameter.annotation) is Annotated
            spec, *only = get_args(parameter.annotation) if is_annotated else (parameter.annotation,)
            options = [one for one in fields.options_of(spec) if not only or one.name in only]
            self.parts[name] = spec, options

    @property
    def options(self) -> list[fields.Option]:
        """All its options, those that all commands have at the end."""
        return [*(one for _, options in self.parts.values() for one in options), *_SHARED]

    def read(self, given: sources.Given) -> tuple[Summary, Summary]:
        """Return the function's arguments, and the values of options that were given, by name."""
        values = sources.read(self.options, given)
        arguments = {}
        for name, (spec, options) in self.parts.items():
            mine = {one.name: values[one.name] for one in options if one.name in values}
            arguments[name] = mine.get(name, options[0].default) if spec is None else fields.build(spec, mine)
        return arguments, values

    def run(self, given: sources.Given) -> int:
        """Run the command with these flags, write its result, and return its exit code."""
        values: Summary = {}
        shown = fields.build(Shown, {"json": "json" in given})  # until the others are read, which may fail
        names = {one.name for one in self.options}
        run = logs.of_run(uuid.uuid4().hex[:12])  # a name for this run in the JSON lines of the log
        with run, contexts.setting(settings.options, names), contexts.setting(settings.warned, ()):
            try:
                shown = fields.build(Shown, sources.read(_SHARED, given))
                settings.quiet.set(shown.quiet)
                settings.log_format.set(shown.log_format or settings.log_format.get())
                with (
                    _signals(),
                    messages.show_messages(debug=shown.debug),
                    # What libraries print goes to standard error: standard output gets the document only.
                    contextlib.redirect_stdout(sys.stderr) if shown.json else contextlib.nullcontext(),
                    display.progress(self.title) if self.progress else contextlib.nullcontext(),
                ):
                    arguments, values = self.read(given)
                    if shown.print_config:
                        own = [one for one in self.options if one.name not in _ABOUT_SOURCES]
                        out.print(sources.describe(own, given, values), markup=False, soft_wrap=True)
                        return 0
                    passes = [one for one in arguments.values() if isinstance(one, display.Passes)]
                    with passes[0].limits.timed() if passes else contextlib.nullcontext():
                        places.check((one.name, one.declared, values.get(one.name)) for one in self.options)
                    found = self.function(**arguments)
            except BaseException as error:
                written = [one.name for one in self.options if one.declared.writes]
                return messages.report_error(
                    error,
                    self.title,
                    outputs=[values[name] for name in written if values.get(name) is not None],
                    values=values.values(),
                    as_json=shown.json,
                    debug=shown.debug,
                )
        show(found, self.title, as_json=shown.json)
        return found.code


def command(
    *examples: str, group: App | None = None, name: str | None = None, progress: bool = True
) -> Callable[[Callable[..., Document]], App]:
    """Make a function a command, with the options that its signature declares.

    A parameter is a spec, which brings its options; a spec and names of those that the command takes; or an
    option of the command's own, which its default declares.

    `examples`: lines for the help, without the command's name, which they begin with.
    `group`: the group of commands that it belongs to.
    `name`: of the command; by default the function's.
    `progress`: whether its progress is shown for it.
    """

    def register(function: Callable[..., Document]) -> App:
        called = name or function.__name__
        title = called if group is None else f"{group.name[0]} {called}"
        made = Command(function, title, progress=progress)
        panels = dict.fromkeys([help.ARGUMENTS, *(help.panel_of(one) for one in made.options)])
        groups = {panel: Group(panel, sort_key=i) for i, panel in enumerate(panels)}
        keywords = [_parameter(one, groups[help.panel_of(one)]) for one in made.options]
        # A signature has positional parameters first; the sort is stable, so the others keep their order.
        keywords.sort(key=lambda parameter: parameter.kind)

        def parsed(*_: Any, **__: Any) -> int:
            return made.run(sources.given.get())

        parsed.__doc__, parsed.command = function.__doc__, made  # type: ignore[attr-defined]
        parsed.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        parsed.__annotations__ = {one.name: one.annotation for one in keywords}
        lines = "\n".join(help.example(title, words) for words in examples)
        app = App(name=called, version_flags=(), usage=help.usage(title, made.options), help_epilogue=lines)
        app.default(parsed)
        if group is not None:
            group.command(app)
        return app

    return register


def make_group(name: str, help: str) -> App:
    """Return a group of commands, `rff-dist NAME …`."""
    return App(name=name, help=help, usage=f"Usage: rff-dist {name} COMMAND …", version_flags=())


def _parameter(one: fields.Option, group: Group) -> inspect.Parameter:
    """Return the parameter that cyclopts reads; its value is what was given, which `Command.run` reads."""
    words, unit = one.names, one.declared.unit
    if unit is None:
        unit = "|".join(words) or ("NAME" if str in one.kinds else "N")
    hint: Any = str | Literal[*words] if words else str  # completion offers the words
    hint = list[hint] if one.kinds == {list, str} else bool if one.kinds == {bool} and not words else hint
    shown = None if one.required or not one.default else sources.toml(one.default).strip('"')
    told = Parameter(
        help=one.declared.help,
        group=group,
        required=one.required,
        metavar=unit,
        show_choices=False,
        show_default=shown or False,
    )
    if one.required or one.name in help.FIRST:
        told = Parameter.combine(told, Parameter(show=True))
    kind = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD if one.declared.argument else inspect.Parameter.KEYWORD_ONLY
    )
    return inspect.Parameter(one.name, kind, default=None, annotation=Annotated[hint | None, told])


@functools.cache
def make_app() -> App:
    """Return the whole program, whose commands are imported when they are used."""
    app = App(
        name="rff-dist", help=help.ABOUT, version_flags=(), config=[sources.fill], help_format="plaintext"
    )
    for name in COMMANDS:
        app.command(place_of(name), name=name)
    return app


def place_of(name: str) -> str:
    """Return where a command or a group of them is defined, as MODULE:NAME."""
    place = f"{__package__}.{name}"
    if importlib.util.find_spec(place) is None:
        return f"{__package__}.jobs:{name}"  # those that run a job
    return f"{place}:{'group' if name in GROUPS else name}"


COMMANDS = {name: about for panel in help.COMMANDS.values() for name, about in panel.items()}
GROUPS = ("data", "models")


def run(words: Sequence[str]) -> int:
    """Run a command with the words after the program's name, and return its exit code."""
    # Looked for by hand, since reading the words may be what fails, and that is reported as JSON too.
    as_json = sources.wants_json(words)
    try:
        settings.log_format.set(logs.log_format())
        if words[0] == "--install-completion":
            sys.stdout.write(f"{make_app().install_completion(add_to_startup=True)}\n")
            return 0
        if words[0].startswith("-"):
            raise errors.InvalidParameterError(f"{words[0]} comes before a command; expected a command first")
        fields.check_names(words[:1], COMMANDS, what="command")
        if sum(word.partition("=")[0] == "--config" for word in words) > 1:
            raise errors.InvalidParameterError("--config is given more than once; expected one file")
        app = make_app()
        everything = "--help-all" in words
        app.default_parameter = Parameter(negative_iterable=(), allow_repeating=True, show=everything)
        app.help_formatter = functools.partial(help.write_panel, everything=everything)
        words = ["--help" if word == "--help-all" else word for word in words]
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        code = function(*bound.args, **bound.kwargs)  # of a command, or the help
        return code if isinstance(code, int) else 0
    except CycloptsError as error:
        title = " ".join(error.command_chain or ())
        return messages.report_usage(_what_is_wrong(error), title, as_json=as_json)
    except errors.InvalidParameterError as error:
        return messages.report_error(error, words[0] if words[0] in COMMANDS else "", as_json=as_json)


def _what_is_wrong(error: CycloptsError) -> str:
    """Return what is wrong with the words of a command, as its help names them."""
    made: Command | None = getattr(error.target, "command", None)
    if made is None:
        return str(error)
    options = {one.name: one for one in made.options}
    asked = None if error.argument is None else options.get(error.argument.field_info.name)
    usage = help.usage(made.title, made.options).removeprefix("Usage: ").strip()
    match error:
        case MissingArgumentError() if asked is not None and error.keyword is None:
            called = asked.declared.unit if asked.declared.argument else messages.flag_of(asked.name)
            _, meant, near = str(error).partition(" Did you mean")  # an option is misspelt
            return f"{called} is missing; expected {usage}.{meant}{near}".rstrip(".")
        case MissingArgumentError():
            return f"{error.keyword} needs a value; expected {asked.expected if asked else usage}"
        case CoercionError() if asked is not None and error.token is not None:
            return messages.flag_of(asked.name) + f" is {error.token.value!r}; expected {asked.expected}"
        case UnusedCliTokensError():
            return f"there is no place for {' '.join(error.unused_tokens or ())}; expected {usage}"
    return str(error)


def show(found: Document, command: str, *, as_json: bool) -> None:
    """Write what a command found to standard output."""
    if as_json:
        messages.write_json({"command": command, **found.record})
    elif found.title:
        out.print(terminal.to_rich(found, next=not settings.quiet.get()))


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
            # By the system's own handler, so that the parent process sees which signal ended this one.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first.append(now)
        raise exits.Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
