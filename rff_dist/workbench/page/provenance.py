"""The last sections of a page: how the model was made, by whom, and how long it took.

In go the model's card and facts on the job, out come tables. The command alone would
not bring back the model: data, code and packages may have changed since.
"""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from rff_dist import fields
from rff_dist.data import sources
from rff_dist.engines import clock
from rff_dist.living.ranges import Range, without_rows
from rff_dist.models.kinds import AnyModel
from rff_dist.text import first_few, redact
from rff_dist.typing import Facts
from rff_dist.workbench.jobs import cards
from rff_dist.workbench.results import document
from rff_dist.workbench.results.words import table_words

type ReadTimes = Callable[[], clock.Times]


def options_of(job: Any) -> dict[str, str | None]:
    """Return a job's seed, and its options that differ from the defaults, as facts.

    Arguments and places that it writes are left out.
    """
    values = {name: value for name, _, value in fields.values(job)}
    changed = []
    for option in fields.options_of(type(job)):
        value = values[option.name]
        is_place = option.declared.is_argument or option.declared.writes
        if not is_place and value != option.default:
            changed.append(f"{option.name} = {redact(str(value))}")
    seed = values.get("seed")  # an update has none
    return {
        "options": "; ".join(changed) or "all by default",
        "seed": None if seed is None else str(seed),
    }


def user_words() -> str | None:
    """Return the name of the account that makes the page; None without one."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # in some containers; KeyError before Python 3.13
        return None
    # in containers everyone is root
    return None if name == "root" else f"by {name}"


def sources_facts(attributes: Facts, missing: Sequence[Range] = ()) -> Facts:
    """Return what a dataset's rows were read from, with digests, as facts.

    Sources left out are those whose rows are all among the `missing` ones of a model.
    """
    names: dict[str, list[str]] = {"sources": [], "sources left out": []}
    stop = 0
    for source in sources.known_sources(attributes):
        start = stop
        stop += source["n_samples"]
        is_left_out = start < stop and not without_rows([(start, stop)], missing)
        name = f"{redact(str(source['name']))} (SHA-256 {source['sha256']})"
        names["sources left out" if is_left_out else "sources"].append(name)
    return {title: first_few(listed) for title, listed in names.items()}


def last_sections(
    page: document.Document, model: AnyModel, origin: Facts, read_times: ReadTimes
) -> None:
    """Add a model's intended use, if its card has one, its provenance and times.

    `origin` has facts on the job.
    """
    card = model.card
    if cards.ABOUT in card:
        page.section("Intended use")
        page.parts.append(
            {name.replace("_", " "): use for name, use in card[cards.ABOUT].items()}
        )
    page.section("Provenance", is_folded=True)
    packages = card.get("environment", {}).get("packages", {}).items()
    facts = {
        **origin,
        "git commit": commit_of_folder(),
        "created": card.get("created"),
        "data version": card.get("data_version"),
        "data table": table_words(card.get("data_table")),
        "data fingerprint": card.get("data_fingerprint"),
        "statistics digest": card.get("statistics_digest"),
        "model digest": model.digest(),
        "packages": ", ".join(f"{name} {version}" for name, version in packages),
    }
    page.parts.append({name: value for name, value in facts.items() if value})

    times = read_times()  # read last, so that they include the time of the page itself
    if not times.seconds:  # of a model that was loaded
        return
    about = "From the start of the job until this page was made."
    page.section("Time", about, is_folded=True)
    total = times.seconds["total"]
    phases = [
        (name, seconds, f"{seconds / total:.0%}")
        for name, seconds in times.seconds.items()
    ]
    page.table("Seconds by phase", ("phase", "seconds", "share"), phases)


def commit_of_folder() -> str | None:
    """Return the git commit of the working folder, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit = done.stdout.strip()
    return commit.replace("-dirty", ", with changes that are not committed")
