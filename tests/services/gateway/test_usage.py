"""The usage ledger: its sums are what the events say, however they are delivered."""

from __future__ import annotations

import asyncio
import csv
import io
import runpy
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.service.prune import Pruning
from libs.store.connections import connect
from services.gateway import eventlog, usage, views
from services.gateway.api.usage_shapes import Usage
from services.gateway.handlers import HANDLERS
from services.gateway.main import WIRING
from services.gateway.rows import EventRow, RunRow, TaskRow, UsageRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import prune_rules
from services.gateway.tables import TABLES
from services.gateway.usage import Amounts, Selection
from tests.kit.clock import START, FakeClock, at
from tests.kit.memory import MemoryPlatform
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    GatewayHarness,
    a_spec,
    assigned,
    exited,
    placements,
    preemption,
    state,
)

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from libs.store.connections import Address
    from libs.store.port import Store

# Histories are in whole hours, so that the oracle can count them hour by hour.
HOUR = timedelta(hours=1)
HOURS_MAX = 100
MIDNIGHT = START.replace(hour=0, minute=0, second=0, microsecond=0)
PEOPLE = (("ann", "vision"), ("bob", "vision"), ("eve", "speech"))
LEVELS = (m.Priority.LOW, m.Priority.NORMAL, m.Priority.AUTO)
CODES = m.ReasonCode
REQUESTS = (
    *(CODES.PREEMPTED_BY, CODES.RECLAIMED_BY, CODES.NODE_DRAINED, CODES.GOAL_PAUSE),
    *(CODES.GOAL_STOP, CODES.MODE_CHANGED, CODES.MAX_RUN_TIME, CODES.START_EXPIRED),
)


KINDS = [each for each in m.ExitKind if each is not m.ExitKind.UNSPECIFIED]
BOTH = (m.PreemptionRequested, m.KillRequested)


def hour(number: int) -> datetime:
    return MIDNIGHT + number * HOUR


# Histories


def a_history(random: Random) -> list[Message]:
    """Tasks with attempts, as their owners publish them, in order."""
    found: list[Message] = []
    for number in range(random.randrange(1, 4)):
        owner, team = random.choice(PEOPLE)
        task = Task(random, f"t{number}", owner, team, random.choice(("default", "training")))
        at = random.randrange(50)
        for attempt in range(1, random.randrange(2, 6)):
            events, end = task.attempt(attempt, at)
            found += events
            if end is None:
                break
            at = end + random.randrange(10)
    return found


