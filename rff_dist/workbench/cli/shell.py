"""What all commands share: options, output as a table or JSON, signals and exit codes.

`command` makes a function of specs a command: its options are read from flags, the
environment and a file, the function is called, and the `Document` that it returns is
shown. cyclopts parses the words and writes the help; values are read by rff_dist's own
options, so that all ways to give one end in the same check.
"""

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
    UnknownOptionError,
    UnusedCliTokensError,
)
from rich.console import Console

from rff_dist import contexts, errors, fields
from rff_dist.engines import logs
from rff_dist.text import nearest
from rff_dist.typing import Summary
from rff_dist.workbench.cli import command_context, help, messages, settings, sources
from rff_dist.workbench.jobs import places
from rff_dist.workbench.results import exits, terminal
from rff_dist.workbench.results.document import Document

SAME_SIGNAL = 1.0  # seconds; a signal sooner than this after the first is the same one

type Context = contextlib.AbstractContextManager[Any]

out = Console(highlight=False)


#: An option of several commands.
OVERWRITE = fields.flag("Replace an existing output, once the job is done.")


@fields.group
class CommonOptions:
    """What every command takes in addition to its own options."""

    panel: ClassVar[str] = "What is shown, and where options come from"

    json: bool = fields.flag("Show one JSON document.")
    details: bool = fields.flag("Show all of a result, not its main figures only.")
    quiet: bool = fields.flag("Show no progress and no next step.")
    debug: bool = fields.flag("Show the log, and errors' tracebacks.")
    log_format: Literal["text", "json"] | None = fields.optional(
        "Format of messages on standard error: text for people, or one JSON object per"
        " line. By default RFF_DIST_LOG in the environment, or text."
    )
    config: str | None = fields.optional(
        "TOML file with options by name, such as n_components = 512. Flags and the"
        " environment override it: RFF_DIST_FIT_N_COMPONENTS is the variable of"
        " `n_components` of fit.",
        placeholder="FILE",
    )
    print_config: bool = fields.flag(
        "Only show what each option is and where it comes from, as a TOML file for"
        " `config`."
    )
    help_all: bool = fields.flag("Show all options, and all that is said about them.")


COMMON = list(fields.options_of(CommonOptions))


class Command:
    """A function whose signature declares options: it is called with their values."""

    def __init__(self, function: Callable[..., Document], title: str) -> None:
        self.function = function
        self.title = title  # its name, with that of its group
        signature = inspect.signature(function, eval_str=True)
        # by the parameter's name: its spec, if it has one, and the options that fill it
        self.parameters = {
            name: _options_of_parameter(parameter)
            for name, parameter in signature.parameters.items()
        }
        self.options = [
            option for _, options in self.parameters.values() for option in options
        ]
        self.options += COMMON

    def read(self, tokens: sources.Tokens) -> tuple[Summary, Summary]:
        """Return the function's arguments, and the values of given options by name."""
        values = sources.read(self.options, tokens)
        arguments = {}
        for name, (spec, options) in self.parameters.items():
            if spec is None:
                arguments[name] = values.get(name, options[0].default)
                continue
            names = [option.name for option in options if option.name in values]
            arguments[name] = fields.fill(spec, {name: values[name] for name in names})
        return arguments, values

    def run(self, tokens: sources.Tokens) -> int:
        """Run the command, write its result, and return its exit code."""
        values: Summary = {}
        # until the others are read, which may fail
        common = fields.fill(CommonOptions, {"json": "json" in tokens})
        names = {option.name for option in self.options}
        with (
            # a name for this run in the JSON lines of the log
            logs.of_run(uuid.uuid4().hex[:12]),
            contexts.setting(settings.options, names),
            contexts.setting(settings.warned, ()),
        ):
            try:
                common = fields.fill(CommonOptions, sources.read(COMMON, tokens))
                settings.quiet.set(common.quiet)
                settings.log_format.set(common.log_format or settings.log_format.get())
                printing: Context = contextlib.nullcontext()
                if common.json:
                    # What libraries print goes to standard error: standard output gets
                    # the document only.
                    printing = contextlib.redirect_stdout(sys.stderr)
                with (
                    _signals(),
                    messages.show_messages(debug=common.debug),
                    printing,
                    command_context.progress(self.title),
                ):
                    arguments, values = self.read(tokens)
                    if common.print_config:
                        text = sources.describe(self.options, tokens, values)
                        out.print(text, markup=False, soft_wrap=True)
                        return 0
                    document = self._call(arguments, values)
            except BaseException as error:
                outputs = [
                    values[option.name]
                    for option in self.options
                    if option.declared.writes and values.get(option.name) is not None
                ]
                return messages.report_error(
                    error,
                    self.title,
                    outputs=outputs,
                    values=values.values(),
                    as_json=common.json,
                    debug=common.debug,
                )
        show(document, self.title, common)
        return document.code

    def _call(self, arguments: Summary, values: Summary) -> Document:
        """Call the function within its time limit, once its places are checked."""
        limit: Context = contextlib.nullcontext()
        for argument in arguments.values():
            if isinstance(argument, command_context.CommandContext):
                limit = argument.limits.timed()
        with limit:
            places.check(
                (option.name, option.declared, values.get(option.name))
                for option in self.options
            )
            return self.function(**arguments)


