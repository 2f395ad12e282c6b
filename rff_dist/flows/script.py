"""Run a flow from a shell: what the scripts in the repository's folder flows/ share."""

import sys
from typing import Any

from prefect import Flow

from rff_dist import fields
from rff_dist.errors import InvalidParameterError, RFFDistError
from rff_dist.flows import running, server
from rff_dist.typing import Summary
from rff_dist.workbench.results import exits, updates


def run_script(flow: Flow[..., Any], form: type[running.Form]) -> None:
    """Run a flow in this process, with the command line's words NAME=VALUE as its parameters.

    Values are read as those of flags. Exits with the codes of the command line, and the reason.
    """
    words = sys.argv[1:]
    if {"-h", "--help"} & {*words}:
        lines = [f"  {name}: {one.declared.help}" for name, one in form.options.items()]
        sys.stdout.write("\n".join(["Give NAME=VALUE, where NAME is one of:", *lines, ""]))
        return
    values: dict[str, Any] = {}
    try:
        values = _values_of(words, form)
        server.check_server()
        result = flow(**values)
    except RFFDistError as error:
        outputs = [
            values[name] for name, one in form.options.items() if one.declared.writes and name in values
        ]
        sys.stderr.write(f"error: {error}\n")
        sys.exit(exits.exit_code(error, outputs=outputs))
    if isinstance(result, dict) and result.get("decision") == "kept":
        sys.exit(updates.REFUSED)


def _values_of(words: list[str], form: type[running.Form]) -> Summary:
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidParameterError(f"{word!r} has no '='; expected NAME=VALUE. --help lists the names")
        if name in texts:
            raise InvalidParameterError(f"`{name}` is given twice; expected it once")
        texts[name] = text
    fields.check_names(texts, form.options, what="parameter")
    return form(**{name: form.options[name].read(text) for name, text in texts.items()}).values
