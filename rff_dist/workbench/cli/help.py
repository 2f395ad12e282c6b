"""What `--help` shows: the commands in groups, and the options of a command in panels.

The overview of commands is written without cyclopts, whose import would take longer
than everything else. The help of one command is laid out here for cyclopts: the first
sentence about the options that people need first, and all of it with `--help-all`.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rff_dist import fields

MARGIN = 2
# widths of the column of names: of the commands in a group, and of a command's options
OF_GROUP = 12
OF_COMMAND = 30
ARGUMENTS = "By position"
OPTIONS = "Options"
ABOUT = "Kernel methods on data of any size: random Fourier features, exact sums, Dask."
COMMANDS = {
    "Begin with": {
        "auto": "train and register a model from a table; compare it with others",
        "ingest": "turn files or a query into a dataset, or append them to one",
        "fit": "train a regression or a classifier",
        "predict": "write predictions for every row of a dataset",
        "update": "add appended rows to a model, unless they make it worse",
    },
    "Data": {
        "data": "list versions of a dataset; correct, delete, roll back, expire",
        "forget": "delete rows for good: from data, models and old versions",
        "generate": "write a dataset whose best possible error is known",
        "info": "describe a dataset, predictions or a model",
    },
    "Models": {
        "evaluate": "measure a model's errors on a dataset",
        "cluster": "find clusters of rows, and write their labels",
        "refit": "train on other rows with a model's features, to merge the two",
        "merge": "make one model of several by adding up their sums",
        "export": "write a model for programs that have NumPy only",
        "models": "list, promote and roll back registered versions",
    },
    "Before a long job": {
        "plan": "estimate the memory and the time of a fit",
        "approximate": "measure whether D is large enough",
        "doctor": "check this machine, and a cluster and a dataset",
        "demo": "learn a photograph from half of its pixels",
    },
}

#: The options that `--help` shows in addition to those that are required; `--help-all`
#: shows all.
FIRST = {
    "help_all",
    "config",
    "json",
    "details",
    "register",
    "overwrite",
    "plot",
    "report",
    "scheduler",
    "kernel",
    "kernels",
    "length_scale",
    "length_scales",
    "n_components",
    "alpha",
    "classify",
    "test",
    "memory",
    "model",
    "models",
    "n_clusters",
    "n_init",
    "std",
    "coverage",
    "probabilities",
    "dry_run",
    "tolerance",
    "target",
    "targets",
    "id",
    "impute",
    "drop",
    "missing",
    "time_limit",
    "holdout",
    "by",
    "noise",
    "into",
    "task",
    "keep",
    "reason",
    "sources",
    "append",
    "inputs",
    "data",
    "registry",
}


def overview() -> str:
    """Return the help of the program: all commands in groups."""
    lines = ["Usage: rff-dist COMMAND …", "", ABOUT]
    for title, names in COMMANDS.items():
        lines += ["", title, *entries(names.items(), OF_GROUP)]
    lines += ["", "Options: --version, --install-completion (for the tab key)"]
    lines += ["To begin: rff-dist demo. Help of a command: rff-dist fit --help"]
    lines += ["In Python only: kernel principal components, RFFPCA"]
    return "\n".join(lines)


def write_panel(console: Any, options: Any, panel: Any, *, everything: bool) -> None:
    """Write a panel of options or commands: the formatter that cyclopts calls.

    `everything`: whether to write more than the first sentence about each.
    """
    if not panel.entries:
        return
    rows = ((_names(entry), _text(entry, everything)) for entry in panel.entries)
    width = OF_COMMAND if panel.format == "parameter" else OF_GROUP
    text = "\n".join([str(panel.title), *entries(rows, width), ""])
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def panel_of(option: fields.Option) -> str:
    """Return the title above an option; those that need no flag come first."""
    if option.declared.is_argument:
        return ARGUMENTS
    return option.panel or OPTIONS


def usage(title: str, options: Iterable[fields.Option]) -> str:
    """Return the first line of a command's help."""
    words = ["Usage: rff-dist", title]
    for option in options:
        if option.declared.is_argument:
            placeholder = str(option.declared.placeholder)
            words.append(placeholder if option.is_required else f"[{placeholder}]")
    return " ".join([*words, "[OPTIONS]\n"])


def example(title: str, words: str) -> str:
    r"""Return a command after a prompt; a shell reads its further lines as part of it.

    `words`: those after the command's name, or a whole line with the program's.

    >>> words = "data.zarr model --kernel matern:nu=1.5 --length-scale median"
    >>> print(example("fit", words))
    $ rff-dist fit data.zarr model --kernel matern:nu=1.5 --length-scale \
        median
    """
    command = words if "rff-dist" in words else f"rff-dist {title} {words}".rstrip()
    lines = textwrap.wrap(command, 70, break_on_hyphens=False, break_long_words=False)
    return "$ " + " \\\n    ".join(lines)


def _names(entry: Any) -> str:
    names = entry.display_labels_with_metavar
    if entry.positional_label:  # an argument has the name that the usage line shows
        names = (entry.metavar, *entry.all_options)
    if not entry.default:
        # --no-… is shown only for flags that are on by default. For other flags, such
        # as --no-overwrite, it is of use only against a configuration file.
        names = [name for name in names if name not in entry.negative_names]
    return ", ".join(names)


def _text(entry: Any, everything: bool) -> str:
    about = entry.description.primary_renderable.plain.strip()
    if not everything:
        about, *_ = re.split(r"[.;:](?=\s)|\.$", about)
    notes = []
    if entry.required:
        notes.append("required")
    if entry.default:
        notes.append(f"default: {entry.default}")
    return f"{about} ({'; '.join(notes)})" if notes else about


def entries(
    rows: Iterable[tuple[str, str]], name_width: int = OF_COMMAND
) -> Iterator[str]:
    """Yield lines of names, each with its text, in two columns.

    The text of a name that is wider than its column begins on the next line.
    """
    indent = " " * (MARGIN + name_width)
    width = min(100, shutil.get_terminal_size().columns)
    text_width = max(20, width - len(indent))
    for name, text in rows:
        lines = textwrap.wrap(text, text_width, break_on_hyphens=False)
        start = " " * MARGIN + name
        if lines and len(name) < name_width:
            start = start.ljust(len(indent)) + lines.pop(0)
        yield start
        yield from (indent + line for line in lines)
