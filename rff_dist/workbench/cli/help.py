"""What `--help` shows: the commands in groups, and how cyclopts's panels of options are laid out.

The overview is made without cyclopts, whose import would take longer than everything else.
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
OF_GROUP, OF_COMMAND = 12, 30  # widths of the column of names
ARGUMENTS, OPTIONS = "By position", "Options"
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
        "split": "split a dataset into one to train on and one to test on",
        "generate": "write a dataset whose best possible error is known",
        "info": "describe a dataset, predictions or a model",
    },
    "Models": {
        "tune": "compare kernels and length scales; train the best",
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

#: The options that `--help` shows in addition to those that are required; `--help-all` shows all.
FIRST = {
    *("help_all", "config", "json", "register", "overwrite", "plot", "report", "scheduler"),
    *("kernel", "kernels", "length_scales", "n_components", "alpha", "classify", "test", "memory"),
    *("model", "models", "n_clusters", "n_init", "std", "coverage", "probabilities", "dry_run", "tolerance"),
    *("target", "targets", "id", "impute", "holdout", "by", "noise", "into", "task", "keep", "reason"),
    *("sources", "append", "inputs", "data", "registry"),
}


def overview() -> str:
    """Return the help of the program: all commands in groups."""
    lines = ["Usage: rff-dist COMMAND …", "", ABOUT]
    for panel, names in COMMANDS.items():
        lines += ["", panel, *entries(names.items(), OF_GROUP)]
    lines += ["", "Options: --version, --install-completion (for the tab key)"]
    lines += ["To begin: rff-dist demo. Help of a command: rff-dist fit --help"]
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


def panel_of(one: fields.Option) -> str:
    """Return the title above an option; those that need no flag come first."""
    return ARGUMENTS if one.declared.argument else one.panel or OPTIONS


def usage(title: str, options: Iterable[fields.Option]) -> str:
    """Return a command's first line of help."""
    places = [
        str(one.declared.unit) if one.required else f"[{one.declared.unit}]"
        for one in options
        if one.declared.argument
    ]
    return " ".join(["Usage: rff-dist", title, *places, "[OPTIONS]\n"])


def example(title: str, words: str) -> str:
    r"""Return a command after a prompt; a shell reads its further lines as part of it.

    `words`: those after the command's name, or a whole line with the program's.

    >>> print(example("fit", "data.zarr model --kernel matern:nu=1.5 --length-scale median"))
    $ rff-dist fit data.zarr model --kernel matern:nu=1.5 --length-scale \
        median
    """
    command = words if "rff-dist" in words else f"rff-dist {title} {words}".rstrip()
    lines = textwrap.wrap(command, 70, break_on_hyphens=False, break_long_words=False)
    return "$ " + " \\\n    ".join(lines)


def _names(entry: Any) -> str:
    names = entry.display_labels_with_metavar
    if entry.positional_label:  # by the name that the usage has
        names = (entry.metavar, *entry.all_options)
    # --no-overwrite only takes back what a file gives.
    return ", ".join(name for name in names if entry.default or name not in entry.negative_names)


def _text(entry: Any, everything: bool) -> str:
    notes = ["required"] if entry.required else []
    notes += [f"default: {entry.default}"] if entry.default else []
    about = entry.description.primary_renderable.plain.strip()
    about = about if everything else re.split(r"[.;:](?=\s)|\.$", about)[0]
    return f"{about} ({'; '.join(notes)})" if notes else about


def entries(rows: Iterable[tuple[str, str]], names: int = OF_COMMAND) -> Iterator[str]:
    """Yield lines of names, each with its text; the text of a long name begins on the next line."""
    indent, width = " " * (MARGIN + names), min(100, shutil.get_terminal_size().columns)
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(20, width - len(indent)), break_on_hyphens=False) or [""]
        start = " " * MARGIN + name
        if len(name) >= names:
            yield start
        else:
            yield (start.ljust(len(indent)) + wrapped.pop(0)).rstrip()
        yield from (indent + line for line in wrapped)
