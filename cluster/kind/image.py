"""The node image, built from Debian's packages and what Go built: no image of anybody's is needed for it.

What kind's own Dockerfile and ``kind build node-image`` do is done here to a root file system: Debian with systemd,
kind's files (they come with its Go module), containerd, kubelet, and in containerd's store the images of the control
plane. The base is Debian 12 on purpose: systemd of later ones does not start where the kernel has only cgroup v1.

It is kept in the cache as an archive whose name has the hash of all it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import filelock

from cluster import build, recipes
from cluster.errors import BuildError, UnavailableError
from cluster.events import Event, Report
from cluster.kind import archive, commands, debian, preload
from cluster.leash import leashed
from cluster.paths import cache_dir
from cluster.versions import Release

#: Dockerfile instructions for the image's configuration.
CHANGES = ("ENV container=docker", 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]')

_FILES = Path(__file__).parent / "files"
_SUITE = "bookworm"
_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "bash", "ca-certificates", "curl", "jq", "procps", "hostname", "busybox"),
    *("conntrack", "iptables", "nftables", "ipset", "iproute2", "ethtool", "util-linux", "mount", "kmod", "e2fsprogs"),
    *("pigz", "libseccomp2", "runc", "containernetworking-plugins"),
)
_CNI = ("host-local", "loopback", "portmap", "ptp")

#: Units that a container is better off without; kind removes the same.
_UNITS = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
)
_NOT_NEEDED = (
    "var/cache/apt/archives/*.deb",
    "var/lib/apt/lists/*",
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/locale/*",
    "etc/resolv.conf",
    "etc/hostname",
)

_KEPT = 2
_DEBOOTSTRAP_SECONDS = 900


def key(release: Release) -> str:
    """Return the hash of everything that an image of this release is made from."""
    versions = [f"{recipe.name} {recipe.version}" for recipe in (recipes.kind(release), *recipes.node_image(release))]
    made_from = hashlib.sha256(repr(versions).encode())
    for source in (Path(__file__), Path(archive.__file__), Path(preload.__file__), *sorted(_FILES.iterdir())):
        made_from.update(source.read_bytes())
    return made_from.hexdigest()[:16]


def name(release: Release) -> str:
    """Return what docker calls the image; its registry cannot exist, so that nobody ever asks one for it."""
    return f"localhost:1/phalanx-node:v{release.version}-{key(release)}"


def path(release: Release) -> Path:
    """Return where the archive is, once it was built."""
    return cache_dir() / "kind" / f"node-v{release.version}-{key(release)}.tar.zst"


def ensure(release: Release, report: Report) -> Path:
    """Return the archive of the node image's root file system, building it if it is not in the cache.

    :raises UnavailableError: if it must be built, and this is not root
    :raises ClusterError: if building failed
    """
    target = path(release)
    if target.exists():
        return target
    if os.geteuid() != 0:
        raise UnavailableError("a kind node image can be neither pulled nor built: only root can build one")
    debian.ensure(("debootstrap", "zstd"), "building a kind node image", report)
    programs = build.ensure(recipes.node_image(release), report)
    kind_files = build.module_folder(recipes.kind(release), "sigs.k8s.io/kind", report) / "images" / "base" / "files"
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_suffix(".lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".node-", ignore_cleanup_errors=True) as work:
                _Build(release, programs, kind_files, Path(work), report).run(target)
            _forget_old(target)
    return target


class _Build:
    """One build in a folder of its own."""

    def __init__(
        self, release: Release, programs: Mapping[str, Path], kind_files: Path, work: Path, report: Report
    ) -> None:
        self.release = release
        self.programs = programs
        self.kind_files = kind_files
        self.work = work
        self.report = report
        self.root = work / "root"
        self.log = cache_dir() / "logs" / f"node-image-{release.version}.log"

    def run(self, target: Path) -> None:
        """Build the image into ``target``, which appears only when it is whole."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        steps: list[tuple[str, Callable[[], None]]] = [
            ("installing Debian", self._debian),
            ("adding kind's files", self._kind),
            ("adding Kubernetes and containerd", self._add_programs),
            ("adding the control plane's images", self._images),
            ("packing", self._pack),
        ]
        for number, (what, step) in enumerate(steps):
            self._progress(what, number, len(steps))
            step()
        (self.work / "image").rename(target)
        self._progress("built", len(steps), len(steps))

    def _progress(self, what: str, done: int, total: int) -> None:
        self.report(Event("progress", f"kind node image {self.release.version}: {what}", "node image", done, total))

    def _run(self, *argv: str | Path, timeout: float = 300) -> None:
        commands.run(argv, self.log, timeout=timeout, env=os.environ | {"PATH": debian.search_path()})

    def _debian(self) -> None:
        include = f"--include={','.join(_PACKAGES)}"
        self._run("debootstrap", "--variant=minbase", include, _SUITE, self.root, timeout=_DEBOOTSTRAP_SECONDS)
        for pattern in (*_UNITS, *_NOT_NEEDED):
            for found in self.root.glob(pattern):
                shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
        (self.root / "etc" / "machine-id").write_text("")
        with (self.root / "etc" / "systemd" / "journald.conf").open("a") as journald:
            journald.write("ReadKMsg=no\n")

    def _kind(self) -> None:
        for source in sorted(self.kind_files.rglob("*")):
            inside = source.relative_to(self.kind_files)
            if source.is_file() and inside.parts[0] != "LICENSES":
                program = inside.parent.name == "bin"
                self._install(source, str(inside), 0o755 if program else 0o644)
        for folder in ("etc/kubernetes/manifests", "opt/cni/bin", "lib/modules", "kind/manifests"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "kind" / "version").write_text(f"v{self.release.version}")
        self._install(_FILES / "default-storage.yaml", "kind/manifests/default-storage.yaml", 0o644)
        containerd = self.root / "etc" / "containerd" / "config.toml"
        # Lowering one's score takes a capability that a confined machine does not have.
        text = containerd.read_text().replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
        containerd.write_text(text)
        for unit in ("kubelet.service", "containerd.service", "undo-mount-hacks.service"):
            self._run("chroot", self.root, "systemctl", "enable", unit)
        self._run("chroot", self.root, "systemctl", "mask", "systemd-binfmt.service")

    def _add_programs(self) -> None:
        for program in ("containerd", "ctr", "containerd-shim-runc-v2"):
            self._install(self.programs[program], f"usr/local/bin/{program}", 0o755)
        for program in ("kubelet", "kubeadm", "kubectl"):
            self._install(self.programs[program], f"usr/bin/{program}", 0o755)
        for plugin in _CNI:
            self._install(self.root / "usr" / "lib" / "cni" / plugin, f"opt/cni/bin/{plugin}", 0o755)
        (self.root / "etc" / "containerd" / "cri-base.json").write_text(json.dumps(self._container_defaults()))

    def _container_defaults(self) -> dict[str, object]:
        """Return what containerd makes each container from; as kind changes it."""
        spec: dict[str, object] = json.loads(_output(self.programs["ctr"], "oci", "spec"))
        hooks = spec.setdefault("hooks", {})
        assert isinstance(hooks, dict)
        hooks.setdefault("createContainer", []).append({"path": "/kind/bin/mount-product-files.sh"})
        process = spec["process"]
        assert isinstance(process, dict)
        process.pop("rlimits", None)
        return spec

    def _install(self, source: Path, inside: str, mode: int) -> None:
        target = self.root / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(mode)

    def _images(self) -> None:
        wanted = _output(
            *(self.programs["kubeadm"], "config", "images", "list"),
            *("--kubernetes-version", f"v{self.release.version}"),
        ).split()
        configuration = (self.root / "etc" / "containerd" / "config.toml").read_text()
        sandbox = re.search(r'^\s*sandbox_image = "(.+)"', configuration, re.MULTILINE)
        images = preload.images(wanted, sandbox[1] if sandbox else "", self.programs, self.root)
        packed = self.work / "images.tar"
        archive.write(images, packed)
        store = self.root / "var" / "lib" / "containerd"
        store.mkdir(parents=True, exist_ok=True, mode=0o711)
        with self._containerd(store) as address:
            options = ["--label=io.cri-containerd.pinned=pinned", "--all-platforms", "--no-unpack", "--digests"]
            ctr: list[str | Path] = [self.programs["ctr"], f"--address={address}", "--namespace=k8s.io"]
            self._run(*ctr, "images", "import", *options, packed)
        packed.unlink()

    @contextlib.contextmanager
    def _containerd(self, store: Path) -> Iterator[str]:
        """Run a containerd that has ``store`` for its images and does nothing else; give its address."""
        # The path of a socket must be short.
        with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
            address = f"{folder}/socket"
            config = Path(folder) / "config.toml"
            config.write_text(_CONTAINERD.format(store=store, state=f"{folder}/state", address=address))
            with (
                self.log.open("ab") as out,
                subprocess.Popen(
                    leashed([str(self.programs["containerd"]), "--config", str(config)]), stdout=out, stderr=out
                ) as process,
            ):
                try:
                    deadline = time.monotonic() + 30
                    while subprocess.run(
                        [self.programs["ctr"], f"--address={address}", "version"], capture_output=True, check=False
                    ).returncode:
                        if process.poll() is not None or time.monotonic() > deadline:
                            raise BuildError(f"containerd did not start; its log: {self.log}")
                        time.sleep(0.1)
                    yield address
                finally:
                    process.terminate()

    def _pack(self) -> None:
        compress = ["--use-compress-program", "zstd -q -3 -T0"]
        self._run("tar", "--numeric-owner", *compress, "-C", self.root, "-cf", self.work / "image", ".")


_CONTAINERD = """\
version = 3
root = "{store}"
state = "{state}"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
]
[grpc]
  address = "{address}"
"""


def _output(*argv: str | Path) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"building the kind node image failed: {error}") from error


def _forget_old(current: Path) -> None:
    """Remove the archives of earlier recipes but the latest: two branches may be worked on in turn."""
    archives = sorted(current.parent.glob("node-*.tar.zst"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        if old != current:
            old.unlink(missing_ok=True)
