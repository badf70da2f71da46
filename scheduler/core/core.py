"""The scheduler's state machine: events in, one decision a cycle out."""

from __future__ import annotations

from api import names
from api.eligibility import Misconfigured, decide
from api.membership import GroupKey, owning_job
from scheduler.core import attempt, events, messages
from scheduler.core.agenda import Agenda
from scheduler.core.instructions import Decision
from scheduler.core.intake import Intake
from scheduler.core.state import GroupInfo, PodState, State


class Core:
    """Feed with `handle`, then call `cycle` until it returns None; `next_time` says when to call again.

    Times are seconds of one monotonic clock, given by the caller.
    """

    def __init__(self, scheduler_names: frozenset[str] = frozenset({names.SCHEDULER_NAME})) -> None:
        self.scheduler_names = scheduler_names
        self.state = State()
        self.agenda = Agenda(self.state)
        self._intake = Intake(self.state, self.agenda, scheduler_names)

    def handle(self, event: events.Event) -> None:
        """Update the state with one fact. Cheap: what it means for a group is left to the next `cycle`."""
        self._intake.handle(event)

    def next_time(self) -> float | None:
        """When `cycle` has something to do: -inf for now, None for not before another event."""
        return self.agenda.next_time()

    def cycle(self, now: float) -> Decision | None:
        """Decide one entity on the state as it is, assume what it places, and return what to do about it."""
        self.agenda.settle(now)
        return self._tell_reached() or self._tell_bind_trouble() or self._tell_incomplete(now) or self._try_next(now)

    def _tell_reached(self) -> Decision | None:
        while (group := self.agenda.pop_reached()) is not None:
            if self._ours(group):
                return attempt.tell_reached(group)
        return None

    def _tell_bind_trouble(self) -> Decision | None:
        trouble = self.agenda.pop_bind_trouble()
        if trouble is None:
            return None
        entity, message = trouble
        if isinstance(entity, GroupKey):
            return attempt.tell_bind_trouble(self.state.groups[entity], message)
        return attempt.tell_pod_bind_trouble(self.state.pods[entity], message)

    def _tell_incomplete(self, now: float) -> Decision | None:
        while (group := self.agenda.pop_incomplete(now)) is not None:
            told = group.told is not None or self._ours(group)
            decision = attempt.tell_incomplete(group, self._job_says(group)) if told else None
            if decision is not None:
                return decision
        return None

    def _job_says(self, group: GroupInfo) -> str | None:
        """Say why nothing comes of the group because of its Job: that is over, or it says something impossible.

        The Event about the latter may have expired by now.
        """
        owner = self.state.jobs.get(group.podgroup.job_uid or "") if group.podgroup is not None else None
        if owner is not None and owner.finished:
            return messages.job_is_over(owner)
        owners = (owning_job(info.pod) for info in group.all_pods()) if group.podgroup is None else ()
        jobs = (self.state.jobs.get(owner.uid) for owner in owners if owner is not None)
        job = next((job for job in jobs if job is not None), None)
        verdict = decide(job, self.scheduler_names) if job is not None else None
        return f"Job {job.metadata.name}: {verdict.message}" if job and isinstance(verdict, Misconfigured) else None

    def _ours(self, group: GroupInfo) -> bool:
        """Whether any pod of it is ours: of other schedulers' groups nothing is said."""
        return any(info.pod.spec.scheduler_name in self.scheduler_names for info in group.all_pods())

    def _try_next(self, now: float) -> Decision | None:
        entity = self.agenda.queue.pop(now)
        if entity is None:
            return None
        # Room that an attempt gives back and takes again has not changed for anybody else.
        nodes = self.state.nodes
        used = nodes.used.copy() if isinstance(entity, GroupKey) and self.state.groups[entity].below_minimum else None
        if isinstance(entity, GroupKey):
            group = self.state.groups[entity]
            decision, done, robbed = attempt.try_group(self.state, group)
            for other in robbed:
                self.agenda.group_touched(other)
            if group.members[PodState.RESERVED]:
                self.agenda.keep(entity, now)
        else:
            decision, done = attempt.try_pod(self.state, self.state.pods[entity])
        nodes.freed = used is not None and bool((nodes.used[: len(used), : used.shape[1]] < used).any())
        if not done:
            self.agenda.gave_up(entity, now, any_change_helps=decision.verdict == "error")
        return decision
