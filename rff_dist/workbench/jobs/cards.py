"""Texts that people write about a model: what it is for, what not, and where its rows
come from.

In goes a TOML file, out come texts for a model's card, the JSON values that are stored
with it. The file may have no other names: a text that no page shows would be lost
without a word.
"""

from rff_dist.errors import InvalidParameterError
from rff_dist.fields import read_toml

ABOUT = "about"  # the name of these texts among the facts of a model
NAMES = ("intended_use", "limits", "data")


def read_about(path: str | None) -> dict[str, dict[str, str]]:
    """Return the texts of a TOML file as an entry for a model's card; empty without a
    file.

    Raises InvalidParameterError if the file cannot be read, or holds anything but these
    texts.
    """
    if path is None:
        return {}
    texts = read_toml("card", path)
    wrong = [
        name
        for name, text in texts.items()
        if name not in NAMES or not isinstance(text, str)
    ]
    if wrong or not texts:
        raise InvalidParameterError(
            f"`card` is {path!r}, which holds"
            f" {', '.join(map(repr, wrong)) or 'nothing'}; expected texts named"
            f" {', '.join(NAMES)}"
        )
    return {ABOUT: {name: texts[name].strip() for name in NAMES if name in texts}}
