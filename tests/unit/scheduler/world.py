"""A small world around the core: it carries out decisions at once, or as a test directs."""

from __future__ import annotations

from typing import TypeVar

from api.wire import Pod
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.instructions import Bind, Decision, EmitEvent, SetGroupCondition, SetPodCondition
from scheduler.core.validate import validate
from tests.builders import bound

T = TypeVar("T")


class World:
    """Feeds events, runs cycles until quiet, keeps what was decided; validates after every step."""

    def __init__(self, *things: events.Event) -> None:
        self.core = Core()
        self.now = 0.0
        self.decisions: list[Decision] = []
        self.pods: dict[str, Pod] = {}
        #: Names of pods whose next bind fails, with the message.
        self.fail: dict[str, str] = {}
        #: What every bind is refused with, while set.
        self.refuse = ""
        self.nodes: dict[str, str] = {}
        #: Whether accepted binds come back by the watch.
        self.confirm = True
        self.feed(*things)

    def feed(self, *things: events.Event) -> World:
        for event in things:
            if isinstance(event, events.PodSet):
                self.pods[event.pod.metadata.uid] = event.pod
            self.core.handle(event)
            validate(self.core)
        return self

    def run(self, *, until: float | None = None) -> World:
        """Cycle until nothing is due (at `until` seconds, passing the times between)."""
        end = self.now if until is None else until
        while True:
            due = self.core.next_time()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            decision = self.core.cycle(self.now)
            validate(self.core)
            if decision is not None:
                self.decisions.append(decision)
                self._carry_out(decision)
        self.now = end
        return self

    def _carry_out(self, decision: Decision) -> None:
        for bind in (i for i in decision.instructions if isinstance(i, Bind)):
            error = self.refuse or self.fail.pop(bind.name, "")
            if error:
                self.feed(events.BindFailed(bind.uid, error))
                continue
            self.nodes[bind.name] = bind.node
            self.feed(events.BindDone(bind.uid))
            if self.confirm and bind.uid in self.pods:
                self.feed(events.PodSet(bound(self.pods[bind.uid], bind.node)))

    def told(self) -> list[tuple[str, str, str]]:
        """Conditions written on groups: (group, status, message)."""
        return [(str(i.group), i.status, i.message) for i in self._all(SetGroupCondition)]

    def notes(self) -> list[tuple[str, str]]:
        """Events: (kind, note)."""
        return [(i.regarding.kind, i.note) for i in self._all(EmitEvent)]

    def pod_messages(self) -> dict[str, str]:
        """The newest condition message of each pod."""
        return {i.name: i.message for i in self._all(SetPodCondition)}

    def _all(self, kind: type[T]) -> list[T]:
        return [i for d in self.decisions for i in d.instructions if isinstance(i, kind)]
