"""The page about a model: what it says, and that any reader can read it."""

import json
import re
import subprocess
import warnings
from base64 import b64encode
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
import zarr
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence as sklearn_dependence
from sklearn.inspection import permutation_importance as sklearn_importance
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from rff_dist import Additive
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.predicting import predict_rows
from rff_dist.recipes import encoders, recipes
from rff_dist.ridge import fit as ridge
from rff_dist.storage.writing import write_dataset
from rff_dist.text import number
from rff_dist.workbench.jobs.fits import JobData
from rff_dist.workbench.jobs.judging import compare_left_out
from rff_dist.workbench.page import (
    accuracy,
    columns,
    distributions,
    importance,
    page_sample,
    pages,
    provenance,
)
from rff_dist.workbench.page.columns import partial_dependence
from rff_dist.workbench.page.importance import permutation_importance
from rff_dist.workbench.page.page_sample import sample_data
from rff_dist.workbench.results.document import Document
from rff_dist.workbench.results.figures import png_of
from rff_dist.workbench.results.markdown import to_markdown
from tests.browser import DARK, LIGHT, check_by_axe, needs_axe, needs_browser, show
from tests.command_line import PLAIN, document, run
from tests.tables import ingest


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


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_a_page_shows_the_levels_of_a_category_by_name(tmp_path, kernel):
    rng = np.random.default_rng(4)
    town = rng.permutation(np.repeat(np.arange(20), np.arange(20, 40)))
    heights = rng.permutation(20) / 5
    x = rng.standard_normal(len(town))
    y = x + heights[town] + 0.01 * rng.standard_normal(len(town))
    lines = [f"{a},town{b:02},{c}" for a, b, c in zip(x, town, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["x,where,y", *lines]))
    ingest(tmp_path / "t.csv", tmp_path / "data", target="y")
    how = [f"--kernel {kernel} --n-components 256"]
    _, page, words = report_of(tmp_path, "fit", tmp_path / "data", tmp_path / "m", *how)
    importance = words.partition("Columns by importance")[2]
    assert re.findall(r"(\w+) [\d.]+ ± [\d.]+", importance)[:2] == ["where", "x"]
    # 39 of 590 rows are those of the most frequent town
    assert "where 20 town19 7%, town18 6%, town17 6%," in words
    assert "… 14 more" in words
    spread = words.partition("mean std min median max ")[2]
    assert re.match(r"x( \S+){5} y \(target\)", spread)
    assert "categories 1" not in words
    alts = " ".join(one["aria-label"] for one in pictures_of(page))
    drawn = re.findall(r"(-?[\d.]+) at town(\d+) (\d)%", alts)
    assert [int(level) for _, level, _ in drawn] == list(range(19, 7, -1))
    found = np.array([float(height) for height, _, _ in drawn])
    expected = heights[19:7:-1]
    assert_allclose(found - found.mean(), expected - expected.mean(), atol=0.1)
    if kernel == "linear":  # its effects are about the mean over rows
        assert_allclose(found, expected - heights[town].mean(), atol=0.1)


@pytest.mark.parametrize("task", ["", "--classify"])
def test_test_rows_that_list_other_levels_are_judged_by_their_names(tmp_path, task):
    rng = np.random.default_rng(5)
    town = rng.integers(0, 6, 400)
    y = np.array([3, -2, 0, 1, -1, 2])[town] + 0.1 * rng.standard_normal(400)
    labels = np.where(y > 0, "high", "low") if task else y
    lines = [f"town{b},{b % 2},{c}" for b, c in zip(town, labels, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["where,x,y", *lines[:300]]))
    # neither the first level nor the last: codes of the others are other ones
    others = [line for line in lines[300:] if line[4] not in "05"]
    (tmp_path / "u.csv").write_text("\n".join(["where,x,y", *others]))
    for name in ("t", "u"):
        ingest(tmp_path / f"{name}.csv", tmp_path / name, target="y")
    model = tmp_path / "model"
    how = f"--kernel gaussian --length-scale 1 --n-components 64 --alpha 0.01 {task}"
    how = [f"--test={tmp_path / 'u'}", how]
    _, _, words = report_of(tmp_path, "fit", tmp_path / "t", model, *how)
    errors = document("evaluate", model, tmp_path / "u")
    found = re.search(r"Compared on .*? this model ([\d.]+)", words)[1]
    expected = 100 * errors["accuracy"] if task else errors["targets"][0]["rmse"]
    assert float(found) == pytest.approx(expected, rel=1e-3)


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
    assert re.search(r"From \d+ to \d+ rows the error (fell by|did not)", words)
    assert re.search(
        r"From \d+ to 128 kernel features the error (fell by|did not)", words
    )
    assert "The bands are ± 2 standard deviations of a line" in words
    assert "This model by cross-validation" in words
    assert f"{document('info', trained / 'model')['digest']}" in words


