"""The projection: whatever order, however often, the same facts make the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.store.memory_database import MemoryDatabase
from services.gateway import eventlog, views
from services.gateway import rows as r
from services.gateway.handlers import HANDLERS
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.services.gateway.gateway_harness import (
    a_node,
    a_spec,
    assigned,
    exited,
    preemption,
    state,
)


def quota(version: int, limit: int, *, removed: bool = False) -> m.QuotaChanged:
    return m.QuotaChanged(
        group_token="default",
        quota=m.Quota(group="default", unit=m.Unit.GPUS, limit=limit),
        removed=removed,
        version=version,
        changed_by="admin",
        changed_at=at(version),
    )


def checkpoint(no: int, attempt: int) -> m.CheckpointSaved:
    saved = m.Checkpoint(no=no, attempt=attempt, step=no * 10, uri=f"/c/{no}", saved_at=at(no))
    return m.CheckpointSaved(task_id="tt", attempt=attempt, checkpoint=saved)


def delayed(attempt: int, second: float, detail: str, ranks: int = 1) -> m.RunDelayed:
    return m.RunDelayed(
        task_id="tt", attempt=attempt, ranks=ranks, detail=detail, noted_at=at(second)
    )


LIFE: list[Message] = [
    m.TaskSubmitted(
        task_id="tt", owner="ann", team="vision", spec=a_spec(), submitted_at=at(0), revision=1
    ),
    m.GoalChanged(task_id="tt", goal=m.Goal.PAUSE, revision=2, changed_by="ann", changed_at=at(1)),
    m.PriorityChanged(
        task_id="tt", priority=m.Priority.HIGH, revision=3, changed_by="ann", changed_at=at(2)
    ),
    m.GoalChanged(task_id="tt", goal=m.Goal.RUN, revision=4, changed_by="ann", changed_at=at(3)),
    m.ModeChanged(
        task_id="tt", mode=m.RunMode.NORMAL, revision=2, changed_by="ann", changed_at=at(1)
    ),
    m.ModeChanged(
        task_id="tt", mode=m.RunMode.DEBUG, revision=3, changed_by="ann", changed_at=at(2)
    ),
    m.RankEnded(
        task_id="tt",
        attempt=1,
        exit=m.RankExit(rank=1, code=3),
        role="worker",
        noted_at=at(7),
    ),
    state("tt", m.TaskState.STARTING, 2, attempt=1),
    state("tt", m.TaskState.RUNNING, 3, attempt=1, started_at=at(5), observed_revision=4),
    state("tt", m.TaskState.PREEMPTING, 4, attempt=1, started_at=at(5), observed_revision=4),
    state("tt", m.TaskState.QUEUED, 5, attempt=1, started_at=at(5), observed_revision=4),
    state("tt", m.TaskState.STARTING, 6, attempt=2, started_at=at(5), observed_revision=4),
    assigned("tt", 1),
    delayed(1, 4, "rank 0 on n0: image a/b cannot be pulled"),
    m.RunStarted(task_id="tt", attempt=1, started_at=at(5)),
    m.RunListened(task_id="tt", attempt=1, asked_at=at(6)),
    checkpoint(1, 1),
    preemption("tt", 1),
    checkpoint(2, 1),
    m.KillRequested(
        task_id="tt",
        attempt=1,
        reason=m.Reason(code=m.ReasonCode.ACK_EXPIRED),
        requested_at=at(50),
    ),
    exited("tt", 1, m.ExitKind.KILLED, 137),
    assigned("tt", 2, ("n1",)),
    delayed(2, 61, "rank 0 on n1: is being scheduled"),
    delayed(2, 66, "rank 0 on n1: image a/b cannot be pulled"),
    a_node("n0", 1),
    a_node("n0", 2, ready=False),
    a_node("n0", 3, removed=True),
    quota(1, 8),
    quota(2, 4),
    quota(3, 4, removed=True),
]


async def project(messages: Sequence[Message]) -> MemoryDatabase:
    """Each message in a transaction of its own, as after redeliveries the inbox did not catch."""
    platform = MemoryPlatform()
    store = platform.store(TABLES)
    for message in messages:
        async with store.transaction() as tx:
            await HANDLERS[type(message)](tx, message)
    return platform.database


KINDS = (r.TaskRow, r.RunRow, r.UsageRow, r.NodeRow, r.QuotaRow)


def rows(database: MemoryDatabase) -> dict[Any, Any]:
    return {kind: dict(database.rows(TABLES, kind)) for kind in KINDS}


IN_ORDER = rows(asyncio.run(project(LIFE)))


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_events_in_any_order_and_repeated_make_the_same_rows(seed: int) -> None:
    random = Random(seed)
    messages = LIFE + random.choices(LIFE, k=8)
    random.shuffle(messages)
    database = asyncio.run(project(messages))
    assert rows(database) == IN_ORDER
    # And every fact is in the log once, at positions without a gap.
    log = database.rows(TABLES, r.EventRow)
    assert sorted(log) == list(range(1, len(LIFE) + 1))
    assert len({row.fact for row in log.values()}) == len(LIFE)


def test_the_events_of_a_whole_life_make_the_expected_rows() -> None:
    (task,) = IN_ORDER[r.TaskRow].values()
    assert (task.goal, task.priority, task.revision) == ("run", "high", 4)
    assert (task.state, task.attempt, task.observed_revision) == ("starting", 2, 4)
    assert task.checkpoint.no == 2
    assert task.exit.attempt == 1
    first, second = (IN_ORDER[r.RunRow][("tt", attempt)] for attempt in (1, 2))
    assert (first.live, second.live) == (False, True)
    assert first.preempt_deadline_at == at(90)
    assert first.kill_requested_at == at(50)
    assert first.delayed is None
    assert second.delayed.detail == "rank 0 on n1: image a/b cannot be pulled"
    assert IN_ORDER[r.NodeRow]["n0"].removed
    (limit,) = IN_ORDER[r.QuotaRow].values()
    assert (limit.limit, limit.removed) == (4, True)


def test_what_starts_while_a_run_runs_is_shown_until_it_runs() -> None:
    started = m.RunStarted(task_id="tt", attempt=1, started_at=at(5))
    early = delayed(1, 4, "rank 0 on n0: is being scheduled")
    later = delayed(1, 9, "role b waits until role a runs").model_copy(update={"running": True})
    clear = delayed(1, 20, "", ranks=0).model_copy(update={"running": True})

    def shown(*messages: Message) -> str | None:
        database = asyncio.run(project([assigned("tt", 1), *messages]))
        (row,) = database.rows(TABLES, r.RunRow).values()
        found = views.delay(row.delayed)
        return None if found is None else str(found["detail"])

    assert shown(early, started) is None
    assert shown(started, early) is None
    for order in ((early, started, later), (later, early, started), (started, later, early)):
        assert shown(*order) == "role b waits until role a runs"
    assert shown(started, later, clear) is None
    assert shown(started, clear, later) is None


def test_a_task_that_is_not_submitted_yet_is_not_shown() -> None:
    database = asyncio.run(project([state("tt", m.TaskState.RUNNING, 3, attempt=1)]))
    (row,) = database.rows(TABLES, r.TaskRow).values()
    assert row.submitted_at is None


def test_every_event_that_people_can_see_has_a_name_a_time_and_a_key() -> None:
    events = {kind for kind, route in ROUTES.items() if route.kind is Kind.EVENT}
    # A full list is the launcher's word to the scheduler and submit.
    assert set(HANDLERS) == set(eventlog.FACTS) == events - {m.InventoryListed}
    for message in LIFE:
        fact = eventlog.FACTS[type(message)]
        assert eventlog._read(message, fact.at).tzinfo is not None
        assert all(eventlog._read(message, part) for part in fact.key)


@pytest.mark.parametrize("message", LIFE, ids=lambda message: type(message).__name__)
def test_events_are_shown_without_environments_and_with_short_enum_names(message: Message) -> None:
    shown = str(views.plain(message))
    assert "hush" not in shown
    assert "SECRET" not in shown
    assert not [word for word in ("PRIORITY_", "GOAL_", "TASK_STATE_", "REASON_") if word in shown]


def test_a_stop_while_a_run_is_asked_to_go_shortens_the_deadline_that_is_shown() -> None:
    first = preemption("tt", 1)
    sooner = first.model_copy(update={"requested_at": at(40), "deadline_at": at(70)})
    for messages in ([first, sooner], [sooner, first], [first, sooner, first]):
        database = asyncio.run(project([assigned("tt", 1), *messages]))
        run = database.rows(TABLES, r.RunRow)["tt", 1]
        assert run.preempt_deadline_at == at(70)


def test_the_code_of_a_gang_is_that_of_the_rank_that_failed_first() -> None:
    """The others were ended because of it; of an older exit that is not known."""
    ranks = (m.RankExit(rank=0, signal=9), m.RankExit(rank=1, code=3))
    ended = m.RunExit(attempt=1, kind=m.ExitKind.FAILED, ranks=ranks, exited_at=at(1))
    assert views.exit_code(ended) == 137
    assert views.exit_code(ended.model_copy(update={"failed_rank": 1})) == 3


def test_the_facts_of_an_exit_are_shown_as_words_and_those_of_an_older_one_are_empty() -> None:
    rank = m.RankExit(rank=0, code=137, fault=m.Fault.OUT_OF_MEMORY)
    older = m.RunExit(
        attempt=1, kind=m.ExitKind.FAILED, ranks=(m.RankExit(rank=0, code=1),), exited_at=at(1)
    )
    ended = older.model_copy(
        update={
            "ranks": (rank,),
            "fault_class": m.FaultClass.USER,
            "fault": m.Fault.OUT_OF_MEMORY,
            "final": True,
        }
    )
    for exit_, words in (
        (ended, ("user", "out_of_memory", True, "out_of_memory")),
        (older, ("", "", False, "")),
    ):
        shown = views.run_exit(exit_)
        assert shown is not None
        facts = (shown["fault_class"], shown["fault"], shown["final"])
        assert (*facts, shown["ranks"][0]["fault"]) == words


def test_the_retries_that_are_used_are_shown_by_limit() -> None:
    event = state("tt", m.TaskState.QUEUED, 2, attempt=1)
    counted = event.model_copy(
        update={"retries_used": 1, "class_retries": m.ClassRetries(transient=2), "version": 3}
    )
    none = {"max_retries": 0, "user": 0, "transient": 0, "platform": 0, "unknown": 0}
    for events, expected in (
        ([event], none),
        ([event, counted], {**none, "max_retries": 1, "transient": 2}),
        ([counted, event], {**none, "max_retries": 1, "transient": 2}),
    ):
        database = asyncio.run(project(events))
        row = database.rows(TABLES, r.TaskRow)["tt"]
        assert views.task(row, secrets=False)["retries_used"] == expected
