"""The page about a model: what it says, and that any reader can read it."""

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.jobs.fits import JobData
from rff_dist.page import _linear_errors, _sampled
from rff_dist.ridge import automatic
from rff_dist.ridge.model import read_model
from rff_dist.ridge.options import RidgeOptions
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from tests.command_line import document, run


class Outline(HTMLParser):
    """Collect what the tests ask for; every element must be closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.open = [], []
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
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]


def check_readable(path):
    """Check what phones, screen readers and readers without a network need."""
    text = path.read_text()
    assert len(text) < 3 * 2**20
    page = Outline(text)
    assert page.all("html") == [{"lang": "en"}]
    assert any("width=device-width" in one.get("content", "") for one in page.all("meta"))
    levels = [tag for tag, _ in page.seen if re.fullmatch(r"h\d", tag)]
    assert levels[0] == "h1"
    assert set(levels[1:]) == {"h2"}
    for image in page.all("img"):
        assert image["src"].startswith("data:image/png;base64,")
        assert len(image["alt"]) > 20
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) > 0
    targets = {f"#{attributes['id']}" for attributes in page.all("h2")}
    assert {one["href"] for one in page.all("a")} == targets
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|<script""", text)
    return page, " ".join(" ".join(page.words).split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dataset whose target depends on its first column much, on its second little, on its third not."""
    path = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = 3 * np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(400)
    write_dataset(
        path / "data",
        X,
        y,
        feature_names=["<much>", "little", "none"],
        target_names=["price & tax"],
        versioned=True,
    )
    words = ["fit", path / "data", path / "model", "--serial", "--components", "128", "--folds", "3"]
    found = run(*words, "--report", path / "new" / "page.html")
    assert found.exit_code == 0, found.stderr
    return path


def test_the_page_of_a_regression_is_readable_and_ranks_the_columns(trained):
    _, words = check_readable(trained / "new" / "page.html")
    importance = words.partition("Columns by importance")[2]
    assert importance.index("<much>") < importance.index("little") < importance.index("none")
    assert "price & tax" in words
    assert "each predicted from all other rows" in words
    assert "k-fold cross-validation" in words
    assert f"{document('info', trained / 'model')['digest']}" in words


def test_predictions_without_a_row_are_those_of_a_fit_without_it():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    y = np.sin(X[:, :1]) + 0.2 * rng.standard_normal((60, 1))
    options = RidgeOptions(
        kernel="gaussian", length_scale=1.5, features="fourier", n_components=32, alpha=0.5, standardize=False
    )
    model = automatic.fit(ArrayDataset(X, y), options, engine=SerialEngine()).model
    sample = _sampled(JobData(ArrayDataset(X, y)), model, 0)
    assert sample.left_out
    Z = model.feature_map.transform(sample.X, dtype=np.float64)
    for row in (0, 17, 59):
        others = np.arange(60) != row
        expected = Ridge(alpha=0.5).fit(Z[others], sample.y[others]).predict(Z[row : row + 1]).ravel()
        # the Gram is that of rounded features, exact; what is left is float64's rounding
        np.testing.assert_allclose(sample.fitted[row], expected, rtol=1e-8)


def test_the_linear_models_error_is_that_of_leaving_each_row_out(trained):
    sample = _sampled(JobData(open_dataset(trained / "data")), read_model(trained / "model"), 0)
    left_out = cross_val_predict(LinearRegression(), sample.X, sample.y, cv=LeaveOneOut())
    rmse = np.sqrt(np.square(left_out - sample.y).mean())
    np.testing.assert_allclose(_linear_errors(sample), [rmse], rtol=1e-8)


def test_the_page_of_a_classifier_has_its_confusion_and_calibration(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((300, 2))
    y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
    write_dataset(tmp_path / "data", X, y)
    words = ["fit", tmp_path / "data", tmp_path / "m", "--classify", "--serial", "--components", "32"]
    assert run(*words, "--report", tmp_path / "page.html").exit_code == 0
    _, words = check_readable(tmp_path / "page.html")
    assert "said a" in words
    assert "Calibration" in words
    assert "the most frequent class" in words


def test_the_page_of_clusters_has_sizes_map_and_rows_that_stand_for_them(tmp_path):
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.normal(centre, 0.1, (100, 2)) for centre in (0, 5, 9)])
    write_dataset(tmp_path / "data", X)
    words = [
        "cluster",
        tmp_path / "data",
        tmp_path / "labels",
        "--clusters",
        "2,3",
        "--serial",
        "--components",
        "64",
    ]
    result = run(*words, "--report", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    _, words = check_readable(tmp_path / "page.html")
    assert "Representatives" in words
    assert "What was compared" in words


@pytest.mark.parametrize("command", ["tune", "update"])
def test_other_commands_that_train_write_the_page_too(trained, tmp_path, command):
    shutil.copytree(trained / "data", tmp_path / "data")
    page = ["--serial", "--report", tmp_path / "page.html"]
    if command == "tune":
        words = ["--kernels", "gaussian,linear", "--length-scales", "1,2", "--components", "32"]
        result = run("tune", tmp_path / "data", tmp_path / "model", *words, *page)
    else:
        assert (
            run("fit", tmp_path / "data", tmp_path / "model", "--serial", "--components", "32").exit_code == 0
        )
        X = np.random.default_rng(4).standard_normal((100, 3))
        append_dataset(tmp_path / "data", X, 3 * np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1])
        result = run("update", tmp_path / "model", tmp_path / "data", *page)
    assert result.exit_code == 0, result.stderr
    check_readable(tmp_path / "page.html")


def test_a_page_that_cannot_be_written_exits_73_and_the_model_is_there(trained, tmp_path):
    (tmp_path / "file").touch()
    words = ["fit", trained / "data", tmp_path / "model", "--serial", "--components", "16", "--folds", "2"]
    result = run(*words, "--report", tmp_path / "file" / "page.html")
    assert result.exit_code == 73
    assert "the page" in result.stderr
    assert (tmp_path / "model").exists()


BROWSER = os.environ.get("RFF_DIST_TEST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium; RFF_DIST_TEST_BROWSER names it")
def test_a_browser_opens_the_page(trained):
    page = trained / "new" / "page.html"
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert shown.count("<h2") == page.read_text().count("<h2")