def test_the_page_names_use_options_commit_and_products(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rff_dist.products.choice.WORTH_MEASURING", 0.0)
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
    assert re.search(r"multiplied by float64, at \d+% of the processor's limit", found)


@pytest.mark.parametrize(
    ("noise", "judgement"),
    [(1.0, "are not clearly off"), (4.0, "are too narrow")],
)
def test_the_page_says_whether_intervals_held_with_the_count(
    tmp_path, noise, judgement
):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((700, 2))
    drawn = rng.standard_normal(700)
    drawn[400:] *= noise
    y = X[:, 0] + 0.5 * drawn
    write_dataset(tmp_path / "data", X[:400], y[:400])
    write_dataset(tmp_path / "test", X[400:], y[400:])
    how = [*PLAIN, "--n-components 16 --n-folds 3", f"--test={tmp_path / 'test'}"]
    model = tmp_path / "m"
    _, _, words = report_of(tmp_path, "fit", tmp_path / "data", model, *how)
    document("predict", model, tmp_path / "test", tmp_path / "p", "--coverage 0.9")
    ends = zarr.open_group(tmp_path / "p", mode="r")
    n_inside = np.sum((ends["lower"][:] <= y[400:]) & (y[400:] <= ends["upper"][:]))
    assert f"The 90% intervals {judgement}: they contain {n_inside} of 300" in words
    assert "the errors of 400 of 400 rows of the fit, each predicted without" in words


def plain_model(X, y, **options):
    options = RidgeOptions(kernel="gaussian", features="fourier", **options)
    return ridge.fit(ArrayDataset(X, y), options, engine=SerialEngine()).model


def test_predictions_without_a_row_are_those_of_a_fit_without_it():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    y = np.sin(X[:, :1]) + 0.2 * rng.standard_normal((60, 1))
    model = plain_model(
        X, y, length_scale=1.5, n_components=32, alpha=0.5, standardize=False
    )
    found = compare_left_out(JobData(ArrayDataset(X, y)), model)
    assert found.rows.origin == "leave-one-out"
    Z = model.feature_map.transform(found.rows.X, dtype=np.float64)
    for row in (0, 17, 59):
        others = np.arange(60) != row
        expected = (
            Ridge(alpha=0.5)
            .fit(Z[others], found.observed[others])
            .predict(Z[row : row + 1])
            .ravel()
        )
        # the Gram is that of rounded features, exact; what is left is float64's
        # rounding
        assert_allclose(found.ours.values[row], expected, rtol=1e-8)


def show_columns(page, data, model):
    sample = sample_data(JobData(data), model)
    ranking = importance.measure_importance(sample, model)
    columns.columns_section(page, sample, model, ranking)


class _Linear(RegressorMixin, BaseEstimator):
    """A function of rows with scikit-learn's face."""

    def fit(self, X, y):
        self.is_fitted_ = True
        return self

    def predict(self, X):
        return np.sin(X[:, 0]) + X[:, 1] * X[:, 2]


def test_partial_dependence_is_what_scikit_learn_says():
    X = np.random.default_rng(5).standard_normal((80, 3))
    model = _Linear().fit(X, X[:, 0])
    expected = sklearn_dependence(model, X, [2], method="brute", grid_resolution=7)
    found = partial_dependence(
        lambda rows: model.predict(rows)[:, np.newaxis],
        X,
        [2],
        expected["grid_values"][0][:, np.newaxis],
    )
    assert_allclose(found[:, 0], expected["average"][0], rtol=1e-12)


def test_the_page_of_an_additive_model_draws_exact_effects_rather_than_partial_dependence():
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, (400, 2))
    y = 5 + np.column_stack([3 * X[:, 0] - X[:, 1] ** 2, X[:, 1]])
    shown = {}
    shares = {}
    for kernel in (Additive(order_2=0, dense=0), Additive(dense=0)):
        options = RidgeOptions(
            kernel=kernel,
            length_scale="median",
            features="nystrom",
            n_components=64,
            alpha=1e-3,
        )
        data = ArrayDataset(X, y)
        model = ridge.fit(data, options, engine=SerialEngine()).model
        page = Document("")
        show_columns(page, data, model)
        (shown[kernel.order_2],) = [
            part for part in page.parts if "predicted" in getattr(part, "caption", "")
        ]
        (shares[kernel.order_2],) = [
            part
            for part in page.parts
            if getattr(part, "caption", "") == "Shares of the variance of predictions"
        ]
    assert shown[1].alt.startswith("Partial dependence. ")
    assert "± 2 standard deviations" in shown[0].caption
    assert "x0: y0 from 1." in shown[1].alt
    assert "effect of the column alone from " in shown[1].alt
    for table in shares.values():
        names, numbers = zip(*table.rows, strict=True)
        assert {*names[:2]} == {"x0", "x1"}
        assert names[2:] == ("columns together", "overlap")
        assert sum(map(float, numbers)) == pytest.approx(1, abs=2e-3)
    alone = dict(shares[0].rows)
    # 3·x0 − x1²: variances of 3 and 4/45
    assert float(alone["x0"]) == pytest.approx(3 / (3 + 4 / 45), abs=0.03)
    assert alone["columns together"] == "0.000"
    assert float(dict(shares[1].rows)["x0"]) > 0.1
    assert "partial" not in shown[0].alt.lower() + shown[0].caption.lower()
    assert shown[0].caption.startswith(
        "Exact effect: how far the predicted y0 is from its value at the column's mean"
    )
    low, high = map(
        float, re.findall(r"-?\d\.\d+", shown[0].alt.partition("x0:")[2])[:2]
    )
    # the middle 96 % of the values; the mean is about 0, and the fit is nearly exact
    assert (low, high) == pytest.approx((-2.9, 2.9), abs=0.2)


