"""Pages as Chromium shows them, where it is there."""

import os
import shutil
import subprocess
from pathlib import Path

BROWSER = os.environ.get("RFF_DIST_TEST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def show(page: Path) -> str:
    """Return the document of a page after its scripts have run."""
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    words += ["--dump-dom", page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
