"""The table of cases: how people write tables, and what becomes of each.

Delimiters and an index are in test_csv_files.py, numbers and dates in text in
test_notations.py.

A case is a file and its outcome: columns of X with their values and what is said of
them, or a refusal."""

import warnings
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xlsxwriter

from rff_dist.errors import DataError, StorageError
from tests.refusals import refuses
from tests.tables import all_rows, ingest, save

N = 60
X = np.arange(N) * 0.5 - 7
PRICES = np.random.default_rng(0).uniform(1000, 10**6, N).round(2)
DAYS = pd.Series(pd.date_range("2023-12-30", periods=N))
SINCE = (DAYS - pd.Timestamp("1970-01-01")).dt.days.to_numpy()
SAME = {"x": X}


@dataclass(frozen=True)
class Read:
    """A table that is read.

    `columns`: values of X's columns by their names, or only names.
    `said`: regular expressions of what is said; with none, nothing may be said.
    `options`: the options that are needed.
    """

    columns: dict | list
    said: tuple = ()
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """A table that is refused, with a message."""

    message: str
    options: dict = field(default_factory=dict)


def lines(*rows, end="\n"):
    return end.join(rows) + end


def text(delimiter=",", end="\n", **columns):
    """Return a CSV file of columns of texts."""
    rows = zip(*columns.values(), strict=True)
    return lines(
        delimiter.join(columns),
        *(delimiter.join(map(str, row)) for row in rows),
        end=end,
    )


def quoted(texts):
    return [f'"{each}"' for each in texts]


def german(values):
    return [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in values]


def flags(*pairs):
    yes, no = zip(*pairs, strict=True)
    return [(yes if i % 3 == 0 else no)[i % len(pairs)] for i in range(N)]


def missing(word):
    return text(a=[word if i == 9 else x for i, x in enumerate(X)], x=X)


