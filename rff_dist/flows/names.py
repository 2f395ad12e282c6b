"""Name runs and artifacts of flows after their model, output or data.

In go the parameters of a run, out come names such as "main, 2026-11-22 02:00". The run
that is going on is Prefect's `flow_run`.
"""

import re
from uuid import UUID

from prefect.runtime import flow_run as this_run
from prefect.settings import get_current_settings

from rff_dist.text import redact
from rff_dist.typing import Facts


def name_of(url: object) -> str:
    """Return the last part of a path or URL, without credentials; else ""."""
    if not isinstance(url, str):
        return ""
    return redact(url).rstrip("/").rpartition("/")[2].removesuffix(".zarr")


def subject_of(parameters: Facts) -> str:
    """Return the name of a run's model, else of its output, else of its data; else "".

    Values may have any type: a run gets its name before its parameters are checked.
    """
    for name in ("model", "output", "data"):
        if subject := name_of(parameters.get(name)):
            return subject
    return ""


def tags_of(parameters: Facts) -> set[str]:
    """Return the tags of a run: its model and its dataset."""
    tags = set()
    for kind, parameter in (("model", "model"), ("dataset", "data")):
        if name := name_of(parameters.get(parameter)):
            tags.add(f"{kind}:{name}")
    return tags


def key(what: str, parameters: Facts | None = None) -> str:
    """Return the key of an artifact, such as "rff-train-summary-main".

    Prefect groups artifacts by key, so the key has the name of the run's model. By
    default the parameters are those of the present run.
    """
    subject = subject_of(this_run.parameters if parameters is None else parameters)
    # Prefect takes lowercase letters, digits and dashes only.
    return "-".join(["rff", what, *re.findall("[a-z0-9]+", subject.lower())])


def run_name() -> str:
    """Return the name of the present run, such as "main, 2026-11-22 02:00"."""
    due = f"{this_run.scheduled_start_time:%Y-%m-%d %H:%M}"
    subject = subject_of(this_run.parameters)
    return f"{subject}, {due}" if subject else due


def link_to(place: str, title: str) -> str:
    """Return a link, in Markdown, to a place of Prefect's user interface."""
    site = get_current_settings().ui_url or ""  # "": links are on the page's own host
    return f"[{title}]({site}/{place})"


def link_to_run(name: str, number: UUID | str | None) -> str:
    """Return the run that an artifact is about, as a link in Markdown."""
    return f"Run {link_to(f'runs/flow-run/{number}', name)}"
