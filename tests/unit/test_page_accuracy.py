"""What a page says of errors: on which rows they were measured, and how far they are off."""

import re

import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose
from scipy.special import log_softmax
from scipy.stats import binomtest, sem
from sklearn.linear_model import Ridge
from sklearn.metrics import confusion_matrix, roc_auc_score

from rff_dist.data.memory import ArrayDataset
from rff_dist.selection.learning_curves import LearningCurve
from rff_dist.selection.rule import HeldOutUnits
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.jobs.comparison import (
    LINEAR,
    OURS,
    ComparisonRows,
    ModelComparison,
    Predictions,
    naive_predictions,
)
from rff_dist.workbench.jobs.fits import JobData
from rff_dist.workbench.jobs.judging import compare_left_out
from rff_dist.workbench.page import (
    accuracy,
    advice,
    classes,
    learning,
    page_sample,
)
from rff_dist.workbench.results.document import Document
from tests.command_line import PLAIN, document
from tests.model_pages import pictures_of, plain_model, report_of
from tests.tables import ingest


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


@pytest.mark.parametrize(
    ("noise", "judgement"),
    [
        (1.0, "are not clearly off"),
        (1.07, "may be too narrow, or this is chance"),
        (4.0, "are too narrow"),
    ],
)
def test_the_page_says_whether_intervals_held_with_the_count(
    tmp_path, noise, judgement
):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((700, 2))
    drawn = rng.standard_normal(700)
    drawn[400:] *= noise
    y = X[:, 0] + 0.5 * drawn
    write_dataset(tmp_path / "data", X[:400], y[:400], attributes={"dropped_rows": 5})
    write_dataset(tmp_path / "test", X[400:], y[400:], attributes={"dropped_rows": 2})
    how = [*PLAIN, "--n-components 16 --n-folds 3", f"--test={tmp_path / 'test'}"]
    model = tmp_path / "m"
    _, _, words = report_of(tmp_path, "fit", tmp_path / "data", model, *how)
    document("predict", model, tmp_path / "test", tmp_path / "p", "--coverage 0.9")
    ends = zarr.open_group(tmp_path / "p", mode="r")
    n_inside = np.sum((ends["lower"][:] <= y[400:]) & (y[400:] <= ends["upper"][:]))
    assert f"The 90% intervals {judgement}: they contain {n_inside} of 300" in words
    low, high = binomtest(n_inside, 300).proportion_ci()
    assert f" 90% {n_inside / 300:.1%} {low:.1%} to {high:.1%} " in words
    assert "Data All 400 training rows, of" in words
    account = "707 rows = 400 for training + 300 for the test + 7 dropped for missing"
    assert account in words
    assert (
        "the errors of 400 of 400 rows of the fit, each predicted by a model that"
        in words
    )


@pytest.mark.parametrize("least", [0.0, -0.1])
def test_intervals_that_begin_below_0_are_counted_if_no_target_is(tmp_path, least):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.exp(X[:, 0] + 0.5 * rng.standard_normal(400))
    y[-1] = least
    write_dataset(tmp_path / "data", X[:300], y[:300])
    write_dataset(tmp_path / "test", X[300:], y[300:])
    how = [*PLAIN, "--n-components 16 --n-folds 3", f"--test={tmp_path / 'test'}"]
    model = tmp_path / "m"
    _, _, words = report_of(tmp_path, "fit", tmp_path / "data", model, *how)
    document("predict", model, tmp_path / "test", tmp_path / "p", "--coverage 0.9")
    lower = zarr.open_group(tmp_path / "p", mode="r")["lower"][:]
    below = np.mean(lower < 0)
    assert below > 0.05
    said = f"{below:.1%} of them begin below 0, though no test row has such a y"
    assert (said in words) == (least == 0)


