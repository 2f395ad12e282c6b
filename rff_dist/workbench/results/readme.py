"""A model's README.md: a model card as Hugging Face and skops have it.

In goes a stored model, out comes Markdown below a header in YAML. The document of
`stored.py` alone would lack the texts that people wrote about the model, and the header
by which registries find it.
"""

import yaml

from rff_dist.recipes import recipes
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import cards
from rff_dist.workbench.results import document, markdown, stored

_HEADINGS = {
    "intended_use": "Intended use",
    "limits": "Out of scope and limits",
    "data": "Training data",
}


def model_card(model: str, how: str) -> str:
    """Return the model card of a stored model: how to predict with it, what people
    wrote about it, its errors and its making.

    `model`: path or URL; for a registered model the card is about its current version.
    `how`: the text on how to predict. Raises StorageError if there is no model.
    """
    described = stored.stored_document(model)
    stored_card = described.record["card"]
    name = model.rstrip("/").rpartition("/")[2]
    page = document.Document(name)
    page.section("How to predict", how)
    recipe = recipes.recipe_of(stored_card)
    if recipe is not None and recipe.levels:
        names = ", ".join(recipe.names[column] for column in recipe.levels)
        page.say(f"Columns of categories take the names of levels as text: {names}.")
    for key, title in _HEADINGS.items():
        page.section(
            title,
            stored_card.get(cards.ABOUT, {}).get(key, "Nothing was written about it."),
        )
    page.section("Evaluation and making")
    page.parts.extend(described.all_parts())
    header: Summary = {
        "library_name": "rff_dist",
        "tags": ["rff_dist", "kernel-methods"],
    }
    # Hugging Face has no task for clusters
    is_supervised = "solver" in stored_card
    if is_supervised:
        kind = "classification" if "classifier" in stored_card else "regression"
        header["pipeline_tag"] = f"tabular-{kind}"
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n\n{markdown.to_markdown(page)}"
