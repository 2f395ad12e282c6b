"""The choices of a fitted estimator, as a panel of names and values.

In goes a fitted model with its card, the record of the fit that is stored with it; out
come names and values, as text or HTML. They stand below an estimator's `repr` in a
terminal and in a notebook, also of a loaded model. The workbench makes a longer report.
"""

from collections.abc import Mapping, Sequence
from html import escape

from rff_dist.features import kinds, maps
from rff_dist.kernels import base, stationary
from rff_dist.kernels.names import kernel_text, shortened_text
from rff_dist.ridge import describe, models
from rff_dist.text import first_few, number
from rff_dist.typing import Facts

#: The largest number of length scales, and of candidates, that are shown.
N_SHOWN = 6

_STYLE = "border-collapse:collapse;font-size:90%;margin:0.5em 0"
_CELL = (
    "text-align:left;padding:0.15em 1em 0.15em 0;vertical-align:top;white-space:normal"
)


def kernel_facts(kernel: base.Kernel | None, names: Sequence[str]) -> dict[str, str]:
    """Return a kernel and its length scales, with the names of the columns."""
    if kernel is None:
        return {"kernel": "given frequencies"}
    facts = {"kernel": shortened_text(kernel_text(kernel))}
    # for each kernel in a sum or product: its name, and words for its length scales
    kernels_scales = []
    for term in kernel.terms():
        for factor in term.factors:
            inner = factor
            columns = names
            if isinstance(factor, base.OnColumns):
                inner = factor.kernel
                columns = [names[i] for i in factor.columns]
            scales = stationary.own_length_scale(inner)
            if scales is not None:
                pair = inner.name, _scales_words(scales, columns)
                if pair not in kernels_scales:
                    kernels_scales.append(pair)
    if len(kernels_scales) == 1:
        [(_, scale_words)] = kernels_scales
        facts["length scale"] = scale_words
    elif kernels_scales:
        facts["length scale"] = "; ".join(
            f"{name}: {words}" for name, words in kernels_scales
        )
    return facts


def _scales_words(scales: float | Sequence[float], names: Sequence[str]) -> str:
    if isinstance(scales, float):
        return number(scales)
    ranked = sorted(zip(scales, names, strict=True), key=lambda pair: pair[0])
    words = ", ".join(f"{name} {number(scale)}" for scale, name in ranked[:N_SHOWN])
    if len(ranked) > N_SHOWN:
        words += f", … ({len(ranked)} columns, shortest first)"
    return words


def features_facts(
    feature_map: maps.FeatureMap, names: Sequence[str]
) -> dict[str, str]:
    """Return the kernel, the number of mapped columns, and the features."""
    facts = kernel_facts(kinds.kernel_of(feature_map), names)
    standardizer = feature_map.standardizer
    if standardizer is not None and standardizer.mapped_columns:
        n_mapped = len(standardizer.mapped_columns)
        facts["mapped columns"] = f"{n_mapped} of {feature_map.n_features}"
    words = f"{feature_map.n_components:,} {kinds.kind_of(feature_map)}"
    if feature_map.spec is not None:
        words += f", {feature_map.spec.design.name}"
    facts["features"] = words
    return facts


def model_facts(model: models.RidgeModel, names: Sequence[str]) -> dict[str, str]:
    """Return what a fit chose, and the error that it was chosen by."""
    card = model.card  # the record of the fit
    alphas = model.plain_alpha
    if not isinstance(alphas, list):
        alphas = [alphas]
    facts = {
        **features_facts(model.feature_map, names),
        "alpha": first_few(alphas),  # of many targets the first eight
        "rows": number(card.get("n_samples")),
    }
    estimate = describe.estimate_of(card)
    if estimate is not None:
        # cross-validation uses the squared loss, also for a classifier with another one
        loss = card.get("classifier", {}).get("loss", "squared")
        name = "cross-validation"
        if loss != "squared":
            name = "cross-validation (squared loss)"
        facts[name] = describe.errors_text(estimate, card.get("target_names"))
    candidates = card.get("candidates")
    if candidates:
        facts["candidates tried"] = str(describe.n_candidates(candidates))
    return facts


def as_text(facts: Mapping[str, str]) -> str:
    """Return the panel as lines of text."""
    width = max(map(len, facts))
    lines = [f"  {name:<{width}}  {value}" for name, value in facts.items()]
    return "\n".join(["Chosen", *lines])


def as_html(facts: Mapping[str, str]) -> str:
    """Return the panel as an HTML table in the colours of the page around it."""
    rows = "".join(
        f'<tr><th style="{_CELL};font-weight:normal;opacity:0.7">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        f'<table style="{_STYLE}"><caption'
        f' style="{_CELL}"><b>Chosen</b></caption>{rows}</table>'
    )


def candidates_text(card: Facts) -> str:
    """Return a table of the best candidates and their R²; "" if the card has none."""
    ranked = describe.ranked_candidates(card.get("candidates", []))
    if not ranked:
        return ""
    rows: list[Sequence[str]] = [describe.CANDIDATE_CELLS]
    for candidate in ranked[:N_SHOWN]:
        cells = describe.candidate_cells(candidate)
        rows.append([cell if isinstance(cell, str) else number(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["Best candidates, by cross-validation"]
    for row in rows:
        padded = map(str.ljust, row, widths)
        lines.append(f"  {'  '.join(padded).rstrip()}")
    return "\n".join(lines)