@pytest.mark.parametrize(
    ("rmse", "r2", "said"),
    [
        (9.0, 0.3, "no clear sign"),
        (6.0, 0.39, "no clear sign"),  # two standard errors are 0.05
        (6.0, 0.43, "also chose"),
        (9.0, 0.5, "also chose"),  # a larger RMSE, of a target that varies more
        (7.0, None, "also chose"),
    ],
)
def test_errors_of_test_and_folds_are_given_with_the_stds_of_their_targets(
    rmse, r2, said
):
    # the variance that R² is a share of is 100 in the test
    test = {"rmse": [8.0], "r2": [0.36], "rmse_standard_error": [0.12]}
    folds = {"rmse": [rmse], "r2": [r2], "rmse_standard_error": [0.09]}
    words = accuracy.quoting_words(test, folds)
    r2_words = "–" if r2 is None else f"{r2:.3f}"
    assert f"R² is 0.360 there, {r2_words} by cross-validation" in words
    assert ("no clear sign" in words, "also chose" in words) == (
        said == "no clear sign",
        said == "also chose",
    )
    if r2 is not None:
        std = f"std is 10.00 there, {rmse / np.sqrt(1 - r2):.2f} in training."
        assert std in words
    for by_folds, error, is_clear in (
        (0.811, 0.001, False),
        (0.84, 0.005, False),  # 0.024 is less than two standard errors of 0.0126
        (0.85, 0.005, True),
        (0.85, None, True),  # of one split
    ):
        test = {"accuracy": 0.816, "accuracy_standard_error": 0.0116}
        folds = {"accuracy": by_folds, "accuracy_standard_error": error}
        words = accuracy.quoting_words(test, folds)
        assert f"accuracy is 81.6% there, {by_folds:.1%} by" in words
        assert ("no clear sign" in words) != is_clear


@pytest.mark.parametrize("n_refused", [0, 20])
def test_predictions_without_a_row_are_those_of_a_fit_without_it(n_refused):
    rng = np.random.default_rng(1)
    n_rows = 60 + n_refused
    X = rng.standard_normal((n_rows, 2))
    y = np.sin(X[:, :1]) + 0.2 * rng.standard_normal((n_rows, 1))
    held = np.r_[:30, 30 + n_refused : n_rows]
    model = plain_model(
        X[held],
        y[held],
        length_scale=1.5,
        n_components=32,
        alpha=0.5,
        standardize=False,
    ).with_card(n_seen=n_rows, left_out=[[30, 30 + n_refused]])
    found = compare_left_out(JobData(ArrayDataset(X, y)), model)
    assert found.rows.origin == "leave-one-out"
    assert found.rows.numbers.tolist() == held.tolist()
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
    worst = words.partition("Rows with the largest errors name ")[2]
    assert worst.partition("size kind ")[2].startswith("r60 100.")
    spread = words.partition(
        "Columns of numbers and dates column missing distinct mean std min median max "
    )[2]
    # no level is a column there; 1 is there 15 times, and 2 to 6 are 14 times each
    assert spread.startswith("size 15 6 3.47 ")
    assert "histograms, and the rows of each level" in words


def test_the_worst_rows_have_the_most_important_columns_in_the_unit_of_the_error(
    tmp_path,
):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 8))
    X[200:, 5] = 0.0  # matters in training rows only
    y = X @ [0, 0, 0, 0, 0, 6, 4, 9] + 50 + rng.standard_normal(300)
    write_dataset(tmp_path / "data", X[:200], y[:200])
    write_dataset(tmp_path / "test", X[200:], y[200:])
    how = [*PLAIN, "--kernel linear --alpha 1", f"--test={tmp_path / 'test'}"]
    shown, _, words = report_of(
        tmp_path, "fit", tmp_path / "data", tmp_path / "m", *how
    )
    assert "rises on 100 test rows if" in words
    assert "x5 0.000 " in words.partition("Columns by importance")[2]
    worst = words.partition("Rows with the largest errors ")[2].partition(" A table ")[
        0
    ]
    _, _, rows = worst.partition(" observed − predicted ")
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
    assert "log loss (nats) rises on 300 training rows if" in words
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


@pytest.mark.parametrize("ties", [False, True])
def test_the_area_under_the_curve_is_what_scikit_learn_says(ties):
    rng = np.random.default_rng(9)
    positive = rng.random(300) < 0.3
    scores = rng.standard_normal(300) + positive
    scores = np.round(scores) if ties else scores
    page = Document("")
    classes._draw_roc(page, positive, scores, "spam")
    [picture] = page.parts
    assert f"is {roc_auc_score(positive, scores):.3f};" in picture.alt


