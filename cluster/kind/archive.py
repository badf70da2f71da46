"""Writes container images from files alone: archives as ``docker save`` makes them, with one layer each.

No daemon is needed for it, and the same files give the same archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image to be written.

    :param names: its references, in full
    :param files: by absolute path in the image, which file of this machine stands there, executable
    :param links: by absolute path in the image, what a symbolic link there points to
    :param texts: by absolute path in the image, the contents of a plain file
    """

    names: tuple[str, ...]
    files: Mapping[str, Path]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def configuration(self, layer: str) -> dict[str, Any]:
        """Return the image's configuration, given its layer's digest."""
        run: dict[str, Any] = {"Env": [_PATH], "WorkingDir": "/"}
        if self.entrypoint:
            run["Entrypoint"] = list(self.entrypoint)
        if self.command:
            run["Cmd"] = list(self.command)
        if self.user:
            run["User"] = self.user
        return {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }


def write(images: Sequence[Image], target: Path) -> None:
    """Write all images into one archive at ``target``; layers are made beside it first."""
    manifest = []
    with tarfile.open(target, "w") as archive:
        for number, image in enumerate(images):
            layer = target.with_name(f"{target.name}.layer-{number}")
            _write_layer(image, layer)
            with layer.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            archive.add(layer, f"{digest}.tar", filter=_clean)
            layer.unlink()
            configuration = json.dumps(image.configuration(digest)).encode()
            name = f"{hashlib.sha256(configuration).hexdigest()}.json"
            _add_bytes(archive, name, configuration)
            manifest.append({"Config": name, "RepoTags": list(image.names), "Layers": [f"{digest}.tar"]})
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def _write_layer(image: Image, target: Path) -> None:
    with tarfile.open(target, "w") as layer:
        for folder in folders(image):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        for path, text in sorted(image.texts.items()):
            _add_bytes(layer, path.lstrip("/"), text.encode())
        for path, file in sorted(image.files.items()):
            layer.add(file.resolve(), path.lstrip("/"), filter=_clean)
        for path, points_to in sorted(image.links.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type = tarfile.SYMTYPE
            entry.linkname = points_to
            layer.addfile(entry)


def folders(image: Image) -> list[str]:
    """Return the folders of an image, outer ones first; every image has a ``tmp``."""
    found = {"tmp"}
    for path in (*image.files, *image.links, *image.texts):
        found.update(str(parent) for parent in PurePosixPath(path.lstrip("/")).parents if str(parent) != ".")
    return sorted(found)


def _clean(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755
    return entry


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(data))