def test_importance_is_what_scikit_learn_says_on_average():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((2_000, 3))
    model = _Linear().fit(X, X[:, 0])
    y = model.predict(X)[:, np.newaxis] + 0.1 * rng.standard_normal((2_000, 1))
    losses = importance.Losses(
        "RMSE", lambda seen, rows: np.square(seen - y[rows, 0]), is_root=True
    )
    found, errors = permutation_importance(
        model.predict, X, losses, np.arange(2_000), columns=[[0], [1], [0, 1]], seed=0
    )
    told = sklearn_importance(
        model, X, y[:, 0], scoring="neg_root_mean_squared_error", random_state=0
    )
    # one shuffle of 2,000 rows: its error has a deviation of a few percent
    assert_allclose(found[:2], told.importances_mean[:2], rtol=0.1)
    # both at once: twice the variances of sin(x0), (1 - exp(-2)) / 2, and of x1·x2, 1
    assert found[2] == pytest.approx(np.sqrt(3 - np.exp(-2) + 0.01) - 0.1, rel=0.1)
    # the standard error is that of a bootstrap over rows
    order = np.random.Generator(np.random.Philox(0)).permutation(2_000)
    after = np.square(model.predict(np.column_stack([X[order, 0], X[:, 1:]])) - y[:, 0])
    before = np.square(model.predict(X) - y[:, 0])
    picks = rng.integers(0, 2_000, (400, 2_000))
    drawn = np.sqrt(after[picks].mean(axis=1)) - np.sqrt(before[picks].mean(axis=1))
    assert errors[0] == pytest.approx(drawn.std(), rel=0.15)


@pytest.mark.parametrize("n_columns", [3, 60])
def test_a_page_predicts_a_bounded_number_of_rows(monkeypatch, n_columns):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((600, n_columns))
    y = X[:, -1:] + 0.1 * rng.standard_normal((600, 1))
    data = ArrayDataset(X, y)
    model = plain_model(X, y, length_scale=8.0, n_components=64, alpha=0.1)
    asked = []

    def counted(rows, linear):
        asked.append(len(rows.X))
        return predict_rows(rows, linear)

    monkeypatch.setattr("rff_dist.fitting.predicting.predict_rows", counted)
    page = Document("")
    show_columns(page, data, model)
    shuffled = asked[: -columns.CURVE_POINTS * min(n_columns, columns.CURVES)]
    # before anything is shuffled rows are predicted twice
    assert sum(shuffled) <= importance.SHUFFLED_ROWS + 2 * page_sample.SAMPLE_ROWS
    assert len(shuffled) <= importance.SHUFFLED_COLUMNS + 2
    assert max(asked[len(shuffled) :]) <= columns.CURVE_ROWS
    table = next(
        part
        for part in page.parts
        if getattr(part, "caption", "") == "Columns by importance"
    )
    assert table.rows[0][0] == f"x{n_columns - 1}"  # also if it is the last of many


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