def _options_of_parameter(
    parameter: inspect.Parameter,
) -> tuple[type | None, list[fields.Option]]:
    """Return the spec that a command's parameter takes, and the options that fill it.

    A parameter that is a single option has no spec. `Annotated[spec, "a", "b"]` takes
    only these options of the spec.
    """
    spec = parameter.annotation
    if isinstance(parameter.default, dataclasses.Field):
        return None, [fields.option_of(parameter.name, spec, parameter.default)]
    if get_origin(spec) is not Annotated:
        return spec, list(fields.options_of(spec))
    spec, *names = get_args(spec)
    return spec, [one for one in fields.options_of(spec) if one.name in names]


def command(
    *examples: str, group: App | None = None, name: str | None = None
) -> Callable[[Callable[..., Document]], App]:
    """Make a function a command, with the options that its signature declares.

    A parameter is a spec, which brings its options; a spec and names of those that the
    command takes; or an option of the command's own, which its default declares. The
    `examples` are lines for the help, without the command's name, which they begin
    with.
    """

    def register(function: Callable[..., Document]) -> App:
        short_title = name or function.__name__
        title = short_title if group is None else f"{group.name[0]} {short_title}"
        command = Command(function, title)

        def parsed(*_: Any, **__: Any) -> int:
            return command.run(sources.given.get())

        # cyclopts reads names, types and help from the signature
        parameters = _parameters(command.options)
        parsed.__doc__ = function.__doc__
        parsed.command = command  # type: ignore[attr-defined]
        parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        parsed.__annotations__ = {one.name: one.annotation for one in parameters}
        app = App(
            name=short_title,
            version_flags=(),
            usage=help.usage(title, command.options),
            help_epilogue="\n".join(help.example(title, words) for words in examples),
        )
        app.default(parsed)
        if group is not None:
            group.command(app)
        return app

    return register


def make_group(name: str, help: str) -> App:
    """Return a group of commands, `rff-dist NAME …`."""
    usage = f"Usage: rff-dist {name} COMMAND …"
    return App(name=name, help=help, usage=usage, version_flags=())


def _parameters(options: Sequence[fields.Option]) -> list[inspect.Parameter]:
    """Return what cyclopts reads of options: their flags, help and panels."""
    panels = dict.fromkeys([help.ARGUMENTS, *map(help.panel_of, options)])
    groups = {panel: Group(panel, sort_key=i) for i, panel in enumerate(panels)}
    parameters = [
        _parameter(option, groups[help.panel_of(option)]) for option in options
    ]
    # A signature has positional parameters first; the sort is stable, so the others
    # keep their order.
    return sorted(parameters, key=lambda parameter: parameter.kind)


def _parameter(option: fields.Option, group: Group) -> inspect.Parameter:
    """Return an option as a parameter whose value says only whether it was given.

    `Command.read` reads the value itself, from the tokens that `sources.fill` keeps.
    """
    literals = option.literals
    placeholder = option.declared.placeholder
    if placeholder is None and literals:
        placeholder = "|".join(literals)
    elif placeholder is None:
        placeholder = "NAME" if str in option.kinds else "N"

    hint: Any = str
    if literals:  # which completion offers
        hint = str | Literal[*literals]
    if option.kinds == {list, str}:
        hint = list[hint]
    elif option.kinds == {bool} and not literals:
        hint = bool

    default: Any = False
    is_off = option.default is False and hint is not bool  # such as `standardize`
    if not option.is_required and (option.default or is_off):
        default = sources.toml(option.default).strip('"')
    about = Parameter(
        help=option.declared.help,
        group=group,
        required=option.is_required,
        metavar=placeholder,
        show_choices=False,
        show_default=default,
    )
    if option.is_required or option.name in help.FIRST:
        about = Parameter.combine(about, Parameter(show=True))
    kind = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD
        if option.declared.is_argument
        else inspect.Parameter.KEYWORD_ONLY
    )
    annotation = Annotated[hint | None, about]
    return inspect.Parameter(option.name, kind, default=None, annotation=annotation)


@functools.cache
def make_app() -> App:
    """Return the whole program, whose commands are imported when they are used."""
    app = App(
        name="rff-dist",
        help=help.ABOUT,
        version_flags=(),
        config=[sources.fill],
        help_format="plaintext",
    )
    for name in COMMANDS:
        app.command(place_of(name), name=name)
    return app