def judged(logs, truth, origin="test", names=None):
    """Return the parts of a page that classes of rows have, with two columns of X."""
    n_rows = len(truth)
    X = np.column_stack([np.zeros(n_rows), np.arange(n_rows)])
    rows = ComparisonRows(origin, n_rows, np.arange(n_rows), X, truth, names=names)
    ours = {OURS: Predictions(logs.argmax(axis=1), logs)}
    names_of_classes = list("abcdef"[: logs.shape[1]])
    page = Document("")
    shown = [page_sample.TableColumn("second", (1,))]
    comparison = ModelComparison(rows, truth, ours, names_of_classes)
    classes.confusion_section(page, comparison, names_of_classes, shown)
    return page.parts


@pytest.mark.parametrize(
    ("claimed", "n_right", "judgement"),
    [(0.9, 120, "too high"), (0.6, 180, "too low"), (0.8, 163, "")],
)
@pytest.mark.parametrize("origin", ["test", "cross-validation"])
def test_all_probabilities_that_are_clearly_off_on_test_rows_are_named(
    claimed, n_right, judgement, origin
):
    truth = np.zeros(310, int)
    truth[n_right:200] = 1
    truth[200:230] = 1
    logs = np.tile(np.log([claimed, 1 - claimed]), (310, 1))
    # a second bin, which is too low, and ten rows where all is as it should be
    logs[200:300] = np.log([0.55, 0.45])
    logs[300:] = np.log([0.98, 0.02])
    parts = judged(logs, truth, origin)
    words = " ".join(getattr(part, "text", "") for part in parts)
    for chance, right, n_rows, off in (
        (claimed, n_right, 200, judgement),
        (0.55, 70, 100, "too low"),
    ):
        said = f"clearly {off}: {chance:.1%} said, {right / n_rows:.1%} right."
        assert (said in words) == (origin == "test" and off != "")
        least, most = binomtest(right, n_rows).proportion_ci(1 - 0.05 / 6)
        assert (off == "") == (least <= chance <= most)
    none_is = "No probabilities are clearly off" in words
    assert none_is == (origin == "test" and "clearly too" not in words)


def test_misses_and_false_alarms_are_counted_from_several_probabilities():
    rng = np.random.default_rng(4)
    chances = rng.random(300)
    truth = (rng.random(300) < chances).astype(int)
    logs = np.log(np.column_stack([1 - chances, chances]))
    parts = judged(logs, truth)
    (table,) = [p for p in parts if "b missed" in getattr(p, "header", ())]
    for cells, threshold in zip(table.rows, (0.5, 0.4, 0.3, 0.2), strict=True):
        _, false, missed, _ = confusion_matrix(truth, chances >= threshold).ravel()
        assert tuple(cells) == (f"{threshold:.0%}", missed, false)
    # at this probability a miss that costs 4 is as bad as a false alarm
    assert "from 20%" in " ".join(getattr(part, "text", "") for part in parts)
    rows = ComparisonRows("test", 300, np.arange(300), truth[:, None], truth)
    ours = {OURS: Predictions((chances >= 0.5).astype(int), logs)}
    ours |= naive_predictions(np.full((300, 1), truth.mean()), 2)
    told = advice.advice_on(ModelComparison(rows, truth, ours, ["a", "b"]))
    counts = confusion_matrix(truth, chances >= 0.5)
    worst = np.argmin(counts.diagonal() / counts.sum(axis=1))
    missed = (
        f"{counts[worst, 1 - worst]} of {counts[worst].sum()} rows of {'ab'[worst]}"
    )
    takes = counts[1 - worst, worst]
    (said,) = [one for one in told if f"misses {missed}, and takes {takes}" in one]
    is_predicted = np.exp(logs[:, worst]) >= 0.2
    _, false, left, _ = confusion_matrix(truth == worst, is_predicted).ravel()
    cost = (false - takes) / (counts[worst, 1 - worst] - left)
    assert f"miss {left} and take {false}: better if" in said
    assert f"more than {cost:.1f} times a false alarm" in said


