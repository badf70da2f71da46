"""Who gets a group: one row a Job. The live comparison with the admission policies is an integration test."""

from __future__ import annotations

import pytest

from api import names
from api.eligibility import Eligible, Ineligible, Misconfigured, claimed, decide, unknown_annotations
from tests.builders import job

POLICY, MIN_COUNT = names.POLICY_ANNOTATION, names.MIN_COUNT_ANNOTATION


def owner(kind: str) -> list[dict[str, object]]:
    return [{"apiVersion": "x/v1", "kind": kind, "name": "parent", "uid": "1", "controller": True}]


@pytest.mark.parametrize(
    ("changes", "minimum"),
    [
        ({}, 4),
        ({"ownerReferences": owner("CronJob")}, 4),
        ({"annotations": {MIN_COUNT: "1"}}, 1),
        ({"annotations": {MIN_COUNT: "4"}}, 4),
        ({"annotations": {MIN_COUNT: "0" * 5000 + "2"}}, 2),
        ({"annotations": {POLICY: "gang"}, "completionMode": "NonIndexed", "completions": 9}, 4),
        ({"managedBy": "kubernetes.io/job-controller"}, 4),
        ({"template": {"spec": {"schedulerName": "phalanx"}}}, 4),
        ({"scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}}, 3),
        ({"scheduling": {"schedulingPolicy": {"gang": {}}}}, 4),
        ({"suspend": True}, 4),
    ],
)
def test_gangs(changes, minimum):
    verdict = decide(job(**changes))
    assert isinstance(verdict, Eligible), verdict
    gang = verdict.template.scheduling_policy.gang
    assert gang is not None
    assert gang.min_count == minimum


@pytest.mark.parametrize(
    "changes",
    [{"annotations": {POLICY: "basic"}}, {"scheduling": {"schedulingPolicy": {"basic": {}}}}],
)
def test_groups_without_a_minimum(changes):
    verdict = decide(job(**changes))
    assert isinstance(verdict, Eligible)
    assert verdict.template.scheduling_policy.basic is not None


@pytest.mark.parametrize(
    ("changes", "reason", "asked"),
    [
        ({"completionMode": "NonIndexed"}, "needs Indexed", False),
        ({"parallelism": 1}, "nothing to start together", False),
        ({"parallelism": 2, "completions": 4}, "take turns", False),
        ({"annotations": {POLICY: "none"}}, "opted out", False),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy", False),
        ({"template": {"spec": {"schedulingGroup": {"podGroupName": "mine"}}}}, "already names", False),
        ({"template": {"metadata": {"labels": {names.POD_GROUP_LABEL: "mine"}}}}, "already names", False),
        ({"template": {"spec": {"schedulerName": "volcano"}}}, "volcano", False),
        ({"ownerReferences": owner("JobSet")}, "JobSet parent controls it", False),
        ({"completionMode": "NonIndexed", "annotations": {MIN_COUNT: "2"}}, "needs Indexed", True),
        ({"completionMode": "NonIndexed", "template": {"spec": {"schedulerName": "phalanx"}}}, "needs Indexed", True),
    ],
)
def test_jobs_left_alone_are_told_why_only_where_they_asked(changes, reason, asked):
    verdict = decide(job(**changes))
    assert isinstance(verdict, Ineligible), verdict
    assert reason in verdict.reason
    assert verdict.asked is asked


@pytest.mark.parametrize(
    ("annotations", "field", "problem"),
    [
        ({MIN_COUNT: "abc"}, MIN_COUNT, '"abc" is not a number from 1 to 4'),
        ({MIN_COUNT: "0"}, MIN_COUNT, '"0" is not'),
        ({MIN_COUNT: "5"}, MIN_COUNT, '"5" is not'),
        ({MIN_COUNT: "-1"}, MIN_COUNT, '"-1" is not'),
        ({MIN_COUNT: "²"}, MIN_COUNT, "is not"),
        ({MIN_COUNT: ""}, MIN_COUNT, '"" is not'),
        ({MIN_COUNT: "2", POLICY: "basic"}, MIN_COUNT, "basic policy has no minimum"),
        ({POLICY: "gangs"}, POLICY, '"gangs" is not a policy'),
        ({names.DISRUPTION_MODE_ANNOTATION: "both"}, names.DISRUPTION_MODE_ANNOTATION, '"both"'),
        ({names.DISRUPTION_MODE_ANNOTATION: "all", POLICY: "basic"}, names.DISRUPTION_MODE_ANNOTATION, "gang policy"),
        ({names.TOPOLOGY_ANNOTATION: "rack"}, names.TOPOLOGY_ANNOTATION, "cannot honour it yet"),
        ({names.RESOURCE_CLAIMS_ANNOTATION: "x"}, names.RESOURCE_CLAIMS_ANNOTATION, "cannot honour it yet"),
    ],
)
def test_impossible_annotations_name_field_problem_and_remedy(annotations, field, problem):
    verdict = decide(job(annotations=annotations))
    assert isinstance(verdict, Misconfigured), verdict
    assert verdict.field == f"metadata.annotations[{field}]"
    assert problem in verdict.problem
    assert verdict.remedy


def test_a_priority_no_podgroup_can_have_is_refused_with_a_remedy():
    verdict = decide(job(template={"spec": {"priorityClassName": "system-node-critical"}}))
    assert isinstance(verdict, Misconfigured)
    assert verdict.field == "spec.template.spec.priorityClassName"
    assert "name another class" in verdict.remedy


@pytest.mark.parametrize("annotation", [POLICY, MIN_COUNT, names.DISRUPTION_MODE_ANNOTATION])
def test_any_text_makes_one_short_line_with_a_remedy(annotation):
    verdict = decide(job(annotations={annotation: "a\n\x1b[31m" + "x" * 5000}))
    assert isinstance(verdict, Misconfigured)
    assert verdict.message.isprintable()
    assert len(verdict.message) < 250
    assert verdict.message.endswith(verdict.remedy)


def test_typing_errors_in_annotations_are_found():
    annotations = {"phalanx.dev/mincount": "3", MIN_COUNT: "3", "example.com/x": "y"}
    assert unknown_annotations(job(annotations=annotations)) == ["phalanx.dev/mincount"]


def test_claimed_by_the_mark_or_by_name():
    ours = frozenset({"phalanx"})
    assert claimed(job(), ours)
    assert claimed(job(template={"spec": {"schedulerName": "phalanx"}}), ours)
    assert not claimed(job(template={}), ours)
