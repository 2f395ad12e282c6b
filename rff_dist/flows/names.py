"""Name runs and artifacts of flows after their model, output or data."""

import re

from prefect.runtime import flow_run as this_run

from rff_dist.text import redact
from rff_dist.typing import Facts


def name_of(url: object) -> str:
    """Return the last part of a path or URL, without credentials; else ""."""
    if not isinstance(url, str):
        return ""
    return redact(url).rstrip("/").rpartition("/")[2].removesuffix(".zarr")


def subject_of(parameters: Facts) -> str:
    """Return the name of a run's model; of its output or its data if it has none.

    Values may have any type: a run gets its name before its parameters are checked.
    """
    for name in ("model", "output", "data"):
        if subject := name_of(parameters.get(name)):
            return subject
    return ""


def key(what: str, parameters: Facts | None = None) -> str:
    """Return the key of an artifact, such as "rff-train-summary-main".

    Prefect groups artifacts by key, so it has the name of the model at work. By default
    the parameters are those of the run at work.
    """
    subject = subject_of(this_run.parameters if parameters is None else parameters)
    # Prefect takes lowercase letters, digits and dashes only.
    return "-".join(["rff", what, *re.findall("[a-z0-9]+", subject.lower())])


def run_name() -> str:
    """Return the name of the run at work, such as "main, 2026-11-22 02:00"."""
    due = f"{this_run.scheduled_start_time:%Y-%m-%d %H:%M}"
    subject = subject_of(this_run.parameters)
    return f"{subject}, {due}" if subject else due
