from __future__ import annotations

from api import names
from api.membership import GroupKey, Unknown, counts, group_of
from tests.builders import job, pod, pod_group

GANG = {names.GANG_LABEL: "job"}


def test_the_native_field_wins_over_label_and_job():
    train = job()
    owner = ("train", train.metadata.uid)
    both = pod("p", group="field", owner=owner, labels={names.POD_GROUP_LABEL: "label"})
    assert group_of(both, train) == GroupKey("default", "field")
    labelled = pod("p", owner=owner, labels={names.POD_GROUP_LABEL: "label"})
    assert group_of(labelled, train) == GroupKey("default", "label")


def test_a_pod_of_an_eligible_job_belongs_to_the_jobs_group():
    train = job()
    uid = train.metadata.uid
    mine = pod("p", owner=("train", uid))
    assert group_of(mine, train) == GroupKey("default", names.group_name("train", uid))


def test_before_its_job_is_seen_nothing_is_known():
    train, again = job(), job()
    mine = pod("p", owner=("train", train.metadata.uid))
    for seen in (None, again):
        assert isinstance(group_of(mine, seen), Unknown)


def test_a_misconfigured_job_keeps_its_pods_waiting():
    broken = job(annotations={names.MIN_COUNT_ANNOTATION: "99"})
    mine = pod("p", owner=("train", broken.metadata.uid))
    assert isinstance(group_of(mine, broken), GroupKey)


def test_pods_scheduled_alone():
    train = job()
    owner = ("train", train.metadata.uid)
    assert group_of(pod("p"), None) is None
    assert group_of(pod("p", owner=owner, scheduler="default-scheduler"), train) is None, "neither marked nor ours"
    assert group_of(pod("p", owner=owner, scheduler="default-scheduler", labels=GANG), train) is not None
    single = job(parallelism=1)
    assert group_of(pod("p", owner=("train", single.metadata.uid)), single) is None


def test_only_a_jobs_own_pods_count_in_its_group():
    group = pod_group("g", 2, job=("train", "uid-1"))
    assert counts(pod("a", group="g", owner=("train", "uid-1")), group)
    assert not counts(pod("b", group="g"), group)
    assert not counts(pod("c", group="g", owner=("train", "uid-2")), group)
    assert counts(pod("d", group="g"), pod_group("g", 2)), "a group of no Job counts all"
