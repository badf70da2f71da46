"""The decisions, without a server: what a Job needs next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import names
from api.model import Gang, PodGroup, SchedulingPolicy, Workload
from api.wire import Job, Pod
from controllers import groups
from controllers.plan import Make, Observed, Plan, Release, Resize, plan
from tests import builders

NAME = names.GANG_LABEL
UNMARKED: dict[str, Any] = {"metadata": {"labels": {}}}


def group_of(job: Job) -> str:
    return names.group_name(job.metadata.name, job.metadata.uid)


def made(observed: Observed) -> Observed:
    """The same Job once its objects are made."""
    for _ in range(2):
        step = plan(observed).step
        assert isinstance(step, Make)
        observed = stored(observed, step.obj)
    return observed


def stored(seen: Observed, obj: Workload | PodGroup) -> Observed:
    metadata = obj.metadata.model_copy(update={"uid": f"uid-{type(obj).__name__}"})
    obj = obj.model_copy(update={"metadata": metadata})
    if isinstance(obj, Workload):
        return replaced(seen, workloads=[*seen.workloads, obj])
    return replaced(seen, pod_groups=[*seen.pod_groups, obj])


def replaced(seen: Observed, **changes: Any) -> Observed:
    fields = {name: getattr(seen, name) for name in Observed.__dataclass_fields__}
    return Observed(**(fields | changes))


def leaving(group: PodGroup) -> PodGroup:
    metadata = group.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    return group.model_copy(update={"metadata": metadata})


def member(job: Job, *, node: str = "", group: str | None = None, phase: str = "Pending") -> Pod:
    return builders.pod("p", owner=(job.metadata.name, job.metadata.uid), node=node, group=group, phase=phase)


def reasons(decided: Plan) -> list[str]:
    return [report.reason for report in decided.reports]


class TestTakingOn:
    def test_workload_then_pod_group(self) -> None:
        job = builders.job("train", parallelism=4)
        first = plan(Observed(job)).step
        assert isinstance(first, Make)
        assert isinstance(first.obj, Workload)
        assert first.obj.metadata.name == group_of(job)
        owner = first.obj.metadata.controller
        assert owner is not None
        assert (owner.kind, owner.uid, owner.block_owner_deletion) == ("Job", job.metadata.uid, True)
        assert first.obj.spec.controller_ref is not None
        assert first.obj.spec.controller_ref.name == "train"
        assert [t.name for t in first.obj.spec.pod_group_templates] == ["pods"]
        second = plan(stored(Observed(job), first.obj)).step
        assert isinstance(second, Make)
        assert isinstance(second.obj, PodGroup)
        assert second.obj.metadata.name == group_of(job)
        assert second.obj.min_count == 4
        assert [(o.kind, o.controller) for o in second.obj.metadata.owner_references] == [
            ("Job", True),
            ("Workload", False),
        ]
        assert plan(made(Observed(job))) == Plan()

    def test_a_job_that_names_our_scheduler_needs_no_mark(self) -> None:
        job = builders.job(template={"spec": {"schedulerName": "phalanx"}})
        assert isinstance(plan(Observed(job)).step, Make)

    def test_an_unmarked_job_is_left_alone_in_silence(self) -> None:
        assert plan(Observed(builders.job(template=UNMARKED))) == Plan()

    def test_an_unmarked_job_that_asked_is_told_why(self) -> None:
        job = builders.job(template=UNMARKED, annotations={names.MIN_COUNT_ANNOTATION: "2"})
        decided = plan(Observed(job))
        assert decided.step is None
        assert reasons(decided) == ["JobNotEligible"]
        assert "phalanx.dev/jobs=enabled" in decided.reports[0].note

    @pytest.mark.parametrize("phase", ["Running", "Succeeded"])
    def test_a_job_with_a_pod_bound_outside_a_group_is_left_alone(self, phase: str) -> None:
        job = builders.job()
        assert plan(Observed(job, pods=[member(job, node="n1", phase=phase)])) == Plan()
        asked = builders.job(annotations={names.POLICY_ANNOTATION: "gang"})
        decided = plan(Observed(asked, pods=[member(asked, node="n1", phase=phase)]))
        assert decided.step is None
        assert reasons(decided) == ["JobNotEligible"]

    def test_waiting_pods_and_members_of_the_group_do_not_matter(self) -> None:
        job = builders.job()
        pods = [member(job), member(job, node="n1", group=group_of(job), phase="Running")]
        assert isinstance(plan(Observed(job, pods=pods)).step, Make)

    @pytest.mark.parametrize("annotation", [{names.MIN_COUNT_ANNOTATION: "9"}, {names.POLICY_ANNOTATION: "gagn"}])
    def test_an_impossible_annotation_is_named_with_its_remedy(self, annotation: dict[str, str]) -> None:
        decided = plan(Observed(builders.job(annotations=annotation)))
        assert decided.step is None
        assert reasons(decided) == ["FailedWorkloadCompilation"]
        assert next(iter(annotation)) in decided.reports[0].note
        assert "set it to" in decided.reports[0].note

    def test_a_misspelt_annotation_is_told_and_does_not_stop_the_job(self) -> None:
        decided = plan(Observed(builders.job(annotations={"phalanx.dev/mincount": "2"})))
        assert isinstance(decided.step, Make)
        assert reasons(decided) == ["UnknownAnnotation"]

    def test_what_was_changed_since_it_was_marked_does_not_strand_its_pods(self) -> None:
        job = builders.job(completions=9, annotations={names.POLICY_ANNOTATION: "none"})
        decided = plan(Observed(job))
        assert isinstance(decided.step, Make)

    def test_a_mark_that_leads_nowhere_is_told(self) -> None:
        decided = plan(Observed(builders.job(managedBy="example.com/other")))
        assert decided.step is None
        assert reasons(decided) == ["JobNotEligible"]
        assert "without the label" in decided.reports[0].note

    @pytest.mark.parametrize(
        "changes",
        [
            {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            {"conditions": [{"type": "Complete", "status": "True"}]},
            {"conditions": [{"type": "Failed", "status": "True"}]},
        ],
    )
    def test_nothing_is_made_for_a_job_that_ends(self, changes: dict[str, Any]) -> None:
        assert plan(Observed(builders.job(**changes))) == Plan()

    def test_where_the_server_keeps_the_native_minimum_it_counts(self) -> None:
        native = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        job = builders.job(scheduling=native, annotations={names.MIN_COUNT_ANNOTATION: "3"})
        assert made(Observed(job)).pod_groups[0].min_count == 2


class TestPriority:
    def test_the_class_and_its_never_are_copied(self) -> None:
        template = {"metadata": {"labels": {NAME: "job"}}, "spec": {"priorityClassName": "batch"}}
        job = builders.job(template=template)
        seen = made(Observed(job, preemption_policy=lambda name: "Never" if name == "batch" else None))
        assert seen.workloads[0].spec.pod_group_templates[0].preemption_policy == "Never"
        assert seen.pod_groups[0].spec.priority_class_name == "batch"
        assert seen.pod_groups[0].spec.preemption_policy == "Never"

    def test_a_successor_follows_the_class_that_is_there_now(self) -> None:
        template = {"metadata": {"labels": {NAME: "job"}}, "spec": {"priorityClassName": "batch"}}
        before = made(Observed(builders.job(template=template), preemption_policy=lambda _: "Never"))
        step = plan(replaced(before, pod_groups=[], preemption_policy=lambda _: None)).step
        assert isinstance(step, Make)
        assert isinstance(step.obj, PodGroup)
        assert step.obj.spec.preemption_policy is None


class TestSuspension:
    def test_the_group_goes_and_the_workload_stays(self) -> None:
        seen = made(Observed(builders.job()))
        suspended = replaced(seen, job=suspend(seen.job))
        step = plan(suspended).step
        assert isinstance(step, Release)
        assert plan(replaced(suspended, pod_groups=[leaving(seen.pod_groups[0])])) == Plan()
        assert plan(replaced(suspended, pod_groups=[])) == Plan()

    def test_the_successor_waits_until_the_name_is_free(self) -> None:
        seen = made(Observed(builders.job()))
        assert plan(replaced(seen, pod_groups=[leaving(seen.pod_groups[0])])) == Plan()
        step = plan(replaced(seen, pod_groups=[])).step
        assert isinstance(step, Make)
        assert isinstance(step.obj, PodGroup)

    def test_a_suspension_that_the_job_controller_has_not_acted_on_takes_no_group_away(self) -> None:
        """Resumed within milliseconds, its pods run on: their group must not be in deletion."""
        seen = made(Observed(builders.job()))
        spec = msgspec.structs.replace(seen.job.spec, suspend=True)
        assert plan(replaced(seen, job=msgspec.structs.replace(seen.job, spec=spec))) == Plan()

    def test_a_job_created_suspended_has_a_workload_only(self) -> None:
        job = builders.job(suspend=True)
        step = plan(Observed(job)).step
        assert isinstance(step, Make)
        assert isinstance(step.obj, Workload)
        assert plan(stored(Observed(job), step.obj)) == Plan()


class TestElastic:
    def test_the_minimum_follows_the_job_workload_first(self) -> None:
        seen = made(Observed(builders.job(parallelism=3, job_uid="00000001-aaaa-4aaa")))
        grown = replaced(seen, job=builders.job(parallelism=9, job_uid="00000001-aaaa-4aaa"))
        first = plan(grown).step
        assert isinstance(first, Resize)
        assert isinstance(first.obj, Workload)
        assert (first.old, first.new) == (3, 9)
        workload = resized(seen.workloads[0], 9)
        second = plan(replaced(grown, workloads=[workload])).step
        assert isinstance(second, Resize)
        assert isinstance(second.obj, PodGroup)
        assert (second.old, second.new) == (3, 9)

    def test_parallelism_that_is_not_completions_any_more_still_counts(self) -> None:
        seen = made(Observed(builders.job(parallelism=8, job_uid="00000002-aaaa-4aaa")))
        shrunk = builders.job(parallelism=4, completions=8, job_uid="00000002-aaaa-4aaa")
        step = plan(replaced(seen, job=shrunk)).step
        assert isinstance(step, Resize)
        assert step.new == 4

    def test_parallelism_0_changes_nothing(self) -> None:
        seen = made(Observed(builders.job(parallelism=8, job_uid="00000003-aaaa-4aaa")))
        stopped = builders.job(parallelism=0, completions=8, job_uid="00000003-aaaa-4aaa")
        assert plan(replaced(seen, job=stopped)) == Plan()

    def test_an_annotation_that_turned_bad_is_told_and_changes_nothing(self) -> None:
        seen = made(Observed(builders.job(parallelism=4, job_uid="00000004-aaaa-4aaa")))
        bad = builders.job(
            parallelism=4, annotations={names.MIN_COUNT_ANNOTATION: "many"}, job_uid="00000004-aaaa-4aaa"
        )
        decided = plan(replaced(seen, job=bad))
        assert decided.step is None
        assert reasons(decided) == ["FailedWorkloadCompilation"]

    def test_the_policy_cannot_be_changed(self) -> None:
        annotations = {names.POLICY_ANNOTATION: "basic"}
        seen = made(Observed(builders.job(annotations=annotations, job_uid="00000005-aaaa-4aaa")))
        assert seen.pod_groups[0].min_count == 0
        gang = builders.job(annotations={names.POLICY_ANNOTATION: "gang"}, job_uid="00000005-aaaa-4aaa")
        decided = plan(replaced(seen, job=gang))
        assert decided.step is None
        assert "cannot be changed to gang" in decided.reports[0].note

    def test_opting_out_later_does_not_strand_its_pods(self) -> None:
        seen = made(Observed(builders.job(parallelism=4, job_uid="00000006-aaaa-4aaa")))
        out = builders.job(annotations={names.POLICY_ANNOTATION: "none"}, job_uid="00000006-aaaa-4aaa")
        assert isinstance(plan(replaced(seen, job=out, pod_groups=[])).step, Make)


class TestNative:
    def native_workload(self, job: Job) -> Workload:
        step = plan(Observed(job)).step
        assert isinstance(step, Make)
        assert isinstance(step.obj, Workload)
        metadata = step.obj.metadata.model_copy(update={"name": "train-native"})
        return step.obj.model_copy(update={"metadata": metadata})

    @pytest.mark.parametrize("native", [True, None, False])
    def test_a_workload_of_kube_controller_manager_is_enough(self, native: bool | None) -> None:
        job = builders.job()
        pods = [member(job, group=group_of(job))]
        seen = Observed(job, workloads=[self.native_workload(job)], pods=pods, native=native)
        assert plan(seen) == Plan()

    @pytest.mark.parametrize("native", [True, None])
    def test_a_pod_that_waits_for_our_group_is_proof_that_it_is_ours(self, native: bool | None) -> None:
        job = builders.job()
        assert plan(Observed(job, native=native)) == Plan()
        assert plan(Observed(job, native=native, pods=[member(job, group="native")])) == Plan()
        awaited = Observed(job, native=native, pods=[member(job, group=group_of(job))])
        assert isinstance(plan(awaited).step, Make)

    @pytest.mark.parametrize("name", ["a.b", "n" * 58])
    def test_a_name_that_stalls_natively_gets_ours(self, name: str) -> None:
        job = builders.job(name)
        assert isinstance(plan(Observed(job, native=True)).step, Make)
        assert plan(Observed(job, native=None)) == Plan()

    def test_its_group_for_our_workload_is_enough(self) -> None:
        seen = made(Observed(builders.job()))
        theirs = seen.pod_groups[0].model_copy(
            update={"metadata": seen.pod_groups[0].metadata.model_copy(update={"name": "theirs"})}
        )
        assert plan(replaced(seen, pod_groups=[theirs])) == Plan()


class TestStructure:
    def test_a_workload_with_more_templates_is_told(self) -> None:
        seen = made(Observed(builders.job()))
        template = seen.workloads[0].spec.pod_group_templates[0]
        spec = seen.workloads[0].spec.model_copy(update={"pod_group_templates": [template, template]})
        odd = seen.workloads[0].model_copy(update={"spec": spec})
        decided = plan(replaced(seen, workloads=[odd]))
        assert decided.step is None
        assert reasons(decided) == ["UnsupportedWorkloadStructure"]


def suspend(job: Job) -> Job:
    """The Job once its controller has acted on it."""
    spec = msgspec.structs.replace(job.spec, suspend=True)
    return msgspec.structs.replace(job, spec=spec, status=builders.job(suspend=True).status)


def gang(count: int) -> SchedulingPolicy:
    return SchedulingPolicy(gang=Gang(min_count=count))


def resized(workload: Workload, count: int) -> Workload:
    template = workload.spec.pod_group_templates[0]
    template = template.model_copy(update={"scheduling_policy": gang(count)})
    return workload.model_copy(update={"spec": workload.spec.model_copy(update={"pod_group_templates": [template]})})


@given(
    st.lists(
        st.sampled_from(["suspend", "resume", "grow", "shrink", "lose-group", "lose-workload", "old-goes", "nothing"]),
        max_size=12,
    )
)
def test_any_history_ends_in_one_workload_and_at_most_one_live_group(history: list[str]) -> None:
    """Level-triggered: after any history the steps come to an end, and once more there is nothing to do."""
    uid = "0000000f-aaaa-4aaa"
    suspended, size = False, 4
    seen = Observed(builders.job(job_uid=uid))
    for event in history:
        match event:
            case "suspend" | "resume":
                suspended = event == "suspend"
            case "grow" | "shrink":
                size = 6 if event == "grow" else 2
            case "lose-group":
                seen = replaced(seen, pod_groups=[])
            case "lose-workload":
                seen = replaced(seen, workloads=[])
            case "old-goes":
                seen = replaced(seen, pod_groups=[g for g in seen.pod_groups if g.metadata.deletion_timestamp is None])
        job = builders.job(job_uid=uid, parallelism=size, suspend=suspended)
        seen = settled(replaced(seen, job=job))
        assert len(seen.workloads) == 1
        assert groups.min_count(seen.workloads[0].spec.pod_group_templates[0]) == size
        live = [g for g in seen.pod_groups if g.metadata.deletion_timestamp is None]
        assert len(seen.pod_groups) <= 1
        assert not (suspended and live)
        assert all(g.min_count == size for g in live)
        if not suspended and not seen.pod_groups:
            pytest.fail("a running Job has no group and nothing is in its way")


def settled(seen: Observed) -> Observed:
    for _ in range(6):
        match plan(seen).step:
            case None:
                return seen
            case Make(obj):
                seen = stored(seen, obj)
            case Release(obj):
                seen = replaced(seen, pod_groups=[leaving(obj)])
            case Resize(obj, _, new) if isinstance(obj, Workload):
                seen = replaced(seen, workloads=[resized(obj, new)])
            case Resize(obj, _, new):
                assert isinstance(obj, PodGroup)
                spec = obj.spec.model_copy(update={"scheduling_policy": gang(new)})
                seen = replaced(seen, pod_groups=[obj.model_copy(update={"spec": spec})])
    raise AssertionError("no end")
