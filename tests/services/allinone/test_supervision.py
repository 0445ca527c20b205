from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.nats import Nats
from services.allinone.embedded.wire import CannotCheckError, nats_answers, postgres_answers
from services.allinone.supervision import (
    Observation,
    PartStatuses,
    Policy,
    Record,
    State,
    decide,
    pause_seconds,
    starting,
    supervise,
    supervise_server,
)

POLICY = Policy()
WELL = Observation(alive=True)
SILENT = Observation(alive=True, problem="no answer")
DEAD = Observation(alive=False, problem="was ended by signal SIGKILL")
UNKNOWN = Observation(alive=True, problem="no descriptors left", wait=True)


def test_pauses_double_from_the_first_to_the_most() -> None:
    pauses = [pause_seconds(POLICY, deaths) for deaths in range(1, 11)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert pause_seconds(POLICY, 10**9) == 30


def test_a_healthy_part_is_up_since_it_was_first_seen_so() -> None:
    record = decide(POLICY, starting(Record("p"), 0), WELL, 1)
    assert (record.state, record.since) == (State.UP, 1)
    assert decide(POLICY, record, WELL, 5).since == 1


def test_silence_is_borne_for_so_many_looks_in_a_row() -> None:
    record = decide(POLICY, Record("p"), WELL, 0)
    states = []
    for now in range(1, POLICY.silent_checks_max + 1):
        record = decide(POLICY, record, SILENT, now)
        states.append(record.state)
    assert states == [State.SILENT] * (POLICY.silent_checks_max - 1) + [State.DOWN]
    assert record.problem == "no answer"


def test_a_server_is_left_alone_while_the_supervisor_lacks_the_resources_to_check_it() -> None:
    record = decide(POLICY, Record("p"), WELL, 0)
    for now in range(1, 100):
        record = decide(POLICY, record, UNKNOWN, now)
    assert (record.state, record.silent_checks, record.restarts) == (State.UP, 0, 0)
    assert record.problem == "no descriptors left"
    dead = decide(POLICY, record, replace(UNKNOWN, alive=False), 100)
    assert dead.state is State.DOWN


async def test_a_process_without_descriptors_does_not_take_its_servers_for_dead(
    tmp_path: Path,
) -> None:
    """EMFILE while asking is our own exhaustion; the servers are not asked, and not restarted."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    listening = await asyncio.start_unix_server(lambda *_: None, tmp_path / "socket")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(CannotCheckError, match="Too many open files"):
            await postgres_answers(tmp_path / "socket", 1.0)
        with pytest.raises(CannotCheckError, match="Too many open files"):
            await nats_answers(1, "user", "password", 1.0)
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        listening.close()


def test_one_answer_resets_the_count_of_silent_checks() -> None:
    record = decide(POLICY, Record("p"), SILENT, 1)
    record = decide(POLICY, record, WELL, 2)
    assert (record.state, record.silent_checks, record.problem) == (State.UP, 0, "")


def test_a_dead_process_is_restarted_at_once_if_it_was_well_for_long() -> None:
    record = replace(decide(POLICY, Record("p"), WELL, 0), deaths=7)
    soon = decide(POLICY, record, DEAD, 59)
    assert soon.start_at == 59 + pause_seconds(POLICY, 8)
    late = decide(POLICY, record, DEAD, 60)
    assert late.start_at == pytest.approx(60.2)
    seen_well = decide(POLICY, record, WELL, 60)
    assert seen_well.deaths == 0


def test_a_part_that_flaps_waits_longer_each_time() -> None:
    """The part starts well each time and dies a second later: a short uptime resets no back-off."""
    record, now, waits = Record("p"), 0.0, []
    for _ in range(6):
        record = decide(POLICY, record, WELL, now)
        record = decide(POLICY, record, DEAD, now + 1)
        waits.append(record.start_at - now - 1)
        now = record.start_at
        record = starting(record, now)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert record.restarts == 6


observations = st.lists(
    st.tuples(st.sampled_from([WELL, SILENT, DEAD]), st.floats(0.1, 100)), max_size=40
)


@given(observations)
def test_whatever_is_seen_the_next_start_is_within_bounds(
    seen: list[tuple[Observation, float]],
) -> None:
    record, now = starting(Record("p"), 0.0), 0.0
    for sight, after in seen:
        now += after
        record = decide(POLICY, record, sight, now)
        assert (record.state is State.UP) == (sight is WELL)
        assert (record.problem == "") == (sight is WELL)
        if sight is DEAD:
            assert record.state is State.DOWN
        if record.state is State.DOWN:
            pause = record.start_at - now
            assert POLICY.first_pause_seconds * 0.999 <= pause <= POLICY.most_pause_seconds * 1.001
            record = starting(record, now)
        assert record.silent_checks < POLICY.silent_checks_max


class Done(BaseException):
    """Ends a loop that never ends."""


@dataclass
class Time:
    """Moves only when somebody waits."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    ends_at: float = 1e9

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        if self.now >= self.ends_at:
            raise Done
        await asyncio.sleep(0)


@dataclass
class Scripted:
    """A server that fails its first starts, and its check at given times."""

    time: Time
    fails: int = 0
    silent: tuple[float, float] = (1e9, 1e9)
    dies_at: list[float] = field(default_factory=list)
    name: str = "scripted"
    alive: bool = False
    did: list[tuple[float, str]] = field(default_factory=list)

    async def start(self) -> None:
        self.did.append((round(self.time.now, 3), "start"))
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the port is taken")
        self.alive = True

    async def healthy(self) -> str:
        if self.dies_at and self.time.now >= self.dies_at[0]:
            self.dies_at.pop(0)
            self.alive = False
        if not self.alive:
            return "it is dead"
        first, last = self.silent
        if first <= self.time.now < last:
            raise TimeoutError("no answer")
        return ""

    async def stop(self) -> None:
        self.did.append((round(self.time.now, 3), "stop"))
        self.alive = False


async def keep(
    part: Scripted, statuses: PartStatuses | None = None, **options: object
) -> PartStatuses:
    statuses = statuses or PartStatuses()
    with pytest.raises(Done):
        await supervise_server(
            part, statuses, now=lambda: part.time.now, wait=part.time.wait, **options
        )
    return statuses


async def test_a_server_that_does_not_start_is_tried_with_growing_pauses() -> None:
    part = Scripted(Time(ends_at=20), fails=3)
    statuses = await keep(part)
    starts = [at for at, what in part.did if what == "start"]
    assert starts == pytest.approx([0.2, 0.6, 1.4, 3.0])
    assert statuses.records["scripted"].state is State.UP
    assert statuses.records["scripted"].restarts == 4


async def test_a_server_that_dies_is_stopped_started_and_repaired() -> None:
    part = Scripted(Time(ends_at=20), alive=True, dies_at=[5.0])
    repaired: list[float] = []

    async def repair() -> None:
        repaired.append(part.time.now)

    await keep(part, repaired=repair)
    assert part.did == [(5.2, "stop"), (5.2, "start")]
    assert repaired == [5.2]


async def test_a_repair_that_fails_is_a_start_that_failed() -> None:
    part = Scripted(Time(ends_at=20), alive=True, dies_at=[5.0])
    tries: list[float] = []

    async def repair() -> None:
        tries.append(round(part.time.now, 3))
        if len(tries) < 3:
            raise OSError("no stream yet")

    await keep(part, repaired=repair)
    assert tries == pytest.approx([5.2, 5.6, 6.4])


async def test_a_server_that_hangs_is_ended_after_its_checks() -> None:
    part = Scripted(Time(ends_at=20), alive=True, silent=(5.0, 7.0))
    await keep(part)
    # Checks at 5.0, 5.5, 6.0, 6.5; then the first pause.
    assert part.did == [(6.7, "stop"), (6.7, "start")]


async def test_a_short_silence_is_no_reason() -> None:
    part = Scripted(Time(ends_at=20), alive=True, silent=(5.0, 6.0))
    await keep(part)
    assert part.did == []


async def test_a_service_that_dies_is_restarted_and_the_status_file_says_why() -> None:
    time, lives = Time(ends_at=2.0), [0]

    async def run() -> None:
        lives[0] += 1
        if lives[0] == 2:
            return
        raise ValueError("a bug")

    statuses = PartStatuses()
    with pytest.raises(Done):
        await supervise("quota", run, statuses, now=lambda: time.now, wait=time.wait)
    assert time.waits == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert lives == [4]
    assert statuses.as_json()["quota"]["problem"] == "ValueError: a bug"


async def test_cancelling_ends_the_service_and_is_not_a_death() -> None:
    statuses, began = PartStatuses(), asyncio.Event()

    async def run() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(supervise("quota", run, statuses))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert statuses.records["quota"].state is State.UP


async def test_the_status_file_is_written_when_something_changes(tmp_path: Path) -> None:
    statuses = PartStatuses(tmp_path / "parts.json")
    record = decide(POLICY, Record("postgresql"), WELL, 0)
    statuses.report(record)
    written = json.loads(statuses.file.read_text())
    assert written["postgresql"]["state"] == "up"
    assert stat.S_IMODE(statuses.file.stat().st_mode) == 0o600
    inode = statuses.file.stat().st_ino
    statuses.report(decide(POLICY, record, WELL, 1))
    assert statuses.file.stat().st_ino == inode
    statuses.report(decide(POLICY, record, DEAD, 2))
    written = json.loads(statuses.file.read_text())
    assert written["postgresql"]["state"] == "down"
    assert "SIGKILL" in written["postgresql"]["problem"]


async def test_a_status_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    statuses = PartStatuses(tmp_path / "missing" / "parts.json")
    statuses.report(decide(POLICY, Record("p"), WELL, 0))
    assert statuses.records["p"].state is State.UP


def back(statuses: PartStatuses) -> bool:
    record = statuses.records.get("nats")
    return record is not None and record.restarts == 1 and record.state is State.UP


@pytest.mark.server
async def test_a_real_server_is_back_after_kill_9(tmp_path: Path) -> None:
    server, statuses = Nats(tmp_path, ensure_credentials(tmp_path), {}), PartStatuses()
    await server.start()
    quick = replace(POLICY, check_seconds=0.02, first_pause_seconds=0.02)
    keeping = asyncio.ensure_future(supervise_server(server, statuses, policy=quick))
    try:
        first = server.child
        first.kill_now()
        async with asyncio.timeout(10):
            while not back(statuses):  # noqa: ASYNC110 - polls another task's work
                await asyncio.sleep(0.01)
        assert await server.healthy() == ""
        assert server.child.pid != first.pid
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await server.stop()
