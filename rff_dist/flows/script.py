"""Run a flow from a shell: what the scripts in the repository's folder flows/ share."""

import json
import sys
from typing import Any

from prefect import Flow

from rff_dist.flows import running


def run_script(flow: Flow[..., Any], form: type[running.Form]) -> None:
    """Run a flow in this process, with the command line's words NAME=VALUE as its parameters.

    A value that is not JSON is text. Exits with 2 and the reason if the parameters do not fit.
    """
    try:
        parameters = form.model_validate(dict(map(_parse, sys.argv[1:])))
    except ValueError as error:  # pydantic's are too
        names = ", ".join(field.alias or name for name, field in form.model_fields.items())
        sys.stderr.write(f"{error}\nGive NAME=VALUE, where NAME is one of {names}.\n")
        sys.exit(2)
    flow(**parameters.model_dump())


def _parse(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(f"{word!r} has no '='")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError:
        return name, text
