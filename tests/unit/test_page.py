"""The page about a model: what it says, and that any reader can read it."""

import hashlib
import json
import re
import subprocess
import warnings
from base64 import b64encode
from html import escape

import numpy as np
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from rff_dist.engines.clock import Times
from rff_dist.storage.writing import write_dataset
from rff_dist.text import number
from rff_dist.workbench.jobs.comparison import TREES, Predictions
from rff_dist.workbench.jobs.fits import JobData
from rff_dist.workbench.jobs.judging import compare_left_out
from rff_dist.workbench.page import (
    pages,
    provenance,
)
from rff_dist.workbench.results.document import Document
from rff_dist.workbench.results.figures import png_of
from rff_dist.workbench.results.markdown import to_markdown
from tests.browser import DARK, LIGHT, check_by_axe, needs_axe, needs_browser, show
from tests.command_line import PLAIN, document, run, shown
from tests.model_pages import check_readable, plain_model, report_of
from tests.tables import ingest, ingest_more


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dataset whose target depends on its first column much, on its second little, on
    its third not.
    """
    path = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = 3 * np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(400)
    names = {
        "feature_names": ["<much>", "little", "none"],
        "target_names": ["price & tax"],
    }
    write_dataset(path / "data", X, y, **names, versioned=True)
    words = [
        "fit",
        path / "data",
        path / "model",
        "--serial --n-components 128 --n-folds 3",
    ]
    found = document(*words, "--report", path / "new" / "page.html")
    (path / "seconds.json").write_text(json.dumps(found["seconds"]))
    return path


def test_the_page_of_a_regression_is_readable_and_ranks_the_columns(trained):
    _, words = check_readable(trained / "new" / "page.html")
    importance = words.partition("Columns by importance")[2]
    assert (
        importance.index("<much>")
        < importance.index("little")
        < importance.index("none")
    )
    assert "price & tax" in words
    of_time = words.rpartition("Seconds by phase")[2]
    assert (
        of_time.index("start")
        < of_time.index("solve")
        < of_time.index("other")
        < of_time.index("total")
    )
    seconds = json.loads((trained / "seconds.json").read_text())
    total = seconds.pop("total")
    assert sum(seconds.values()) == pytest.approx(total)
    assert f"total {number(total)} 100%" in words  # one figure on all faces
    assert f"report {number(seconds['report'])}" in words
    # half of the rows tuned the length scales
    verdict = "On 200 rows by cross-validation, the RMSE of price & tax is"
    assert verdict in words
    assert "Predicting price & tax from 3 columns" in words
    assert re.search(r"\d+ of 200 rows \([\d.]+%\) make half of the squared", words)
    assert "What to do Is it good enough?" in words
    assert re.search(r"with \d+ instead of \d+ rows the error is .* ± \d", words)
    assert re.search(
        r"with 128 instead of \d+ kernel features the error is .* ± \d", words
    )
    assert "The bands are 95% intervals of a line" in words
    assert "This model by cross-validation" in words
    assert f"{document('info', trained / 'model')['digest']}" in words


def test_the_page_names_use_options_and_commit(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "card.toml").write_text(
        'intended_use = "prices <here>"\nlimits = "not elsewhere"'
    )
    assert provenance.commit_of_folder() is None
    (tmp_path / "file").write_text("one")
    for command in (["init"], ["add", "file"], [*identity, "commit", "-m", "one"]):
        subprocess.run(["git", *command], check=True, capture_output=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    assert provenance.commit_of_folder() == head.stdout.strip()
    (tmp_path / "file").write_text("two")
    how = [*PLAIN, "--alpha 1 --n-components 16 --card card.toml"]
    *_, words = report_of(tmp_path, "fit", trained / "data", "model", *how)
    text, _, found = words.rpartition("Provenance")
    assert "intended use prices <here> limits not elsewhere" in text
    assert re.search(r"options [^ ]+ = .*n_components = 16.* seed 0 ", found)
    assert (
        f"git commit {head.stdout.strip()}, with changes that are not committed"
        in found
    )


def test_provenance_has_sources_with_digests_and_what_was_compared(tmp_path):
    X = np.random.default_rng(0).standard_normal((60, 2))
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n" + "".join(f"{a},{b},{a + b}\n" for a, b in X))
    dataset = ingest(path, tmp_path / "data", target="y")
    data = JobData(dataset)
    y = X.sum(axis=1, keepdims=True)
    model = plain_model(X, y, length_scale=2.0, n_components=16, alpha=1.0)
    trees = Predictions(y, about="3 trees by scikit-learn 1.2")
    page = pages.model_page(
        data,
        model,
        place="m",
        read_times=Times,
        comparison=compare_left_out(data, model).with_model(TREES, trees),
    )
    facts = page.parts[-1]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["sources"] == f"{path} (SHA-256 {digest})"
    assert facts["compared with"] == "Boosted trees: 3 trees by scikit-learn 1.2."


def test_a_page_as_markdown_has_its_headings_tables_and_pictures_and_takes_nothing_for_markup():
    figure = Figure()
    page = Document("a | b", lead="See <b> and *c*.")
    page.section("One_two_", "Text with [a](link).")
    page.table("By column", ("column", "a|b*"), [("<x>|y", 0.123456), ("z", None)])
    page.picture(figure, "what it shows", "below")
    shown = MarkdownIt("commonmark").enable("table").render(to_markdown(page))
    assert "<h1>a | b</h1>" in shown
    assert "<h2>One_two_</h2>" in shown
    assert "<p>See &lt;b&gt; and *c*.</p>" in shown
    assert "<p>Text with [a](link).</p>" in shown
    cells = ["column", "a|b*", "&lt;x&gt;|y", "0.1235", "z", "–"]
    assert re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", shown) == cells
    assert (
        f'<img src="data:image/png;base64,{b64encode(png_of(figure)).decode()}"'
        ' alt="what it shows"' in shown
    )


def test_the_page_of_clusters_has_sizes_map_and_rows_that_stand_for_them(tmp_path):
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.normal(centre, 0.1, (100, 2)) for centre in (0, 5, 9)])
    write_dataset(tmp_path / "data", X)
    how = ["--n-clusters 2,3 --n-components 64 --length-scale median"]
    _, _, words = report_of(
        tmp_path, "cluster", tmp_path / "data", tmp_path / "labels", *how
    )
    assert "Representatives" in words
    assert "clusters links cut 2" in words
    assert document("info", tmp_path / "data")["fingerprint"] in words
    assert re.search(r"choose [\d.]+ \d+%", words)  # what choosing their number took


# -- a real browser
# --------------------------------------------------------------------------------


@pytest.mark.browser
@needs_browser
def test_a_browser_opens_the_page(trained):
    page = trained / "new" / "page.html"
    assert show(page).count("<h2") == page.read_text().count("<h2")


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_pictures_have_the_colours_of_the_reader(trained, tmp_path, scheme):
    ask = """<script>
      const of = (where, what) => getComputedStyle(document.querySelector(where))[what];
      const found = [of("body", "color"), of("body", "backgroundColor"),
        of("svg", "fill"), of("svg", "backgroundColor")];
      document.title = found.join(" | "); </script>"""
    text = (trained / "new" / "page.html").read_text()
    assert not re.search(r"[:#] ?(#ffffff|#000000|white|black)\b", text)
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{ask}</body>"))
    shown = show(tmp_path / "page.html", scheme)
    ink, paper, fill, behind = re.search(r"<title>(.*?)</title>", shown)[1].split(" | ")
    assert (fill, behind) == (ink, "rgba(0, 0, 0, 0)")
    assert (paper == "rgb(255, 255, 255)") == (scheme == LIGHT)


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_is_no_wider_than_a_phone(trained, tmp_path, width):
    text = (trained / "new" / "page.html").read_text()
    frame = (
        f'<iframe id="f" style="width: {width}px; height: 800px"'
        f' srcdoc="{escape(text)}"></iframe>'
    )
    ask = """<script>f.onload = () => { const root = f.contentDocument.documentElement;
      const heads = f.contentDocument.querySelectorAll("th[scope=row]");
      const least = Math.min(...Array.from(heads, head => head.clientWidth));
      document.title = root.scrollWidth + " of " + root.clientWidth + " least " + least; }</script>"""
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title></title>{frame}{ask}")
    shown = show(tmp_path / "frame.html")
    wide, room, least = map(
        int, re.search(r"<title>(\d+) of (\d+) least (\d+)</title>", shown).groups()
    )
    assert wide <= room <= width
    assert least > 90  # the names of rows are not broken after each letter


@pytest.mark.browser
@needs_browser
@needs_axe
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("media", ["screen", "print"])
def test_axe_finds_nothing_on_a_phone_a_screen_and_paper(
    trained, tmp_path, scheme, media
):
    text = (
        (trained / "new" / "page.html")
        .read_text()
        .replace("<details>", "<details open>")
    )
    text = text.replace("@media print", "@media all") if media == "print" else text
    for width in (360, 1200):
        assert check_by_axe(text, tmp_path, scheme, width=width) == []


@pytest.mark.filterwarnings("default")
def test_warnings_of_the_job_and_of_the_page_come_first(monkeypatch):
    def make(*_):
        warnings.warn("intervals may be too narrow", stacklevel=1)
        return Document("a page", [{"rows": "3"}])

    monkeypatch.setattr(pages, "_page_of", make)
    with pytest.warns(UserWarning, match="too narrow"):  # which is shown elsewhere too
        page = pages.page_of(
            None, None, read_times=None, warned=["weights are not used"]
        )
    assert page.parts[0] == {
        "warning": "weights are not used; intervals may be too narrow"
    }


def test_the_page_of_an_update_has_only_rows_that_the_model_holds(tmp_path):
    def table(name, first, n_rows, factor):
        X = np.random.default_rng(first).standard_normal((n_rows, 2))
        rows = [f"{first + i},{a},{b},{factor * a * b}\n" for i, (a, b) in enumerate(X)]
        (tmp_path / name).write_text("id,a,b,y\n" + "".join(rows))
        return tmp_path / name

    def add(*rows):
        ingest_more(table(*rows), place, target="y", id="id")
        return run("update", model, place, "--serial --overwrite --report", page)

    page = tmp_path / "page.html"
    place = tmp_path / "data"
    model = tmp_path / "model"
    ingest(table("old.csv", 0, 400, 1), place, target="y", id="id")
    words = "--alpha 1 --n-components 16 --register"
    shown("fit", place, model, *PLAIN, words)
    refused = add("bad.csv", 400, 100, -90)
    assert refused.exit_code == 3
    told = " ".join(refused.stdout.split())
    check = told.index("to check line 2 to line 101 of bad.csv")
    correct = told.index("to correct them rff-dist data correct")
    assert check < correct < told.index("--by id") < told.index("--force")
    _, words = check_readable(page)
    assert "Refused update: Predicting y" in words
    assert "the kept model holds 400 rows" in words
    # in the table of both models, and of the comparison with the mean
    assert words.count("the refused model") == 2
    assert "this model" not in page.read_text()
    assert "digest of the kept model" in words
    about = " ".join(shown("models", "show", model).split())
    assert "refused line 2 to line 101 of bad.csv, since" in about
    assert add("good.csv", 500, 100, 1).exit_code == 0
    _, words = check_readable(page)
    assert "All 500 training rows, of" in words
    assert "500 rows left out in turn" in words
    read, _, left_out = words.partition("sources left out")
    assert "bad.csv" in left_out.partition("git commit")[0]
    assert "bad.csv" not in read.rpartition("sources")[2]
