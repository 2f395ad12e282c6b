"""Pages about models as tests read them: their elements, words and pictures."""

import re
from html.parser import HTMLParser

from rff_dist import SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge import fit as ridge
from tests.command_line import run


class Outline(HTMLParser):
    """Collect what the tests ask for; every element must be closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.seen = []
        self.open = []
        self.words = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "svg" not in self.open:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]


def pictures_of(page):
    """Return the attributes of the pictures of a page."""
    return [svg for svg in page.all("svg") if svg["role"] == "img"]


def check_readable(path):
    """Check what phones, screen readers and readers without a network need."""
    text = path.read_text()
    assert len(text.encode()) < 1_000_000
    page = Outline(text)
    assert page.all("html") == [{"lang": "en"}]
    assert any(
        "width=device-width" in one.get("content", "") for one in page.all("meta")
    )
    levels = [tag for tag, _ in page.seen if re.fullmatch(r"h\d", tag)]
    assert levels[0] == "h1"
    assert set(levels[1:]) == {"h2"}
    assert page.all("img") == []
    for picture in pictures_of(page):
        assert len(picture["aria-label"]) > 20
        assert picture["style"] == "fill: var(--ink)"
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) > 0
    targets = {f"#{attributes['id']}" for attributes in page.all("h2")}
    assert {one["href"] for one in page.all("a")} == targets
    assert not re.search(
        r"""(?:src|href)=["'](?!data:|#)|@import|url\((?!#)|<script""", text
    )
    return page, " ".join(" ".join(page.words).split())


def report_of(folder, command, *words):
    """Do a job that writes a page, and return what its command shows, the page, and the
    page's words.
    """
    done = run(command, *words, "--serial --report", folder / "page.html")
    assert done.exit_code == 0, done.stderr
    return done.stdout, *check_readable(folder / "page.html")


def plain_model(X, y, **options):
    options = RidgeOptions(kernel="gaussian", features="fourier", **options)
    return ridge.fit(ArrayDataset(X, y), options, engine=SerialEngine()).model
