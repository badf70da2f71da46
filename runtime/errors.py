"""What the API server can answer, as types, and one human line for each.

Reconcilers catch these and never see httpx, aiohttp or kr8s exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from runtime.objects import Undecodable, decoder_for


class ConfigError(Exception):
    """The way to the API server cannot be read: names the file, the field and the remedy."""


class TerminalError(Exception):
    """Raised by a reconciler: trying again cannot help until the object changes."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``Status.details.causes``."""

    reason: str = ""
    message: str = ""
    field: str = ""


class ApiError(Exception):
    """A request that failed.

    :param status: HTTP status, 0 when no answer came
    :param reason: ``Status.reason`` of the server, e.g. ``AlreadyExists``
    :param message: the server's words
    :param verb: HTTP verb
    :param path: URL path
    :param causes: the fields the server complains about
    """

    #: True when the request may have been carried out all the same: read back, assume neither outcome.
    ambiguous: bool = False

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        verb: str = "",
        path: str = "",
        causes: Sequence[Cause] = (),
    ) -> None:
        super().__init__(status, reason, message, verb, path)
        self.status = status
        self.reason = reason
        self.message = message
        self.verb = verb
        self.path = path
        self.causes = tuple(causes)

    def __str__(self) -> str:
        return f"{self.verb} {self.path}: {self.status or 'no answer'} {self.reason}: {self.message}"


class NotFound(ApiError):  # noqa: N818
    """404: the object, or the whole resource, is not there."""


class Conflict(ApiError):  # noqa: N818
    """409: stale resourceVersion, failed precondition or a field owned by another manager."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Gone(ApiError):  # noqa: N818
    """410, or an Expired event in a watch: this resourceVersion or continue token is history."""


class Forbidden(ApiError):  # noqa: N818
    """403: RBAC, quota or admission; never a reason to log in again."""


class Unauthorized(ApiError):  # noqa: N818
    """401, also after credentials were read again."""


class Invalid(ApiError):  # noqa: N818
    """422."""


class TooManyRequests(ApiError):  # noqa: N818
    """429.

    ``retry_after`` is in seconds, 0 when the server named none.
    """

    retry_after: float = 0.0


class ServerError(ApiError):
    """5xx: a write may have been carried out (a time-out towards etcd answers 504)."""

    ambiguous = True


class Unreachable(ApiError):  # noqa: N818
    """No answer: refused, reset, or timed out. ``server`` is the URL that was tried.

    ``untrusted``: there is a server, but our certificate authority does not know it.
    """

    def __init__(
        self,
        message: str,
        verb: str = "",
        path: str = "",
        *,
        ambiguous: bool,
        server: str = "",
        untrusted: bool = False,
    ) -> None:
        super().__init__(0, "Unreachable", message, verb, path)
        self.ambiguous = ambiguous
        self.server = server
        self.untrusted = untrusted


class NotLeading(ApiError):  # noqa: N818
    """A write that was not sent: this replica does not lead. ``holder``: who does, as far as is known."""

    def __init__(self, verb: str = "", path: str = "", holder: str = "") -> None:
        super().__init__(0, "NotLeading", f"this replica does not lead ({holder or 'nobody known'} does)", verb, path)


class Idle(Unreachable):
    """A watch that brought nothing for too long: a dead connection, or a resource of which there is no news."""


class Unreadable(ApiError):  # noqa: N818
    """An answer of success whose body is not what was asked for: cut short, or a proxy's own page."""

    ambiguous = True

    def __init__(self, message: str, verb: str = "", path: str = "") -> None:
        super().__init__(200, "Unreadable", message, verb, path)


#: Seconds; a server or a proxy that asks for more than this is asked again all the same.
MAX_RETRY_AFTER = 300.0


class _Details(msgspec.Struct, gc=False):
    causes: list[Cause] | None = None
    retryAfterSeconds: float | None = None  # noqa: N815 - the server's spelling
    name: str | None = None
    kind: str | None = None


class Status(msgspec.Struct, gc=False):
    """``meta/v1 Status``: the body of a refusal, or the object of an ERROR event in a watch."""

    reason: str | None = None
    message: str | None = None
    code: int | None = None
    details: _Details | None = None