def place_of(name: str) -> str:
    """Return where a command or a group of them is defined, as MODULE:NAME."""
    module = f"{__package__}.{name}"
    if importlib.util.find_spec(module) is None:
        return f"{__package__}.jobs:{name}"  # those that run a job
    return f"{module}:{'group' if name in GROUPS else name}"


COMMANDS = {
    name: about for panel in help.COMMANDS.values() for name, about in panel.items()
}
GROUPS = ("data", "models")


def run(words: Sequence[str]) -> int:
    """Run a command with the words after the program's name; return its exit code."""
    # Looked for by hand, since reading the words may be what fails, and that is
    # reported as JSON too.
    as_json = sources.wants_json(words)
    try:
        settings.log_format.set(logs.log_format())
        if words[0] == "--install-completion":
            sys.stdout.write(f"{make_app().install_completion(add_to_startup=True)}\n")
            return 0
        _check_words(words)
        app = make_app()
        shows_all = "--help-all" in words
        app.default_parameter = Parameter(
            negative_iterable=(), allow_repeating=True, show=shows_all
        )
        app.help_formatter = functools.partial(help.write_panel, everything=shows_all)
        words = ["--help" if word == "--help-all" else word for word in words]
        function, bound, _ = app.parse_args(
            words, exit_on_error=False, print_error=False
        )
        code = function(*bound.args, **bound.kwargs)  # of a command, or the help
        return code if isinstance(code, int) else 0
    except CycloptsError as error:
        title = " ".join(error.command_chain or ())
        return messages.report_usage(_usage_error(error), title, as_json=as_json)
    except errors.InvalidParameterError as error:
        title = words[0] if words[0] in COMMANDS else ""
        return messages.report_error(error, title, as_json=as_json)


def _check_words(words: Sequence[str]) -> None:
    if words[0].startswith("-"):
        raise errors.InvalidParameterError(
            f"{words[0]} comes before a command; expected a command first"
        )
    fields.check_names(words[:1], COMMANDS, what="command")
    if sum(word.partition("=")[0] == "--config" for word in words) > 1:
        raise errors.InvalidParameterError(
            "--config is given more than once; expected one file"
        )


def _usage_error(error: CycloptsError) -> str:
    """Return what is wrong with the words of a command, as its help names them."""
    command: Command | None = getattr(error.target, "command", None)
    if command is None:
        return str(error)
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error, command)
    usage = help.usage(command.title, command.options)
    usage = usage.removeprefix("Usage: ").strip()
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(error.unused_tokens or ())
        return f"there is no place for {unused}; expected {usage}"
    option = None
    if error.argument is not None:
        names = {option.name: option for option in command.options}
        option = names.get(error.argument.field_info.name)
    if isinstance(error, MissingArgumentError) and error.keyword is not None:
        expected = option.expected if option else usage
        return f"{error.keyword} needs a value; expected {expected}"
    if option is None:
        return str(error)
    flag = messages.flag_of(option.name)
    if isinstance(error, MissingArgumentError):
        is_argument = option.declared.is_argument
        name = option.declared.placeholder if is_argument else flag
        # an option is misspelt
        _, meant, near = str(error).partition(" Did you mean")
        return f"{name} is missing; expected {usage}.{meant}{near}".rstrip(".")
    if isinstance(error, CoercionError) and error.token is not None:
        return f"{flag} is {error.token.value!r}; expected {option.expected}"
    return str(error)


def _unknown_option(error: UnknownOptionError, command: Command) -> str:
    """Say which similar option a command has, and which commands have this one."""
    flag = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection for name in argument.names]
    message = f"{command.title} has no option {flag}"
    # all flags begin with two dashes, which make them similar
    if near := nearest(flag, known, cutoff=0.8):
        message += f"; did you mean {near}?"
    others = [name for name in COMMANDS if _has_option(name, flag)]
    if others:
        message += (
            f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} {flag}"
        )
    return message


def _has_option(name: str, flag: str) -> bool:
    command = getattr(make_app()[name].default_command, "command", None)
    names = [option.name for option in command.options] if command else []
    return flag in map(messages.flag_of, names)


def show(document: Document, command: str, common: CommonOptions) -> None:
    """Write the result of a command to standard output."""
    if common.json:
        messages.write_json({"command": command, **document.record})
    elif document.title:
        out.print(
            terminal.to_rich(document, next=not common.quiet, details=common.details)
        )


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn the first SIGTERM or Ctrl-C into an exception; a later one ends the process
    at once.

    Some programs signal the process and then its group, so a repetition within a second
    is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread set handlers
        return

    first: list[float] = []

    def stop(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if first and now - first[0] < SAME_SIGNAL:
            return
        if first:
            # By the system's own handler, so that the parent process sees which signal
            # ended this one.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first.append(now)
        raise exits.TerminationSignal if number == signal.SIGTERM else KeyboardInterrupt

    before = {
        number: signal.signal(number, stop)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
