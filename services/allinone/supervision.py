"""Restarts the parts of one machine: servers that die or hang, services that end.

Called by ``up`` with its embedded servers and its services. What to do is a pure function of what
was observed (``decide``); the two loops of this module only check, wait and call. The state of
every part goes to ``PartStatuses``, whose file ``doctor`` reads while ``up`` goes on.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Protocol

from libs.service import observability
from libs.service.clock import Clock, SystemClock
from libs.service.loop import pause
from services.allinone.embedded.credentials import write_private
from services.allinone.embedded.wire import RestartWouldNotHelpError

_PROBLEM_CHARACTERS_MAX = 500
_log = observability.log("supervision")


class State(Enum):
    """The state of a part."""

    STARTING = "starting"
    UP = "up"
    # It lives but does not answer; not yet for long enough to be ended.
    SILENT = "silent"
    # It is dead, or as good as; it is started (again) at ``start_at``.
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Policy:
    """Pauses and limits of the supervision."""

    first_pause_seconds: float = 0.2
    most_pause_seconds: float = 30.0
    # A part that was up for so long has recovered: its next death is answered at once.
    recovered_seconds: float = 60.0
    check_seconds: float = 0.5
    # So many checks in a row without an answer, and a living part is taken for hung.
    silent_checks_max: int = 4


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one check of a part. ``problem`` is empty if all is well."""

    alive: bool
    problem: str = ""
    # A restart now would not help: its disk is full, or the check could not be made for a reason of
    # this process's own.
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The known state of one part. Times are seconds of a monotonic clock."""

    name: str
    state: State = State.STARTING
    # Since when it is in this state; and when it is to be started, if it is down.
    since: float = 0.0
    start_at: float = 0.0
    # Deaths since it last recovered, checks without an answer in a row, starts after the first.
    deaths: int = 0
    silent_checks: int = 0
    restarts: int = 0
    problem: str = ""


def decide(policy: Policy, record: Record, observation: Observation, now: float) -> Record:
    """Return the new state of a part after an observation. Pure.

    In the state DOWN the caller ends the part (if it lives) and starts it at ``start_at``.
    """
    if observation.alive and not observation.problem:
        up_since = record.since if record.state is State.UP else now
        recovered = now - up_since >= policy.recovered_seconds
        return replace(
            record,
            state=State.UP,
            since=up_since,
            deaths=0 if recovered else record.deaths,
            silent_checks=0,
            problem="",
        )
    if observation.alive and observation.wait:
        return replace(record, problem=observation.problem[:_PROBLEM_CHARACTERS_MAX])
    problem = observation.problem[:_PROBLEM_CHARACTERS_MAX] or "it ended"
    silent = record.silent_checks + 1
    if observation.alive and silent < policy.silent_checks_max:
        since = record.since if record.state is State.SILENT else now
        return replace(
            record, state=State.SILENT, since=since, silent_checks=silent, problem=problem
        )
    was_up_long = record.state is State.UP and now - record.since >= policy.recovered_seconds
    deaths = 1 if was_up_long else record.deaths + 1
    return replace(
        record,
        state=State.DOWN,
        since=now,
        start_at=now + pause_seconds(policy, deaths),
        deaths=deaths,
        silent_checks=0,
        problem=problem,
    )


def pause_seconds(policy: Policy, deaths: int) -> float:
    """How long to wait before a start after so many deaths in a row: doubling, bounded."""
    doublings = min(max(deaths, 1) - 1, 62)
    return min(policy.most_pause_seconds, policy.first_pause_seconds * 2.0**doublings)


def starting(record: Record, now: float) -> Record:
    """The part is being started."""
    again = record.state is State.DOWN
    return replace(
        record, state=State.STARTING, since=now, restarts=record.restarts + (1 if again else 0)
    )


@dataclass
class PartStatuses:
    """How all parts fare, in memory and, for other processes, in a private file."""

    file: Path | None = None
    clock: Clock = field(default_factory=SystemClock)
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    _changed_at: dict[str, str] = field(default_factory=dict[str, str])

    def report(self, record: Record) -> None:
        """Take note; a change of state is logged and written down."""
        before = self.records.get(record.name)
        self.records[record.name] = record
        if before is not None and _shown(before) == _shown(record):
            return
        self._changed_at[record.name] = self.clock.now().isoformat()
        self._say(record)
        if self.file is not None:
            try:
                write_private(self.file, json.dumps(self.as_json(), indent=1) + "\n")
            except OSError as problem:
                # A full disk must not stop what keeps the database running.
                _log.warning("status not written", file=str(self.file), problem=str(problem))

    def as_json(self) -> dict[str, dict[str, object]]:
        """Every part with its state, since when (UTC), restarts, and what is wrong."""
        return {
            name: {
                "state": record.state.value,
                "since": self._changed_at[name],
                "restarts": record.restarts,
                "problem": record.problem,
            }
            for name, record in self.records.items()
        }

    def _say(self, record: Record) -> None:
        values = {
            key: asdict(record)[key] for key in ("restarts", "problem") if asdict(record)[key]
        }
        bad = record.state in (State.SILENT, State.DOWN) or record.problem
        report = _log.warning if bad else _log.info
        report(f"{record.state.value}", part=record.name, **values)


def _shown(record: Record) -> tuple[State, int, bool]:
    """What other processes are to know at once; the words of a problem may change meanwhile."""
    return (record.state, record.restarts, bool(record.problem))


class Part(Protocol):
    """A server that is kept. ``start`` waits until it serves; any error means that it does not."""

    @property
    def name(self) -> str:
        """The name of the part, for people."""
        ...

    @property
    def alive(self) -> bool:
        """False if its process has ended, or there never was one."""
        ...

    async def start(self) -> None:
        """Start it; it is not running."""
        ...

    async def healthy(self) -> str:
        """Empty if it serves; otherwise what is wrong. RestartWouldNotHelpError if it is to be
        left alone nevertheless.
        """
        ...

    async def stop(self) -> None:
        """End it, however it is."""
        ...


async def supervise_server(
    part: Part,
    statuses: PartStatuses,
    *,
    policy: Policy | None = None,
    repaired: Callable[[], Awaitable[None]] | None = None,
    now: Callable[[], float] = monotonic,
    wait: Callable[[float], Awaitable[None]] = pause,
) -> None:
    """Watch a server for ever, and start it again when it has died or hangs.

    It may run already. ``repaired`` is called after each start, as part of it: to make again what a
    server that lost its data has lost. Cancelled, it leaves the server as it is.
    """
    policy = policy or Policy()
    record = starting(Record(part.name), now())
    statuses.report(record)
    while True:
        observation = await _observe(part)
        record = decide(policy, record, observation, now())
        statuses.report(record)
        while record.state is State.DOWN:
            await wait(max(0.0, record.start_at - now()))
            record = starting(record, now())
            statuses.report(record)
            problem = await _restart(part, repaired)
            if problem:
                record = decide(policy, record, Observation(alive=False, problem=problem), now())
                statuses.report(record)
        if record.state is not State.STARTING or observation.wait:
            await wait(policy.check_seconds)


async def _observe(part: Part) -> Observation:
    try:
        problem = await part.healthy()
    except RestartWouldNotHelpError as error:
        return Observation(alive=part.alive, problem=str(error), wait=True)
    except Exception as error:  # noqa: BLE001 - a check that fails is an unhealthy part
        problem = f"{type(error).__name__}: {error}"
    return Observation(alive=part.alive, problem=problem)


async def _restart(part: Part, repaired: Callable[[], Awaitable[None]] | None) -> str:
    try:
        await part.stop()
        await part.start()
        if repaired is not None:
            await repaired()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again later
        return f"{type(error).__name__}: {error}"
    return ""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    statuses: PartStatuses,
    *,
    policy: Policy | None = None,
    now: Callable[[], float] = monotonic,
    wait: Callable[[float], Awaitable[None]] = pause,
) -> None:
    """Run a service of this process for ever: when it ends, for whatever reason, run it again."""
    policy = policy or Policy()
    record = Record(name)
    while True:
        record = starting(record, now())
        statuses.report(record)
        record = decide(policy, record, Observation(alive=True), now())
        statuses.report(record)
        try:
            await run()
            problem = "it ended without being asked to"
        except Exception as error:  # noqa: BLE001 - the others go on, and it comes back
            problem = f"{type(error).__name__}: {error}"
            _log.exception("service died", part=name)
        record = decide(policy, record, Observation(alive=False, problem=problem), now())
        statuses.report(record)
        await wait(max(0.0, record.start_at - now()))
