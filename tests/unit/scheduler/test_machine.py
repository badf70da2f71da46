"""The core against a model of the API server: any order of events, failed and lost binds, restarts.

31: what is used on a node is never more than it offers. 32: a group either has its minimum bound or nothing, unless
something outside took a member or its room away; also across a crash and a restart from the API's objects alone.
"""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from api.membership import GroupKey
from api.model import PodGroup
from api.wire import Node, Pod
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.instructions import Bind, Decision
from scheduler.core.state import PodState
from scheduler.core.validate import validate
from tests.builders import bound, node, pod, pod_group


class SchedulerMachine(RuleBasedStateMachine):
    """Objects of the API server, a core that watches them, and binds under way between the two."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.groups: dict[str, PodGroup] = {}
        self.api: dict[str, Pod] = {}
        self.in_flight: list[Bind] = []
        #: Groups that lost a member, or room they had, to something outside.
        self.disturbed: set[str] = set()
        self.names = 0

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def feed(self, event: events.Event) -> None:
        self.core.handle(event)

    def group_name(self, p: Pod) -> str | None:
        return p.spec.scheduling_group.pod_group_name if p.spec.scheduling_group else None

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def some_nodes(self, sizes):
        for cpu in sizes:
            self.add_node(cpu)

    @rule(cpu=st.integers(1, 4))
    def add_node(self, cpu):
        made = node(self.fresh("n"), cpu=str(cpu))
        self.nodes[made.metadata.name] = made
        self.feed(events.NodeSet(made))

    @rule(data=st.data())
    def cordon_or_open(self, data):
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        old = self.nodes[name]
        new = msgspec.structs.replace(
            old, spec=msgspec.structs.replace(old.spec, unschedulable=not old.spec.unschedulable)
        )
        self.nodes[name] = new
        self.feed(events.NodeSet(new))
        # Members of running groups may have lost the room that was free for them.
        self.disturbed |= set(self.groups)

    @rule(
        target=pods,
        size=st.integers(1, 4),
        surplus=st.integers(0, 1),
        cpu=st.integers(1, 3),
        group_first=st.booleans(),
        priority=st.sampled_from([0, 5]),
    )
    def gang(self, size, surplus, cpu, group_first, priority):
        name = self.fresh("g")
        group = pod_group(name, size, priority=priority)
        made = [pod(f"{name}-{i}", group=name, cpu=str(cpu), priority=priority) for i in range(size + surplus)]
        self.groups[name] = group
        arrivals = [events.PodSet(p) for p in made]
        arrivals.insert(0 if group_first else len(arrivals), events.GroupSet(group))
        for p in made:
            self.api[p.metadata.uid] = p
        for event in arrivals:
            self.feed(event)
            self.cycle()
        return made[0].metadata.uid

    @rule(target=pods, cpu=st.integers(1, 3))
    def single(self, cpu):
        made = pod(self.fresh("p"), cpu=str(cpu))
        self.api[made.metadata.uid] = made
        self.feed(events.PodSet(made))
        return made.metadata.uid

    @rule(uid=consumes(pods))
    def delete(self, uid):
        gone = self.api.pop(uid, None)
        if gone is not None:
            if (name := self.group_name(gone)) is not None:
                self.disturbed.add(name)
            self.feed(events.PodGone(uid))

    @rule(data=st.data(), change=st.sampled_from(["resize", "delete", "again"]))
    def change_group(self, data, change):
        if not self.groups:
            return
        name = data.draw(st.sampled_from(sorted(self.groups)))
        self.disturbed.add(name)
        old = self.groups[name]
        if change == "resize":
            made = pod_group(name, data.draw(st.integers(1, 5)), group_uid=old.metadata.uid)
        elif change == "delete":
            made = pod_group(name, old.min_count, group_uid=old.metadata.uid, deleting=True)
        else:
            self.feed(events.GroupGone(GroupKey("default", name)))
            made = pod_group(name, old.min_count, group_uid=old.metadata.uid + "x")
        self.groups[name] = made
        self.feed(events.GroupSet(made))

    @rule(cpu=st.integers(1, 3), data=st.data())
    def another_scheduler_binds(self, cpu, data):
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        row = self.core.state.nodes.rows[name]
        free = (self.core.state.nodes.allocatable - self.core.state.nodes.used)[
            row, self.core.state.nodes.resources["cpu"]
        ]
        if free >= cpu * 1000:
            self.disturbed |= set(self.groups)
            made = pod(self.fresh("x"), cpu=str(cpu), scheduler="default-scheduler", node=name, phase="Running")
            self.api[made.metadata.uid] = made
            self.feed(events.PodSet(made))

    @rule(uid=pods, phase=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, uid, phase):
        p = self.api.get(uid)
        if p is None or not p.spec.node_name or p.terminal:
            return
        if phase == "Failed" and (name := self.group_name(p)) is not None:
            self.disturbed.add(name)
        self.api[uid] = bound(p, p.spec.node_name, phase=phase)
        self.feed(events.PodSet(self.api[uid]))

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.cycle()

    @rule(outcomes=st.lists(st.sampled_from(["ok", "watch first", "error", "lost"]), min_size=1, max_size=4))
    def binds_return(self, outcomes):
        for outcome in outcomes:
            if self.in_flight:
                self.land(self.in_flight.pop(0), outcome)

    def land(self, bind: Bind, outcome: str) -> None:
        p = self.api.get(bind.uid)
        if p is None:
            return  # gone: the watch has told
        if outcome == "error":
            self.feed(events.BindFailed(bind.uid, "500"))
            return
        assert not p.spec.node_name, "bound twice"
        self.api[bind.uid] = bound(p, bind.node)
        told: list[events.Event] = [events.BindDone(bind.uid), events.PodSet(self.api[bind.uid])]
        if outcome == "watch first":
            told.reverse()
        for event in told[1:] if outcome == "lost" else told:
            self.feed(event)
            self.cycle()

    @rule(landed=st.integers(0, 4))
    def crash_and_restart(self, landed):
        """The process dies with binds under way: some land, the rest never does; a new core reads the objects."""
        for bind in self.in_flight[:landed]:
            if (p := self.api.get(bind.uid)) is not None:
                self.api[bind.uid] = bound(p, bind.node)
        self.in_flight.clear()
        self.core = Core()
        for n in self.nodes.values():
            self.feed(events.NodeSet(n))
        for p in self.api.values():
            self.feed(events.PodSet(p))
        for g in self.groups.values():
            self.feed(events.GroupSet(g))

    def cycle(self) -> None:
        while (decision := self.core.cycle(self.now)) is not None:
            validate(self.core)
            self.check(decision)
            for instruction in decision.instructions:
                if isinstance(instruction, Bind):
                    self.in_flight.append(instruction)

    def check(self, decision: Decision) -> None:
        """No bind for a group whose minimum has no room."""
        for bind in (i for i in decision.instructions if isinstance(i, Bind)):
            info = self.core.state.pods[bind.uid]
            if info.group is not None:
                group = self.core.state.groups[info.group]
                assert group.placed >= group.minimum, f"{bind.name} bound though {group.key} lacks {group.missing}"

    @invariant()
    def books_agree(self):
        validate(self.core)

    @invariant()
    def no_node_is_overcommitted(self):
        table = self.core.state.nodes
        assert (table.used <= table.allocatable)[table.present].all()

    def teardown(self):
        """Everything settles: each group is whole or not begun, and what fits is bound."""
        for _ in range(50):
            while self.in_flight:
                self.land(self.in_flight.pop(0), "ok")
            self.now += 11.0
            self.cycle()
            if not self.in_flight and (self.core.next_time() or float("inf")) > self.now + 60:
                break
        assert not self.in_flight
        for name, group in self.groups.items():
            members = [p for p in self.api.values() if self.group_name(p) == name]
            done = sum(1 for p in members if p.spec.node_name and p.status.phase != "Failed")
            if name not in self.disturbed:
                assert done == 0 or done >= group.min_count, f"{name}: {done} of {group.min_count} bound"
        states = {info.state for info in self.core.state.pods.values()}
        assert PodState.ASSUMED not in states


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