def test_the_page_says_what_was_done_to_a_tables_columns(tmp_path):
    lines = [
        f"{'ab'[i % 2]},{i % 7 or ''},{i},{100 if i == 60 else i % 7 + i % 2},r{i}"
        for i in range(100)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["kind,size,code,y,name", *lines]))
    ingest(
        tmp_path / "t.csv",
        tmp_path / "data",
        target="y",
        drop=["code"],
        impute="median",
        id="name",
    )
    small = ["--n-components 16 --alpha 1", *PLAIN]
    _, _, words = report_of(tmp_path, "fit", tmp_path / "data", tmp_path / "m", *small)
    assert "kind category, 2 levels: " in words.replace("  ", " ")
    assert "15 missing values become" in words
    worst = words.partition("Rows with the largest errors id ")[2]
    assert worst.partition("size kind ")[2].startswith("r60 100.")
    spread = words.partition(
        "Columns of numbers and dates column mean std min median max "
    )[2]
    assert spread.startswith("size ")  # no level is a column there
    assert "histograms, and the rows of each level" in words


def test_the_worst_rows_have_the_most_important_columns_in_the_unit_of_the_error(
    tmp_path,
):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 8))
    y = 50 + 9 * X[:, 7] + 4 * X[:, 6] + rng.standard_normal(300)
    write_dataset(tmp_path / "data", X[:200], y[:200])
    write_dataset(tmp_path / "test", X[200:], y[200:])
    how = [*PLAIN, "--kernel linear --alpha 1", f"--test={tmp_path / 'test'}"]
    shown, _, words = report_of(
        tmp_path, "fit", tmp_path / "data", tmp_path / "m", *how
    )
    worst = words.partition("Rows with the largest errors ")[2].partition(" A table ")[
        0
    ]
    _, _, rows = worst.partition("predicted error ")
    assert rows.startswith("x7 x6 ")
    n_columns = len(re.findall(r"x\d ", rows))
    assert n_columns == 5
    # one format of the RMSE in verdict, table and test, and of what is in its unit
    [rmse] = re.findall(r"the RMSE.*? is (\S+) ± \S+ \(R² 0\.\d{3}\)", words)
    assert re.fullmatch(r"\d\.\d{3}|0\.\d{4}", rmse)
    assert f"this model {rmse} ± 0." in words
    assert f"RMSE {rmse} ± 0." in shown
    decimals = len(rmse.partition(".")[2])
    cells = rows.split("x")[-1].split()[1:]
    for value in cells[1:4]:
        assert len(value.partition(".")[2]) == decimals


def test_rows_are_counted_in_stretches_or_by_value():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(500)
    middles, counts, width = columns.rows_by_stretch(values, (-1.0, 2.0))
    assert_allclose(middles, np.arange(6) / 2 - 0.75)
    assert width == pytest.approx(0.5)
    for middle, count in zip(middles, counts, strict=True):
        assert count == (np.abs(values - middle) <= 0.25).sum()
    few = rng.integers(0, 3, 100)
    middles, counts, width = columns.rows_by_stretch(few, (0, 2))
    assert middles.tolist() == [0, 1, 2]
    assert counts.tolist() == np.bincount(few).tolist()
    assert width == 1


def test_values_have_the_digits_that_their_deviation_gives_a_meaning():
    assert distributions.rounded([-1.447, -5.175e-07, 0.0, 26.0], 104.83) == [
        "-1",
        "0",
        "0",
        "26",
    ]
    assert distributions.rounded([0.01849, 5.8294, 1234.5678], 5.829) == [
        "0.02",
        "5.83",
        "1235",
    ]
    assert distributions.rounded([3.25, 3.25], 0.0) == ["3.25", "3.25"]