decode_status: Callable[[bytes | msgspec.Raw], Status] = decoder_for(Status)
_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_response(verb: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Turn a response that is no success into its type. Never raises, whatever a proxy in between wrote as the body."""
    try:
        parsed = decode_status(body)
    except Undecodable:
        text = body[:500].decode("utf-8", "replace").strip()
        parsed = Status(message=text or "(no body)")
    if status < 400:
        parsed = Status(message=f"no API server answers so; is there a proxy? It names {headers.get('location', '?')}")
    retry_after = 0.0
    try:
        retry_after = max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:  # an HTTP date: proxies only
        retry_after = 1.0
    return from_status(verb, path, parsed, status=status, retry_after=retry_after)


def from_status(verb: str, path: str, parsed: Status, *, status: int = 0, retry_after: float = 0.0) -> ApiError:
    """Turn a Status object (of a response, or of an ERROR event) into its type."""
    code = status or parsed.code or 500
    reason = parsed.reason or ""
    if reason in {"Expired", "Gone"}:
        kind: type[ApiError] = Gone
    elif code == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    elif code >= 500:
        kind = ServerError
    else:
        kind = _BY_STATUS.get(code, ApiError)
    details = parsed.details or _Details()
    error = kind(code, reason, parsed.message or "", verb, path, details.causes or ())
    if isinstance(error, TooManyRequests):
        error.retry_after = min(max(retry_after, details.retryAfterSeconds or 0.0), MAX_RETRY_AFTER)
    return error


_RBAC = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_PATH = re.compile(
    r"^/(?:api/(?P<core>[^/]+)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?(?:/(?P<plural>[^/]+))?(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)


@dataclass(frozen=True, slots=True)
class _Target:
    """What a URL path points at, in words."""

    resource: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def words(self, *, named: bool = True) -> str:
        text = self.resource + (f"/{self.subresource}" if self.subresource else "")
        if not named:
            return text
        if self.name:
            text += f" {self.namespace}/{self.name}" if self.namespace else f" {self.name}"
        elif self.namespace:
            text += f" in namespace {self.namespace}"
        return text


def _target(path: str) -> _Target:
    match = _PATH.match(path)
    if match is None or not match["plural"]:
        return _Target(resource=path)
    group = match["group"] or ""
    return _Target(
        resource=f"{match['plural']}.{group}" if group else match["plural"],
        api_version=f"{group}/{match['version']}" if group else match["core"],
        namespace=match["namespace"] or "",
        name=match["name"] or "",
        subresource=match["sub"] or "",
    )


_VERBS: dict[str, str] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Explainer:
    """Wording that belongs to the application: set once at start, read by :func:`explain`."""

    #: The command that grants the permissions this program needs.
    install: ClassVar[str] = "kubectl apply -k manifests/<your overlay>"


def explain(error: BaseException, *, named: bool = True) -> str:
    """One line for a human: what was asked, why it was refused, what to do.

    :param named: false leaves out which object it was: refusals of one cause have one line then
    """
    if not isinstance(error, ApiError):
        text = str(error) or type(error).__name__
        return " ".join(text.split())
    target = _target(error.path)
    asked = f"{_VERBS.get(error.verb, 'read')} {target.words(named=named)}"
    return " ".join(f"cannot {asked}: {_why(error, target)}".split())


def _why(error: ApiError, target: _Target) -> str:
    match error:
        case Unreachable():
            server = f" at {error.server}" if error.server else ""
            return f"the API server{server} did not answer ({error.message}); check that it runs and can be reached"
        case Forbidden():
            return _why_forbidden(error)
        case Unauthorized():
            return (
                f"the API server does not accept our credentials ({error.message or 'Unauthorized'}); "
                "renew the kubeconfig's user or the ServiceAccount's token"
            )
        case NotLeading():
            return error.message
        case Unreadable():
            return f"the answer is not what an API server sends ({error.message}); is there a proxy before it?"
        case NotFound() if target.namespace and error.message.startswith("namespaces "):
            return f"namespace {target.namespace} does not exist"
        case NotFound() if not target.name:
            return (
                f"{target.api_version or error.path} {target.resource} is not served by this cluster; "
                f"enable the API or install its CRD, then `kubectl api-resources` lists it ({error.message})"
            )
        case NotFound():
            return "it does not exist (any more)"
        case Gone():
            return f"that resourceVersion is too old ({error.message}); listing again"
        case TooManyRequests():
            return (
                f"the API server is shedding load; trying again in {max(error.retry_after, 1):g} s "
                "(a FlowSchema decides the share)"
            )
        case Invalid():
            fields = "; ".join(f"{cause.field}: {cause.message}" for cause in error.causes if cause.field)
            return f"the server finds it invalid: {fields or error.message}"
        case AlreadyExists():
            return f"an object of that name is there already ({error.message})"
        case Conflict():
            return f"it changed since it was read, or belongs to someone else ({error.message})"
        case ServerError():
            return f"the API server failed with {error.status} {error.reason} ({error.message}); trying again later"
    return f"{error.status} {error.reason} {error.message}"


def _why_forbidden(error: ApiError) -> str:
    rbac = _RBAC.search(error.message)
    if rbac is None:  # quota, admission or a policy: the server's words are the explanation
        return f"refused by policy, not by RBAC: {error.message}"
    resource = f"{rbac['resource']}.{rbac['group']}" if rbac["group"] else rbac["resource"]
    where = f"in namespace {rbac['namespace']}" if rbac["namespace"] else "at cluster scope"
    user = rbac["user"]
    parts = user.split(":")
    who = (
        f"ServiceAccount {parts[2]}/{parts[3]}"
        if user.startswith("system:serviceaccount:") and len(parts) == 4
        else f"user {user}"
    )
    return f"{who} lacks the RBAC verb {rbac['verb']!r} on {resource} {where}; grant it with `{Explainer.install}`"


def payload(body: object) -> bytes:
    """JSON bytes of a request body; bytes pass through."""
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


Json = dict[str, Any]
