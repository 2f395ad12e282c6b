"""The sections on the times of the job and on what the model was made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rff_dist.costs.clock import Times, products_words
from rff_dist.page.content import Page


def origin_sections(page: Page, card: Mapping[str, Any], digest: str, times: Times) -> None:
    """Add the sections on the time of each phase, and on what the model was made of."""
    if seconds := times.seconds:
        page.section("Time")
        phases = {name: value for name, value in seconds.items() if name != "total"}
        total = seconds.get("total") or sum(phases.values()) or 1.0
        phases["all else"] = max(0.0, total - sum(phases.values()))
        page.table(
            "Seconds by phase",
            ("phase", "seconds", "share"),
            [(name, value, f"{value / total:.0%}") for name, value in (phases | {"total": total}).items()],
        )
    if times.products is not None:
        page.say(
            f"In “accumulate” features were multiplied {products_words(times.products)}: the speed of one "
            "thread that multiplies in this way, times the number of threads.",
            note=True,
        )
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
