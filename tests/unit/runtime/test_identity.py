"""Who a process is, and when it has certainly ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from runtime.identity import has_ended, own_identity

TELL = "from runtime.identity import own_identity as me; print(me(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and its identity."""
    process = subprocess.Popen([sys.executable, "-c", TELL], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.communicate()


def test_it_names_this_process_in_one_header_safe_word() -> None:
    assert own_identity() == own_identity()
    assert re.fullmatch(rf"[-.\w]+_{os.getpid()}-\d+-\d+-[0-9a-f]{{12}}", own_identity())


def test_a_process_that_runs_or_is_stopped_has_not_ended(other: tuple[subprocess.Popen[str], str]) -> None:
    process, identity = other
    assert identity != own_identity()
    assert not has_ended(own_identity())
    assert not has_ended(identity)
    process.send_signal(signal.SIGSTOP)
    assert not has_ended(identity)


def test_a_killed_one_has_also_while_nobody_waited_for_it(other: tuple[subprocess.Popen[str], str]) -> None:
    process, identity = other
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert has_ended(identity)
    process.wait()
    assert has_ended(identity)


def test_another_process_with_the_pid_is_not_it() -> None:
    host, _, rest = own_identity().rpartition("_")
    pid, start, *place = rest.split("-")
    assert has_ended(f"{host}_{pid}-{int(start) - 1}-{'-'.join(place)}")


@pytest.mark.parametrize("changed", ["namespace", "boot"])
def test_what_runs_elsewhere_may_run_on(changed: str) -> None:
    host, _, rest = own_identity().rpartition("_")
    pid, start, namespace, boot = rest.split("-")
    namespace = "1" if changed == "namespace" else namespace
    boot = "0" * 12 if changed == "boot" else boot
    assert not has_ended(f"{host}_{pid}-{int(start) - 1}-{namespace}-{boot}")


@pytest.mark.parametrize("text", ["", "host_5b1f", "_1-2-3-4", "host_x-y", f"host_{'9' * 30}-1"])
def test_any_other_text_says_nothing(text: str) -> None:
    assert not has_ended(text)
    place = "-".join(own_identity().split("-")[-2:])
    if not text.endswith("-1"):
        assert not has_ended(f"{text}-{place}")
