"""The supervisor with ordinary programs in the place of a control plane."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Cluster, ClusterError, Event, state
from cluster.link import Link
from cluster.paths import Layout
from cluster.procs import Identity


def until(check: Callable[[], object], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> Iterator[Link]:
    monkeypatch.setenv("PHALANX_STATE", str(tmp_path))
    layout = Layout.of("c")
    layout.root.mkdir(parents=True)
    made = Link(layout, events.append)
    yield made
    made.down()


def run(link: Link, name: str, script: str, grace: float = 5) -> Identity:
    return Identity.of(link.run(name, ["sh", "-c", script], dict(os.environ), grace=grace))


def test_a_death_is_told_with_the_last_words(link: Link, events: list[Event]) -> None:
    run(link, "etcd", "for i in $(seq 100); do echo line $i; done; exit 3")
    until(lambda: link.deaths)
    (death,) = link.deaths
    assert (death.name, death.how) == ("etcd", "exited with code 3")
    assert death.tail == tuple(f"line {i}" for i in range(71, 101))
    assert events[-1].kind == "died"
    assert "line 100" in events[-1].text
    assert str(death.log) not in events[-1].text  # a failed start moves it: the error says where it is
    assert str(death.log) in str(death)
    until(lambda: state.load("c").died == {"etcd": "exited with code 3"})


def test_a_death_is_not_told_when_asked_for(link: Link) -> None:
    stubborn = run(link, "stubborn", "trap '' TERM; while :; do sleep 0.1; done", grace=0.3)
    link.request(stop="stubborn")
    assert not stubborn.alive
    assert state.load("c").processes["stubborn"].asked
    assert link.deaths == []
    run(link, "stubborn", "sleep 1000")  # the name is free again
    assert "stubborn" in state.load("c").pids


def test_commands_that_make_no_sense(link: Link) -> None:
    run(link, "one", "sleep 1000")
    with pytest.raises(ClusterError, match="one runs already"):
        run(link, "one", "sleep 1000")
    with pytest.raises(ClusterError, match="no two in this cluster"):
        link.request(stop="two")
    with pytest.raises(ClusterError, match="unknown command"):
        link.request(dance=True)
    with pytest.raises(ClusterError, match="no program"):
        link.run("nothing", ["/no/such/program"], {}, grace=0)


def test_wait_ends_when_a_component_dies(link: Link) -> None:
    run(link, "etcd", "echo no disk; exit 1")
    with pytest.raises(ClusterError, match=r"(?s)etcd exited with code 1.*no disk"):
        link.wait_for("it works", lambda: False, 20)


def test_down_removes_everything_and_runs_cleanups(link: Link, tmp_path: Path) -> None:
    process = run(link, "one", "sleep 1000")
    done = tmp_path / "cleaned"
    link.request(cleanup={"argv": ["touch", str(done)], "env": dict(os.environ)})
    link.down(keep_logs=True)
    assert not process.alive
    assert done.exists()
    assert not link.layout.root.exists()
    assert (link.layout.kept_logs / "one.log").exists()
    with pytest.raises(ClusterError, match="is down"):
        link.request(stop="one")


def test_a_cluster_whose_folder_is_removed_ends(link: Link) -> None:
    child = run(link, "one", "sleep 1000")
    shutil.rmtree(link.layout.root)
    until(lambda: not child.alive)
    until(lambda: not link.open)


def test_a_later_cluster_of_the_name_keeps_its_folder(link: Link) -> None:
    child = run(link, "one", "sleep 1000")
    shutil.rmtree(link.layout.root)
    link.layout.root.mkdir()
    later = Link(link.layout, lambda _event: None)
    until(lambda: not child.alive)
    until(lambda: not link.open)
    assert state.load("c").supervisor.alive
    later.down()
    assert not link.layout.root.exists()


def test_supervisor_killed(link: Link) -> None:
    process = run(link, "one", "trap '' TERM; while :; do sleep 0.1; done")
    os.kill(state.load("c").supervisor.pid, signal.SIGKILL)
    assert process.wait(10)
    until(lambda: not link.open)
    with pytest.raises(ClusterError):
        link.request(stop="one")
    assert state.load("c").status == "dead"


OWNER = """
import os, sys
from cluster.link import Link
from cluster.paths import Layout
layout = Layout.of("c")
layout.root.mkdir(parents=True)
link = Link(layout, lambda event: None)
print(link.run("one", ["sleep", "1000"], dict(os.environ), grace=0), flush=True)
{then}
"""


def owner(then: str, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)],
        env=os.environ | {"PHALANX_STATE": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_owner_dies_while_its_fork_holds_the_pipe(tmp_path: Path) -> None:
    fork = "if os.fork() == 0:\n    import time; time.sleep(15); os._exit(0)\nprint(0, flush=True)\nsys.stdin.read()"
    with owner(fork, tmp_path) as parent:
        assert parent.stdout is not None
        process = Identity.of(int(parent.stdout.readline()))
        parent.stdout.readline()
        parent.kill()
        assert process.wait(10)
        until(lambda: not (tmp_path / "clusters" / "c").exists())
        parent.stdout.close()


def test_detached_lives_on_until_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_STATE", str(tmp_path))
    with owner("link.detach()", tmp_path) as parent:
        assert parent.stdout is not None
        process = Identity.of(int(parent.stdout.readline()))
        assert parent.wait(10) == 0
    supervisor = state.load("c").supervisor
    assert supervisor.alive
    assert process.alive
    supervisor.end(grace=10)
    assert not process.alive
    assert not (tmp_path / "clusters" / "c").exists()


def test_what_others_run_is_watched_and_not_ended(link: Link) -> None:
    with subprocess.Popen(["sleep", "1000"]) as stays, subprocess.Popen(["sleep", "1000"]) as goes:
        link.adopt("stays", stays.pid, link.layout.log("x"))
        link.adopt("goes", goes.pid, link.layout.log("x"))
        assert state.load("c").pids["goes"] == goes.pid
        goes.kill()
        until(lambda: link.deaths)
        assert [(death.name, death.how) for death in link.deaths] == [("goes", "has ended")]
        assert state.load("c").status == "degraded"
        link.down()
        assert stays.poll() is None
        stays.kill()


def test_a_dead_supervisors_cleanups_are_run_by_who_finds_it(link: Link, tmp_path: Path) -> None:
    done = tmp_path / "cleaned"
    link.request(cleanup={"argv": ["touch", str(done)], "env": dict(os.environ)})
    os.kill(state.load("c").supervisor.pid, signal.SIGKILL)
    until(lambda: not link.open)
    assert not done.exists()
    Cluster.load("c").down()
    assert done.exists()
    assert not link.layout.root.exists()
