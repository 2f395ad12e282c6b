"""Run a flow from a shell, with the command line's words NAME=VALUE as its parameters.

The scripts in the repository's folder flows/ end with this. Values are read like those
of the flags of `rff-dist`, and the process ends with the exit codes of `rff-dist`.
"""

import sys
from typing import Any

from prefect import Flow

from rff_dist import fields
from rff_dist.errors import InvalidParameterError, RFFDistError
from rff_dist.flows import running, server
from rff_dist.flows.parameters import Parameters
from rff_dist.typing import Summary
from rff_dist.workbench.results import exits


def run_script(flow: Flow[..., Any]) -> None:
    """Run a flow in this process; `--help` lists its parameters."""
    parameters = running.parameters_of(flow)
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        sys.stdout.write("Give NAME=VALUE, where NAME is one of:\n")
        for name, option in parameters.options.items():
            sys.stdout.write(f"  {name}: {option.declared.help}\n")
        return
    values: Summary = {}
    result: Any = None
    try:
        values = _values_of(words, parameters)
        server.check_server()
        result = flow(**values)
    except RFFDistError as error:
        outputs = [
            values[name]
            for name, option in parameters.options.items()
            if option.declared.writes and name in values
        ]
        sys.stderr.write(f"error: {error}\n")
        sys.exit(exits.exit_code(error, outputs=outputs))
    if isinstance(result, dict) and result.get("decision") == "kept":
        sys.exit(exits.REFUSED)


def _values_of(words: list[str], parameters: Parameters) -> Summary:
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidParameterError(
                f"{word!r} has no '='; expected NAME=VALUE. --help lists the names"
            )
        if name in texts:
            raise InvalidParameterError(f"`{name}` is given twice; expected it once")
        texts[name] = text
    fields.check_names(texts, parameters.options, what="parameter")
    values = {name: parameters.options[name].read(text) for name, text in texts.items()}
    parameters.read(values)  # before a server is asked
    return values
