"""The small pieces: what is cached of a pod, what a server dropped, what was written just now, whose class counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api import names
from api.membership import GroupKey, named_group, owning_job
from api.model import Gang, PodGroup, SchedulingPolicy
from api.wire import ObjectMeta, PriorityClass
from controllers import dropped, groups
from controllers.pods import slim, was_bound
from controllers.recent import BELIEVED, Recent
from runtime.clock import FakeClock
from tests import builders


class TestSlim:
    def test_what_controllers_ask_of_a_pod_stays(self) -> None:
        labels = {names.GANG_LABEL: "job", "app": "x"}
        whole = builders.pod("p", owner=("j", "u"), group="g", node="n1", phase="Running", labels=labels)
        small = slim(whole)
        assert named_group(small) == named_group(whole) == GroupKey("default", "g")
        assert owning_job(small) == owning_job(whole)
        assert was_bound(small)
        assert small.terminal == whole.terminal
        assert small.metadata.labels == {names.GANG_LABEL: "job"}
        assert (small.metadata.uid, small.spec.scheduler_name) == (whole.metadata.uid, whole.spec.scheduler_name)
        assert small.spec.containers == ()
        assert len(msgspec.json.encode(small)) < 500


class TestDropped:
    def group(self, **fields: Any) -> PodGroup:
        return builders.pod_group("g", 4, **fields)

    def test_nothing_when_all_is_there_and_more(self) -> None:
        stored = self.group(disruptionMode={"single": {}}, priorityClassName="x")
        assert dropped.dropped(self.group(), stored) == {}

    @pytest.mark.parametrize(
        "field",
        [
            {"preemptionPolicy": "Never"},
            {"schedulingConstraints": {"topology": [{"key": "rack"}]}},
            {"disruptionMode": {"all": {}}},
            {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]},
        ],
    )
    def test_what_is_missing(self, field: dict[str, Any]) -> None:
        assert dropped.dropped(self.group(**field), self.group()) == field
        assert dropped.dropped(self.group(**field), self.group(**field)) == {}

    def test_a_changed_value_was_a_decision(self) -> None:
        other = self.group().model_copy(
            update={
                "spec": self.group().spec.model_copy(
                    update={"scheduling_policy": SchedulingPolicy(gang=Gang(min_count=5))}
                )
            }
        )
        assert dropped.dropped(self.group(), other) == {}

    @pytest.mark.parametrize("text", ["", "{", "[]", "7"])
    def test_nonsense_in_the_annotation_is_nothing(self, text: str) -> None:
        group = self.group()
        metadata = group.metadata.model_copy(update={"annotations": {names.DROPPED_FIELDS_ANNOTATION: text}})
        assert dropped.recorded(group.model_copy(update={"metadata": metadata})) == {}

    def test_a_successor_asks_again_for_what_was_dropped(self) -> None:
        job = builders.job()
        lost = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
        template = self.group().spec
        workload = groups.workload_for(job, template)
        metadata = workload.metadata.model_copy(
            update={"annotations": {names.DROPPED_FIELDS_ANNOTATION: dropped.annotation(lost)}}
        )
        group = groups.pod_group_for(job, workload.model_copy(update={"metadata": metadata}), None)
        assert group.spec.scheduling_constraints is not None
        assert group.spec.scheduling_constraints.topology[0].key == "rack"
        assert group.min_count == 4


class TestPreemptionPolicy:
    def priority_class(self, name: str, value: int, policy: str | None, *, default: bool = False) -> PriorityClass:
        return PriorityClass(ObjectMeta(name=name), value=value, preemption_policy=policy, global_default=default)

    def test_only_never_is_said(self) -> None:
        classes = [self.priority_class("a", 1, "Never"), self.priority_class("b", 1, "PreemptLowerPriority")]
        assert groups.preemption_policy("a", classes) == "Never"
        assert groups.preemption_policy("b", classes) is None
        assert groups.preemption_policy("absent", classes) is None
        assert groups.preemption_policy(None, classes) is None

    def test_without_a_class_the_lowest_default_counts(self) -> None:
        classes = [
            self.priority_class("high", 9, "PreemptLowerPriority", default=True),
            self.priority_class("low", 1, "Never", default=True),
        ]
        assert groups.preemption_policy(None, classes) == "Never"


class TestRecent:
    KEY = ("default", "g")

    def group(self, version: int, group_uid: str = "u") -> PodGroup:
        group = builders.pod_group("g", 1, group_uid=group_uid)
        metadata = group.metadata.model_copy(update={"resource_version": str(version)})
        return group.model_copy(update={"metadata": metadata})

    def test_the_answer_counts_until_the_cache_has_it(self) -> None:
        recent: Recent[PodGroup] = Recent(FakeClock())
        recent.put(self.group(5))
        assert recent.newest(self.KEY, None) == self.group(5)
        assert recent.newest(self.KEY, self.group(4)) == self.group(5)
        assert recent.newest(self.KEY, self.group(6)) == self.group(6)
        recent.handle("update", self.group(3), self.group(4))
        assert recent.newest(self.KEY, self.group(4)) == self.group(5)
        recent.handle("update", self.group(4), self.group(5))
        assert recent.newest(self.KEY, None) is None

    def test_a_deletion_ends_it_unless_it_is_of_a_predecessor(self) -> None:
        recent: Recent[PodGroup] = Recent(FakeClock())
        recent.put(self.group(5))
        recent.handle("delete", self.group(4, group_uid="before"), None)
        assert recent.newest(self.KEY, None) == self.group(5)
        recent.handle("delete", self.group(5), None)
        assert recent.newest(self.KEY, None) is None

    def test_it_is_not_believed_for_ever(self) -> None:
        clock = FakeClock()
        recent: Recent[PodGroup] = Recent(clock)
        recent.put(self.group(5))
        clock.tick(BELIEVED + 1)
        assert recent.newest(self.KEY, None) is None
