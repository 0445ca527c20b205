"""The queue as HTTP shows it; its order is the scheduler's."""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path

import httpx
import pytest

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from services.gateway import main as gateway_main
from services.gateway import queue_views
from services.gateway.auth import Identity
from services.gateway.permissions import Role
from services.gateway.queue_cursors import QueueCursors
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import GatewayHarness


def waiting(number: int, *, group: str = "default", **how: object) -> m.WaitingTask:
    row: dict[str, object] = {
        "task_id": f"t{number}",
        "name": f"train-{number}",
        "owner": "ann",
        "team": "vision",
        "group": group,
        "position": number + 1,
        "priority": m.Priority.AUTO,
        "level": m.Priority.NORMAL,
        "gpus": 8,
        "nodes": 1,
        "submitted_at": at(0),
        "waiting_since": at(1),
        "reason": m.Reason(code=m.ReasonCode.WAITS_FOR_CAPACITY, numbers={"nodes": 1, "gpus": 8}),
    }
    return m.WaitingTask(**{**row, **how})  # type: ignore[arg-type]


def questions(harness: GatewayHarness) -> list[m.ListQueue]:
    """What the scheduler was asked for."""
    return [each for each in harness.others.asked if isinstance(each, m.ListQueue)]


async def test_the_queue_shows_who_waits_in_the_schedulers_order_and_why(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    quota = m.Reason(
        code=m.ReasonCode.WAITS_FOR_QUOTA,
        names={"user": "ann", "unit": m.Unit.GPUS.value},
        numbers={"limit": 4, "need": 8},
    )
    harness.others.queue = [
        waiting(4),
        waiting(2, reason=quota),
        waiting(3, promised_nodes=1, promised_until=at(60)),
    ]
    reply = await ann.get("/v1/queue")
    assert reply.status_code == 200, reply.text
    page = reply.json()
    assert [row["id"] for row in page["items"]] == ["t4", "t2", "t3"]
    assert (page["listed_at"], page["next_cursor"]) == ("2026-01-01T00:00:05Z", None)
    first, limited, promised = page["items"]
    assert first == {
        "id": "t4",
        "name": "train-4",
        "owner": "ann",
        "team": "vision",
        "group": "default",
        "position": 5,
        "priority": "auto",
        "level": "normal",
        "gpus": 8,
        "nodes": 1,
        "submitted_at": "2026-01-01T00:00:00Z",
        "waiting_since": "2026-01-01T00:00:01Z",
        "reason": first["reason"],
        "waits_for": {"kind": "nodes", "tasks_ahead": 4, "promised_nodes": 0, "until": None},
        "granted": False,
        "hidden": False,
    }
    assert first["reason"]["code"] == "waits_for_capacity"
    assert limited["waits_for"]["kind"] == "quota"
    assert (limited["reason"]["user"], limited["reason"]["limit"]) == ("ann", 4)
    assert promised["waits_for"]["until"] == "2026-01-01T00:01:00Z"


async def test_a_retry_in_the_past_is_not_shown_as_one_to_come(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    harness.others.queue = [waiting(0, not_before_at=at(4)), waiting(1, not_before_at=at(6))]
    rows = (await ann.get("/v1/queue")).json()["items"]
    assert [row["waits_for"]["until"] for row in rows] == [None, "2026-01-01T00:00:06Z"]


async def test_a_page_is_made_of_as_many_answers_as_it_takes(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    harness.others.queue = [waiting(number) for number in range(7)]
    harness.others.queue_page_max = 2
    first = (await ann.get("/v1/queue?limit=5")).json()
    assert [row["id"] for row in first["items"]] == ["t0", "t1", "t2", "t3", "t4"]
    second = (await ann.get(f"/v1/queue?limit=5&cursor={first['next_cursor']}")).json()
    assert ([row["id"] for row in second["items"]], second["next_cursor"]) == (["t5", "t6"], None)
    assert [each.limit for each in questions(harness)] == [5, 3, 1, 5]


async def test_one_group_alone(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    harness.others.queue = [waiting(0), waiting(1, group="dev")]
    found = (await ann.get("/v1/queue?group=dev")).json()["items"]
    assert [row["id"] for row in found] == ["t1"]


async def test_a_text_that_is_no_cursor_is_named(ann: httpx.AsyncClient) -> None:
    reply = await ann.get("/v1/queue?cursor=nonsense")
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "cursor"


async def test_without_a_leading_scheduler_the_answer_says_so_and_what_to_do(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    harness.broker.partition("scheduler")
    reply = await ann.get("/v1/queue")
    assert (reply.status_code, reply.json()["type"]) == (503, "unavailable")
    assert "the scheduler does not answer" in reply.json()["detail"]
    assert reply.headers["retry-after"]
    harness.broker.heal()


def test_a_hidden_task_keeps_its_place_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_views, "is_visible", lambda _caller, task: task.owner == "bob")
    caller = Identity("bob", Role.USER, "", "")
    rows = [queue_views.row(caller, each, at(5)) for each in (waiting(0), waiting(1, owner="bob"))]
    assert rows[0] == {
        **dict.fromkeys(rows[1]),
        "hidden": True,
        "position": 1,
        "group": "default",
        "gpus": 8,
        "nodes": 1,
        "priority": "auto",
        "level": "normal",
    }
    assert (rows[1]["id"], rows[1]["hidden"]) == ("t1", False)


@pytest.mark.parametrize(
    "harness", [{"queue_questions_per_user_max": 1, "queue_waiting_max": 2}], indirect=True
)
async def test_a_user_who_asks_too_often_at_once_is_refused(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """One question is being answered, one waits for it; the scheduler hears of no third."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_command: m.ListQueue) -> None:
        asked.set()
        await go_on.wait()

    harness.others.before_queue = slow
    first = asyncio.ensure_future(ann.get("/v1/queue"))
    await asked.wait()
    second = asyncio.ensure_future(ann.get("/v1/queue"))
    await asyncio.sleep(0.01)
    third = await ann.get("/v1/queue")
    assert (third.status_code, third.headers["retry-after"]) == (429, "1")
    assert len(questions(harness)) == 1
    go_on.set()
    assert [(await each).status_code for each in (first, second)] == [200, 200]


def test_the_bus_lets_the_gateway_send_every_command_that_its_code_names() -> None:
    """What is missing in its wiring works with the memory bus, and is refused by a real server."""
    folder = Path(inspect.getfile(gateway_main)).parent
    named: set[type[Message]] = set()
    for path in folder.rglob("*.py"):
        if path.name == "main.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            kind = getattr(m, name, None) if name else None
            if kind in ROUTES and ROUTES[kind].kind is Kind.COMMAND:
                named.add(kind)
    assert len(named) > 20
    assert {each.__name__ for each in named - set(gateway_main.WIRING.requests)} == set()


async def test_a_cursor_tells_nothing_and_is_good_at_every_process(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """The scheduler's own names the last task of the page, which may be hidden."""
    harness.others.queue = [waiting(number) for number in range(4)]
    first = (await ann.get("/v1/queue?limit=1")).json()["next_cursor"]
    again = (await ann.get("/v1/queue?limit=1")).json()["next_cursor"]
    assert first != again
    # The place that the scheduler of these tests gives is a plain number.
    assert questions(harness)[-1].after == ""
    key = harness.settings.queue_cursor_key()
    assert key is not None
    elsewhere = QueueCursors(key)
    assert (elsewhere.open(first), elsewhere.open(elsewhere.seal("3"))) == ("1", "3")
    page = (await ann.get(f"/v1/queue?limit=1&cursor={elsewhere.seal('3')}")).json()
    assert [row["id"] for row in page["items"]] == ["t3"]
    # Neither a place of the scheduler's nor a changed cursor is taken.
    for bad in ("1", first[:-4] + "AAAA", QueueCursors(b"x" * 32).seal("1")):
        reply = await ann.get(f"/v1/queue?limit=1&cursor={bad}")
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "cursor")
