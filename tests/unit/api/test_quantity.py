from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from api.quantity import MAX_VALUE, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        (3, 3),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("100m", 1),
        ("1e3", 1000),
        ("2T", 2 * 10**12),
        ("2E", MAX_VALUE),
        ("12Ei", MAX_VALUE),
        ("1E2", 100),
        (0.5, 1),
    ],
)
def test_whole_units_rounded_up(text, value):
    assert parse(text) == value


@pytest.mark.parametrize(("text", "value"), [("100m", 100), ("1", 1000), ("0.1", 100), ("1n", 1), (2, 2000)])
def test_thousandths(text, value):
    assert parse(text, milli=True) == value


@pytest.mark.parametrize("text", ["", "abc", "1KiB", "NaN", "Infinity"])
def test_no_quantity(text):
    with pytest.raises(ValueError, match="not a quantity"):
        parse(text)


@given(st.integers(0, 10**6))
def test_more_is_never_less(number):
    assert parse(f"{number}m", milli=True) == number
    assert parse(f"{number}Mi") == number * 2**20
