"""What `--help` shows: the commands in groups, and for each command the options that people ask for first.

The text is made without a library for terminals: importing one would take longer than everything else.
"""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MARGIN = 2
OF_GROUP, OF_COMMAND = 12, 30  # widths of the column of names
LAST = "What is shown"
COMMANDS = {
    "Data": {
        "ingest": "turn files or a query into a dataset, or append them to one",
        "data": "list versions of a dataset; correct, delete, roll back, expire",
        "forget": "delete rows for good: from data, models and old versions",
        "split": "split a dataset into one to train on and one to test on",
        "generate": "write a dataset whose best possible error is known",
        "info": "describe a dataset, predictions or a model",
    },
    "Models": {
        "auto": "train and register a model from a table; compare it with others",
        "fit": "train a regression or a classifier",
        "tune": "compare kernels and length scales; train the best",
        "evaluate": "measure a model's errors on a dataset",
        "predict": "write predictions for every row of a dataset",
        "update": "add appended rows to a model, unless they make it worse",
        "refit": "train on other rows with a model's features, to merge the two",
        "merge": "make one model of several by adding up their sums",
        "export": "write a model for programs that have NumPy only",
        "models": "list, promote and roll back registered versions",
    },
    "Clusters": {"cluster": "find clusters of rows, and write their labels"},
    "Before a long job": {
        "plan": "estimate the memory and the time of a fit",
        "approximate": "measure whether D is large enough",
        "doctor": "check this machine, and a cluster and a dataset",
        "demo": "learn a photograph from half of its pixels",
    },
}

# The options that `--help` shows, each in few words; "" takes the first sentence of the option's own help.
# Required options are always shown, and `--help-all` shows all others too.
FIRST = {
    "--kernel": "gaussian, matern:nu=1.5, linear, … or auto",
    "--kernels": "To compare: gaussian,matern:nu=1.5",
    "--length-scales": "To compare: 0.5,1,2 or median",
    "--components": "D, the number of features",
    "--alpha": "The penalty, or what chooses it",
    "--classify": "y holds labels: train a classifier",
    "--register": "Publish the next version of models/NAME",
    "--overwrite": "Replace what is there",
    "--plot": "",
    "--report": "Write an HTML page about the result",
    "--model": "",
    "--clusters": "How many, or several to choose from",
    "--starts": "",
    "--test": "Rows to test on",
    "--target": "",
    "--into": "Folder for data and model",
    "--task": "Regression or classification; guessed by default",
    "--holdout": "Keep a share for a test, such as 10%",
    "--id": "",
    "--impute": "What replaces missing values, such as median",
    "--by": "",
    "--std": "Standard deviations too",
    "--interval": "Intervals that contain a share C of new values",
    "--probabilities": "Probabilities of the classes",
    "--noise": "",
    "--dry-run": "Write nothing",
    "--tolerance": "By how much the error may rise",
    "--memory": "",
    "--keep": "",
    "--reason": "",
    "--folder": "",
    "--scheduler": "Run on this Dask cluster",
    "--json": "Show one JSON document",
}


def group_help(context: Any, command: Any) -> str:
    """Return the help of a group of commands."""
    top = context.parent is None
    panels: Mapping[str, Mapping[str, str]] = COMMANDS
    if not top:
        members = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        panels = {"Commands": {name: first_sentence(member.help) for name, member in members}}
    lines = [f"Usage: {context.command_path} COMMAND …", "", command.help]
    for panel, names in panels.items():
        lines += ["", panel, *entries(names.items(), OF_GROUP)]
    if top:
        options = "--log-format text|json (or RFF_DIST_LOG), --install-completion (for the tab key)"
        text = f"Options: --version, {options}"
        lines += ["", *textwrap.wrap(text, _width(), subsequent_indent="  ", break_on_hyphens=False)]
        lines += ["To begin: rff-dist demo. Help of a command: rff-dist fit --help"]
    return "\n".join(lines)


def command_help(context: Any, command: Any, *, everything: bool) -> str:
    """Return the help of a command: the options of `FIRST` in a line or two each, or all options in full."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.get_params(context) if param.param_type_name == "option"]
    about = [" ".join(part.split()) for part in command.help.split("\n\n")]
    usage = " ".join([context.command_path, *(_metavar(argument) for argument in arguments), "[OPTIONS]"])
    lines = [*textwrap.wrap(f"Usage: {usage}", _width(), subsequent_indent="  "), ""]
    for part in about if everything else about[:1]:
        lines += textwrap.wrap(part, _width(), break_on_hyphens=False)
    lines += ["", *entries((_metavar(param), _text(param, everything)) for param in arguments)]
    panels: dict[str, list[Any]] = {"Options": []}
    if everything:
        for option in sorted(options, key=lambda param: param.rich_help_panel == LAST):
            panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    else:
        panels["Options"] = [param for param in options if param.required or FIRST.keys() & param.opts]
    for panel, members in panels.items():
        lines += ["", panel, *entries(_entry(member, everything) for member in members)] if members else []
    examples = command.epilog.split("\n\n")
    hidden = len(options) - len(panels["Options"])
    if not everything and hidden:
        lines += ["", f"{hidden} more options: {context.command_path} --help-all"]
    lines += [""] if everything else []
    shown = examples if everything else examples[:1]
    return "\n".join([*lines, *(f"$ {example}" for example in shown)])


def first_sentence(text: str) -> str:
    """Return a text's first sentence or clause, without the mark at its end."""
    return re.split(r"[.;:](?=\s)|\.$|\n\n", " ".join(text.split()) if "\n\n" not in text else text)[0]


def entries(rows: Iterable[tuple[str, str]], names: int = OF_COMMAND) -> Iterator[str]:
    """Yield lines of names, each with its text beside it; the text of a long name begins on the next line."""
    indent = " " * (MARGIN + names)
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(20, _width() - len(indent)), break_on_hyphens=False) or [""]
        start = " " * MARGIN + name
        if len(name) >= names:
            yield start
        else:
            yield (start.ljust(len(indent)) + wrapped.pop(0)).rstrip()
        yield from (indent + line for line in wrapped)


def _width() -> int:
    return min(100, shutil.get_terminal_size().columns)


def _metavar(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return f"{name} …" if param.nargs != 1 else name


def _entry(param: Any, everything: bool) -> tuple[str, str]:
    unit = "" if param.is_flag else f" {param.metavar or 'VALUE'}"
    return ", ".join(sorted(param.opts, key=len)) + unit, _text(param, everything)


def _text(param: Any, everything: bool) -> str:
    help = param.help or ""
    if not everything:
        few = next((FIRST[flag] for flag in param.opts if FIRST.get(flag)), first_sentence(help))
        return few + (" (required)" if param.required and param.param_type_name == "option" else "")
    notes = ["required"] if param.required else []
    if param.default not in (None, False, (), []) and not callable(param.default):
        notes.append(f"default: {param.default}")
    if param.min:
        notes.append(f"at least {param.min}")
    if param.envvar:
        notes.append(f"or {param.envvar} in the environment")
    return f"{help} ({'; '.join(notes)})" if notes else help
