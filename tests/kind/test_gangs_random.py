"""Random gangs, Jobs and single pods that cannot all fit, with nodes that come and go: checked at every instant.

Rounds run side by side, each in a namespace and on nodes of its own, so that they also disturb each other's queue.
``PHALANX_ROUNDS`` says how many, ``PHALANX_SEED`` which.
"""

from __future__ import annotations

import os
import random
import re
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kind.checks import PodView, Watcher, replay, settle, timeline, view_pod, wrong_objects
from tests.kind.conftest import Phalanx, fresh_namespace
from tests.kind.kube import Kube, KubeError, job, node, pod, pod_group, until

ROUNDS = int(os.environ.get("PHALANX_ROUNDS", "40"))
SEED = int(os.environ.get("PHALANX_SEED", "1"))
SIDE_BY_SIDE = 10


class Round:
    """One round; everything random in it comes from its seed."""

    def __init__(self, kube: Kube, watcher: Watcher, namespace: str, seed: str) -> None:
        self.kube = kube
        self.watcher = watcher
        self.namespace = namespace
        self.random = random.Random(seed)
        self.tag = {"round": namespace}
        self.nodes: list[str] = []
        self.groups: list[str] = []
        self.jobs: list[str] = []
        self.singles: list[str] = []
        self.story: list[str] = []
        self.made = 0

    def run(self) -> None:
        for _ in range(self.random.randint(2, 4)):
            self.add_node()
        steps: list[tuple[Callable[[], None], int]] = [
            (self.add_group, 6),
            (self.add_job, 4),
            (self.add_single, 3),
            (self.finish_some, 4),
            (self.fail_one, 1),
            (self.delete_one_pod, 2),
            (self.delete_group, 1),
            (self.delete_job, 1),
            (self.add_node, 1),
            (self.remove_node, 1),
            (self.cordon, 2),
            (self.edit_minimum, 1),
        ]
        weighted = [step for step, weight in steps for _ in range(weight)]
        for _ in range(self.random.randint(10, 18)):
            self.random.choice(weighted)()
            # A pace, not a wait: how much the parties have seen when the next step comes is part of the round.
            time.sleep(self.random.choice((0.0, 0.0, 0.05, 0.2, 0.5)))
        self.wait_for_pods()
        settle(lambda: self.watcher.world(self.namespace), [self.namespace])
        self.check_objects()
        # Room for what has waited: all that runs ends, and the rest must get its turn.
        self.note("end all that runs")
        for name in self.nodes:
            self.kube.cordon(name, False)
        self.kube.finish(self.namespace, [p.name for p in self.live() if p.node])
        self.wait_for_pods()
        settle(lambda: self.watcher.world(self.namespace), [self.namespace])
        self.check_objects()

    def note(self, text: str) -> None:
        self.story.append(f"{time.time():.3f} {text}")

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def live(self) -> list[PodView]:
        pods = [view_pod(item) for item in self.kube.list("pods", self.namespace)]
        return sorted((p for p in pods if not p.ended and not p.deleting), key=lambda p: p.name)

    def wait_for_pods(self) -> None:
        """Until kube-controller-manager has made the pods of all Jobs, but of those that it makes wait: one that
        lost pods gets the next ones after 10 s, 20 s, 40 s."""

        def made() -> bool:
            for found in self.kube.list("jobs", self.namespace):
                status = found.get("status", {})
                there = status.get("succeeded", 0) + status.get("active", 0)
                if there < found["spec"]["completions"] and not (status.get("failed") or status.get("terminating")):
                    return False
            return True

        until(made, 40, f"the pods of all Jobs in {self.namespace} are made")
        self.watcher.catch_up(self.namespace)

    def check_objects(self) -> None:
        until(lambda: not wrong_objects(self.kube, [self.namespace]), 15, "one Workload and PodGroup for each Job")

    # --- steps ----------------------------------------------------------------------------------------------

    def add_node(self) -> None:
        name = f"{self.namespace}-{self.name('n')}"
        cpu = self.random.choice((2, 3, 4, 6, 8))
        self.note(f"node {name}: {cpu} cpu")
        pods = self.random.choice((3, 110))
        self.kube.create("nodes", node(name, cpu=str(cpu), memory="4Gi", pods=pods, labels=self.tag))
        self.nodes.append(name)

    def add_group(self) -> None:
        """Pods before their group, or after it, or in between."""
        name = self.name("g")
        size = self.random.randint(1, 6)
        minimum = self.random.choice((size, size, max(1, size - 1)))
        cpu = self.random.choice(("500m", "1", "1", "2", "3"))
        memory = self.random.choice(("128Mi", "128Mi", "1500Mi"))
        creates: list[Callable[[], object]] = [
            lambda index=index: self.kube.create(
                "pods", pod(f"{name}-{index}", cpu=cpu, memory=memory, group=name, selector=self.tag), self.namespace
            )
            for index in range(size)
        ]
        creates.insert(
            self.random.choice((0, size, self.random.randint(0, size))),
            lambda: self.kube.create("podgroups", pod_group(name, minimum), self.namespace),
        )
        self.note(f"group {name}: {size} pods of {cpu} {memory}, minimum {minimum}")
        for create in creates:
            create()
            if self.random.random() < 0.1:
                time.sleep(0.1)  # pace
        self.groups.append(name)

    def add_job(self) -> None:
        name = self.name("j")
        size = self.random.randint(2, 6)
        cpu = self.random.choice(("500m", "1", "2", "3"))
        annotations = {}
        if self.random.random() < 0.3:
            annotations["phalanx.dev/min-count"] = str(self.random.randint(1, size))
        self.note(f"Job {name}: {size} pods of {cpu} {annotations}")
        body = job(name, size, cpu=cpu, selector=self.tag, annotations=annotations, backoffLimit=50)
        self.kube.create("jobs", body, self.namespace)
        self.jobs.append(name)

    def add_single(self) -> None:
        name = self.name("s")
        cpu = self.random.choice(("500m", "1", "2"))
        self.note(f"pod {name}: {cpu}")
        self.kube.create("pods", pod(name, cpu=cpu, selector=self.tag), self.namespace)

    def finish_some(self) -> None:
        running = [p.name for p in self.live() if p.node]
        chosen = running if self.random.random() < 0.3 else running[: self.random.randint(0, len(running))]
        self.note(f"finish {chosen}")
        self.kube.finish(self.namespace, chosen)

    def fail_one(self) -> None:
        running = [p.name for p in self.live() if p.node and p.job_uid]
        if running:
            chosen = self.random.choice(running)
            self.note(f"fail {chosen}")
            self.kube.finish(self.namespace, [chosen], "failed")

    def delete_one_pod(self) -> None:
        if pods := self.live():
            chosen = self.random.choice(pods)
            self.note(f"delete pod {chosen.name}")
            self.kube.delete("pods", chosen.name, self.namespace)

    def delete_group(self) -> None:
        if self.groups:
            name = self.groups.pop(self.random.randrange(len(self.groups)))
            self.note(f"delete group {name} and its pods")
            pods = [p.name for p in self.live() if p.group == name]
            first = self.random.random() < 0.5
            if first:
                self.kube.delete("podgroups", name, self.namespace)
            for pod_name in pods:
                self.kube.delete("pods", pod_name, self.namespace)
            if not first:
                self.kube.delete("podgroups", name, self.namespace)

    def delete_job(self) -> None:
        if self.jobs:
            name = self.random.choice(self.jobs)
            policy = self.random.choice(("Background", "Foreground"))
            self.note(f"delete Job {name} {policy}")
            self.kube.delete("jobs", name, self.namespace, propagationPolicy=policy)
            self.jobs.remove(name)

    def remove_node(self) -> None:
        """A node dies: its pods are gone for good a moment later."""
        if len(self.nodes) > 1:
            name = self.nodes.pop(self.random.randrange(len(self.nodes)))
            self.note(f"remove {name}")
            self.kube.delete("nodes", name)
            for victim in [p for p in self.live() if p.node == name]:
                self.kube.delete("pods", victim.name, self.namespace, gracePeriodSeconds=0)

    def cordon(self) -> None:
        name, on = self.random.choice(self.nodes), self.random.random() < 0.5
        self.note(f"{'cordon' if on else 'uncordon'} {name}")
        self.kube.cordon(name, on)

    def edit_minimum(self) -> None:
        if not self.groups:
            return
        name = self.random.choice(self.groups)
        minimum = self.random.randint(1, 6)
        self.note(f"minimum of {name} is {minimum} now")
        try:
            spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
            self.kube.patch("podgroups", name, self.namespace, {"spec": spec})
        except KubeError as error:
            assert error.status in (404, 409)  # noqa: PT017 - gone meanwhile


