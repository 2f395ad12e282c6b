"""Where values of options come from: flags, the environment, a TOML file or defaults, in this order."""

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

type Given = Mapping[str, Sequence[Token]]

#: What `fill` found: tokens of options by name.
given: ContextVar[Given] = ContextVar("given")


def prefix_of(words: Iterable[str]) -> str:
    """Return what the environment's variables for a command's options begin with, as RFF_DIST_FIT_."""
    return "_".join(["RFF_DIST", *words, ""]).upper()


def fill(_: Any, words: Sequence[str], arguments: Any) -> None:
    """Give arguments that no flag gave what the environment and the file of `config` say; cyclopts calls it.

    cyclopts has such sources too, but they make texts of all values, and pass over unknown variables. All
    tokens are then `given`, for `read`.

    Raises InvalidParameterError with the nearest name if there is no such option.
    """
    options = {argument.field_info.name: argument for argument in arguments}
    if "sources" in options and "data" in options:
        _take_last(options["sources"].tokens, options["data"].tokens)
    prefix = prefix_of(words)
    for variable, text in os.environ.items():
        if variable.startswith(prefix):
            _give(options, variable.removeprefix(prefix).lower(), Token(value=text, source=variable))
    if config := options["config"].tokens:
        path = config[-1].value
        for name, value in fields.read_toml("--config", path).items():
            if isinstance(value, dict):
                raise InvalidParameterError(
                    f"--config {path} has a table [{name}]; expected options by name, outside of tables"
                )
            _give(options, name, Token(implicit_value=value, source=path))
    given.set({name: tuple(one.tokens) for name, one in options.items() if one.tokens})
    for name in given.get():  # cyclopts only has to know that it was given
        token = Token(implicit_value=True) if options[name].resolved_hint is bool else Token()
        options[name].tokens[:] = [token]


def wants_json(words: Sequence[str]) -> bool:
    """Return whether a command's words, its environment or its file ask for JSON; nothing is checked."""
    if "--json" in words:
        return True
    prefixes = [prefix_of(words[:n]) for n in (1, 2)]
    given = [os.environ.get(f"{prefix}JSON", "") for prefix in prefixes]
    files = [os.environ.get(f"{prefix}CONFIG", "") for prefix in prefixes]
    files += [after for word, after in itertools.pairwise(words) if word == "--config"]
    files += [word.partition("=")[2] for word in words if word.startswith("--config=")]
    for path in filter(None, files):
        with contextlib.suppress(InvalidParameterError):  # which is told later
            given.append(str(fields.read_toml("--config", path).get("json", "")))
    return any(text.lower() in ("true", "yes") for text in given)


def _take_last(sources: list[Token], data: list[Token]) -> None:
    """Of the words SOURCE … OUT, which are all among the sources, give the last one to the data."""
    places = [token for token in sources if token.keyword is None]
    if places and not data:
        sources.remove(places[-1])
        data.append(places[-1])


def _give(options: Facts, name: str, token: Token) -> None:
    with _from(token.source):
        fields.check_names([name], options)
    if not options[name].tokens:
        options[name].append(token)


@contextlib.contextmanager
def _from(source: str) -> Iterator[None]:
    """Add to errors where a value comes from, unless it is a flag."""
    try:
        yield
    except InvalidParameterError as error:
        if source != "cli":
            error.add_note(f"from {source}")
        raise


def read(options: Iterable[fields.Option], tokens: Given) -> Summary:
    """Return the values of the options that were given, by name."""
    return {option.name: _read(option, tokens[option.name]) for option in options if option.name in tokens}


def _read(option: fields.Option, tokens: Sequence[Token]) -> Any:
    first = tokens[0]
    with _from(first.source):
        if first.implicit_value is not UNSET:
            return option.check(first.implicit_value)
        return option.read(*(token.value for token in tokens))


def describe(options: Iterable[fields.Option], tokens: Given, values: Facts) -> str:
    """Return each option, its value without secrets, and where it comes from, as TOML for `config`."""
    lines = []
    for option in options:
        first = tokens[option.name][0] if option.name in tokens else None
        source = "default" if first is None else "flag" if first.source == "cli" else first.source
        value = values.get(option.name, option.default)
        lines.append(f"# {option.name}: none" if value is None else f"{option.name} = {toml(value)}")
        lines[-1] += f"  # {source}"
    return without_secrets("\n".join(lines))


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
