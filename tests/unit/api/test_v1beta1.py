from __future__ import annotations

import msgspec
import pytest
from pydantic import ValidationError

from api import conditions, v1beta1
from api.wire import Condition
from tests.builders import pod_group


def test_a_group_survives_the_way_to_the_wire_and_back():
    group = pod_group("g", 3, job=("train", "uid-1"), disruptionMode={"all": {}}, preemptionPolicy="Never")
    assert v1beta1.pod_group(msgspec.json.encode(v1beta1.to_wire(group))) == group


def test_status_is_read_and_never_sent():
    group = pod_group("g", 3, condition="True")
    assert conditions.is_true(group.status.conditions, conditions.INITIALLY_SCHEDULED)
    assert "status" not in v1beta1.to_wire(group)


@pytest.mark.parametrize("policy", ["{}", '{"basic":{},"gang":{"minCount":1}}', '{"gang":{"minCount":0}}'])
def test_an_impossible_policy_is_refused_by_name(policy):
    body = f'{{"metadata":{{"name":"g","namespace":"n"}},"spec":{{"schedulingPolicy":{policy}}}}}'
    with pytest.raises(ValidationError, match="schedulingPolicy"):
        v1beta1.pod_group(body.encode())


def test_find_and_cut():
    found = [Condition(type="A", status="True"), Condition(type="B", status="False")]
    assert conditions.find(found, "B") is found[1]
    assert conditions.find(found, "C") is None
    assert not conditions.is_true(found, "B")
    assert conditions.truncate("äöü", 3) == "ä"
    assert conditions.truncate("abc", 3) == "abc"