@dataclass
class Task:
    """Publishes what happens to the attempts of a task."""

    random: Random
    task_id: str
    owner: str
    team: str
    group: str

    def attempt(self, attempt: int, begin: int) -> tuple[list[Message], int | None]:
        """The events of one attempt, and when it ends; None: it goes on."""
        random, mine = self.random, {"task_id": self.task_id, "attempt": attempt}
        gpus = random.randrange(4)
        places = tuple(
            m.Placement(rank=rank, node_id=f"n{rank // 2}", gpus=tuple(range(gpus)))
            for rank in range(random.randrange(1, 5))
        )
        kind = m.RunAssigned if attempt == 1 else m.RunResumed
        found: list[Message] = [
            self._state(attempt, 0, random.choice(LEVELS)),
            kind(
                **mine,
                owner=self.owner,
                team=self.team,
                spec=a_spec(group=self.group),
                placements=places,
                start_deadline_at=hour(begin + 9),
                assigned_at=hour(begin),
            ),
        ]
        at = begin + random.randrange(3)
        started_at = hour(at) if random.random() < 0.8 else None
        if started_at is not None:
            found.append(m.RunStarted(**mine, started_at=started_at, placements=places))
            found.append(self._state(attempt, 1, random.choice(LEVELS)))
            for number in range(random.randrange(3)):
                at += random.randrange(20)
                no = 10 * attempt + number
                saved = m.Checkpoint(no=no, attempt=attempt, saved_at=hour(at))
                found.append(m.CheckpointSaved(**mine, checkpoint=saved))
        for asks in random.choice(((), (m.PreemptionRequested,), (m.KillRequested,), BOTH)):
            at += random.randrange(1, 5)
            reason = m.Reason(code=random.choice(REQUESTS))
            asked: dict[str, Any] = {**mine, "reason": reason, "requested_at": hour(at)}
            more = {"deadline_at": hour(at + 1)} if asks is m.PreemptionRequested else {}
            found.append(asks(**asked, **more))
        if random.random() < 0.15:
            return found, None
        end = at + random.randrange(20)
        exit_ = m.RunExit(
            attempt=attempt,
            kind=(kind := random.choice(KINDS)),
            exited_at=hour(end),
            yielded=kind is m.ExitKind.PREEMPTED and random.random() < 0.3,
            debug=random.random() < 0.2,
        )
        found.append(m.RunExited(**mine, exit=exit_, placements=places))
        found.append(self._state(attempt, 2, LEVELS[1], exit=exit_))
        if started_at is not None:
            found.append(
                m.UsageRecorded(
                    **mine,
                    group=self.group,
                    owner=self.owner,
                    team=self.team,
                    gpus=gpus * len(places),
                    nodes=len({each.node_id for each in places}),
                    started_at=started_at,
                    ended_at=hour(end),
                )
            )
        return found, end

    def _state(self, attempt: int, step: int, level: m.Priority, **more: Any) -> Message:
        return m.TaskStateChanged(
            task_id=self.task_id,
            version=10 * attempt + step,
            state=m.TaskState.RUNNING,
            attempt=attempt,
            reason=m.Reason(code=CODES.STARTED),
            changed_at=hour(0),
            owner=self.owner,
            team=self.team,
            group=self.group,
            priority=level,
            **more,
        )


