"""The faults that the project promises to withstand, and the tests of each; `make
test-faults` runs them.
"""

import ast
from collections import defaultdict
from pathlib import Path

#: What happens, and what is promised then. "=" means: with the digests of an
#: undisturbed run.
FAULTS = {
    "F1": "one worker is killed in a pass: it ends, =",
    "F2": "all workers die at once: it ends when workers are back, =",
    "F3": "workers are killed and frozen at random: it ends, = or with a named cause",
    "F4": "the scheduler dies or freezes: an error that names it within a minute",
    "F5": (
        "the client is killed at any moment: the old or the new is there, and the same"
        " command goes on"
    ),
    "F6": (
        "SIGTERM, Ctrl-C: exit code 143 or 130, no process and no unfinished output is"
        " left"
    ),
    "F7": "a block is done twice: it counts once",
    "F8": "a chunk is missing: an error that names it",
    "F9": "bytes are truncated, flipped or swapped: an error that names the array",
    "F10": "NaN or infinity in the data: an error with row, column and chunk",
    "F11": "a store fails for a while: it is asked again, =",
    "F12": (
        "a store fails for good: an error in bounded time, and nothing blocks the name"
        " afterwards"
    ),
    "F13": "the disk is full: the old stays, and nothing unfinished is left",
    "F14": (
        "too little memory: refused before work, with both numbers; no job takes more"
        " than its plan"
    ),
    "F15": "a block kills its worker: the error names the block",
    "F16": (
        "two runs on one output, a worker that is slow or stands still: exactly one"
        " result, the right one"
    ),
    "F17": (
        "data change between two runs: followed exactly, or refused; nothing is left"
        " out in silence"
    ),
    "F18": (
        "other versions here and there, files of a newer release: refused before work"
    ),
    "F19": (
        "a process ends while threads of its store are at work: with its own exit code"
    ),
    "F20": (
        "workers do not reach one another or the data, or lack memory: =, or an error"
        " that names them"
    ),
}


def named_by_markers():
    """Return the tests whose marker `faults` names a fault."""
    found = defaultdict(list)
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(
                "mark.faults"
            ):
                continue
            for one in node.args:
                found[ast.literal_eval(one)].append(
                    f"{path.relative_to(root)}:{node.lineno}"
                )
    return found


def test_every_fault_has_a_test_and_every_marker_names_a_fault():
    assert set(named_by_markers()) == set(FAULTS)
