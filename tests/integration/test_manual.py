"""The manual: everything that its pages show is run, and what they say of figures and
names is so.
"""

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import rff_dist
from benchmarks.__main__ import CLAIMS, DEFAULTS, LONG
from rff_dist import errors
from rff_dist.engines.cluster import SCHEDULER_VARIABLE
from tests.browser import DARK, LIGHT, check_by_axe, needs_axe, needs_browser, show
from tests.pages import benchmarks_of, read_blocks, run_page
from tests.pages import scheduler as scheduler  # a fixture

MANUAL = Path(__file__).resolve().parents[2] / "notebooks/manual"
PAGES = {
    str(path.relative_to(MANUAL / "pages")): path
    for path in sorted((MANUAL / "pages").rglob("*.md"))
}
# Pages that take seconds each; the others take longer, and are run by `make test-slow`.
QUICK = {
    "how-to/recover.md",
    "how-to/watch-runs.md",
    "why/exact-sums.md",
    "why/nystrom-or-fourier.md",
    "comparison.md",
    "index.md",
    "faq.md",
    "reference/data.md",
    "reference/estimators.md",
    "reference/features.md",
    "reference/kernels.md",
}


@pytest.mark.documents
@pytest.mark.distributed
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[]
            if name in QUICK or name.startswith("decisions/")
            else [pytest.mark.slow],
        )
        for name in PAGES
    ],
)
def test_page_goes_as_printed(name, tmp_path, monkeypatch, scheduler):
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)
    monkeypatch.setenv("MPLBACKEND", "agg")
    run_page(read_blocks(PAGES[name]), tmp_path)


def test_benchmarks_that_pages_name_are_there():
    named = {
        name for path in PAGES.values() for name in benchmarks_of(read_blocks(path))
    }
    assert named
    assert named <= {*CLAIMS, *LONG, DEFAULTS}


def test_reference_has_every_public_name():
    hook = runpy.run_path(str(MANUAL / "reference_pages.py"))
    texts = [
        hook["on_page_markdown"](path.read_text())
        for name, path in PAGES.items()
        if name.startswith("reference/")
    ]
    shown = [
        name.rpartition(".")[2]
        for text in texts
        for name in re.findall(r"^::: (\S+)$", text, re.M)
    ]
    assert sorted(shown) == sorted(set(rff_dist.__all__) - {"__version__"})


# -- the site
# --------------------------------------------------------------------------------------


class Loaded(HTMLParser):
    """Collects what a page loads, and what it links to."""

    def __init__(self):
        super().__init__()
        self.loads = []
        self.links = []

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found.get("href", ""))
        elif "src" in found:
            self.loads.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning, such as of a link that leads nowhere, ends the
    build.
    """
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [
            *command,
            "--config-file",
            str(MANUAL / "mkdocs.yml"),
            "--site-dir",
            str(folder),
        ],
        env={
            **os.environ,
            "DISABLE_MKDOCS_2_WARNING": "true",
            "NO_MKDOCS_2_WARNING": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.documents
def test_site_has_every_page_and_loads_nothing_from_elsewhere(site):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {
        "404.html"
    }
    hook = runpy.run_path(str(MANUAL / "reference_pages.py"))
    made = {"gallery.md", "reference/options.md", "reference/errors.md"}
    made |= {hook["command_uri"](title) for title in hook["commands"]()}
    made |= {uri for topic in hook["TOPICS"] for uri in hook["class_pages"](topic)}
    assert built == {str(Path(name).with_suffix(".html")) for name in {*PAGES, *made}}
    for name in built:
        page = Loaded()
        page.feed((site / name).read_text())
        assert page.loads
        assert [url for url in page.loads if urlsplit(url).netloc] == []
        outside = [urlsplit(url) for url in page.links if "://" in url]
        assert all(url.scheme == "https" and "." in url.netloc for url in outside), name
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []


@pytest.mark.documents
def test_reference_shows_parameters_and_glossary_the_words_of_the_project(site):
    ridge = (site / "reference/estimators/RFFRidge.html").read_text()
    assert "rff_dist.estimators.ridge.RFFRidge.predict_interval" in ridge
    assert "how far apart rows still" in " ".join(ridge.lower().split())
    assert "champion, challenger" in (site / "glossary.html").read_text()
    commands = (site / "reference/options.html").read_text()
    for name in ("fit", "data-log", "models-rollback"):
        assert f'href="commands/{name}.html"' in commands
        page = (site / f"reference/commands/{name}.html").read_text()
        assert f"RFF_DIST_{name.upper().replace('-', '_')}_" in page
    fit = (site / "reference/commands/fit.html").read_text()
    assert "--length-scales" in fit
    failures = (site / "reference/errors.html").read_text()
    assert all(name in failures for name in vars(errors) if name.endswith("Error"))
    assert "keggdirected" in (site / "defaults.html").read_text()


@pytest.mark.documents
def test_pages_lead_to_each_other_and_every_estimator_to_its_how_to_page(site):
    links = {}
    for path in sorted(site.rglob("*.html")):
        page = Loaded()
        page.feed(path.read_text().partition('id="see-also"')[2])
        links[str(path.relative_to(site))] = {
            os.path.normpath(path.parent / url.partition("#")[0]).removeprefix(
                f"{site}/"
            )
            for url in page.links
            if "://" not in url
        }
    for name, ways in links.items():
        if name.startswith(("reference/estimators/", "reference/commands/")):
            assert any(way.startswith(("how-to/", "tutorial")) for way in ways), name
    assert "gallery.html" in links["how-to/cluster.html"]
    assert "reference/estimators/RFFKMeans.html" in links["how-to/cluster.html"]
    assert "how-to/cluster.html" in links["reference/estimators/RFFKMeans.html"]
    assert "how-to/cluster.html" in links["reference/commands/cluster.html"]


SEARCH = """<script>
setTimeout(() => {
  const query = document.querySelector("[data-md-component=search-query]");
  document.querySelector("[data-md-toggle=search]").click();
  query.focus();
  query.value = "random features";
  query.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
}, 1500);
setTimeout(() => {
  document.title = "found " + document.querySelectorAll(".md-search-result__item").length;
}, 5000);
</script>"""


@pytest.mark.documents
@pytest.mark.browser
@needs_browser
def test_search_works_in_a_page_that_is_opened_as_a_file(site):
    page = site / "search-test.html"
    page.write_text(
        (site / "index.html").read_text().replace("</body>", f"{SEARCH}</body>")
    )
    shown = show(page)
    page.unlink()
    assert int(re.search(r"<title>found (\d+)", shown)[1]) > 0


@pytest.mark.documents
@pytest.mark.browser
@needs_browser
@needs_axe
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [
        *("index.html", "comparison.html", "faq.html"),
        "defaults.html",  # with a wide table
        # with long lines of code
        *("tutorial.html", "how-to/read-the-report.html", "how-to/ingest.html"),
    ],
)
def test_axe_finds_nothing_serious_in_the_site(site, name, scheme):
    text = (site / name).read_text()
    found = check_by_axe(text, (site / name).parent, scheme, width=1200)
    (site / name).with_name("axe.html").unlink()
    assert [one for one in found if one.startswith(("serious", "critical"))] == []


def test_configuration_names_no_host():
    text = (MANUAL / "mkdocs.yml").read_text()
    assert "://" not in text
    assert "  font: false" in text
