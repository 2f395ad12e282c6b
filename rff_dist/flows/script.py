"""Run a flow from a shell: what the scripts in the repository's folder flows/ share."""

import sys
from typing import Any

from prefect import Flow

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.flows import running


def run_script(flow: Flow[..., Any], form: type[running.Form]) -> None:
    """Run a flow in this process, with the command line's words NAME=VALUE as its parameters.

    Values are read as those of flags. Exits with 2 and the reason if the parameters do not fit.
    """
    try:
        words = dict[str, str]()
        for word in sys.argv[1:]:
            name, equals, words[name] = word.partition("=")
            if not equals:
                raise InvalidParameterError(f"{word!r} has no '='")
        fields.check_names(words, form.options, what="parameter")
        parameters = form(**{name: form.options[name].read(text) for name, text in words.items()})
    except InvalidParameterError as error:
        sys.stderr.write(f"{error}\nGive NAME=VALUE, where NAME is one of {', '.join(form.options)}.\n")
        sys.exit(2)
    flow(**parameters.values)
