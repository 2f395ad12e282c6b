"""Homemade words in prose, each with the field's word: `python -m tools.plain_words`; a
part of `make lint`.

Looks at Markdown, and at comments, docstrings and messages of Python; names in
backticks are left alone."""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = (
    "*.md",
    "deploy/*.md",
    "notebooks/*.md",
    "notebooks/manual/pages/**/*.md",
    "rff_dist/**/*.py",
    "flows/*.py",
)
#: What is refused, and what to write.
WORDS = {
    r"beside": "next to, in addition to, compared with",
    r"anew": "again, from scratch",
    r"dear": "expensive",
    r"likeness(es)?": "similarity",
    r"strangers?": "do not influence each other",
    r"laws?": "distribution, rate",
    r"hardly": "barely, rarely, almost no",
    r"nobody": "no one",
    r"greatest": "largest",
    r"in the place of": "in place of",
    r"one an? (column|row|chunk)": "one per …",
    r"(bytes?|numbers?|rows?|µs|ns|ms) a (row|column|chunk|feature)": "per",
    r"for our": "…; ours",
    r"least": "smallest, minimum, fewest",
    r"how often": "how many times, what share",
    r"(none|never)theless": "anyway",
    r"undisturbed": "uninterrupted",
    r"handful": "few",
    r"shared out": "divided, distributed",
    r"for want of": "for lack of",
    r"mend(s|ed)?": "fix, correct, help",
    r"all else": "everything else, other",
    r"belongs? into": "belong in",
}
#: What holds one of them, and is fine.
_FINE = r"(?i)`[^`\n]*`|\bat\s+(the\s+)?least\b|\bleast[- ](squares|significant)\b"
# a phrase may be broken over two lines
_WHOLE = [rf"(?P<w{i}>\b{word}\b)".replace(" ", r"\s+") for i, word in enumerate(WORDS)]
_PATTERN = re.compile("|".join(_WHOLE), re.IGNORECASE)
_PROSE = (tokenize.COMMENT, tokenize.STRING, tokenize.FSTRING_MIDDLE)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the pieces of prose in a file, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield (
            1,
            re.sub(
                r"```.*?```",
                lambda block: "\n" * block.group().count("\n"),
                text,
                flags=re.DOTALL,
            ),
        )
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _PROSE and " " in token.string:  # without a space it is a name
            yield token.start[0], token.string


def found_in(path: Path) -> Iterator[str]:
    for first, text in prose(path):
        bare = re.sub(_FINE, lambda part: re.sub(r"\S", " ", part.group()), text)
        for hit in _PATTERN.finditer(bare):
            better = list(WORDS.values())[int(hit.lastgroup[1:])]
            line = first + bare.count("\n", 0, hit.start())
            yield f"{path.relative_to(ROOT)}:{line}: “{hit.group()}”; write: {better}"


def main() -> int:
    paths = sorted({path for place in PLACES for path in ROOT.glob(place)})
    hits = [hit for path in paths for hit in found_in(path)]
    print("\n".join(hits) or f"plain words: {len(paths)} files are fine")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