IMPUTED = {"a": np.where(np.arange(N) == 9, np.median(np.delete(X, 9)), X), "x": X}
FILL = {"impute": "median-only"}
IS_THIRD = (np.arange(N) % 3 == 0).astype(float)
FEW = ["Ulm", "Bonn", "Rom"] * (N // 3)
CODES = {"a": [sorted(set(FEW)).index(each) for each in FEW]}
HALVES = ["a b", "c d"] * (N // 2)
EACH = "\n".join(f"{i},{x}" for i, x in enumerate(X)) + "\n"
LATE = 200_000  # rows, of which the last are beyond the first block


def late(word):
    return "i,x\n" + "".join(f"{i},{i % 7}\n" for i in range(LATE)) + f"7,{word}\n"


def into(name, content):
    def write(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name.split("/")[0]

    return write


def zst(folder):
    with pa.output_stream(str(folder / "t.csv.zst")) as stream:
        stream.write(text(x=X).encode())
    return folder / "t.csv.zst"


def hive(folder):
    for k in (1, 2):
        place = folder / "t" / f"k={k}"
        place.mkdir(parents=True)
        pd.DataFrame({"x": X + k}).to_csv(place / "0.csv", index=False)
    return folder / "t"


def xlsx(sheet=None, change=None, /, **columns):
    """Return what writes a workbook, with further sheets if one is named; `change` is
    given the first.
    """

    def write(folder):
        with xlsxwriter.Workbook(
            folder / "t.xlsx", {"default_date_format": "dd/mm/yyyy"}
        ) as book:
            formats = {"%": book.add_format({"num_format": "0 %"})}
            first = book.add_worksheet(sheet)
            for i, (name, values) in enumerate(columns.items()):
                first.write_column(0, i, [name, *values])
            if change is not None:
                change(first, formats)
            if sheet is not None:
                book.add_worksheet("other").write_column(0, 0, ["x", *X])
        return folder / "t.xlsx"

    return write


def sheet(name, write):
    return lambda folder: f"{write(folder)}#{name}"


def formulas(page, formats):
    for i, x in enumerate(X):
        page.write_formula(i + 1, 0, f"=B{i + 2}*2", None, "#N/A" if i == 9 else x)


def titled(page, formats):
    # without a format it would keep B1
    page.merge_range("A1:B1", "Sales", formats["%"])
    page.write_row(2, 0, ["a", "x"])


ELAPSED = {"dates": ["elapsed-days"]}


CASES = {
    # numbers
    "271.518,21 with ;": (
        text(";", x=german(PRICES), z=X),
        Read(
            {"x": PRICES, "z": X}, ("delimiter ;", "numbers with decimal commas: 'x'")
        ),
    ),
    'quoted "12,5"': (
        text(a=quoted(f"{x}".replace(".", ",") for x in X), x=range(N)),
        Read({"a": X, "x": np.arange(N)}, ("decimal commas: 'a'",)),
    ),
    # encodings
    "cp1252": (
        text(größe=X).encode("cp1252"),
        Read({"größe": X}, ("encoding cp1252",)),
    ),
    "UTF-16 with BOM": (
        text(größe=X).encode("utf-16"),
        Read({"größe": X}, ("encoding utf-16",)),
    ),
    "UTF-8 with BOM": (text(größe=X).encode("utf-8-sig"), Read({"größe": X})),
    "UTF-16 without BOM": (text(größe=X, b=X).encode("utf-16-le"), Refused("utf-16")),
    # lines
    "quoted newlines": (
        text(a=quoted(HALVES), x=X).replace("a b", "a\nb"),
        Read(["a", "x"]),
    ),
    "CRLF": (text(x=X, z=X, end="\r\n"), Read({"x": X, "z": X})),
    "NUL": (text(a=HALVES, x=X).replace("a b", "a\0b"), Read(["a", "x"])),
    "CR only": (text(x=X, z=X, end="\r"), Read({"x": X, "z": X})),
    "row too short": (
        text(x=X, z=X) + "1\n",
        Refused("line 62: Expected 2 columns, got 1"),
    ),
    "row too long": (
        text(x=X, z=X) + "1,2,3\n",
        Refused("line 62: Expected 2 columns, got 3"),
    ),
    "row of totals": (text(x=X, z=X) + "total,7\n", Refused(r"line 62, column 'x'")),
    "quote never closed": (
        text(x=X, z=X) + '1,"2\n' + EACH,
        Refused("[Rr]ow #?6[12]|line 62"),
    ),
    "each row ends in a comma": (
        text(x=[f"{x}" for x in X], z=[f"{x}," for x in X]).replace("z\n", "z,\n"),
        Refused("column '' is missing .* leave the column out"),
    ),
    "# lines above": (
        "# made by hand, with care\n# in 2024\n" + text(x=X, z=X),
        Read({"x": X, "z": X}, ("lines above the names .* skipped: 2",)),
    ),
    "codes with #": (text(a=[f"#{i % 3}" for i in range(N)], x=X), Read(["a", "x"])),
    "# lines between": (
        text(x=X, z=X).replace("\n0.0,", "\n# from here on, by a, new machine\n0.0,"),
        Refused("Expected 2 columns, got 3"),
    ),
    "a title line": (
        "Prices in 2024\n\n" + text(x=X, z=X),
        Read({"x": X, "z": X}, ("lines above the names .* skipped: 2",)),
    ),
    # booleans
    "yes/no": (text(a=flags(("yes", "no"))), Read({"a": IS_THIRD})),
    "TRUE": (text(a=flags(("TRUE", "FALSE"))), Read({"a": IS_THIRD})),
    # missing values
    **{
        f"missing: {word or 'nothing'}": (missing(word), Read(IMPUTED, options=FILL))
        for word in ("", "NaN", "NA", "N/A", "null", "?", "#N/A")
    },
    **{
        f"missing: {word}": (
            missing(word),
            Read(IMPUTED, (f"'{word}' counts as missing in 'a'",), FILL),
        )
        for word in ("-", "None", ".")
    },
    "missing: -999": (
        text(a=[-999 if i % 9 == 2 else x for i, x in enumerate(X)], x=X),
        Read(["a", "x"], ("'a'.*-999.*`missing`",)),
    ),
    "missing: -999, given": (
        text(a=[-999 if i == 9 else x for i, x in enumerate(X)], x=X),
        Read(IMPUTED, options={**FILL, "missing": ["-999"]}),
    ),
    "printed minus": (
        text(x=[f"{x}".replace("-", "\u2212") for x in X]),
        Read({"x": X}, ("read as numbers: 'x'",)),
    ),
    # units
    "12 m²": (text(x=[f"{x} m²" for x in X]), Read({"x": X}, ("in m²: 'x'",))),
    "(12.5)": (
        text(x=[f"({-x})" if x < 0 else x for x in X]),
        Read({"x": X}, ("read as numbers: 'x'",)),
    ),
    # later rows
    "integers, then 1.5 late": (
        late("1.5"),
        Read({"i": [*range(LATE), 7], "x": [*(np.arange(LATE) % 7), 1.5]}),
    ),
    '"unknown" late': (
        late("unknown"),
        Refused(r"column #1: line 200002: .*'unknown'"),
    ),
    # files
    "zst": (zst, Read(SAME)),
    "JSON lines of all types": (
        into(
            "t.jsonl",
            lines(
                '{"a": 1, "t": "x", "d": "2020-01-01T12:00:00"}',
                '{"a": 2.5, "t": "y", "d": "2021-01-01T12:00:00"}',
            ),
        ),
        Read(
            {"a": [1, 2.5], "t": [0, 1], "d: year": [2020, 2021]},
            options={"dates": ["year"]},
        ),
    ),
    "Hive folders of CSV": (
        hive,
        Read({"x": [*(X + 1), *(X + 2)], "k": np.repeat([1, 2], N)}),
    ),
    "xlsx": (
        xlsx(day=DAYS.dt.to_pydatetime(), x=X, a=FEW),
        Read({"day: elapsed-days": SINCE, "x": X, **CODES}, options=ELAPSED),
    ),
    "xlsx, the first of two sheets": (
        xlsx("S", a=X),
        Read({"a": X}, ("sheet 'S', the first of 2",)),
    ),
    "xlsx, a sheet by its name": (sheet("other", xlsx("S", a=X)), Read(SAME)),
    "xlsx, no such sheet": (
        sheet("May", xlsx("S", a=X)),
        Refused("'May'.*'S', 'other'"),
    ),
    "xlsx, formulas": (xlsx(None, formulas, a=X, x=X), Read(IMPUTED, options=FILL)),
    "xlsx, numbers with words": (
        xlsx(a=["-" if i == 9 else x for i, x in enumerate(X)], x=X),
        Read(IMPUTED, ("'-' counts as missing in 'a'",), FILL),
    ),
    "xlsx, flags and an index": (
        xlsx(**{"": range(N), "a": [i % 3 == 0 for i in range(N)]}),
        Read({"a": IS_THIRD}, ("'' .*numbers the rows",)),
    ),
    "xlsx, no header": (
        xlsx(None, lambda page, _: page.write_row(0, 0, [5, 6]), a=X, x=X),
        Read({"0": [5, *X], "1": [6, *X]}, ("no header",)),
    ),
    "xlsx, a title": (
        xlsx(None, titled, a=["", "", *X], x=["", "", *X]),
        Read({"a": X, "x": X}, ("rows above the names are skipped: 2",)),
    ),
    "xlsx, names in two rows": (
        xlsx(a=["EUR", *X], x=["m", *X]),
        Refused("sheet row 2, column 'a'"),
    ),
    "xlsx, an empty sheet": (xlsx(), Refused("'Sheet1' is empty")),
    "SQLite": (
        lambda folder: save(pd.DataFrame({"x": X, "a": FEW}), folder / "t.db"),
        Read({"x": X, **CODES}),
    ),
}


@pytest.mark.parametrize(("file", "outcome"), CASES.values(), ids=CASES)
def test_a_table_as_it_comes(tmp_path, caplog, file, outcome):
    source = (file if callable(file) else into("t.csv", file))(tmp_path)
    if isinstance(outcome, Refused):
        with (
            warnings.catch_warnings(action="ignore"),  # the error says enough
            pytest.raises((DataError, StorageError), match=outcome.message),
        ):
            ingest(source, "d", **outcome.options)
        assert not Path("d").exists()
        return
    dataset = ingest(source, "d", **outcome.options)
    recipe = dataset.attributes["recipe"]
    notes = [note for notes in recipe["notes"].values() for note in notes]
    notes += [f"'{name}' {why}" for name, why in recipe["left_out"].items()]
    assert dataset.feature_names == tuple(outcome.columns), notes
    if isinstance(outcome.columns, dict):
        np.testing.assert_allclose(
            all_rows(dataset).X,
            np.column_stack(list(outcome.columns.values())),
            rtol=1e-15,
        )
    for said in outcome.said:
        assert pd.Series(notes, dtype=str).str.contains(said).any(), notes
    assert bool(notes) == bool(outcome.said), notes


def shifted(page, formats):
    # from B3 on, under a title, with an empty row
    page.write_string(2, 1, "Sales")
    rows = [["a", "x"], ["p", 1.0], ["q", 2.0], [], ["p", ""], ["q", 5.0]]
    for i, cells in enumerate(rows, 4):
        page.write_row(i, 1, cells)


NULL = {"a": ["p", "q", "p", "q"], "x": [1.0, 2.0, None, 5.0]}
#: A table whose third row has no x, and where its users see that row.
PLACES = {
    "CSV, a title, a line break in a text, and a blank line": (
        into("t.csv", '# made\na,x\n"p\nr",1\nq,2\n\np,\nq,5\n'),
        "line 7",
    ),
    "CSV, no header": (into("t.csv", "p,1\nq,2\n\np,\nq,5\n"), "line 4"),
    "CSV, other type": (
        into("t.csv", 'a,x\n"p\nr",1\n\n' + "q,2\n" * 300_000 + "p,z\n"),
        "line 300005",
    ),
    "CSV, repeated names": (into("t.csv", "x,x\n1,1\n2,2\n,3\n5,5\n"), "line 4"),
    "Excel": (xlsx(None, shifted), "sheet row 9"),
    "Parquet": (
        lambda folder: save(pd.DataFrame(NULL), folder / "t.parquet"),
        "row 3 (rows count from 1, without a header)",
    ),
    "JSON lines": (
        into("t.jsonl", '{"x": 1}\n{"x": 2}\n\n{"x": null}\n{"x": 5}\n'),
        "line 4",
    ),
    "JSON lines, other type": (
        into("t.jsonl", '{"x": 1}\n' * 600_000 + '\n{"x": 2}\n{"x": "z"}\n{"x": 5}\n'),
        "line 600003",
    ),
    "SQLite": (
        lambda folder: save(pd.DataFrame(NULL), folder / "t.db"),
        "row 3 (rows count from 1, without a header)",
    ),
}


@pytest.mark.parametrize(("write", "place"), PLACES.values(), ids=PLACES)
def test_a_row_is_named_as_its_program_shows_it(tmp_path, write, place):
    with refuses(DataError, place):
        ingest(write(tmp_path), "d")


OPENERS = {
    ending: lambda folder, frame, ending=ending: save(frame, folder / f"t{ending}")
    for ending in (".csv", ".parquet", ".feather", ".jsonl", ".db")
}
OPENERS[".xlsx"] = lambda folder, frame: xlsx(**frame.to_dict("list"))(folder)
OPENERS["64 bits in CSV"] = lambda folder, frame: into(
    "t.csv",
    text(
        **{**frame, "a": [v**2 if v > 2**53 else v for v in frame.iloc[:, 0].tolist()]}
    ),
)(folder)
OPENERS["decimals"] = lambda folder, frame: save(
    frame.assign(a=[Decimal(a) for a in frame.iloc[:, 0].tolist()]),
    folder / "t.parquet",
)


@pytest.mark.parametrize("target", [None, "a"])
@pytest.mark.parametrize("write", OPENERS.values(), ids=OPENERS)
def test_integers_that_become_equal_are_warned_of_once(tmp_path, write, target):
    frame = pd.DataFrame({"a": 2**53 + np.arange(N), "b": 2**53 - np.arange(N), "x": X})
    source = write(tmp_path, frame)
    with pytest.warns(UserWarning, match="beyond 2⁵³ in column 'a'") as met:
        ingest(source, "d", target=target, columns=["x"] if target else ["a", "x"])
    assert len(met) == 1
    (tmp_path / "t.db").unlink(missing_ok=True)
    ingest(write(tmp_path, frame[["b", "x"]] - 1), "e")  # exact