@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_rows_without_any_preferred_class_are_in_the_first_bin(n_classes):
    # below 1 / n_classes by a rounding
    chances = np.full((50, n_classes), np.nextafter(1 / n_classes, 0))
    parts = judged(np.log(chances), np.zeros(50, int))
    (rows,) = [p.rows for p in parts if "Calibration" in getattr(p, "caption", "")]
    assert [row[1] for row in rows] == [50]


def test_the_worst_rows_of_classes_are_those_of_the_smallest_probability():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 3, 50)
    logs = log_softmax(3 * rng.standard_normal((50, 3)), axis=1)
    names = np.array([f"id{i}" for i in range(50)])
    table = judged(logs, truth, names=names)[-1]
    assert table.header[0] == "id"
    order = sorted(range(50), key=lambda row: logs[row, truth[row]])
    for row, cells in zip(order[:5], table.rows, strict=True):
        expected = [f"id{row}"]
        for k in (truth[row], logs[row].argmax()):
            expected.append(f"{'abc'[k]} ({np.exp(logs[row, k]):.1%})")
        assert list(cells) == [*expected, str(row)]


@pytest.mark.parametrize(
    ("scale", "shift", "grows", "n_rows", "is_advised"),
    [
        (1, 0, True, 400, True),
        (1, 0, False, 400, False),  # errors do not grow with predictions
        (1, 0, "in three rows", 400, False),
        (1, -1, True, 400, False),  # values below 0 have no logarithm
        (0.1, 10, True, 400, False),  # they grow less than twofold
        (1, 0, True, 40, False),  # few rows
    ],
)
def test_the_logarithm_is_advised_if_typical_errors_grow_with_a_positive_target(
    scale, shift, grows, n_rows, is_advised
):
    rng = np.random.default_rng(6)
    predicted = np.exp(scale * rng.standard_normal(n_rows))
    errors = 0.2 * rng.standard_normal(n_rows)
    size = 0.01
    if grows == "in three rows":
        size = np.where(predicted >= np.sort(predicted)[-3], 10, 0.01)
    elif grows:
        size = predicted
    y = (predicted + shift + errors * size)[:, np.newaxis]
    comparison = regression_of(y, {OURS: predicted + shift})
    told = " ".join(advice.advice_on(comparison))
    assert ("logarithm" in told) == is_advised
    if is_advised:
        thirds = np.array_split(np.argsort(predicted), 3)
        off = np.abs(y[:, 0] - predicted - shift)
        ratio = np.median(off[thirds[2]]) / np.median(off[thirds[0]])
        # thirds may differ by a row
        found = re.search(r"errors are ([\d.]+) times as large in the third", told)[1]
        assert float(found) == pytest.approx(ratio, rel=0.05)
        assert "all values of price are above 0 here" in told


@pytest.mark.parametrize("highest", [90.0, 96.0])
def test_the_largest_targets_are_said_if_all_are_predicted_below_them(highest):
    y = np.arange(1.0, 101.0)
    predicted = np.minimum(y + 1, highest)
    page = Document("")
    comparison = regression_of(y[:, np.newaxis], {OURS: predicted})
    accuracy._worst_rows(page, comparison, "price", 0, [])
    said = [p.text for p in page.parts if "The 5 rows" in getattr(p, "text", "")]
    squares = np.square(y - predicted)
    # all errors are 1 but the largest: 3 rows are few only if they are far off
    half = [p.text for p in page.parts if "make half" in getattr(p, "text", "")]
    assert ("Check them first" in half[0]) == (highest < 96)
    assert ("no few rows" in half[0]) == (highest > 90)
    # 96 to 100; one is predicted as 96
    assert len(said) == (highest < 96)
    assert not said or f"{squares[95:].sum() / squares.sum():.1%} of the" in said[0]


