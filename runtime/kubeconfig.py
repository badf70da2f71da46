"""Check a kubeconfig before kr8s reads it.

kr8s answers a missing file, a typo in a name and a truncated certificate with ``KeyError`` or "unable to find valid
credentials"; a person needs the file, the field and what to do.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from runtime.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def check_kubeconfig(kubeconfig: str | Path | None, context: str | None = None) -> str | None:
    """Return the path list to hand to kr8s, or None to use the ServiceAccount.

    :raises ConfigError: when no source is there, or the chosen one cannot work
    """
    explicit = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or ""
    if not explicit:
        default = Path("~/.kube/config").expanduser()
        if not default.exists():
            if (SERVICE_ACCOUNT / "token").exists():
                return None
            raise ConfigError(
                "no cluster to talk to: no --kubeconfig, no $KUBECONFIG, no ~/.kube/config and no "
                "ServiceAccount token; pass --kubeconfig FILE"
            )
        explicit = str(default)
    paths = [Path(part).expanduser() for part in explicit.split(os.pathsep) if part]
    present = [path for path in paths if path.exists()]
    if not present:
        raise ConfigError(f"kubeconfig {explicit} does not exist; check --kubeconfig or $KUBECONFIG")
    _check(_Merged(present), context)
    return os.pathsep.join(str(path) for path in present)


class _Merged:
    """The named lists of all files; the first file that has a name wins, as in kubectl."""

    def __init__(self, paths: list[Path]) -> None:
        self.label = os.pathsep.join(str(path) for path in paths)
        self.documents = [(path, _load(path)) for path in paths]

    def current_context(self) -> str:
        return str(self.documents[0][1].get("current-context") or "")

    def find(self, kind: str, name: str) -> tuple[Path, dict[str, Any]] | None:
        for path, document in self.documents:
            for entry in document.get(f"{kind}s") or []:
                if isinstance(entry, dict) and entry.get("name") == name:
                    value = entry.get(kind)
                    return path, value if isinstance(value, dict) else {}
        return None

    def names(self, kind: str) -> list[str]:
        entries = [entry for _, document in self.documents for entry in document.get(f"{kind}s") or []]
        return sorted({str(entry.get("name")) for entry in entries if isinstance(entry, dict)})


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {error.strerror}; check its owner and mode") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" at line {line + 1}" if line is not None else ""
        raise ConfigError(f"kubeconfig {path} is not YAML{where}; write it again with your provider's tool") from error
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {path} is empty or not a mapping; write it again with your provider's tool")
    for field in ("clusters", "contexts", "users"):
        if not isinstance(document.get(field) or [], list):
            raise ConfigError(f"kubeconfig {path}: {field} is not a list; correct it")
    return document


def _check(merged: _Merged, context: str | None) -> None:
    name = context or merged.current_context()
    choose = f"pass --context, one of {merged.names('context')}"
    if not name:
        raise ConfigError(f"kubeconfig {merged.label}: current-context is not set; {choose}")
    found = merged.find("context", name)
    if found is None:
        raise ConfigError(f"kubeconfig {merged.label}: contexts has no {name!r}; {choose}")
    path, chosen = found
    for kind in ("cluster", "user"):
        if not chosen.get(kind):
            raise ConfigError(f"kubeconfig {path}: contexts[{name}].context.{kind} is not set; fill it in")
        part = merged.find(kind, str(chosen[kind]))
        if part is None:
            raise ConfigError(
                f"kubeconfig {path}: contexts[{name}].context.{kind} names {chosen[kind]!r}, which {kind}s does "
                f"not have; it has {merged.names(kind)}"
            )
        part_path, body = part
        prefix = f"{kind}s[{chosen[kind]}].{kind}"
        if kind == "cluster" and "://" not in str(body.get("server") or ""):
            raise ConfigError(f"kubeconfig {part_path}: {prefix}.server is missing or not a URL; set https://HOST:PORT")
        _check_material(part_path, prefix, body)


def _check_material(path: Path, prefix: str, body: dict[str, Any]) -> None:
    for field in ("certificate-authority-data", "client-certificate-data", "client-key-data"):
        data = body.get(field)
        if data and "-----" not in str(data):
            try:
                decoded = base64.b64decode("".join(str(data).split()), validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigError(f"kubeconfig {path}: {prefix}.{field} is not base64; write it again") from error
            if b"-----BEGIN" not in decoded:
                raise ConfigError(f"kubeconfig {path}: {prefix}.{field} holds no PEM block; write it again")
    for field in ("certificate-authority", "client-certificate", "client-key"):
        file = body.get(field)
        if file and not Path(file).exists() and not (path.parent / file).exists():
            raise ConfigError(f"kubeconfig {path}: {prefix}.{field} points at {file}, which does not exist")
    plugin = body.get("exec")
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if command and shutil.which(command) is None:
        raise ConfigError(f"kubeconfig {path}: {prefix}.exec.command {command!r} is not on PATH; install it")
