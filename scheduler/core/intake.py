"""What each event means for the state, and whom it concerns."""

from __future__ import annotations

from api import names
from api.eligibility import minimum_now
from api.membership import GroupKey, Unknown, group_of, name_taken, owning_job
from api.model import PodGroup
from api.wire import Job, Pod
from scheduler.core import events
from scheduler.core.agenda import Agenda
from scheduler.core.state import UNPLACED, GroupInfo, PodInfo, PodState, State


class Intake:
    """Takes in one fact at a time: the state is brought up to it, and the agenda told whom it concerns."""

    def __init__(self, state: State, agenda: Agenda, scheduler_names: frozenset[str]) -> None:
        self._scheduler_names = scheduler_names
        self._state = state
        self._agenda = agenda
        #: Pods whose group is not decided, by the uid of the Job that decides it.
        self._undecided: dict[str, set[str]] = {}

    def handle(self, event: events.Event) -> None:
        """Update the state with one fact."""
        match event:
            case events.PodSet(pod):
                self._pod_set(pod)
            case events.PodGone(uid):
                self._pod_gone(uid)
            case events.BindDone(uid):
                self._bind_done(uid)
            case events.BindFailed(uid, message):
                self._bind_failure(uid, message)
            case events.NodeSet(node):
                self._state.nodes.set(node)
            case events.NodeGone(name):
                self._node_gone(name)
            case events.GroupSet(group):
                self._group_set(group)
            case events.GroupGone(key):
                self._group_gone(key)
            case events.JobSet(job):
                self._job_set(job)
            case events.JobGone(uid):
                self._job_gone(uid)

    def _pod_set(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        info = self._state.pods.get(uid)
        changed = False
        if info is None:
            info = self._state.add(pod)
        elif info.pod.spec != pod.spec:
            changed = self._state.resign(info, pod)
        info.pod = pod
        if not info.latched:
            changed |= self._decide_group(info)
        before = info.state
        self._agenda.move(info, self._state_of(info), pod.spec.node_name or info.node)
        if info.state is PodState.BOUND and before in (PodState.ASSUMED, PodState.ACCEPTED):
            self._agenda.confirmed(info)
        if changed:
            self._agenda.touched(info)

    def _state_of(self, info: PodInfo) -> PodState:
        pod = info.pod
        deleting = pod.metadata.deletion_timestamp is not None
        if pod.terminal:
            succeeded = pod.status.phase == "Succeeded" and bool(pod.spec.node_name)
            return PodState.SUCCEEDED if succeeded else PodState.OUT
        if pod.spec.node_name:
            return PodState.LEAVING if deleting else PodState.BOUND
        if deleting or pod.spec.scheduler_name not in self._scheduler_names:
            return PodState.OUT
        # An update that does not show our bind yet is older than the bind.
        if info.state in (PodState.ASSUMED, PodState.ACCEPTED):
            return info.state
        if pod.spec.scheduling_gates or not info.latched or self._name_taken(info):
            return PodState.HELD
        return PodState.RESERVED if info.state is PodState.RESERVED else PodState.PENDING

    def _name_taken(self, info: PodInfo) -> bool:
        group = self._state.groups.get(info.group) if info.group is not None else None
        return group is not None and group.podgroup is not None and name_taken(info.pod, group.podgroup)

    def _decide_group(self, info: PodInfo) -> bool:
        """Latch the pod's group if it can be told. Returns whether it was."""
        self._stop_waiting_for_job(info)
        owner = owning_job(info.pod)
        job = self._state.jobs.get(owner.uid) if owner is not None else None
        group = group_of(info.pod, job, self._scheduler_names)
        if isinstance(group, Unknown):
            info.waits_for_job = group.job.uid
            self._undecided.setdefault(group.job.uid, set()).add(info.uid)
            return False
        self._state.join(info, group)
        return True

    def _stop_waiting_for_job(self, info: PodInfo) -> None:
        waiting = self._undecided.get(info.waits_for_job)
        if waiting is not None:
            waiting.discard(info.uid)
            if not waiting:
                del self._undecided[info.waits_for_job]
        info.waits_for_job = ""

    def _pod_gone(self, uid: str) -> None:
        info = self._state.pods.get(uid)
        if info is None:
            return
        self._agenda.move(info, PodState.OUT)
        self._stop_waiting_for_job(info)
        self._state.forget(info)
        self._agenda.forget_pod(uid)
        if info.group is not None:
            self._agenda.group_touched(info.group)

    def _bind_done(self, uid: str) -> None:
        info = self._state.pods.get(uid)
        # The watch may have been faster: then the pod is bound already.
        if info is not None and info.state is PodState.ASSUMED:
            self._agenda.move(info, PodState.ACCEPTED, info.node)
            self._agenda.accepted(info)

    def _bind_failure(self, uid: str, message: str) -> None:
        info = self._state.pods.get(uid)
        if info is None or info.state is not PodState.ASSUMED:
            return
        self._agenda.bind_failed(info, message)
        group = self._state.groups[info.group] if info.group is not None else None
        # A group that already runs below its minimum keeps the room: it is completed before others are started.
        keep = group is not None and uid in group.members[PodState.ASSUMED] and 0 < group.placed - 1 < group.minimum
        self._agenda.move(info, PodState.RESERVED if keep else PodState.PENDING, info.node)

    def _node_gone(self, name: str) -> None:
        self._state.nodes.remove(name)
        # Room kept on a node that is gone is no room. Binds under way fail, or end with the pod's deletion.
        for info in [i for i in self._state.pods.values() if i.state is PodState.RESERVED and i.node == name]:
            self._agenda.move(info, PodState.PENDING)

    def _group_set(self, podgroup: PodGroup) -> None:
        key = GroupKey(podgroup.metadata.namespace, podgroup.metadata.name)
        group = self._state.group(key)
        before, group.podgroup = group.podgroup, podgroup
        if before is None or before.metadata.uid != podgroup.metadata.uid:
            group.told, group.ever_reached = None, False
        elif (before.spec, before.job_uid, before.metadata.deletion_timestamp) == (
            podgroup.spec,
            podgroup.job_uid,
            podgroup.metadata.deletion_timestamp,
        ):
            return  # only its status changed
        self._regroup(group)

    def _group_gone(self, key: GroupKey) -> None:
        group = self._state.groups.get(key)
        if group is None:
            return
        group.podgroup, group.told, group.ever_reached = None, None, False
        self._agenda.queue.forget(key)
        self._regroup(group)
        self._state.drop_if_empty(key)
        self._agenda.group_touched(key)

    def _compare_with_job(self, group: GroupInfo) -> bool:
        """Note what the Job of a group which the controllers made asks for. Returns whether that changed."""
        job = self._state.jobs.get((group.podgroup.job_uid if group.podgroup is not None else None) or "")
        before = (group.job_minimum, group.job_parallelism)
        group.job_minimum, group.job_parallelism = 0, 0
        if job is not None and group.key.name == names.group_name(job.metadata.name, job.metadata.uid):
            group.job_minimum = minimum_now(job, self._scheduler_names)
            group.job_parallelism = job.spec.parallelism
        return (group.job_minimum, group.job_parallelism) != before

    def _regroup(self, group: GroupInfo) -> None:
        """The PodGroup came, went, or became another: judge its pods by it anew."""
        self._compare_with_job(group)
        self._state.refile(group)
        for info in list(group.all_pods()):
            if info.state in (PodState.HELD, *UNPLACED):
                self._agenda.move(info, self._state_of(info), info.node)
        self._agenda.group_touched(group.key)

    def _job_set(self, job: Job) -> None:
        self._state.jobs[job.metadata.uid] = job
        self._compare_group(job)
        for uid in list(self._undecided.get(job.metadata.uid, ())):
            info = self._state.pods[uid]
            self._decide_group(info)
            self._agenda.move(info, self._state_of(info), info.node)
            self._agenda.touched(info)

    def _job_gone(self, uid: str) -> None:
        job = self._state.jobs.pop(uid, None)
        if job is not None:
            self._compare_group(job)

    def _compare_group(self, job: Job) -> None:
        key = GroupKey(job.metadata.namespace, names.group_name(job.metadata.name, job.metadata.uid))
        group = self._state.groups.get(key)
        if group is not None and (self._compare_with_job(group) or job.finished):
            self._agenda.group_touched(key)