@pytest.mark.needs("fake nodes")
@pytest.mark.timeout(60 + 12 * ROUNDS)
def test_rounds(kube: Kube, watcher: Watcher, phalanx: Phalanx) -> None:
    print(f"PHALANX_SEED={SEED} PHALANX_ROUNDS={ROUNDS}")
    failures: list[str] = []
    namespaces: list[str] = []
    stories: dict[str, list[str]] = {}

    def play(number: int) -> None:
        with fresh_namespace(kube, f"round-{number}") as namespace:
            one = Round(kube, watcher, namespace, f"{SEED}/{number}")
            namespaces.append(namespace)
            stories[namespace] = one.story
            try:
                one.run()
                watcher.catch_up(namespace)
            except Exception:
                failures.append(f"{namespace}: {traceback.format_exc()}")
            finally:
                for name in one.nodes:
                    kube.delete("nodes", name)

    began = time.monotonic()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(play, range(ROUNDS)))
    report = replay(watcher.changes(), namespaces=namespaces)
    print(
        f"{ROUNDS} rounds in {time.monotonic() - began:.0f} s: {report.groups_started} groups started, "
        f"{report.binds} binds, excused {report.excused}, longest in part:",
        *report.partial[:5],
        sep="\n",
    )
    for seconds, text in report.partial[:5]:
        if seconds > 3 and (found := re.match(r"group ([^/]+)/(\S+)", text)):
            print(f"--- {text}", *timeline(watcher.changes(), *found.groups()), sep="\n")
    for text in report.violations:
        if found := re.search(r"group ([^/]+)/(\S+)", text):
            print(f"--- {text}", *timeline(watcher.changes(), found[1]), sep="\n")
    for text in failures + report.violations + report.partial_now:
        for namespace, story in stories.items():
            if namespace in text:
                print(f"--- {namespace}", *story, sep="\n")
    assert failures == []
    assert report.violations == []
    assert report.partial_now == []
    assert report.groups_started >= ROUNDS
