from __future__ import annotations

import pytest

from bench import timing
from bench.verify import MismatchError
from cluster.audit import Audited


def event(
    resource: str,
    name: str,
    received: float,
    answered: float,
    *,
    verb: str = "create",
    code: int = 201,
    ns: str = "bench",
) -> Audited:
    return Audited("u", "a", verb, resource, ns, name, code, received, answered)


def status(resource: str, received: float, answered: float, code: int = 200) -> Audited:
    return event(f"{resource}/status", "g", received, answered, verb="patch", code=code)


RUN = [
    event("podgroups", "g", 10.0, 10.1),
    event("pods", "g-0", 10.2, 10.3),
    event("pods", "g-1", 10.2, 10.5),
    event("pods/binding", "g-0", 10.6, 10.7),
    event("pods/binding", "g-1", 10.6, 11.0),
]


def test_first_create_received_to_last_bind_answered() -> None:
    others = [event("pods", "w", 1, 2, ns="warm-up"), event("pods/binding", "w", 1, 20, ns="warm-up")]
    assert timing.all_bound([*others, *reversed(RUN)], "bench") == pytest.approx(1.0)


def test_a_bind_that_was_refused_is_none() -> None:
    refused = event("pods/binding", "g-1", 11, 12, code=409)
    assert timing.all_bound([*RUN, refused], "bench") == pytest.approx(1.0)
    assert timing.bind_counts([*RUN, refused], "bench") == {"g-0": 1, "g-1": 1}


def test_a_second_bind_counts() -> None:
    assert timing.bind_counts([*RUN, event("pods/binding", "g-1", 11, 12)], "bench") == {"g-0": 1, "g-1": 2}


def test_the_creates_of_others_are_not_the_beginning() -> None:
    # kube-scheduler's Events, in the same namespace.
    assert timing.first_create([event("events", "e", 1, 2), *RUN], "bench") == 10.0


@pytest.mark.parametrize("events", [[], RUN[:3], RUN[3:]])
def test_half_a_log(events: list[Audited]) -> None:
    with pytest.raises(MismatchError, match="the audit log shows no"):
        timing.all_bound(events, "bench")


def test_each_gang_from_its_last_pod_to_its_last_bind() -> None:
    members = {"g-0": "g", "g-1": "g", "h-0": "h"}
    assert timing.group_latencies(RUN, "bench", members) == pytest.approx([0.8])


class TestVerdict:
    created = RUN[:3]

    def test_the_first_status_after_the_last_pod(self) -> None:
        events = [*self.created, status("podgroups", 12, 13), status("pods", 11, 11.5)]
        assert timing.verdict(events, "bench") == pytest.approx(1.0)

    def test_what_was_said_before_the_gang_was_there_is_none(self) -> None:
        events = [*self.created, status("podgroups", 10.1, 10.4), status("podgroups", 12, 12.5)]
        assert timing.verdict(events, "bench") == pytest.approx(2.0)

    def test_what_was_refused_is_none(self) -> None:
        with pytest.raises(MismatchError, match="no status"):
            timing.verdict([*self.created, status("podgroups", 12, 13, code=409)], "bench")
