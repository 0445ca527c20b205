"""Explain beside the leader: in copies of the process, bounded, and holding up nobody."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import pytest_asyncio
import structlog.testing

from libs.contracts.messages import ExplainReply, Forecast, Priority, ReasonCode
from services.scheduler import explaining, forks, store
from services.scheduler.domain.explain import explanation, forecast
from services.scheduler.domain.explain.explanation import explain
from services.scheduler.domain.explain.forecast import NO_TIME
from tests.kit.builders import a_node, a_task, started_event, submitted_event
from tests.services.scheduler.domain.explain.copies import Copies, copy_of
from tests.services.scheduler.scheduler_harness import SchedulerHarness


async def busy(**settings: object) -> SchedulerHarness:
    """One node, a run on it, and two tasks that wait."""
    made = await SchedulerHarness(**settings).start(a_node("n0"))
    await made.handle(submitted_event(a_task("runs")))
    await made.settle()
    await made.handle(started_event(await made.task("runs")))
    await made.handle(*(submitted_event(a_task(name, submitted=1)) for name in ("one", "two")))
    await made.settle()
    return made


@pytest_asyncio.fixture
async def scheduler() -> SchedulerHarness:
    return await busy()


def slow(
    monkeypatch: pytest.MonkeyPatch, seconds: float, then: Callable[[], object] = lambda: None
) -> None:
    """Explanations take so long, in the copy that makes them."""
    real = explaining.work

    def work(*arguments: object) -> Iterator[ExplainReply]:
        time.sleep(seconds)
        then()
        yield from real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(explaining, "work", work)


async def test_a_waiting_task_is_explained(scheduler: SchedulerHarness) -> None:
    reply = await scheduler.explained("two")
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert (reply.position, reply.queue_length) == (2, 2)
    assert reply.remedies[0] == (
        "raise its priority to above_normal (`shiftwork priority two above_normal`):"
        " 1 run would be asked to go (runs)"
    )
    assert reply.forecast is not None


async def test_an_explanation_does_not_block_the_leader(
    scheduler: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is made, events are handled, rounds decide and the loop turns."""
    slow(monkeypatch, 1.0)
    asked = asyncio.ensure_future(scheduler.explained("two"))
    # Its copy has begun.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH, submitted=2)))
    await scheduler.settle()
    assert (await scheduler.task("high")).promised
    assert not asked.done()
    # The reply describes the time of the request.
    assert (await asked).queue_length == 2
    assert (await scheduler.explained("two")).queue_length == 3


async def test_a_simulation_in_a_copy_changes_nothing_in_the_leader(
    scheduler: SchedulerHarness,
) -> None:
    before = await scheduler.tasks()
    await scheduler.explained("one")
    await scheduler.settle()
    assert await scheduler.tasks() == before


async def test_an_explanation_that_takes_too_long_is_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await busy(explain_seconds_max=0.2)
    slow(monkeypatch, 60.0)
    began = time.monotonic()
    reply = await scheduler.explained("two")
    assert time.monotonic() - began < 30
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert reply.forecast is not None
    assert reply.forecast.unknown == NO_TIME


async def test_a_copy_that_dies_does_not_affect_the_leader(
    scheduler: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 0.0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    reply = await scheduler.explained("two")
    assert reply.forecast is not None
    assert reply.forecast.unknown == NO_TIME


async def test_a_defect_in_an_explanation_is_reported_as_one(
    scheduler: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no lack of time: the log has an error, and what was computed before it is answered."""

    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("planted")

    monkeypatch.setattr(explanation, "forecast", fails)
    with structlog.testing.capture_logs() as logs:
        reply = await scheduler.explained("two")
    assert reply.forecast == Forecast(unknown=explaining.FAILED)
    assert (reply.position, reply.queue_length) == (2, 2)
    assert reply.remedies
    (entry,) = [each for each in logs if each["event"] == "explanation failed"]
    assert (entry["log_level"], entry["task"]) == ("error", "two")
    assert "RuntimeError: planted" in entry["problem"]


async def test_a_defect_in_a_copy_of_a_copy_is_reported_too(
    scheduler: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise RuntimeError("planted")

    monkeypatch.setattr(forecast, "_played", fails)
    reply = await scheduler.explained("two")
    assert reply.forecast == Forecast(unknown=explaining.FAILED)


async def test_the_same_question_shares_an_answer_and_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await busy(explain_processes_max=1, explain_waiting_max=1)
    slow(monkeypatch, 0.3)
    same = [asyncio.ensure_future(scheduler.explained("two")) for _ in range(3)]
    await asyncio.sleep(0)
    other = await scheduler.explained("one")
    assert other.forecast is not None
    assert other.forecast.unknown == explaining.BUSY
    first, *others = await asyncio.gather(*same)
    assert all(each is first for each in others)


def test_a_copy_holds_none_of_the_leaders_connections() -> None:
    """A database connection that stayed open in it would keep a dead leader's lock."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # Like those of a leader with many connections: above the pipe on which the copy answers.
        high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 200)
        try:
            connections = (ours.fileno(), theirs.fileno(), high)
            opened = forks.call(lambda: [[_open(each) for each in connections]], 10.0)
            assert opened == [False, False, False]
            assert all(map(_open, connections))
        finally:
            os.close(high)


def _open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_an_exception_in_a_copy_is_no_answer() -> None:
    def fails() -> Iterator[int]:
        raise ValueError
        yield 1

    with pytest.raises(forks.NoAnswerError, match="ValueError"):
        forks.call(fails, 10.0)


def test_a_copy_ends_when_its_time_is_over_and_what_it_found_before_counts() -> None:
    def first(results: list[int]) -> Iterator[int]:
        yield from results
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(forks.NoAnswerError):
        forks.call(lambda: first([]), 0.2)
    assert forks.call(lambda: first([1, 2]), 2.0) == 2
    assert time.monotonic() - began < 30


async def test_a_copy_of_the_process_gives_the_same_answer_as_a_copy_of_the_rows() -> None:
    """A fork equals an index that is rebuilt from the rows."""
    # With all the time that it takes: an answer that is cut off depends on the machine.
    scheduler = await busy(explain_seconds_max=60)
    index, _ = await store.load(scheduler.store, scheduler.settings.policy())
    task = index.tasks["two"]
    of_rows = explain(copy_of(index), task, scheduler.clock.now(), Copies()).reply
    assert await scheduler.explained("two") == of_rows
