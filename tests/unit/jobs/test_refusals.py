"""How rows that a model lacks are named."""

from rff_dist import delete_rows, open_dataset
from rff_dist.workbench.jobs.refusals import source_words
from tests.tables import ingest_more


def test_rows_left_out_are_named_by_their_files_else_by_ids(tmp_path):
    def write(name, first):
        lines = [
            f"{i},{'' if i == 5 else i},{i % 7}" for i in range(first, first + 100)
        ]
        (tmp_path / name).write_text("\n".join(["id,a,y", *lines]))
        return str(tmp_path / name)

    url = tmp_path / "data"
    how = {"target": "y", "id": "id", "on_nan": "drop"}
    ingest_more(write("one.csv", 0), url, **how)
    ingest_more(write("two.csv", 100), url, **how)
    data = open_dataset(url)
    assert source_words(data, 3, 10) == "line 5 to line 12 of one.csv"
    assert source_words(data, 90, 110) == "line 93 of one.csv to line 12 of two.csv"
    # a file that grew, of whose rows all but two are known, and the next file
    with (tmp_path / "two.csv").open("a") as file:
        file.write("\n200,1,1\n201,1,1")
    ingest_more(str(tmp_path / "two.csv"), url, **how)
    ingest_more(write("three.csv", 202), url, **how)
    data = open_dataset(url)
    assert source_words(data, 199, 201) == "2 rows: 200, 201"
    assert source_words(data, 201, 204) == "line 2 to line 4 of three.csv"
    delete_rows(url, [0], keep_order=True)
    data = open_dataset(url)
    assert source_words(data, 99, 101) == "2 rows: 101, 102"
    ids = ", ".join(map(str, range(101, 109)))
    assert source_words(data, 99, 110) == f"11 rows: {ids} …"


def test_a_file_whose_name_ends_as_another_s_is_named_too(tmp_path):
    url = tmp_path / "data"
    for name, first in (("b.csv", 0), ("a of b.csv", 9)):
        lines = [f"{i},{i}" for i in range(first, first + 9)]
        (tmp_path / name).write_text("\n".join(["a,y", *lines]))
        ingest_more(str(tmp_path / name), url, target="y")
    words = source_words(open_dataset(url), 7, 11)
    assert words == "line 9 of b.csv to line 3 of a of b.csv"
