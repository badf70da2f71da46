"""The process: what starts when, what stops when, and what ends it.

Start: probes, then informers until their caches are complete, then leadership, then controllers and
runnables. Stop is the reverse, inside the grace period: workers finish what they hold, leadership is given
back only after them, caches and probes go last. What cannot be stopped (a thread, a shielded scope) ends with the
process when that period is over. The crash of any critical task ends the process with a non-zero status and its
traceback: never a zombie that answers probes and does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import anyio.abc
import structlog

from runtime.cancellation import own_cancellation_only
from runtime.clock import Clock, TimerHandle, move_on_after, wait_for
from runtime.controller import Controller
from runtime.informer import Informer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Run = Callable[[], Coroutine[Any, Any, Any]]


class Election(Protocol):
    """Leadership, as :class:`runtime.election.LeaseElection` gives it."""

    async def acquire(self) -> bool:
        """Return once this process leads: whether another did before, whose last writes the caches may not show."""

    async def hold(self) -> None:
        """Keep leading; return or raise when that is over. Leader work is then cancelled at once."""

    async def release(self) -> None:
        """Give back what was acquired, also by an :meth:`acquire` that was cut off; else do nothing.

        Called after all work has stopped, unless leadership is lost. Bounded by the caller.
        """


async def give_back(election: Election, clock: Clock, seconds: float) -> None:
    """Give leadership back, also while being cancelled; what fails, or takes longer, is left to expire."""
    with move_on_after(clock, seconds, shield=True):
        try:
            with own_cancellation_only():
                await election.release()
        except Exception:
            log.exception("leadership was not given back; it expires by itself")


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    name: str
    run: Run
    must_stay: bool  # returning counts as a crash
    depth: int  # the deepest stop first


#: Depths: servers are around caches, and so on.
_SERVER, _CACHE, _COMMON, _LEADER = range(4)


class Manager:
    """Runs one process.

    :param grace: seconds from the first signal, or the loss of leadership, to the end; keep it below the pod's
        terminationGracePeriodSeconds
    :param sync_timeout: seconds within which all caches must be complete
    :param exit_now: what a second signal calls, and the end of the grace; never returns
    """

    def __init__(
        self,
        clock: Clock,
        *,
        grace: float = 25.0,
        sync_timeout: float | None = None,
        election: Election | None = None,
        exit_now: Callable[[int], Any] = os._exit,
    ) -> None:
        self._clock = clock
        self._grace = grace
        self._sync_timeout = sync_timeout
        self._election = election
        self._exit_now = exit_now
        self._servers: list[_Task] = []
        self._informers: list[Informer[Any]] = []
        self._controllers: list[Controller[Any]] = []
        self._leader_tasks: list[_Task] = []
        self._common_tasks: list[_Task] = []
        self._stop = anyio.Event()
        self._stopping_since: float | None = None
        self._deadline: TimerHandle | None = None
        self._running: list[_Task] = []
        self._signals = 0
        self._working = False
        self._succeeds = False
        self._lost = anyio.Event()
        self.exit_code = 0
        self.phase = "new"

    # -- what to run ----------------------------------------------------------------------------------------------

    def add_server(self, name: str, run: Run) -> None:
        """Something that answers from the first moment to the last: probes, metrics."""
        self._servers.append(_Task(name, run, must_stay=True, depth=_SERVER))

    def add_informer(self, informer: Informer[Any]) -> None:
        """A cache that must be complete before any work starts."""
        self._informers.append(informer)

    def add_controller(self, controller: Controller[Any]) -> None:
        """Workers; they run on the leader only and drain at the end."""
        self._controllers.append(controller)

    def add_runnable(self, name: str, run: Run, *, needs_leader: bool = True, may_return: bool = False) -> None:
        """A task that starts after the caches are complete and is cancelled at the end.

        :param needs_leader: false runs it on every replica, and cancels it after the leader's work (an EventRecorder)
        :param may_return: false makes its return a crash
        """
        tasks, depth = (self._leader_tasks, _LEADER) if needs_leader else (self._common_tasks, _COMMON)
        tasks.append(_Task(name, run, must_stay=not may_return, depth=depth))

    # -- how it is ------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        """True when every cache is complete."""
        return all(informer.synced.is_set() for informer in self._informers)

    @property
    def ready(self) -> bool:
        """For /readyz: caches complete and alive, and not stopping. Says nothing of leadership."""
        return self._stopping_since is None and self.synced and all(informer.healthy for informer in self._informers)

    @property
    def leading(self) -> bool:
        """True while leader work runs; false from the loss of leadership on, even if something still runs by then."""
        return self._working and not self._lost.is_set()

    @property
    def lost_leadership(self) -> bool:
        """True when it stopped for that reason alone: all is well with the process, which may take part again."""
        return self._lost.is_set() and not self._signals and not self.exit_code

    @property
    def caches(self) -> dict[str, Informer[Any]]:
        """The caches by names of their own: a second one of pods, say of another namespace, is ``pods#2``."""
        named: dict[str, Informer[Any]] = {}
        for informer in self._informers:
            before = sum(other.name == informer.name for other in named.values())
            named[f"{informer.name}#{before + 1}" if before else informer.name] = informer
        return named

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        """The workers."""
        return self._controllers

    def why_not_ready(self) -> list[str]:
        """One line for each thing that keeps :attr:`ready` false."""
        reasons = ["stopping"] if self._stopping_since is not None else []
        for name, informer in self.caches.items():
            if not informer.synced.is_set():
                reasons.append(f"cache of {name} is not complete")
            elif not informer.healthy:
                reasons.append(f"cache of {name} has not heard from the API server lately")
        return reasons

    # -- running --------------------------------------------------------------------------------------------------

    def stop(self, reason: str, exit_code: int = 0) -> None:
        """Begin to stop; the first call decides the reason, the highest exit code counts."""
        self.exit_code = max(self.exit_code, exit_code)
        if self._stopping_since is None:
            self._stopping_since = self._clock.monotonic()
            log.info("stopping", reason=reason, grace=self._grace)
            # Not a task: whatever hangs, no scope of ours can be in its way.
            self._deadline = self._clock.call_later(self._grace, self._out_of_time)
            self._stop.set()

    def _out_of_time(self) -> None:
        """End the process: one that hangs while it stops would neither work nor be replaced."""
        deepest = max((task.depth for task in self._running), default=None)
        hung = [task.name for task in self._running if task.depth == deepest]  # the others wait for these
        log.error("did not stop in time: exiting at once", grace=self._grace, phase=self.phase, still_running=hung)
        self._exit_now(self.exit_code or 1)

    def on_signal(self, signum: int) -> None:
        """First signal: stop in order. Second: exit at once."""
        self._signals += 1
        if self._signals > 1:
            log.warning("second signal: exiting at once", signal=signal.Signals(signum).name)
            self._exit_now(128 + signum)
            return
        self.stop(signal.Signals(signum).name)

    async def run(self, *, handle_signals: bool = True) -> int:
        """Run until stopped, and return the exit status: 0 after a signal or lost leadership, 1 after a crash.

        What does not stop within the grace ends the process instead, with a status that is not 0.
        """
        try:
            return await self._run(handle_signals)
        finally:
            if self._deadline is not None:
                self._deadline.cancel()

    async def _run(self, handle_signals: bool) -> int:
        async with anyio.create_task_group() as servers:
            if handle_signals:
                servers.start_soon(self._receive_signals)
            self._start(servers, self._servers)
            async with anyio.create_task_group() as caches:
                for name, informer in self.caches.items():
                    task = _Task(f"informer {name}", informer.run, must_stay=True, depth=_CACHE)
                    caches.start_soon(self._supervise, task)
                self.phase = "syncing"
                if await self._until_synced():
                    await self._work()
                self.phase = "stopped"
                caches.cancel_scope.cancel()
            servers.cancel_scope.cancel()
        return self.exit_code

    async def _receive_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for signum in signals:
                self.on_signal(signum)

    async def _until_synced(self) -> bool:
        """Wait for the caches; false when stopped first."""
        done = anyio.Event()

        async def wait_all() -> None:
            for informer in self._informers:
                await informer.synced.wait()
            done.set()

        if not await self._race(wait_all, done, self._sync_timeout):
            if self._stopping_since is None:
                for line in self.why_not_ready():
                    log.error(line)
                self.stop(f"caches were not complete within {self._sync_timeout:g} s", exit_code=1)
            return False
        log.info("caches are complete", objects={name: len(i.store) for name, i in self.caches.items()})
        return True

    async def _race(self, fn: Run, done: anyio.Event, timeout: float | None = None) -> bool:
        """Run ``fn`` until it sets ``done``, a stop, or the time-out; whether it was the first."""
        either = anyio.Event()

        async def watch(event: anyio.Event) -> None:
            await event.wait()
            either.set()

        async with anyio.create_task_group() as group:
            group.start_soon(fn)
            group.start_soon(watch, done)
            group.start_soon(watch, self._stop)
            await wait_for(self._clock, either, timeout)
            group.cancel_scope.cancel()
        return done.is_set() and not self._stop.is_set()

    async def _work(self) -> None:
        async with anyio.create_task_group() as common:
            self._start(common, self._common_tasks)
            try:
                if self._election is None or await self._acquire(self._election):
                    await self._lead()
            finally:
                common.cancel_scope.cancel()
        # Also where a stop came first: it may have been acquired meanwhile.
        if self._election is not None and not self._lost.is_set():
            # A third of what is left stays for the caches and the probes.
            await give_back(self._election, self._clock, self._left() * 2 / 3)

    async def _acquire(self, election: Election) -> bool:
        self.phase = "waiting for leadership"
        log.info("waiting for leadership")
        done = anyio.Event()

        async def acquire() -> None:
            try:
                with own_cancellation_only():
                    self._succeeds = await election.acquire()
            except Exception:
                log.exception("cannot take part in leader election")
                self.stop("leader election failed", exit_code=1)
                return
            done.set()

        return await self._race(acquire, done)

    async def _lead(self) -> None:
        async with anyio.create_task_group() as holding:
            if self._election is not None:
                holding.start_soon(self._hold, self._election)
            if not self._succeeds or await self._catch_up():
                await self._lead_work()
            holding.cancel_scope.cancel()

    async def _catch_up(self) -> bool:
        """Read everything anew: the last writes of the leader before may not have come by the watches yet."""
        self.phase = "catching up"
        done = anyio.Event()

        async def refresh() -> None:
            async with anyio.create_task_group() as group:
                for name, informer in self.caches.items():
                    task = _Task(f"reading anew {name}", informer.refresh, must_stay=False, depth=_CACHE)
                    group.start_soon(self._supervise, task)
            done.set()

        return await self._race(refresh, done)

    async def _lead_work(self) -> None:
        self.phase = "working"
        self._working = True
        log.info("working", controllers=[controller.name for controller in self._controllers])
        async with anyio.create_task_group() as group:
            drained = anyio.Event()
            group.start_soon(self._run_controllers, drained)
            self._start(group, self._leader_tasks)
            await self._stop.wait()
            self.phase = "draining"
            if not self._lost.is_set():
                await self._drain(drained)
            group.cancel_scope.cancel()
        self._working = False

    async def _hold(self, election: Election) -> None:
        try:
            with own_cancellation_only():
                await election.hold()
        except Exception:
            log.exception("leadership was lost")
        else:
            log.error("leadership was lost")
        self._lost.set()
        self.stop("leadership was lost")

    async def _run_controllers(self, drained: anyio.Event) -> None:
        async with anyio.create_task_group() as group:
            for controller in self._controllers:
                group.start_soon(self._run_controller, controller)
        drained.set()

    async def _run_controller(self, controller: Controller[Any]) -> None:
        await self._supervise(_Task(f"controller {controller.name}", controller.run, must_stay=False, depth=_LEADER))
        if self._stopping_since is None and self.exit_code == 0:
            log.error("a controller ended although nothing stops", controller=controller.name)
            self.stop(f"controller {controller.name} ended", exit_code=1)

    async def _drain(self, drained: anyio.Event) -> None:
        for controller in self._controllers:
            controller.queue.shut_down(drain=False)
        either = anyio.Event()

        async def watch(event: anyio.Event) -> None:
            await event.wait()
            either.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch, drained)
            group.start_soon(watch, self._lost)
            # A third of the grace stays for Events, the Lease and the probes' last answers.
            if not await wait_for(self._clock, either, self._left() * 2 / 3):
                log.warning("workers did not finish in time; cut off")
            group.cancel_scope.cancel()

    def _left(self) -> float:
        if self._stopping_since is None:
            return self._grace
        return max(0.0, self._stopping_since + self._grace - self._clock.monotonic())

    def _start(self, group: anyio.abc.TaskGroup, tasks: list[_Task]) -> None:
        for task in tasks:
            group.start_soon(self._supervise, task)

    async def _supervise(self, task: _Task) -> None:
        self._running.append(task)
        try:
            with own_cancellation_only():
                await task.run()
        except Exception:
            log.exception("a task crashed", task=task.name)
            self.stop(f"{task.name} crashed", exit_code=1)
            return
        finally:
            self._running.remove(task)
        if task.must_stay and self._stopping_since is None:
            log.error("a task ended although nothing stops", task=task.name)
            self.stop(f"{task.name} ended", exit_code=1)