@pytest.mark.parametrize("test_rows", [True, False])
def test_classes_are_judged_by_rows_that_the_model_did_not_see(tmp_path, test_rows):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((400, 6))
    y = rng.integers(0, 3, 400)
    names = np.array(["a", "b", "c"])
    write_dataset(tmp_path / "data", X[:300], names[y[:300]])
    write_dataset(tmp_path / "test", X[300:], names[y[300:]])
    # so short a length scale that training rows would all be right
    how = [
        "--classify",
        *PLAIN,
        "--n-components 512 --length-scale 0.5 --alphas 0.5,1",
    ]
    how += ["--test", tmp_path / "test"] if test_rows else []
    told, _, _ = report_of(tmp_path, "fit", tmp_path / "data", tmp_path / "m", *how)
    page = (tmp_path / "page.html").read_text()
    [table] = re.findall(r"<caption>Rows by true class.*?</table>", page)
    rows = [re.findall(r"<td>([^<]*)</td>", row) for row in table.split("<tr>")[2:]]
    counts = np.array([row[:-2] for row in rows], int)
    right = np.diag(counts)
    for cells, totals in ((-2, counts.sum(axis=1)), (-1, counts.sum(axis=0))):
        expected = [
            f"{100 * hits / total:.1f}%" if total else "–"
            for hits, total in zip(right, totals, strict=True)
        ]
        assert [row[cells] for row in rows] == expected
    assert counts.sum() == (100 if test_rows else 300)
    # labels are noise: 1 of 3 is right; four standard errors
    assert np.diag(counts).sum() / counts.sum() < 1 / 3 + 4 * np.sqrt(
        2 / 9 / counts.sum()
    )
    for verdict in (told, page.partition('<p class="lead">')[2]):
        assert verdict.startswith(
            "No signal was found: the model is not clearly better"
        )


def test_the_page_of_a_classifier_has_its_confusion_and_calibration(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((300, 2))
    y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
    write_dataset(tmp_path / "data", X, y)
    how = ["--classify --n-components 32"]
    _, page, words = report_of(tmp_path, "fit", tmp_path / "data", tmp_path / "m", *how)
    assert "predicted a" in words
    assert "how much log loss (nats) rises if the column's values are" in words
    assert "the mean predicted probability of each class" in words
    dependence = next(
        one["aria-label"]
        for one in pictures_of(page)
        if one["aria-label"].startswith("Partial dependence")
    )
    low, high = map(
        float,
        re.search(r"x0: a from ([\d.]+) to ([\d.]+), b from", dependence).groups(),
    )
    assert 1 >= low > high + 0.5 >= 0.5  # class a is that of small x0
    assert "Calibration" in words
    assert "the most frequent class" in words


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


def test_columns_of_the_page_are_those_of_the_table():
    parts = [
        encoders.Number("age", 42.0, 3, True),
        encoders.Category("town", ["Bonn", "Köln", "Ulm"]),
        encoders.Date("sold", ["elapsed-days", "weekday"]),
    ]
    recipe = recipes.Recipe(parts)
    found = page_sample.table_columns(recipe.names, recipe)
    members = {"age": (0, 1), "town": (2,), "sold": (3, 4)}
    assert {one.name: one.members for one in found} == members
    row = np.array([61.0, 0, 1, 18_990.6, 2])
    assert [one.cell(row) for one in found] == ["61", "Köln", "2021-12-29"]
    # a level that the model has never seen has the code after the last one
    X = np.stack([row, row + 1, row + 1, row + 2])
    assert [found[1].cell(one) for one in X] == ["Köln", "Ulm", "Ulm", "(new)"]
    # the most frequent ones
    places, levels = found[1].places(X[:3], 5)
    assert (places.tolist(), list(levels)) == ([2.0, 1.0], ["Ulm 67%", "Köln 33%"])
    assert list(found[1].places(X[:3], 1)[1]) == ["Ulm 67%"]
    assert found[1].title(X[:3], 1) == "town, … 1 more"
    assert found[0].places(X[:2], 5)[0].tolist() == [61.0, 62.0]
    # columns that a recipe did not make stand for themselves
    assert [one.members for one in page_sample.table_columns(["a", "b"], recipe)] == [
        (0,),
        (1,),
    ]


@pytest.mark.parametrize("ties", [False, True])
def test_the_area_under_the_curve_is_what_scikit_learn_says(ties):
    rng = np.random.default_rng(9)
    positive = rng.random(300) < 0.3
    scores = rng.standard_normal(300) + positive
    scores = np.round(scores) if ties else scores
    page = Document("")
    accuracy._draw_roc(page, positive, scores, "spam")
    [picture] = page.parts
    assert f"is {roc_auc_score(positive, scores):.3f};" in picture.alt


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