@pytest.mark.parametrize(("n_far", "most"), [(0, 100), (3, 100), (3, 0)])
def test_residuals_far_from_the_others_are_drawn_at_the_edges(n_far, most):
    residuals = np.linspace(-most, most, 1_001)
    residuals[:n_far] = [5_000, -700, 460][:n_far]
    drawn, words = accuracy.at_edges(residuals)
    if not n_far or not most:
        assert drawn.tolist() == residuals.tolist()
        assert words == ""
        return
    # nine of ten are within 90
    assert re.findall(r"\d+", words) == ["3", "450"]
    assert drawn[:3] == pytest.approx([450, -450, 450], rel=0.01)
    assert drawn[3:].tolist() == residuals[3:].tolist()


def regression_of(y, models):
    rows = ComparisonRows("test", len(y), np.arange(len(y)), np.zeros((len(y), 1)), y)
    found = {name: Predictions(one[:, np.newaxis]) for name, one in models.items()}
    found |= naive_predictions(np.full_like(y, y.mean()), 0)
    return ModelComparison(rows, y, found, target="price")


def test_advice_says_the_size_of_errors_and_prefers_a_model_that_is_closer_in_most_rows():
    y = np.arange(1.0, 201.0)
    off = np.full(200, 0.5)
    off[:30] = 2.0
    linear = np.ones(200)
    linear[199] = 40.0  # so that the RMSE shows nothing
    off[0] = 30.0
    models = {OURS: y + off, LINEAR: y + linear}
    comparison = regression_of(y[:, np.newaxis], models)
    assert comparison.differences[LINEAR].relation == "same"
    told = " ".join(advice.advice_on(comparison))
    assert "A linear model is as good" not in told
    expected = "typical error is 0.500 on a median price of 100.500; one prediction in"
    assert f"{expected} ten is off by more than {np.quantile(off, 0.9):.3f}." in told
    swapped = {OURS: y + linear, LINEAR: y + off}
    told = " ".join(advice.advice_on(regression_of(y[:, np.newaxis], swapped)))
    assert "A linear model is as good" in told


@pytest.mark.parametrize(
    ("fall", "spread", "judgement"),
    [
        (0.2, 0.01, "smaller: more rows would help."),
        (0.02, 0.001, "smaller: more rows would help a little."),
        (0.2, 0.3, "smaller: more rows may help; it is not certain."),
        (0.05, 0.3, "smaller: more rows may help; it is not certain."),
        (-0.01, 0.01, "larger): more would barely help."),
    ],
)
def test_what_more_rows_would_do_goes_by_the_fall_and_its_standard_error(
    fall, spread, judgement
):
    deviations = spread * np.array([-1.0, 1.0, 0.5, -0.5])
    before = np.ones(4)
    after = (1 - fall + deviations) ** 2
    numbers = np.array([100.0, 200.0])
    units = HeldOutUnits.of_splits(np.ones(4))
    curve = LearningCurve(numbers, np.zeros((2, 4, 1)), units)
    words = learning.help_words("rows", curve, np.stack([before, after]))
    ratio = np.sqrt(after.mean())
    error = sem(after) / (2 * ratio)
    size = f"{abs(1 - ratio):.1%} ± {error:.1%}"
    assert words.startswith(
        "By cross-validation, with 200 instead of 100 rows the error is "
    )
    assert f"{size} {judgement}" in words


def test_no_more_features_are_advised_if_each_distinct_row_is_one(tmp_path):
    X = np.random.default_rng(0).standard_normal((200, 2))
    X[50:] = np.tile(X[:50], (3, 1))
    y = X[:, 0] + 0.3 * np.random.default_rng(1).standard_normal(200)
    write_dataset(tmp_path / "data", X, y)
    how = "--kernel gaussian --length-scale 1 --features nystrom --n-folds 4 --alphas 0.001,0.01,0.1,1,9"
    said = []
    for n_components in (64, 30):
        folder = tmp_path / str(n_components)
        folder.mkdir()
        given = [f"{how} --n-components {n_components}"]
        data = tmp_path / "data"
        *_, words = report_of(folder, "fit", data, folder / "m", *given)
        said.append("kernel features are impossible here" in words)
    assert said == [True, False]
