import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from casa.page.curves import bucket_size, columns, rounded, thin


def test_columns_are_the_names_that_are_a_number_somewhere():
    rows = [{"step": 1, "a": None, "text": "x"}, {"step": 2, "a": 0.5, "b": True}, {"step": 3, "a": math.inf}]
    found = {name: rounded(column) for name, column in columns(rows).items()}
    assert found == {"step": [1, 2, 3], "a": [None, 0.5, None]}


@pytest.mark.parametrize("value", [10**400, 1e301, math.nan, "7", [1], {}])
def test_what_no_page_could_draw_is_left_out(value):
    assert list(columns([{"step": 1, "a": value}])) == ["step"]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=200), st.integers(2, 40))
def test_thinning_keeps_every_buckets_extremes_in_order(values, points):
    size = bucket_size(len(values), points)
    kept = rounded(thin(np.array(values, float), size), 17)
    assert len(kept) <= points
    if size == 1:
        assert kept == values
        return
    for i, first in enumerate(range(0, len(values), size)):
        part = values[first : first + size]
        mine, present = kept[2 * i : 2 * i + 2], [x for x in part if x is not None]
        assert mine in ([[min(present), max(present)], [max(present), min(present)]] if present else [[None, None]])
        if present and mine[0] != mine[1]:
            assert part.index(mine[0]) < part.index(mine[1])


def test_a_single_peak_survives_and_columns_stay_aligned():
    column = np.zeros(5001)
    column[3217] = 9.0
    size = bucket_size(5001, 800)
    axis = thin(np.arange(5001.0), size, axis=True)
    kept = thin(column, size)
    assert len(kept) == len(axis) <= 800
    assert abs(axis[kept.argmax()] - 3217) < size and kept.max() == 9
    assert (np.diff(axis) >= 0).all() and (axis[0], axis[-1]) == (0, 5000)


def test_rounding_keeps_digits_and_makes_numbers_short():
    values = np.random.default_rng(0).normal(size=100)
    assert np.allclose(rounded(values), values, rtol=1e-4)
    assert rounded(np.array([350_000.0, np.nan, 0.123456789, 1e-12])) == [350_000, None, 0.12346, 1e-12]
