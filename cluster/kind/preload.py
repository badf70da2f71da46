"""The images that a node image brings along, so that no node ever pulls one.

They have the names that kubeadm and containerd ask for, and in them are the programs that were built here. One more is
for tests: busybox, under the name of the real one, so that a node that was pulled can pull it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.errors import BuildError
from cluster.kind.archive import Image

#: For pods that tests make: a shell, and what goes with it.
BUSYBOX = "docker.io/library/busybox:1.35"

_FIREWALL = ("xtables-nft-multi", "xtables-legacy-multi", "nft", "conntrack", "ipset")


def images(wanted: Sequence[str], sandbox: str, programs: Mapping[str, Path], root: Path) -> list[Image]:
    """Return all images of a node.

    :param wanted: the references that kubeadm asks for
    :param sandbox: the reference that containerd is configured to make pods with
    :param programs: what was built, by name
    :param root: the node's root file system, which libraries and tools are taken from
    :raises BuildError: if something is wanted that we do not have
    """
    return [*(_image(reference, sandbox, programs, root) for reference in wanted), _busybox(root)]


def _image(reference: str, sandbox: str, programs: Mapping[str, Path], root: Path) -> Image:
    program = re.sub(r"[:@].*", "", reference.rsplit("/", 1)[-1])
    if program not in programs:
        raise BuildError(f"kubeadm asks for the image {reference}, and nothing of that name was built")
    path = "/coredns" if program == "coredns" else f"/usr/local/bin/{program}"
    files = {path: programs[program]}
    if program == "kube-proxy":
        return _kube_proxy(reference, files, root)
    names: tuple[str, ...] = (reference,)
    if program == "pause":
        # kubeadm names the latest, containerd's configuration the one it was released with.
        names = tuple(dict.fromkeys((reference, sandbox or reference)))
        return Image(names, files, entrypoint=(path,), user="65535:65535")
    return Image(names, files, entrypoint=(path,))


def _kube_proxy(reference: str, files: Mapping[str, Path], root: Path) -> Image:
    tools = [f"/usr/sbin/{tool}" for tool in _FIREWALL]
    # Loaded by name at run time: their libraries are needed, too (without libm no Service with two endpoints works).
    extensions = [f"/{path.relative_to(root)}" for path in sorted(root.glob("usr/lib/*/xtables/*.so"))]
    multi = {
        f"/usr/sbin/{family}{action}": "xtables-nft-multi"
        for family in ("iptables", "ip6tables")
        for action in ("", "-save", "-restore")
    }
    whole = {**files, **with_libraries(root, [*tools, *extensions])}
    return Image((reference,), whole, entrypoint=tuple(files), links=multi)


def _busybox(root: Path) -> Image:
    applets = _chroot(root, "/bin/busybox", "--list").split()
    return Image(
        (BUSYBOX,),
        with_libraries(root, ["/bin/busybox"]),
        command=("sh",),
        links={f"/bin/{applet}": "busybox" for applet in applets if applet != "busybox"},
        texts={"/etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "/etc/group": "root:x:0:\n"},
    )


def with_libraries(root: Path, paths: Sequence[str]) -> dict[str, Path]:
    """Return files of a root file system with all libraries they are linked to, by their path in it."""
    linked = libraries(_chroot(root, "ldd", *paths))
    return {path: root / path.lstrip("/") for path in (*paths, *linked)}


def libraries(said: str) -> list[str]:
    """Return the absolute paths of libraries in what ``ldd`` printed."""
    return list(dict.fromkeys(re.findall(r"(?:=> |^\s+)(/\S+\.so[.\d]*) \(", said, re.MULTILINE)))


def _chroot(root: Path, *argv: str) -> str:
    done = subprocess.run(["chroot", root, *argv], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout
