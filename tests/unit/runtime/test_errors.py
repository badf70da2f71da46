from __future__ import annotations

import json
from typing import Any

import pytest

from runtime import errors
from runtime.errors import (
    MAX_RETRY_AFTER,
    ApiError,
    Cause,
    ServerError,
    Unreachable,
    explain,
    from_response,
    from_status,
)
from runtime.resources import EVENTS, JOBS, NODES, PODS


def refusal(
    code: int, reason: str = "", message: str = "", headers: dict[str, str] | None = None, **d: Any
) -> ApiError:
    body = json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message, "details": d}).encode()
    return from_response("POST", "/api/v1/namespaces/ns/pods", code, headers or {}, body)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Gone", errors.Gone),
        (410, "Expired", errors.Gone),
        (400, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (400, "BadRequest", ApiError),
        (415, "", ApiError),
    ],
)
def test_each_status_has_its_type(code: int, reason: str, kind: type[ApiError]) -> None:
    error = refusal(code, reason, "words")
    assert type(error) is kind
    assert (error.status, error.reason, error.message, error.verb) == (code, reason, "words", "POST")


def test_only_lost_answers_are_ambiguous() -> None:
    assert refusal(504).ambiguous
    assert not refusal(409).ambiguous
    assert not refusal(429).ambiguous
    assert Unreachable("x", ambiguous=True).ambiguous


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"retry-after": "7"}, {}, 7),
        ({}, {"retryAfterSeconds": 5}, 5),
        ({"retry-after": "2"}, {"retryAfterSeconds": 5}, 5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, 1),
        ({"retry-after": "-3"}, {}, 0),
        ({"retry-after": "86400000"}, {}, MAX_RETRY_AFTER),
        ({"retry-after": "inf"}, {}, MAX_RETRY_AFTER),
        ({"retry-after": "nan"}, {}, 0),
        ({}, {"retryAfterSeconds": 1e9}, MAX_RETRY_AFTER),
        ({}, {}, 0),
    ],
)
def test_retry_after(headers: dict[str, str], details: dict[str, Any], seconds: float) -> None:
    error = refusal(429, headers=headers, **details)
    assert isinstance(error, errors.TooManyRequests)
    assert error.retry_after == seconds


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"[]", b"\xff\xfe", b'{"code":"x"}', b"null"])
def test_any_body_will_do(body: bytes) -> None:
    error = from_response("GET", "/api/v1/pods", 502, {}, body)
    assert isinstance(error, ServerError)
    assert explain(error)


def test_an_error_event_is_typed_like_a_response() -> None:
    assert isinstance(from_status("GET", "/x", errors.Status(code=410, reason="Expired")), errors.Gone)
    assert isinstance(from_status("GET", "/x", errors.Status(code=429)), errors.TooManyRequests)
    assert isinstance(from_status("GET", "/x", errors.Status()), errors.ServerError)


RBAC = (
    'pods is forbidden: User "system:serviceaccount:phalanx-system:scheduler" cannot create resource "pods/binding" '
    'in API group ""'
)


def test_explain_rbac() -> None:
    line = explain(refusal(403, "Forbidden", f'{RBAC} in the namespace "team-a"'))
    assert line == (
        "cannot create pods in namespace ns: ServiceAccount phalanx-system/scheduler lacks the RBAC verb 'create' on "
        "pods/binding in namespace team-a; grant it with `kubectl apply -k manifests/<your overlay>`"
    )
    assert "at cluster scope" in explain(refusal(403, "Forbidden", RBAC + " at the cluster scope"))
    user = 'x is forbidden: User "jane" cannot list resource "jobs" in API group "batch" at the cluster scope'
    assert "user jane lacks the RBAC verb 'list' on jobs.batch at cluster scope" in explain(refusal(403, "", user))


def test_explain_policy_is_not_rbac() -> None:
    line = explain(refusal(403, "Forbidden", "exceeded quota: compute, requested: cpu=4"))
    assert "not by RBAC" in line
    assert "exceeded quota" in line
    assert "kubectl apply" not in line


def test_explain_unreachable_names_the_server() -> None:
    error = Unreachable("Connection refused", "GET", "/api/v1/pods", ambiguous=False, server="https://10.0.0.1:6443")
    assert explain(error).startswith("cannot read pods: the API server at https://10.0.0.1:6443 did not answer")


def test_explain_a_resource_that_is_not_served() -> None:
    error = from_response("GET", "/apis/scheduling.k8s.io/v1beta1/podgroups", 404, {}, b"404 page not found")
    line = explain(error)
    assert "scheduling.k8s.io/v1beta1 podgroups.scheduling.k8s.io is not served by this cluster" in line
    assert "enable the API or install its CRD" in line
    gone = from_response("PATCH", "/apis/batch/v1/namespaces/ns/jobs/j/status", 404, {}, b"{}")
    assert explain(gone) == "cannot patch jobs.batch/status ns/j: it does not exist (any more)"


def test_explain_fields() -> None:
    error = ApiError(422, "Invalid", "", "POST", "/api/v1/nodes")
    invalid = errors.Invalid(422, "Invalid", "m", "PUT", "/api/v1/nodes/n", [Cause("r", "must be 1", "spec.minCount")])
    assert "spec.minCount: must be 1" in explain(invalid)
    assert explain(invalid).startswith("cannot update nodes n:")
    assert explain(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("multi\n  line"),
        ValueError(),
        errors.ConfigError("c"),
        errors.TerminalError("t"),
        *(kind(1, "r", "m\nm", "DELETE", "/weird") for kind in errors._BY_STATUS.values()),
        errors.AlreadyExists(409, "AlreadyExists", "m", "POST", "/api/v1/pods"),
        errors.ServerError(500, "I", "m", "POST", "/api/v1/pods"),
    ],
)
def test_explain_is_always_one_line(error: BaseException) -> None:
    line = explain(error)
    assert line
    assert "\n" not in line


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert JOBS.path("ns") == "/apis/batch/v1/namespaces/ns/jobs"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert (JOBS.api_version, PODS.api_version, EVENTS.key, PODS.key) == (
        "batch/v1",
        "v1",
        "events.events.k8s.io",
        "pods",
    )
    assert PODS.path("a/b", "../x") == "/api/v1/namespaces/a%2Fb/pods/..%2Fx"
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path("ns")
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path(name="p")
