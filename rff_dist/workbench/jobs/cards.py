"""What people write about a model: what it is for, what not, and where its rows come
from.

In goes a TOML file, out come texts for a model's card. Any other name in the file is
refused, since a text that no page shows would be lost without a word.
"""

from rff_dist.errors import InvalidParameterError
from rff_dist.fields import read_toml

ABOUT = "about"  # the name of these texts among the facts of a model
NAMES = ("intended_use", "limits", "data")


def read_about(path: str | None) -> dict[str, dict[str, str]]:
    """Return the texts of a TOML file as a fact for a model's card; none without a
    file.

    Raises InvalidParameterError if the file cannot be read, or holds something else
    than these texts.
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
