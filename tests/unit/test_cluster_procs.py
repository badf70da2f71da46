from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import ports
from cluster.leash import leashed
from cluster.procs import Identity, boot_id, describe_exit, tail


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


class TestIdentity:
    def test_ours_is_alive(self) -> None:
        assert Identity.of(os.getpid()).alive

    def test_a_zombie_has_ended(self, sleeper: subprocess.Popen[bytes]) -> None:
        identity = Identity.of(sleeper.pid)
        assert identity.alive
        sleeper.kill()
        assert identity.wait(5)
        assert not identity.alive  # and yet not reaped

    def test_a_reused_pid_is_somebody_else(self, sleeper: subprocess.Popen[bytes]) -> None:
        now = Identity.of(sleeper.pid)
        before = replace(now, start_time=now.start_time - 1)
        assert not before.alive
        assert not before.signal(signal.SIGKILL)
        before.end(grace=0)
        assert before.wait(0)
        assert now.alive

    def test_another_boot_is_another_process(self, sleeper: subprocess.Popen[bytes]) -> None:
        now = Identity.of(sleeper.pid)
        assert now.boot == boot_id() != ""
        assert not replace(now, boot="another").signal(signal.SIGKILL)
        assert now.alive

    def test_end_asks_first_then_insists(self) -> None:
        script = (
            "import signal,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
        )
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as stubborn:
            assert stubborn.stdout is not None
            stubborn.stdout.readline()
            Identity.of(stubborn.pid).end(grace=0.1)
            assert stubborn.wait(5) == -signal.SIGKILL

    def test_nobody(self) -> None:
        nobody = Identity(2**22 + 1, 1)
        assert not nobody.alive
        assert nobody.wait(0)


class TestLeash:
    def test_ends_with_its_parent(self) -> None:
        script = (
            "import subprocess, sys\n"
            "from cluster.leash import leashed\n"
            "p = subprocess.Popen(leashed(['sh', '-c', 'echo up; exec sleep 1000']), stdout=subprocess.PIPE)\n"
            "p.stdout.readline()\n"
            "print(p.pid, flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            child = Identity.of(int(parent.stdout.readline()))
            assert child.alive
            parent.kill()
        assert child.wait(5)

    def test_does_not_start_without_its_parent(self) -> None:
        argv = leashed(["true"])
        argv[argv.index(str(os.getpid()))] = "1"
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is gone" in done.stderr

    def test_is_the_program(self) -> None:
        done = subprocess.run(leashed(["sh", "-c", "echo $0 $1; exit 7", "a", "b"]), capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (7, b"a b\n")


class TestPorts:
    def test_are_free_and_different(self) -> None:
        found = ports.free_ports(50)
        assert len(set(found)) == 50
        assert all(ports.is_free(port) for port in found)

    def test_a_taken_one_is_not_free(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            assert not ports.is_free(sock.getsockname()[1])

    def test_none_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ports, "is_free", lambda _port: False)
        with pytest.raises(OSError, match="no 3 free TCP ports"):
            ports.free_ports(3)

    def test_below_what_outgoing_connections_get(self) -> None:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert low > ports.LAST or low < ports.FIRST


def test_exits_in_words() -> None:
    assert describe_exit(2) == "exited with code 2"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-99) == "was killed by signal 99"


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_text("".join(f"{i}\n" for i in range(100_000)))
    begun = time.monotonic()
    assert tail(log, 3) == ["99997", "99998", "99999"]
    assert len(tail(log, lines=10**6, limit=1000)) < 200
    assert time.monotonic() - begun < 1
