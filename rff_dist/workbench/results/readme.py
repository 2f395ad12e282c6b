"""A model's README.md: a model card as Hugging Face and skops have it, with YAML before Markdown."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

from rff_dist.ridge import describe
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import cards
from rff_dist.workbench.results import document, markdown, stored

_HEADINGS = {"intended_use": "Intended use", "limits": "Out of scope and limits", "data": "Training data"}


def model_card(model: str) -> str:
    """Return the model card of a stored model: what people wrote about it, its errors and its making.

    `model`: path or URL; of a registered model its current version is described.
    Raises StorageError if there is no model.
    """
    found = stored.stored_document(model)
    card, name = found.record["card"], model.rstrip("/").rpartition("/")[2]
    page = document.Document(name)
    for key, title in _HEADINGS.items():
        page.section(title, card.get(cards.ABOUT, {}).get(key, "Nothing was written about it."))
    page.section("Evaluation and making")
    page.parts.extend(found.parts)
    header = yaml.safe_dump(_header(name, card), sort_keys=False, allow_unicode=True)
    return f"---\n{header}---\n\n{markdown.to_markdown(page)}"


def _header(name: str, card: Facts) -> Summary:
    header: Summary = {"library_name": "rff_dist", "tags": ["rff_dist", "kernel-methods"]}
    if "solver" not in card:
        return header  # clusters, for which there is no task
    task = f"tabular-{'classification' if 'classifier' in card else 'regression'}"
    known = {"test rows": card.get("metrics"), "cross-validation": describe.estimate_of(card)}
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": rows, "type": "tabular"},
            "metrics": [{"type": key, "name": title, "value": value} for key, title, value in figures],
        }
        for rows, errors in known.items()
        if (figures := [*_figures(errors or {}, card.get("target_names"))])
    ]
    header["pipeline_tag"] = task
    return header | ({"model-index": [{"name": name, "results": results}]} if results else {})


def _figures(errors: Facts, targets: Any) -> Iterator[tuple[str, str, float]]:
    """Yield the type, title and value of each error that is known; several targets are named."""
    for key, title in describe.TITLES.items():
        values = np.atleast_1d(np.asarray(errors.get(key, []), np.float64)).tolist()
        for i, value in enumerate(values):
            if np.isfinite(value):
                target = f" of {targets[i] if targets else f'y{i}'}" if len(values) > 1 else ""
                yield key, title + target, value
