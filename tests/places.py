"""Places for datasets and models of tests that need no folder of their own."""

import tempfile

_folder = tempfile.TemporaryDirectory(prefix="rff_dist-places-")


def scratch(name: str) -> str:
    """Return the path of a name in a folder that ends with the process."""
    return f"{_folder.name}/{name}"
