"""The long-running processes as a shell sees them: settings that cannot be used are one line and status 2."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def said(*argv: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "cli", *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("--scheduler-name", "A_", "is no DNS subdomain"),
        ("--metrics-address", "8080", "write HOST:PORT"),
        ("--kubeconfig", "/nowhere/config", "check --kubeconfig"),
    ],
)
def test_an_option_that_cannot_be_used(option: str, value: str, remedy: str) -> None:
    status, line = said("controllers", option, value)
    assert (status, line.count("\n")) == (2, 1)
    assert line.startswith("error: ")
    assert value in line
    assert remedy in line


def test_a_metrics_address_that_is_taken(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    body = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(body))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, lines = said("scheduler", "--kubeconfig", str(kubeconfig), "--metrics-address", address)
    assert status == 2
    assert lines.splitlines()[-1].startswith("error: ")
    assert address in lines.splitlines()[-1]
    assert "Traceback" not in lines
