"""What a page says of columns: their values, levels, importance and effects."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence as sklearn_dependence
from sklearn.inspection import permutation_importance as sklearn_importance

from rff_dist import Additive
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.predicting import predict_rows
from rff_dist.recipes import encoders, recipes
from rff_dist.ridge import fit as ridge
from rff_dist.workbench.jobs.comparison import (
    OURS,
    ComparisonRows,
    ModelComparison,
    Predictions,
)
from rff_dist.workbench.jobs.fits import JobData
from rff_dist.workbench.page import (
    columns,
    distributions,
    importance,
    page_sample,
)
from rff_dist.workbench.page.columns import partial_dependence
from rff_dist.workbench.page.importance import permutation_importance
from rff_dist.workbench.page.page_sample import sample_data
from rff_dist.workbench.results.document import Document
from rff_dist.workbench.results.words import Table
from tests.model_pages import pictures_of, plain_model, report_of
from tests.tables import ingest


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
    assert re.match(r"x 0 590( \S+){5} y \(target\)", spread)
    assert "categories 1" not in words
    alts = " ".join(one["aria-label"] for one in pictures_of(page))
    drawn = re.findall(r"(-?[\d.]+) at town(\d+) (\d)%", alts)
    assert [int(level) for _, level, _ in drawn] == list(range(19, 7, -1))
    found = np.array([float(height) for height, _, _ in drawn])
    expected = heights[19:7:-1]
    assert_allclose(found - found.mean(), expected - expected.mean(), atol=0.1)
    if kernel == "linear":  # its effects are about the mean over rows
        assert_allclose(found, expected - heights[town].mean(), atol=0.1)


def show_columns(page, data, model):
    sample = sample_data(JobData(data), model)
    ranking = importance.measure_importance(sample, model)
    columns.columns_section(page, sample, model, ranking, "training rows")


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


@pytest.mark.parametrize(("n_values", "n_rows"), [(2**25, 1_000), (0, 100)])
def test_curves_have_the_level_of_all_predictions(monkeypatch, n_values, n_rows):
    monkeypatch.setattr(columns, "CURVE_VALUES", n_values)
    rng = np.random.default_rng(9)
    X = rng.standard_normal((1_000, 3))
    y = np.exp(X[:, :1])
    model = plain_model(X, y, length_scale=1.0, n_components=64, alpha=1e-3)
    sample = sample_data(JobData(ArrayDataset(X, y)), model)
    predict, _ = importance.measures_of(model, sample)
    predictions = predict(sample.X)[:, 0]
    rows = columns.curve_rows(model, predictions)
    assert len(rows) == n_rows
    # 100 rows drawn by chance would be off by 0.2
    assert predictions[rows].mean() == pytest.approx(predictions.mean(), abs=0.03)
    # a column that does nothing: its curve is at the mean of all predictions
    shown = columns.curves_of(model, sample, predict, predictions, sample.columns[2])
    heights = next(iter(shown.lines.values()))
    assert heights.mean() == pytest.approx(predictions.mean(), abs=0.06)
    assert shown.n_rows == len(rows)


def test_the_page_of_an_additive_model_draws_exact_effects_rather_than_partial_dependence():
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, (400, 2))
    y = 5 + np.column_stack([3 * X[:, 0] - X[:, 1] ** 2, X[:, 1]])
    shown = {}
    tables = []
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
        tables += [
            dict(part.rows)
            for part in page.parts
            if getattr(part, "caption", "") == "Shares of the variance of predictions"
        ]
    assert shown[1].alt.startswith("Partial dependence. ")
    assert "95% intervals" in shown[0].caption
    assert "x0: y0 from 1." in shown[1].alt
    assert "alone" not in shown[1].alt
    # pairs may hold what a column does, so the other model has no shares
    (shares,) = tables
    assert {*shares} == {"x0", "x1", "overlap"}
    assert sum(map(float, shares.values())) == pytest.approx(1, abs=2e-3)
    # 3·x0 − x1²: variances of 3 and 4/45
    assert float(shares["x0"]) == pytest.approx(3 / (3 + 4 / 45), abs=0.03)
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
        model.predict,
        X,
        losses,
        np.arange(2_000),
        columns=[[0], [1], [0, 1]],
        n_shuffles=5,
        seed=0,
    )
    told = sklearn_importance(
        model, X, y[:, 0], scoring="neg_root_mean_squared_error", random_state=0
    )
    # five shuffles of 2,000 rows each: a deviation of 2 percent
    assert_allclose(found[:2], told.importances_mean[:2], rtol=0.06)
    # both at once: twice the variances of sin(x0), (1 - exp(-2)) / 2, and of x1·x2, 1
    assert found[2] == pytest.approx(np.sqrt(3 - np.exp(-2) + 0.01) - 0.1, rel=0.1)
    # the standard error is that of a bootstrap over rows
    draws = np.random.Generator(np.random.Philox(0))
    after = np.zeros(2_000)
    for order in [draws.permutation(2_000) for _ in range(5)]:
        shuffled = np.column_stack([X[order, 0], X[:, 1:]])
        after += np.square(model.predict(shuffled) - y[:, 0]) / 5
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
    # before columns are shuffled rows are predicted twice, and once after it
    assert sum(shuffled) <= importance.SHUFFLED_ROWS + 3 * page_sample.SAMPLE_ROWS
    assert len(shuffled) <= importance.SHUFFLED_COLUMNS + 3
    drawn = asked[len(shuffled) :]
    assert max(drawn) <= columns.CURVE_ROWS or (
        sum(drawn) * model.feature_map.n_components <= columns.CURVE_VALUES
    )
    table = next(
        part
        for part in page.parts
        if getattr(part, "caption", "") == "Columns by importance"
    )
    assert table.rows[0][0] == f"x{n_columns - 1}"  # also if it is the last of many


@pytest.mark.parametrize("fill", [None, 7.0])
def test_a_curve_stands_above_ticks_of_the_rows_that_have_values(fill):
    rng = np.random.default_rng(0)
    X = np.append(rng.standard_normal(500), np.full(20, 7.0))[:, np.newaxis]
    column = page_sample.TableColumn("age", (0,), fill=fill, n_missing=15)
    places = np.linspace(-1, 2, 25)
    axes = Figure().subplots()
    columns.draw_panel(axes, columns.Curves(column, places, [], {"y": places}, None), X)
    line, ticks = axes.get_lines()
    low, high = axes.get_xlim()
    assert (low, high) == pytest.approx((-1, 2), abs=0.2)
    assert line.get_xdata().tolist() == places.tolist()
    expected = X[:, 0] if fill is None else X[:-15, 0]
    assert sorted(ticks.get_xdata()) == sorted(expected)


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
    row = np.array([61.0, 1, 1, 18_990.6, 2])
    sold = "2021-12-29 14:24:00"  # 0.6 days
    assert [one.cell(row) for one in found] == ["61 (filled in)", "Köln", sold]
    assert found[2].cell(np.floor(row)) == "2021-12-29"
    # a level that the model has never seen has the code after the last one
    X = np.stack([row, row + 1, row + 1, row + 2])
    assert [found[1].cell(one) for one in X] == ["Köln", "Ulm", "Ulm", "(new)"]
    assert [page_sample.share_words(n / 200) for n in (1, 2)] == ["<1%", "1%"]
    # the most frequent ones
    places, levels = found[1].shown_values(X[:3], 5)
    assert (places.tolist(), list(levels)) == ([2.0, 1.0], ["Ulm 67%", "Köln 33%"])
    assert list(found[1].shown_values(X[:3], 1)[1]) == ["Ulm 67%"]
    assert found[1].title(X[:3], 1) == "town, … 1 more"
    assert found[0].shown_values(X[:2], 5)[0].tolist() == [61.0, 62.0]
    # the second column marks ages that were missing
    row[1] = 0
    assert found[0].cell(row) == "61"
    # columns that a recipe did not make stand for themselves
    assert [one.members for one in page_sample.table_columns(["a", "b"], recipe)] == [
        (0,),
        (1,),
    ]


@pytest.mark.parametrize("noise", [0.3, 0.7])
def test_columns_that_correlate_are_shuffled_together(noise):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((400, 5))
    X[:, 1] = -X[:, 0] + noise * X[:, 1]
    X[:, 3:] = 0.1  # two constants, whose mean is rounded
    # only their sum matters, of variance 1: shuffled singly, x0 alone moves it by more
    y = (X[:, :1] + X[:, 1:2]) / noise + X[:, 2:3]
    data = ArrayDataset(X, y)
    model = plain_model(X, y, length_scale=30.0, n_components=256, alpha=1e-6)
    page = Document("")
    show_columns(page, data, model)
    (table,) = [part for part in page.parts if isinstance(part, Table)]
    rises = {name: float(cell.split()[0]) for name, cell in table.rows}
    correlates = np.corrcoef(X[:, :3].T)[0, 1] < -0.9
    assert correlates == (noise < 0.5)
    joint = [name for name in rises if " + " in name]
    assert len(joint) == correlates

    def expected(part):
        """A shuffle makes an error of twice the variance of what is shuffled."""
        return pytest.approx(np.sqrt(2 * np.var(part) / np.var(y)), rel=0.15)

    assert rises["x2"] == expected(X[:, 2])
    if correlates:
        assert {*joint[0].split(" + ")} == {"x0", "x1"}
        assert rises[joint[0]] == expected((X[:, 0] + X[:, 1]) / noise)
    else:
        assert rises["x0"] == expected(X[:, 0] / noise)
    said = " ".join(getattr(part, "text", "") for part in page.parts)
    assert ("±0.9" in said) == correlates


def test_values_that_may_be_filled_in_are_not_shown_as_data():
    parts = [
        encoders.Number("age", 0.1, 3),
        encoders.Date("sold", ["elapsed-days"], [18_990.6], n_missing=1),
        encoders.Number("size", 0.1),  # none was missing
    ]
    recipe = recipes.Recipe(parts)
    found = page_sample.table_columns(recipe.names, recipe)
    row = np.array([0.1, 18_990.6, 0.1], np.float32)
    expected = ["0.1 (perhaps filled in)", "2021-12-29 (perhaps filled in)", "0.1"]
    assert [one.cell(row) for one in found] == expected
    assert [one.cell(row + 1) for one in found] == ["1.1", "2021-12-30", "1.1"]
    # only so many are left out as were missing
    X = np.repeat([row, row + 1], [4, 2], axis=0)
    assert [len(one.observed(X)) for one in found] == [3, 5, 6]
    names = found[0].shown_values(np.stack([row, row + 1]), 5)[1]
    assert names == ["0.1", "1.1"]


@pytest.mark.parametrize(
    ("values", "n_decimals"),
    [([2003.0, 2009.0], 0), ([1.0, 3.0], 0), ([1.0, 2.5], 1), ([0, 45_000.0], 0)],
)
def test_columns_of_whole_numbers_have_whole_ticks_and_years_no_comma(
    values, n_decimals
):
    X = np.array(values)[:, np.newaxis]
    axes = Figure().subplots()
    axes.plot(values, values)
    page_sample.label_values(axes, X, page_sample.TableColumn("year", (0,)))
    ticks = axes.xaxis.get_major_formatter().format_ticks(axes.get_xticks())
    assert {len(tick.partition(".")[2]) for tick in ticks} == {n_decimals}
    assert any("," in tick for tick in ticks) == (values[1] >= 10_000)


@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_repeated_rows_are_counted_among_training_and_test_rows_with_their_errors(
    dtype, classify
):
    X = np.arange(40.0).reshape(20, 2)
    y = np.arange(20.0)[:, np.newaxis]
    X[5:8] = X[4]  # three have the columns of row 4
    y[5:7] = y[4]  # two of them its target too
    X[0, 0] = 0.0
    test_X = np.array([[-0.0, 1.0], X[4], X[4], [0.5, 1.0]], dtype)
    used = [page_sample.TableColumn(name, (0,)) for name in "ab"]
    sample = page_sample.PageSample(X.astype(dtype), y, used, [])
    observed = np.array([[1.0], [2.0], [4.0], [9.0]])
    if classify:
        observed = np.array([0, 1, 1, 2])
    rows = ComparisonRows("test", 4, np.arange(4), test_X, observed)
    ours = {OURS: Predictions(np.zeros_like(observed))}
    compared = ModelComparison(rows, observed, ours, list("abc") if classify else None)
    repeats, known = distributions.repeats_words(sample, compared)
    assert re.findall(r"\d+", repeats) == ["2", "20", "2"]
    errors = ["33.3", "0.0"] if classify else [f"{np.sqrt(7):.3f}", "9.000"]
    assert re.findall(r"[\d,.]*\d", known) == ["3", "4", "20", "2", *errors]
    assert distributions.repeats_words(sample, None) == [repeats]
    sample = page_sample.PageSample(X[8:], y[8:], used, [])
    assert distributions.repeats_words(sample, compared) == []


def test_levels_of_a_few_rows_are_not_shown():
    column = page_sample.TableColumn("cabin", (0,), tuple("abcd"))
    codes = np.repeat([0.0, 1.0, 2.0, 3.0], [50, 40, 6, 4])[:, np.newaxis]
    assert column.shown_values(codes, 12)[0].tolist() == [0, 1, 2]
    assert len(column.shown_values(codes[-2:], 12)[0]) == 1
    # but two are
    assert column.shown_values(codes[[0, 50, 51, 90]], 12)[0].tolist() == [1, 0]
