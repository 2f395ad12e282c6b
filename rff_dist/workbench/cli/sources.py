"""Where values of options come from: flags, the environment, a TOML file or defaults.

They count in this order. cyclopts has such sources too, but turns all values into text
and ignores unknown variables. So `fill` collects what every source says of an option,
as tokens, while cyclopts parses a command line; `read` makes values of the tokens.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from cyclopts import Token
from cyclopts.utils import UNSET

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.text import without_secrets
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import specs

#: What sources say of each option that they name.
type Tokens = Mapping[str, Sequence[Token]]

#: The tokens that `fill` collected.
given: ContextVar[Tokens] = ContextVar("given")

# options that are no part of a file for `config`
_ABOUT_SOURCES = ("config", "print_config", "help_all")


def prefix_of(command: Iterable[str]) -> str:
    """Return how a command's environment variables begin, such as RFF_DIST_FIT_."""
    return "_".join(["RFF_DIST", *command, ""]).upper()


def fill(_: Any, command: Sequence[str], arguments: Any) -> None:
    """Collect the tokens of flags, the environment and the file of `config`.

    cyclopts calls it with a command's name, such as ("data", "log"), and with its
    arguments, which have the tokens of flags. Raises InvalidParameterError with the
    nearest name if there is no option of a name.
    """
    options = {argument.field_info.name: argument for argument in arguments}
    if "sources" in options and "data" in options and not options["data"].tokens:
        # of SOURCE … OUT, which are all taken as sources, the last one is the data
        source_tokens = options["sources"].tokens
        if positional := [token for token in source_tokens if token.keyword is None]:
            source_tokens.remove(positional[-1])
            options["data"].tokens.append(positional[-1])

    prefix = prefix_of(command)
    for variable, text in os.environ.items():
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            _add(options, name, Token(value=text, source=variable))
    if config := options["config"].tokens:
        path = config[-1].value
        skipped: set[str] = set()
        if command == ("plan",):
            # options of `fit` that the estimate does not depend on
            of_fit = {option.name for option in fields.options_of(specs.Train)}
            skipped = of_fit - {*options}
        for name, value in fields.read_toml("--config", path).items():
            if isinstance(value, dict):
                raise InvalidParameterError(
                    f"--config {path} has a table [{name}]; expected options by name,"
                    " outside of tables"
                )
            if name not in skipped:
                _add(options, name, Token(implicit_value=value, source=path))

    collected = {name: tuple(one.tokens) for name, one in options.items() if one.tokens}
    given.set(collected)
    for name in collected:  # cyclopts only has to know that it was given
        is_flag = options[name].resolved_hint is bool
        token = Token(implicit_value=True) if is_flag else Token()
        options[name].tokens[:] = [token]


def wants_json(line: Sequence[str]) -> bool:
    """Return whether a command line, the environment or a file asks for JSON; nothing
    is checked.
    """
    if "--json" in line:
        return True
    texts = []
    paths = []
    for n_words in (1, 2):  # a command, or a group and a command of it
        prefix = prefix_of(line[:n_words])
        texts.append(os.environ.get(f"{prefix}JSON", ""))
        paths.append(os.environ.get(f"{prefix}CONFIG", ""))
    for word, following in itertools.pairwise([*line, ""]):
        if word == "--config":
            paths.append(following)
        elif word.startswith("--config="):
            paths.append(word.partition("=")[2])
    for path in filter(None, paths):
        with contextlib.suppress(InvalidParameterError):  # which is reported later
            texts.append(str(fields.read_toml("--config", path).get("json", "")))
    return any(text.lower() in ("true", "yes") for text in texts)


def _add(options: Facts, name: str, token: Token) -> None:
    """Add a token, unless a source that counts more has one of the same option."""
    with _naming(token.source):
        fields.check_names([name], options)
    if not options[name].tokens:
        options[name].append(token)


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    """Add to errors where a value comes from, unless it is a flag."""
    try:
        yield
    except InvalidParameterError as error:
        if source != "cli":
            error.source = source
            error.add_note(f"from {source}")
        raise


def read(options: Iterable[fields.Option], tokens: Tokens) -> Summary:
    """Return the values of the options that were given, by name."""
    values: Summary = {}
    for option in options:
        if option.name in tokens:
            values[option.name] = _value(option, tokens[option.name])
    return values


def _value(option: fields.Option, tokens: Sequence[Token]) -> Any:
    first = tokens[0]
    with _naming(first.source):
        if first.implicit_value is not UNSET:
            return option.check(first.implicit_value)
        return option.read(*(token.value for token in tokens))


def describe(options: Iterable[fields.Option], tokens: Tokens, values: Facts) -> str:
    """Return options with their values and sources, as TOML without secrets."""
    lines = []
    for option in options:
        if option.name in _ABOUT_SOURCES:
            continue
        source = "default"
        if option.name in tokens:
            source = tokens[option.name][0].source
        if source == "cli":
            source = "flag"
        value = values.get(option.name, option.default)
        line = f"{option.name} = {toml(value)}"
        if value is None:
            line = f"# {option.name}: none"
        lines.append(f"{line}  # {source}")
    return without_secrets("\n".join(lines))


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
