"""Pages as Chromium shows them, and what axe-core finds in them, where these are
there.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest

BROWSER = os.environ.get("RFF_DIST_TEST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


# of which the script is used, and no code
_package = importlib.util.find_spec("axe_playwright_python")
AXE = Path(
    os.environ.get("RFF_DIST_TEST_AXE")
    or f"{_package and Path(str(_package.origin)).parent}/axe.min.js"
)

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium; RFF_DIST_TEST_BROWSER names it"
)
needs_axe = pytest.mark.skipif(
    not AXE.exists(),
    reason=(
        "needs axe.min.js: `make test-pages` installs it, or RFF_DIST_TEST_AXE names it"
    ),
)
DARK = "--blink-settings=preferredColorScheme=0"
LIGHT = "--blink-settings=preferredColorScheme=1"


def show(page: Path, *flags: str) -> str:
    """Return the document of a page after its scripts have run."""
    words = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
    ]
    words += [*flags, "--dump-dom", page.as_uri()]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def check_by_axe(page: str, folder: Path, *flags: str, width: int) -> list[str]:
    """Return what axe-core finds wrong with a page, of that width in pixels: how bad,
    what, and where.
    """
    script = f"<script>{AXE.read_text()}</script>"
    inside = escape(page.replace("</body>", f"{script}</body>"))
    ask = """f.onload = () => f.contentWindow.axe.run().then(found => {
      document.body.innerHTML = '<pre id="found"></pre>';
      document.getElementById("found").textContent = JSON.stringify(found);
    });"""
    frame = (
        f'<iframe id="f" style="width: {width}px; height: 800px"'
        f' srcdoc="{inside}"></iframe>'
    )
    (folder / "axe.html").write_text(
        f"<!DOCTYPE html><body>{frame}<script>{ask}</script></body>"
    )
    shown = show(folder / "axe.html", *flags)
    [text] = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    found = json.loads(unescape(text))
    assert len(found["passes"]) > 10  # it looked
    return [
        f"{one['impact']} {one['id']}: {node['html'][:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
