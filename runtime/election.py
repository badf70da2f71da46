"""Leadership by a Lease (coordination.k8s.io/v1): at most one replica of a process works.

Only this process's own monotonic clock counts. The times in the Lease are written for people and never read: a
follower takes over when it has seen no change of the Lease for a whole ``duration`` of its own clock, and a leader
counts itself out ``renew_deadline`` after it *began* its last renewal that succeeded. So two replicas never lead at
once while their clocks' rates differ by less than duration / renew_deadline.

Each write asks :meth:`LeaseElection.check` first, and can wait for its answer no longer than leadership lasts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from runtime.backoff import Repeats
from runtime.client import Client
from runtime.clock import Clock, move_on_after
from runtime.errors import ApiError, Conflict, NotFound, NotLeading, explain
from runtime.exchange import Request
from runtime.identity import has_ended
from runtime.resources import LEASES

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

#: Holder of a Lease that was not there.
DELETED = "nobody, since the Lease was deleted"

#: Attempts to give back a Lease that changes under us; after that it has to expire.
RELEASES = 5


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds, as kube-scheduler has them.

    :param duration: a follower waits so long without a change before it takes over
    :param renew_deadline: a leader that could not renew for so long stops
    :param retry_period: between two attempts
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline < self.duration:
            raise ValueError(f"retry period < renew deadline < duration does not hold: {self}")


class LeaseElection:
    """One replica's part in an election; see :class:`runtime.manager.Election`.

    :param client: one without ``before_write``: the Lease itself is written by who does not lead
    :param identity: unique among all replicas; see :func:`runtime.identity.own_identity`
    :param ended: whether the process of another identity has certainly ended, so that nobody need wait for it
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        name: str,
        namespace: str,
        identity: str,
        times: LeaseTimes | None = None,
        rng: random.Random | None = None,
        ended: Callable[[str], bool] = has_ended,
    ) -> None:
        self._client = client
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self._times = times or LeaseTimes()
        self._rng = rng or random.Random()
        self._ended = ended
        self._repeats = Repeats(clock)
        #: The Lease as last seen (None: it is not there).
        self._lease: dict[str, Any] | None = None
        #: Since when, by our clock, it says the same; there from the first look on.
        self._unchanged_since: float
        self._leads_until = float("-inf")
        #: Whether the Lease may be ours without our knowing: no answer came (yet) to the claim by which we would lead.
        self._unanswered = False
        #: Whether another replica held the Lease right before this one.
        self._succeeded = False

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return self._clock.monotonic() < self._leads_until

    @property
    def holder(self) -> str:
        """The identity in the Lease as last seen; "" for none."""
        return str(_spec(self._lease).get("holderIdentity") or "")

    def check(self, request: Request) -> None:
        """Refuse a request when this replica does not lead (any more), else bound it by the end of its leadership.

        :raises NotLeading:
        """
        left = self._leads_until - self._clock.monotonic()
        if left <= 0:
            raise NotLeading(request.verb, request.path, self.holder)
        request.timeout = min(request.timeout, left)

    # -- runtime.manager.Election -------------------------------------------------------------------------------------

    async def acquire(self) -> bool:
        """Return once this replica leads; failures are told and tried again."""
        while not await self._attempt():
            await self._clock.sleep(self._times.retry_period * self._rng.uniform(1.0, 1.2))
        log.info("leading", lease=self._where, identity=self.identity)
        return self._succeeded

    async def hold(self) -> None:
        """Renew; return when leadership is over."""
        while True:
            left = self._leads_until - self._clock.monotonic()
            await self._clock.sleep(min(self._times.retry_period, left))
            if not self.leading:
                log.error("the Lease could not be renewed in time", lease=self._where)
                return
            if not await self._attempt() and self.holder not in ("", self.identity):
                self._leads_until = float("-inf")
                log.error("the Lease has another holder", lease=self._where, holder=self.holder)
                return

    async def release(self) -> None:
        """Give the Lease back, so that another replica need not wait; nothing where it is not ours any more."""
        if not self.leading:
            if not self._unanswered:
                return
            await self._look()
        self._leads_until = float("-inf")
        for left in reversed(range(RELEASES)):
            if self.holder != self.identity:
                return
            spec = _spec(self._lease) | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
            try:
                await self._put(spec)
            except (Conflict, NotFound):
                if not left:
                    raise
                await self._look()
            else:
                log.info("leadership given back", lease=self._where)
                return

    # -- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self) -> bool:
        """Take or renew the Lease if that is allowed. Returns whether this replica leads by it.

        Takes half the time to the deadline at most: a request that hangs leaves time for another.
        """
        limit = self._times.renew_deadline / 2
        if self.leading:
            limit = min(limit, self._leads_until - self._clock.monotonic())
        renewed = False
        with move_on_after(self._clock, limit) as scope:
            renewed = await self._renew()
        if scope.cancelled_caught:
            self._complain(f"the API server did not answer within {limit:g} s")
        return renewed

    async def _renew(self) -> bool:
        try:
            if not self.leading:
                await self._look()
                if self._lease is None:
                    await self._put(self._lost_property())
                if not self._free():
                    return False
            began = self._clock.monotonic()
            self._unanswered = not self.leading
            await self._put(self._claim())
            self._unanswered = False
        except Conflict:
            try:
                await self._look()
            except ApiError as error:
                self._complain(explain(error))
            return False
        except ApiError as error:
            if isinstance(error, NotFound):
                self._observe(None)  # gone while we held it: made anew by the next attempt
            self._complain(explain(error))
            return False
        self._leads_until = began + self._times.renew_deadline
        return True

    def _complain(self, line: str) -> None:
        if self._repeats.allows(line):
            what = "the Lease was not renewed" if self.leading else "cannot take part in leader election yet"
            log.warning(what, lease=self._where, error=line)

    def _free(self) -> bool:
        """Whether the Lease may be taken."""
        holder = self.holder
        if holder in ("", self.identity):
            return True
        if self._ended(holder):
            log.info("the holder of the Lease has ended", lease=self._where, holder=holder)
            return True
        duration = max(self._times.duration, float(_spec(self._lease).get("leaseDurationSeconds") or 0))
        return self._clock.monotonic() - self._unchanged_since >= duration

    def _lost_property(self) -> dict[str, Any]:
        """What a Lease is to say that is not there: nobody's, until whoever held the deleted one must have noticed.

        Written down, as it may be deleted again between two looks.
        """
        return {
            "holderIdentity": DELETED,
            "leaseDurationSeconds": math.ceil(self._times.duration),
            "acquireTime": self._stamp(),
            "renewTime": self._stamp(),
            "leaseTransitions": 0,
        }

    def _claim(self) -> dict[str, Any]:
        """What the Lease is to say: we hold it, from now on if we did not before."""
        spec, now = _spec(self._lease), self._stamp()
        changes_hands = spec.get("holderIdentity") != self.identity
        claim = spec | {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._times.duration),
            "renewTime": now,
        }
        if changes_hands:
            claim["acquireTime"] = now
            self._succeeded = bool(spec)
            claim["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + self._succeeded
        return claim

    # -- the Lease ----------------------------------------------------------------------------------------------------

    async def _put(self, spec: dict[str, Any]) -> None:
        if self._lease is not None:
            body = self._lease | {"spec": spec}  # and its resourceVersion: only over what was seen last
            self._observe(await self._client.replace(LEASES, self._name, self._namespace, body))
        else:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            self._observe(await self._client.create(LEASES, body, self._namespace))

    async def _look(self) -> None:
        try:
            found = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            found = None
        self._observe(found)

    def _observe(self, lease: dict[str, Any] | None) -> None:
        if (lease is None) != (self._lease is None) or _spec(lease) != _spec(self._lease):
            self._unchanged_since = self._clock.monotonic()
        self._lease = lease

    @property
    def _where(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _stamp(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: dict[str, Any] | None) -> dict[str, Any]:
    return (lease or {}).get("spec") or {}
