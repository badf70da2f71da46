from __future__ import annotations

import re

import hypothesis.strategies as st
from hypothesis import given

from api import names

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def test_group_name_is_prefix_and_twelve_hex_digits():
    assert names.group_name("train.v1", "684dfbd6-8c01-4f02-9da6-ee345ba9784c") == "train-v1-684dfbd68c01"


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?){0,3}", fullmatch=True),
    st.uuids(version=4),
)
def test_group_name_is_a_dns_label_that_fits_a_label_value(name, uid):
    group = names.group_name(name, str(uid))
    assert len(group) <= 63
    assert DNS_LABEL.fullmatch(group)


def test_a_job_made_again_has_another_group():
    first, second = (names.group_name("a", f"{n}84dfbd6-8c01-4f02-9da6-ee345ba9784c") for n in (1, 2))
    assert first != second
