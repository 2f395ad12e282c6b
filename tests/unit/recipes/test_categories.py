"""Columns of categories: the place of each level, the same from any container."""

import json
import unicodedata

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rff_dist.data.columns import MISSING
from rff_dist.recipes.encoders import Category, Number, level_texts
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import RECIPE, Recipe, levels_of

TOWNS = ("Bonn", "Köln", "Rom")


def texts_of(values, type=None):
    return level_texts(pa.array(values, type)).to_pylist()


@given(st.lists(st.sampled_from([*TOWNS, None, ""])))
def test_codes_are_places_in_the_list(values):
    levels = [*TOWNS, MISSING]
    codes = Category("town", levels).encode(pa.array(values, pa.string()))
    assert codes.shape == (len(values), 1)
    assert codes.dtype == np.float64
    again = [levels[int(code)] for code in codes[:, 0]]
    assert again == [value or MISSING for value in values]


def test_texts_that_are_no_level_share_one_code():
    codes = Category("town", TOWNS).encode(pa.array(["Ulm", None, "", "Rom", "Graz"]))
    assert codes[:, 0].tolist() == [3, 3, 3, 2, 3]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["5", "-12", None]),
        pa.array(["5.0", "-12.00", ""]),
        pa.array([5, -12, None]),
        pa.array([5.0, -12.0, float("nan")]),
        pa.array([5.0, -12.0, None], pa.float32()),
        pa.array(["5", "-12", None]).dictionary_encode(),
        pa.array([5, -12, None]).dictionary_encode(),
    ],
)
def test_a_whole_number_is_one_level_in_every_container(values):
    assert level_texts(values).to_pylist() == ["5", "-12", MISSING]


def test_codes_with_zeros_in_front_and_long_codes_keep_their_digits():
    assert texts_of(["05", "5", "0.50"]) == ["05", "5", "0.50"]
    assert texts_of([1e15, 2**53 - 1.0]) == ["1000000000000000", str(2**53 - 1)]


@given(st.text(min_size=1))
def test_composed_and_decomposed_accents_are_one_level(text):
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    first, second = texts_of(forms)
    assert first == second


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"town": ["Rom", "Ulm", None], "x": [1.0, 2.0, 3.0]}),
        pd.DataFrame({"town": ["Rom", "Ulm", None], "x": [1.0, 2.0, 3.0]}),
        pd.DataFrame(
            {"town": pd.Categorical(["Rom", "Ulm", None]), "x": [1.0, 2.0, 3.0]}
        ),
        pl.DataFrame({"town": ["Rom", "Ulm", None], "x": [1.0, 2.0, 3.0]}),
    ],
)
def test_frames_become_the_same_codes(table):
    recipe = Recipe([Number("x"), Category("town", TOWNS)])
    with pytest.warns(UserWarning, match=r"2 of 3 .*'town'"):
        codes = encode_table(recipe, table)
    np.testing.assert_array_equal(codes, [[1, 2], [2, 3], [3, 3]])


def test_a_recipe_says_which_columns_hold_categories():
    recipe = Recipe([Number("x", indicator=True), Category("town", TOWNS)])
    stored = json.loads(json.dumps({RECIPE: recipe.to_dict()}))
    assert levels_of(stored) == {2: TOWNS}
    assert levels_of({}) == {}
    assert levels_of({RECIPE: Recipe([Number("x")]).to_dict()}) == {}


def test_a_longer_list_is_the_same_recipe():
    recipes = [Recipe([Category("town", TOWNS[:n], n)]) for n in (2, 3)]
    assert recipes[0].digest() == recipes[1].digest()
    assert recipes[0].digest() != Recipe([Category("city", TOWNS)]).digest()


def test_codes_are_float32():
    recipe = Recipe([Category("town", TOWNS)])
    assert recipe.dtype(pa.schema({"town": pa.string()})) == np.float32
