import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from casa.page.curves import buckets, columns, rounded, thin


def test_columns_are_the_names_that_are_a_number_somewhere():
    rows = [{"step": 1, "a": None, "text": "x"}, {"step": 2, "a": 0.5, "b": True}, {"step": 3, "a": math.inf}]
    assert columns(rows) == {"step": [1, 2, 3], "a": [None, 0.5, None]}


@pytest.mark.parametrize("value", [10**400, 1e301, math.nan, "7", [1], {}])
def test_what_no_page_could_draw_is_left_out(value):
    assert columns([{"step": 1, "a": value}]) == {"step": [1]}


@given(st.integers(0, 300), st.integers(2, 60))
def test_buckets_are_a_partition_into_at_most_the_points(count, points):
    parts = buckets(count, points)
    assert [i for part in parts for i in part] == list(range(count))
    assert sum(min(len(part), 2) for part in parts) <= max(points, 2)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=200), st.integers(2, 40))
def test_thinning_keeps_every_buckets_extremes_in_order(column, points):
    parts = buckets(len(column), points)
    kept = iter(thin(column, parts))
    for part in parts:
        values = [column[i] for i in part]
        mine = [next(kept) for _ in range(min(len(part), 2))]
        present = [x for x in values if x is not None]
        assert set(mine) == ({min(present), max(present)} if present else {None})
        if len(set(mine)) == 2 and None not in mine:
            assert values.index(mine[0]) < len(values) - 1 - values[::-1].index(mine[1])
    assert next(kept, "end") == "end"


def test_a_single_peak_survives_and_columns_stay_aligned():
    column = [0.0] * 5000
    column[3217] = 9.0
    parts = buckets(5000, 800)
    axis = thin(list(range(5000)), parts, axis=True)
    kept = thin(column, parts)
    assert len(kept) == len(axis) <= 800
    assert abs(axis[kept.index(9.0)] - 3217) < len(parts[0])
    assert axis == sorted(axis)


def test_rounding_keeps_digits_and_makes_numbers_short():
    values = np.random.default_rng(0).normal(size=100).tolist()
    assert np.allclose(rounded(values), values, rtol=1e-4)
    assert rounded([350_000.0, None, 0.123456789, 1e-12]) == [350_000, None, 0.12346, 1e-12]
