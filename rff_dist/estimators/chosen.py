"""What a fitted estimator chose, in words: for its repr, its summary and its box in notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.kernel_of import kernel_of, kind_of
from rff_dist.jobs.fits import TITLES, estimate_of, n_candidates
from rff_dist.kernels.base import Kernel, OnColumns
from rff_dist.kernels.stationary import own_length_scale
from rff_dist.kernels.text import kernel_text, shortened_text
from rff_dist.ridge.model import RidgeModel
from rff_dist.text import errors_words, number, plus_minus, some

SHOWN = 6  # length scales of columns, and targets

_STYLE = "border-collapse:collapse;font-size:90%;margin:0.5em 0"
_CELL = "text-align:left;padding:0.15em 1em 0.15em 0;vertical-align:top;white-space:normal"


def kernel_facts(kernel: Kernel | None, names: Sequence[str]) -> dict[str, str]:
    """Return a kernel and its length scales, those of columns by name and the shortest first."""
    if kernel is None:
        return {"kernel": "given frequencies"}
    scales = {}
    for factor in (factor for term in kernel.terms() for factor in term.factors):
        inner = factor.kernel if isinstance(factor, OnColumns) else factor
        own = [names[i] for i in factor.columns] if isinstance(factor, OnColumns) else names
        found = own_length_scale(inner)
        if found is not None:
            scales[inner] = _scales_words(found, own)
    text = "; ".join(f"{one.name}: {words}" for one, words in scales.items())
    if len(scales) == 1:
        (text,) = scales.values()
    return {"kernel": shortened_text(kernel_text(kernel)), **({"length scale": text} if text else {})}


def _scales_words(found: float | Sequence[float], names: Sequence[str]) -> str:
    if isinstance(found, float):
        return number(found)
    ranked = sorted(zip(found, names, strict=True), key=lambda pair: pair[0])
    shown = ", ".join(f"{name} {number(scale)}" for scale, name in ranked[:SHOWN])
    return shown + (f", … ({len(ranked)} columns, shortest first)" if len(ranked) > SHOWN else "")


def features_facts(feature_map: FeatureMap, names: Sequence[str]) -> dict[str, str]:
    """Return the kernel, and how many features of which kind approximate it."""
    spec = feature_map.spec
    drawn = "" if spec is None else f", {spec.design.name}"
    words = f"{feature_map.n_components:,} {kind_of(feature_map)}{drawn}"
    return {**kernel_facts(kernel_of(feature_map), names), "features": words}


def model_facts(model: RidgeModel, names: Sequence[str]) -> dict[str, str]:
    """Return what was chosen for a regression or a classifier, and the error that it was chosen by."""
    card, alphas = model.card, model.plain_alpha
    facts = {
        **features_facts(model.feature_map, names),
        "alpha": some(alphas if isinstance(alphas, list) else [alphas]),
        "rows": number(card.get("n_samples")),
    }
    if (found := estimate_of(card)) is not None:
        by = "cross-validation" if found["by"] == "cv" else "leave-one-out"
        if card.get("classifier", {}).get("loss", "squared") != "squared":
            by += " (squared loss)"
        facts[by] = "; ".join(
            f"{TITLES[name]} {errors_words(found[name], found.get(f'{name}_standard_error'))}"
            for name in TITLES
            if name in found
        )
    if candidates := card.get("candidates"):
        facts["candidates tried"] = str(n_candidates(candidates))
    return facts


def as_text(facts: Mapping[str, str]) -> str:
    """Return the panel as lines of text."""
    width = max(map(len, facts))
    return "\n".join(["Chosen", *(f"  {name:<{width}}  {value}" for name, value in facts.items())])


def as_html(facts: Mapping[str, str]) -> str:
    """Return the panel as a table, with the colours of the page that it is on."""
    rows = "".join(
        f'<tr><th style="{_CELL};font-weight:normal;opacity:0.7">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table style="{_STYLE}"><caption style="{_CELL}"><b>Chosen</b></caption>{rows}</table>'


def candidates_text(card: Mapping[str, Any]) -> str:
    """Return the best candidates on a model's card as a table, with their cross-validated R²; else ""."""
    # The first round's come last: they are errors of fewer rows and components.
    ranked = sorted(
        card.get("candidates", []), key=lambda one: (one.get("round") == "first", float(one["score"]))
    )
    if not ranked:
        return ""
    rows = [("kernel", "features", "rows", "alpha", "R²")] + [
        (
            shortened_text(one["kernel"]),
            f"{one['n_components']:,} {one.get('features', 'fourier')}",
            number(one.get("n_samples")),
            some(one["alpha"] if isinstance(one["alpha"], list) else [one["alpha"]]),
            plus_minus(1 - one["score"], one.get("standard_error")),
        )
        for one in ranked[:SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(["Best candidates, by cross-validation", *(f"  {line.rstrip()}" for line in lines)])