def delivered(random: Random, history: Sequence[Message]) -> list[Message]:
    """The same events late, repeated, and in another order."""
    found = [*history, *random.choices(history, k=len(history) // 2)]
    random.shuffle(found)
    return found


async def project(store: Store, messages: Iterable[Message]) -> None:
    """Each event in a transaction of its own, as after redeliveries that the inbox missed."""
    for message in messages:
        async with store.transaction() as tx:
            await HANDLERS[type(message)](tx, message)


# The oracle: from the events alone, hour by hour


Events = Sequence[tuple[str, dict[str, Any]]]
OWNERS_WISH = {
    **dict.fromkeys(("max_run_time", "debug_ended"), "timed_out"),
    "goal_pause": "paused",
    "goal_stop": "stopped",
    "mode_changed": "mode_changed",
    **dict.fromkeys(("start_expired", "start_attempts_used_up"), "lost"),
}


def published(messages: Iterable[Message]) -> Events:
    return [(type(each).__name__, views.plain(each)) for each in messages]


def at_hour(text: str) -> int:
    return int((datetime.fromisoformat(text) - MIDNIGHT) / HOUR)


def outcome_of(mine: Events) -> str:
    exits = [data["exit"] for name, data in mine if name == "RunExited"]
    if not exits:
        return "running" if any(name == "RunStarted" for name, _ in mine) else "starting"
    kind = exits[0]["kind"]
    if exits[0]["yielded"]:
        return "yielded"
    if kind in ("ok", "failed"):
        return "debug" if exits[0]["debug"] else "succeeded" if kind == "ok" else "failed"
    if kind == "lost":
        return "lost"
    asked = sorted(
        (at_hour(data["requested_at"]), data["reason"]["code"])
        for name, data in mine
        if name in ("PreemptionRequested", "KillRequested")
    )
    if not asked:
        return "preempted" if kind == "preempted" else "unknown"
    return OWNERS_WISH.get(asked[0][1], "preempted")


def expected(events: Events, selection: Selection, now: int) -> Counter[tuple[Any, ...]]:
    """(group, amount) -> number, by counting each hour of each attempt."""
    attempts: dict[tuple[str, int], list[tuple[str, dict[str, Any]]]] = {}
    for name, data in events:
        attempts.setdefault((data["task_id"], data["attempt"]), []).append((name, data))
    found: Counter[tuple[Any, ...]] = Counter()
    since, until = (int((at - MIDNIGHT) / HOUR) for at in (selection.since, selection.until))
    for (task_id, _), mine in attempts.items():
        (assigned,) = [data for name, data in mine if name in ("RunAssigned", "RunResumed")][:1]
        begin = at_hour(assigned["assigned_at"])
        ends = [at_hour(data["exit"]["exited_at"]) for name, data in mine if name == "RunExited"]
        starts = [at_hour(data["started_at"]) for name, data in mine if name == "RunStarted"]
        saves = [
            at_hour(data["checkpoint"]["saved_at"])
            for name, data in mine
            if name == "CheckpointSaved"
        ]
        states = [data for name, data in mine if name == "TaskStateChanged"]
        values: dict[str, Any] = {
            "user": assigned["owner"],
            "team": assigned["team"],
            "group": assigned["spec"]["group"],
            "priority": min(states, key=lambda data: data["version"])["priority"],
            "outcome": outcome_of(mine),
            "task": task_id,
        }
        if any(values[name] != value for name, value in selection.filters.items()):
            continue
        gpus = sum(len(each["gpus"]) for each in assigned["placements"])
        nodes = len({each["node_id"] for each in assigned["placements"]})
        lost = {"preempted": "preemption", "failed": "failure", "lost": "failure"}
        for each in range(max(begin, since), min(until, now)):
            values["day"] = f"{hour(each):%Y-%m-%d}"
            key = tuple(values[name] for name in selection.group_by)
            found[key, "attempts"] += each == begin
            if each >= min([*ends, now]):
                continue
            found[key, "held_gpu"] += gpus
            found[key, "held_node"] += nodes
            if each < min([*starts, now]):
                found[key, "starting"] += 1
                found[key, "starting_gpu"] += gpus
            if values["outcome"] in lost and each >= max(saves, default=begin):
                found[key, f"lost_to_{lost[values['outcome']]}_gpu"] += gpus
                found[key, f"lost_to_{lost[values['outcome']]}_node"] += nodes
    return +found


GROUP_BYS = [each for size in range(3) for each in combinations(usage.DIMENSIONS, size)] + [
    usage.DIMENSIONS
]


def a_selection(random: Random, now: int) -> Selection:
    since = random.randrange(-10, now)
    until = min(now, since + random.randrange(1, 120))
    filters = random.choice(({}, {}, {"user": "ann"}, {"team": "vision"}, {"outcome": "preempted"}))
    return Selection(hour(since), hour(until), random.choice(GROUP_BYS), filters)


async def sums_of(store: Store, selection: Selection) -> list[usage.Sums]:
    async with store.transaction() as tx:
        groups = await tx.span_sums(UsageRow, usage.query(selection, 100_000))
    return usage.sums(selection, groups)


def counted(found: Sequence[usage.Sums]) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for each in found:
        for name in Amounts.__slots__:
            amount = getattr(each.amounts, name)
            counts[tuple(each.key.values()), name] = (
                amount if name == "attempts" else amount // 3_600_000_000
            )
    return +counts


async def check(random: Random, store: Store) -> None:
    """One history, delivered in some order, and several questions about it."""
    history = a_history(random)
    await project(store, delivered(random, history))
    now = random.randrange(10, 200)
    for _ in range(6):
        selection = a_selection(random, now)
        found = await sums_of(store, selection)
        assert counted(found) == expected(published(history), selection, now)
        # Whatever the groups are, together they are the whole.
        (whole,) = await sums_of(store, replace(selection, group_by=())) or [None]
        assert usage.total(found) == (whole.amounts if whole else Amounts())


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_sums_are_what_the_events_say_in_whatever_order_they_come(seed: int) -> None:
    asyncio.run(check(Random(seed), MemoryPlatform().store(TABLES)))


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_the_sums_are_what_the_gateways_own_event_log_shows(seed: int) -> None:
    async def run() -> None:
        random, platform = Random(seed), MemoryPlatform()
        store, history = platform.store(TABLES), a_history(random)
        await project(store, [*history, *history])
        log = platform.database.rows(TABLES, EventRow).values()
        assert len(log) == len(history)
        shown = [(eventlog.TYPES[row.type].__name__, row.data) for row in log]
        for _ in range(3):
            selection = a_selection(random, 200)
            assert counted(await sums_of(store, selection)) == expected(shown, selection, 200)

    asyncio.run(run())


# On PostgreSQL


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.mark.slow
@pytest.mark.server
async def test_postgresql_adds_up_the_same(address: Address) -> None:
    store = MemoryPlatform().sql_store(address, TABLES)
    try:
        await check(Random(7), store)
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.server
async def test_the_migration_makes_the_entries_that_the_events_would_have_made(
    address: Address,
) -> None:
    store = MemoryPlatform().sql_store(address, TABLES)
    connection = await connect(address)
    random = Random(3)
    try:
        history = [each for _ in range(3) for each in renamed(a_history(random), random)]
        await project(store, history)
        wanted = [without_level(row) for row in await entries(store)]
        assert len({row.outcome for row in wanted}) > 4
        await connection.execute("DELETE FROM gateway.usage")
        step = "*_pre_usage.py"
        (path,) = (WIRING.migrations / "versions").glob(step)
        await connection.execute(runpy.run_path(str(path))["BACKFILL"])
        assert [without_level(row) for row in await entries(store)] == wanted
    finally:
        await connection.close()
        await store.close()


def renamed(history: Sequence[Message], random: Random) -> list[Message]:
    """The history with tasks of its own, and their submissions."""
    suffix = f"x{random.randrange(10**9)}"
    found: list[Message] = []
    for task_id in {each.task_id for each in history if isinstance(each, m.RunAssigned)}:
        (first,) = [
            each for each in history if isinstance(each, m.RunAssigned) and each.task_id == task_id
        ]
        found.append(
            m.TaskSubmitted(
                task_id=task_id + suffix,
                owner=first.owner,
                team=first.team,
                spec=first.spec,
                submitted_at=START,
                revision=1,
            )
        )
    return found + [
        each.model_copy(update={"task_id": f"{each.task_id}{suffix}"}) for each in history
    ]


def without_level(row: UsageRow) -> UsageRow:
    """Of before the ledger, the level at an attempt's start is not known."""
    return replace(row, priority="", priority_version=0)


async def entries(store: Store) -> list[UsageRow]:
    async with store.transaction() as tx:
        return await tx.select(UsageRow)


# Entries


def recorded(task_id: str, attempt: int = 1) -> m.UsageRecorded:
    return m.UsageRecorded(
        task_id=task_id,
        attempt=attempt,
        owner="ann",
        team="vision",
        group="default",
        gpus=2,
        nodes=1,
        started_at=at(20),
        ended_at=at(60),
    )


async def test_what_quota_remembers_restores_an_entry_without_its_assignment() -> None:
    """As after a loss of the read model: the scheduler has forgotten the attempt."""
    store = MemoryPlatform().store(TABLES)
    started = m.RunStarted(task_id="tt", attempt=1, started_at=at(20), placements=placements(["n"]))
    await project(store, [recorded("tt"), exited("tt"), started])
    (row,) = await entries(store)
    assert (row.user, row.team, row.group, row.priority) == ("ann", "vision", "default", "")
    assert (row.held_from, row.held_until) == (at(20), at(60))
    assert (row.gpus, row.nodes, row.outcome) == (2, 1, "succeeded")


async def test_an_entry_outlives_its_task_and_run_until_it_is_old_itself() -> None:
    clock = FakeClock()
    store = MemoryPlatform(clock).store(TABLES)
    over = state("tt", m.TaskState.SUCCEEDED, 4, attempt=1, finished_at=at(60))
    await project(store, [assigned("tt"), exited("tt"), over])
    kept = GatewaySettings(database_url="-", nats_url="-")
    assert kept.usage_keep_seconds > 2 * kept.tasks_keep_seconds
    prune = Pruning(
        "gateway", store, kept.model_copy(update={"prune_days_per_hour": 0}), prune_rules(kept)
    )
    for keep, left in ((kept.tasks_keep_seconds, 1), (kept.usage_keep_seconds, 0)):
        clock.move_to(keep + 61)
        leadership = await store.lead()
        while await prune.step(leadership.epoch) == 0.0:
            pass
        await leadership.release()
        async with store.transaction() as tx:
            assert await tx.select(TaskRow) == await tx.select(RunRow) == []
            assert len(await tx.select(UsageRow)) == left


# HTTP


WEEK = "from=2026-01-01T00:00:00Z&to=2026-01-08T00:00:00Z"
ALICE = {"owner": "ann", "team": "vision"}


async def with_usage(harness: GatewayHarness) -> None:
    """Ann's run held 2 GPUs for 50 s and was preempted; eve's holds 4 GPUs since second 10."""
    await harness.project(
        assigned("ta").model_copy(update=ALICE),
        m.RunStarted(task_id="ta", attempt=1, started_at=at(15)),
        m.CheckpointSaved(
            task_id="ta", attempt=1, checkpoint=m.Checkpoint(no=1, attempt=1, saved_at=at(40))
        ),
        preemption("ta"),
        exited("ta", 1, m.ExitKind.PREEMPTED),
        assigned("te", 1, ("n1", "n2")).model_copy(update={"owner": "eve", "team": "speech"}),
    )
    harness.clock.move_to(3610)


async def test_usage_is_shown_in_groups_with_a_total(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await with_usage(harness)
    reply = (await admin.get(f"/v1/usage?{WEEK}&group_by=user,outcome")).json()
    assert Usage.model_validate({**reply, "since": reply["from"]})
    ann, eve = reply["items"]
    assert (ann["user"], ann["outcome"], ann["attempts"]) == ("ann", "preempted", 1)
    assert (ann["held_gpu_seconds"], ann["held_node_seconds"]) == (100.0, 50.0)
    assert (ann["starting_seconds"], ann["starting_gpu_seconds"]) == (5.0, 10.0)
    assert ann["lost_to_preemption_gpu_seconds"] == 40.0
    assert ann["lost_to_failure_gpu_seconds"] == 0.0
    # It goes on: until now, which each reading of the clock moves a little.
    assert (eve["user"], eve["outcome"]) == ("eve", "starting")
    assert eve["held_gpu_seconds"] == pytest.approx(4 * 3600, abs=1)
    total = sum(each["held_gpu_seconds"] for each in reply["items"])
    assert reply["total"]["held_gpu_seconds"] == pytest.approx(total)
    cut = (await admin.get("/v1/usage?from=2026-01-01T00:00:20Z&to=2026-01-01T00:00:30Z")).json()
    assert [each["held_gpu_seconds"] for each in cut["items"]] == [60.0]
    assert (cut["items"][0]["attempts"], cut["group_by"]) == (0, [])
    later = (await admin.get("/v1/usage?from=2027-01-01T00:00:00Z&to=2027-01-02T00:00:00Z")).json()
    assert (later["items"], later["total"]["held_gpu_seconds"]) == ([], 0.0)


async def test_usage_is_csv_where_that_is_asked_for(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await with_usage(harness)
    path = f"/v1/usage?{WEEK}&group_by=day,user&user=ann"
    by_header = await admin.get(path, headers={"accept": "text/csv"})
    reply = await admin.get(f"{path}&format=csv")
    assert reply.text == by_header.text
    assert reply.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(reply.text))
    assert (row["day"], row["user"], row["held_gpu_seconds"]) == ("2026-01-01", "ann", "100.0")
    shown = (await admin.get(f"{path}&format=json", headers={"accept": "text/csv"})).json()
    assert shown["items"][0]["day"] == "2026-01-01"


async def test_a_user_sees_the_own_usage_and_the_teams_without_its_users(
    harness: GatewayHarness,
) -> None:
    await with_usage(harness)
    async with harness.client(await harness.member("ann", "vision")) as ann:
        own = (await ann.get(f"/v1/usage?{WEEK}&group_by=user,task")).json()
        assert [(each["user"], each["task"]) for each in own["items"]] == [("ann", "ta")]
        team = await ann.get(f"/v1/usage?{WEEK}&team=vision&group_by=priority,day")
        assert [each["held_gpu_seconds"] for each in team.json()["items"]] == [100.0]
        for query, field in (
            ("user=eve", "user"),
            ("team=speech", "team"),
            ("team=vision&group_by=user", "team"),
            ("team=vision&task=ta", "team"),
        ):
            refused = await ann.get(f"/v1/usage?{WEEK}&{query}")
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, field)
    async with harness.client(await harness.member("bob")) as bob:
        assert (await bob.get(f"/v1/usage?{WEEK}")).json()["items"] == []
        # Who is in no team is not in one without a name.
        assert (await bob.get(f"/v1/usage?{WEEK}&team=")).status_code == 403


@pytest.mark.parametrize("harness", [{"usage_groups_max": 1}], indirect=True)
@pytest.mark.parametrize(
    ("query", "field", "fix"),
    [
        ("from=yesterday", "from", "write it like"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from", "earlier"),
        ("group_by=user,taem", "group_by", "team"),
        ("priority=urgent", "priority", "normal"),
        ("outcome=done", "outcome", "succeeded"),
        ("from=2020-01-01T00:00:00Z&group_by=day", "from", "shorter"),
        (f"{WEEK}&group_by=user", "group_by", "filter"),
        ("format=xml", "format", "json"),
    ],
)
async def test_errors_name_the_field_and_the_fix(
    harness: GatewayHarness, admin: httpx.AsyncClient, query: str, field: str, fix: str
) -> None:
    await with_usage(harness)
    reply = await admin.get(f"/v1/usage?{query}")
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert error["field"] == field
    assert fix in error["fix"]


def activity(until: float, measured: float, idle: float, **more: object) -> m.RunActivityChanged:
    return m.RunActivityChanged.model_validate(
        {
            "task_id": "ta",
            "attempt": 1,
            "measured_from": at(15),
            "measured_until": at(until),
            "measured_gpu_seconds": measured,
            "idle_gpu_seconds": idle,
            **more,
        }
    )


async def test_the_idle_part_of_what_was_held_is_in_usage_and_on_the_task(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(admin))["id"]
    run = assigned(task).model_copy(update=ALICE)
    started = m.RunStarted(task_id=task, attempt=1, started_at=at(15), placements=run.placements)
    newer = activity(35, 40.0, 10.0, task_id=task, gpus=2, idle_gpus=1, idle_since=at(20))
    older = activity(25, 20.0, 20.0, task_id=task, gpus=2)
    await harness.project(run, started)
    await harness.publish(newer, older)

    async def shown() -> bool:
        found = (await admin.get(f"/v1/tasks/{task}")).json().get("activity")
        return found is not None and found["measured_gpu_seconds"] == 40.0

    await until(shown)
    found = (await admin.get(f"/v1/tasks/{task}")).json()["activity"]
    assert (found["gpus"], found["idle_gpus"], found["quiet_since"]) == (2, 1, None)
    assert found["idle_since"].startswith("2026-01-01T00:00:20")
    (attempt,) = (await admin.get(f"/v1/tasks/{task}/runs")).json()["items"]
    assert attempt["activity"] == found
    # 20 s were measured, in which 2 GPUs were idle for 10 s together: a part counts with its part.
    path = f"/v1/usage?task={task}&from=2026-01-01T00:00:15Z&to=2026-01-01T00:00:25Z"
    harness.clock.move_to(60)
    (item,) = (await admin.get(path)).json()["items"]
    assert (item["measured_gpu_seconds"], item["idle_gpu_seconds"]) == (20.0, 5.0)
