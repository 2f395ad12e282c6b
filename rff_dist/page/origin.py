"""The sections on the times of the job and on what the model was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rff_dist.costs.clock import Times, products_words
from rff_dist.page.content import Page


def lineage_section(page: Page, card: Mapping[str, Any], digest: str) -> None:
    """Add the section on what the model was made of."""
    page.section("Lineage")
    packages = card.get("environment", {}).get("packages", {})
    found = {
        "created": card.get("created"),
        "data version": card.get("data_version"),
        "data fingerprint": card.get("data_fingerprint"),
        "statistics digest": card.get("statistics_digest"),
        "model digest": digest,
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }
    page.facts("What it is made of", {name: value for name, value in found.items() if value})


def time_section(page: Page, times: Callable[[], Times]) -> None:
    """Add the section on the time of each phase, the last one: the time of the page itself is in it."""
    found = times()
    page.section("Time", "From the start of the job until this page was made.")
    total = found.seconds["total"]
    page.table(
        "Seconds by phase",
        ("phase", "seconds", "share"),
        [(name, value, f"{value / total:.0%}") for name, value in found.seconds.items()],
    )
    if found.products is not None:
        page.say(
            f"In “accumulate” features were multiplied {products_words(found.products)}: the speed of one "
            "thread that multiplies in this way, times the number of threads.",
            note=True,
        )
