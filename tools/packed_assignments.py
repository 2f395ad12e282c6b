"""Assignments that pack unrelated values: `python -m tools.packed_assignments`; a part
of `make lint`.

`a, b = f(x), g(y)` saves a line and costs whoever reads it a look back. Swaps and
unpacking stay: `a, b = b, a`, and `a, b = pair`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("rff_dist", "flows", "tests", "benchmarks", "tools", "deploy", "notebooks")


def found_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and is_packed(node.targets[0], node.value):
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield f"{where}: “{ast.unparse(node)}”; write one statement per value"


def is_packed(target: ast.expr, value: ast.expr) -> bool:
    """Say whether a tuple is assigned to a tuple, and no value needs an old target."""
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    later = {ast.unparse(part) for one in value.elts[1:] for part in ast.walk(one)}
    return not later & {ast.unparse(one) for one in target.elts[:-1]}


def main() -> int:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    hits = [hit for path in sorted(paths) for hit in found_in(path)]
    print("\n".join(hits) or f"packed assignments: {len(paths)} files are fine")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
