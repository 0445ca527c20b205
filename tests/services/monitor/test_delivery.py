"""Messages reach a real receiver over HTTP: signed, tried again, given up, replayed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from libs.contracts.messages import (
    ExitKind,
    ListNotifications,
    ListUndeliveredMessages,
    NotifiedTasks,
    Occasion,
    Reason,
    ReasonCode,
    RemoveNotification,
    ReplayUndeliveredMessages,
    RunExit,
    SetNotification,
    TaskState,
)
from libs.service.wiring import Wiring
from libs.store.memory_database import Point
from libs.store.port import DatabaseFaultError, Store
from services.monitor.main import WIRING
from services.monitor.messages.delivery import Delivery
from services.monitor.messages.mailing import Mailing
from services.monitor.messages.message_outbox import MessageOutbox
from services.monitor.messages.names import Names
from services.monitor.messages.recipients import Recipients
from services.monitor.settings import MonitorSettings
from services.monitor.store import MessageRow, NotificationRow, ReceiverRow, Stage
from services.monitor.tables import TABLES
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.kit.waiting import until
from tests.services.monitor.events import a_change, a_submission
from tests.services.monitor.name_server import name_server
from tests.services.monitor.people import People
from tests.services.monitor.people import serving as answering

SETTINGS = MonitorSettings(
    database_url="-",
    nats_url="-",
    webhook_networks="127.0.0.0/8",
    webhook_seconds_max=0.5,
    delivery_tries_max=3,
    waiting_messages_max=30,
    notifications_per_owner_max=2,
)
SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    return ServiceHarness(platform, WIRING, SETTINGS, store=store)


@pytest.fixture(autouse=True)
async def people(platform: MemoryPlatform) -> AsyncGenerator[People]:
    """The gateway; everybody is there."""
    async with answering(platform, People(everybody=True)) as found:
        yield found


@dataclass
class Receiver:
    """A real HTTP server; ``answer`` decides what it answers."""

    answer: Callable[[], Awaitable[int]]
    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(
        default_factory=list[tuple[dict[str, str], bytes]]
    )

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.requests]


@contextlib.asynccontextmanager
async def receiving(status: int = 200, seconds: float = 0.0) -> AsyncGenerator[Receiver]:
    async def answer() -> int:
        await asyncio.sleep(seconds)
        return status

    receiver = Receiver(answer)

    async def take(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        receiver.requests.append((headers, await request.read()))
        code = await receiver.answer()
        # A redirect that leads to itself, and a body without an end worth reading.
        return web.Response(status=code, headers={"location": receiver.url}, body=b"x" * 100_000)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def subscribe(service: ServiceHarness, url: str, name: str = "mine", **changes: Any) -> Any:
    command: dict[str, Any] = {
        "owner": "ann",
        "name": name,
        "url": url,
        "occasions": (Occasion.STARTED, Occasion.FAILED, Occasion.QUOTA_REACHED, Occasion.WAITING),
        "tasks": NotifiedTasks.OWN,
    }
    reply = await service.ask(SetNotification(**(command | changes)))
    assert reply.refusal is None, reply.refusal
    return reply


def a_delivery(
    service: ServiceHarness, settings: MonitorSettings = SETTINGS, names: Names | None = None
) -> Delivery:
    ports = service.service.ports
    recipients = Recipients(ports.bus, ports.store)
    mailing = Mailing(ports.store, ports.clock, settings, recipients)
    return Delivery(
        *(ports.store, ports.clock, settings, MessageOutbox(30), mailing, recipients),
        names or Names(),
    )


async def deliver(service: ServiceHarness, delivery: Delivery | None = None) -> None:
    """What is due now, to the end."""
    await service.lead()
    assert service.epoch is not None
    async with asyncio.TaskGroup() as group:
        await (delivery or a_delivery(service)).begin(service.epoch, group)


async def stages(service: ServiceHarness) -> list[tuple[str, Stage, int]]:
    rows: list[MessageRow] = await service.rows(MessageRow)
    return sorted((row.task_id, row.stage, row.tries) for row in rows)


async def test_a_message_is_signed_with_the_secret_that_was_shown_once(
    service: ServiceHarness,
) -> None:
    async with receiving() as receiver:
        secret = (await subscribe(service, receiver.url)).secret
        await service.handle(a_submission(service), a_change(service, 1, TaskState.RUNNING))
        await deliver(service)
        ((headers, body),) = receiver.requests
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["webhook-timestamp"] == str(int(service.clock.now().timestamp()))
    assert json.loads(body)["type"] == "task.started"
    assert json.loads(body)["data"] | {"reason": ""} == {
        "task_id": "t1",
        "name": "train",
        "owner": "ann",
        "team": "vision",
        "group": "train",
        "attempt": 0,
        "state": "running",
        "reason": "",
    }
    assert await stages(service) == [("t1", Stage.DELIVERED, 1)]
    listed = await service.ask(ListNotifications(owner="ann"))
    assert secret not in repr(listed)
    assert secret.removeprefix("whsec_") not in repr(await service.ask(ListNotifications()))
    # Setting it again keeps the secret, and shows none.
    assert (await subscribe(service, receiver.url)).secret == ""


async def test_the_end_of_a_task_comes_with_how_it_ended(service: ServiceHarness) -> None:
    await subscribe(service, "https://example.org/", occasions=tuple(Occasion)[1:])
    ended = RunExit(kind=ExitKind.FAILED, exited_at=service.clock.now(), detail="rank 0 ended")
    await service.handle(
        a_change(service, 1, TaskState.FAILED, exit=ended),
        a_change(service, 1, TaskState.SUCCEEDED, "t2", exit=ended),
    )
    rows: list[MessageRow] = await service.rows(MessageRow)
    found = [json.loads(row.body) for row in rows]
    assert [(each["type"], each["data"]["exit_kind"], each["data"]["exit"]) for each in found] == [
        ("task.failed", "failed", "rank 0 ended"),
        ("task.finished", "failed", "rank 0 ended"),
    ]


async def test_an_event_that_comes_again_adds_no_message(service: ServiceHarness) -> None:
    async with receiving() as receiver:
        await subscribe(service, receiver.url)
        event = a_change(service, 1, TaskState.RUNNING)
        await service.handle(event, event, a_change(service, 2, TaskState.RUNNING))
        await deliver(service)
        assert receiver.ids() == ["t1.started.1.ann.mine"]


async def test_a_slow_receiver_and_a_dead_one_delay_no_other(service: ServiceHarness) -> None:
    async with receiving(seconds=30) as slow, receiving() as quick:
        await subscribe(service, slow.url, "slow")
        await subscribe(service, "http://127.0.0.1:1/", "dead")
        await subscribe(service, quick.url, "quick", owner="bob", tasks=NotifiedTasks.ALL)
        await service.handle(*(a_change(service, 1, TaskState.RUNNING, f"t{n}") for n in range(20)))
        await service.lead()
        assert service.epoch is not None
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            delivery = a_delivery(service)
            await delivery.begin(service.epoch, group)
            await until(lambda: len(quick.requests) == 20)
            assert len(slow.requests) == 1
        assert asyncio.get_running_loop().time() - begun < 5
        # What failed once holds back what waits for the same receiver, and nothing else.
        await deliver(service, delivery)
        assert (len(slow.requests), len(quick.requests)) == (1, 20)


async def test_slow_receivers_with_many_messages_leave_places_to_other_owners(
    service: ServiceHarness,
) -> None:
    """They take everything, slowly, and were first: more of theirs is due than is read at once, and
    they have more receivers than there are places."""
    settings = SETTINGS.model_copy(update={"webhooks_at_once": 4, "webhook_seconds_max": 5.0})
    async with receiving(seconds=0.5) as slow, receiving() as quick:
        now = service.clock.now()
        for owner, name in [(f"eve{n % 2}", f"n{n}") for n in range(8)]:
            row = NotificationRow(owner, name, slow.url, "", NotifiedTasks.ALL, "", SECRET, now)
            ids = [f"t{n}.{owner}.{name}" for n in range(150)]
            await service.put(
                row,
                *(
                    MessageRow(
                        each, owner, name, "t1", Occasion.STARTED, "{}", now, Stage.WAITING, now
                    )
                    for each in ids
                ),
            )
        service.clock.advance(60)
        await subscribe(service, quick.url, "quick", owner="bob")
        await service.handle(a_change(service, 1, TaskState.RUNNING, "b1", owner="bob"))
        await service.lead()
        assert service.epoch is not None
        delivery = a_delivery(service, settings)
        await delivery.step(service.epoch)
        running = asyncio.create_task(delivery.run())
        try:
            await until(lambda: len(quick.requests) == 1)
            assert slow.requests
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 500, 503])
async def test_what_is_refused_is_tried_again_given_up_and_replayed_with_the_same_id(
    service: ServiceHarness, status: int
) -> None:
    async with receiving(status) as receiver:
        await subscribe(service, receiver.url)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        for tries in range(1, 4):
            await deliver(service)
            assert len(receiver.requests) == tries, "a redirect is not followed"
            await deliver(service)
            assert len(receiver.requests) == tries, "nothing is tried before its pause is over"
            service.clock.advance(3600)
        assert await stages(service) == [("t1", Stage.DEAD, 3)]
        (dead,) = (await service.ask(ListUndeliveredMessages(owner="ann", name="mine"))).undelivered
        assert (dead.task_id, dead.tries, str(status) in dead.problem) == ("t1", 3, True)
        assert (
            await service.ask(ReplayUndeliveredMessages(owner="ann", name="mine"))
        ).messages == 1

        async def accept() -> int:
            return 204

        receiver.answer = accept
        await deliver(service)
        assert await stages(service) == [("t1", Stage.DELIVERED, 1)]
        assert len(set(receiver.ids())) == 1


async def test_a_message_that_a_receiver_refuses_holds_back_no_other(
    service: ServiceHarness,
) -> None:
    async with receiving() as receiver:
        answers = iter([400, 200, 200])

        async def answer() -> int:
            return next(answers)

        receiver.answer = answer
        await subscribe(service, receiver.url)
        await service.handle(*(a_change(service, 1, TaskState.RUNNING, f"t{n}") for n in range(3)))
        await deliver(service)
        assert sorted(stage for _, stage, _ in await stages(service)) == [
            Stage.DELIVERED,
            Stage.DELIVERED,
            Stage.WAITING,
        ]


async def test_a_receiver_that_fails_for_days_is_paused_until_it_is_set_again(
    service: ServiceHarness,
) -> None:
    async with receiving(503) as receiver:
        await subscribe(service, receiver.url)
        for day in range(5):
            await service.handle(a_change(service, 1, TaskState.RUNNING, f"t{day}"))
            await deliver(service)
            service.clock.advance(86_400)
        tried = len(receiver.requests)
        (shown,) = (await service.ask(ListNotifications(owner="ann"))).notifications
        assert shown.paused_at is not None
        assert "503" in shown.problem
        assert shown.undelivered == 5
        await deliver(service)
        assert len(receiver.requests) == tried
        await subscribe(service, receiver.url)
        (shown,) = (await service.ask(ListNotifications(owner="ann"))).notifications
        assert (shown.paused_at, shown.problem) == (None, "")


async def test_410_pauses_a_receiver_at_once(service: ServiceHarness) -> None:
    async with receiving(410) as receiver:
        await subscribe(service, receiver.url)
        await service.handle(*(a_change(service, 1, TaskState.RUNNING, f"t{n}") for n in range(3)))
        await deliver(service)
        assert len(receiver.requests) == 1
        assert [stage for _, stage, _ in await stages(service)] == [Stage.DEAD] * 3


async def test_a_name_that_leads_into_the_site_is_not_connected_to(
    service: ServiceHarness,
) -> None:
    """``localhost`` is inside; a form of the URL cannot show that, only its address."""
    async with receiving() as receiver:
        settings = SETTINGS.model_copy(update={"webhook_networks": "10.1.0.0/16"})
        await subscribe(service, receiver.url.replace("127.0.0.1", "localhost"))
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await deliver(service, a_delivery(service, settings))
        assert receiver.requests == []
        (row,) = await service.rows(MessageRow)
        assert "is no address that this site sends to" in row.problem


async def test_an_error_does_not_tell_which_names_the_site_knows(
    service: ServiceHarness,
) -> None:
    # One that leads into the site as well as elsewhere is no receiver either.
    known = {"known": ["10.9.9.9"], "both": ["127.0.0.1", "10.9.9.9"]}
    async with name_server(**known) as server, closing_names(server.where) as names:
        hosts = ("known.lab.test", "both.lab.test", "unknown.lab.test")
        for number, host in enumerate(hosts):
            await subscribe(service, f"https://{host}/", owner=f"user{number}")
            change = a_change(service, 1, TaskState.RUNNING, f"t{number}", owner=f"user{number}")
            await service.handle(change)
        await deliver(service, a_delivery(service, names=names))
        assert {host for host in hosts if host in server.asked} == set(hosts)
    rows = sorted(await service.rows(MessageRow), key=lambda row: row.owner)
    found = [row.problem.replace(host, "HOST") for row, host in zip(rows, hosts, strict=True)]
    assert found == ["HOST is no address that this site sends to"] * 3


async def test_a_name_server_that_does_not_answer_delays_the_webhooks_of_that_name_alone(
    service: ServiceHarness,
) -> None:
    slow = [f"slow{number}" for number in range(20)]
    async with (
        receiving() as receiver,
        name_server(*slow, quick=["127.0.0.1"]) as server,
        closing_names(server.where) as names,
    ):
        port = receiver.url.rpartition(":")[2]
        for name in slow:
            await subscribe(service, f"http://{name}.lab.test:{port}", owner=name)
            await service.handle(a_change(service, 1, TaskState.RUNNING, f"t{name}", owner=name))
        service.clock.advance(1)
        await subscribe(service, f"http://quick.lab.test:{port}", owner="bob")
        await service.handle(a_change(service, 1, TaskState.RUNNING, "b1", owner="bob"))
        await service.lead()
        assert service.epoch is not None
        threads = threading.active_count()
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            await a_delivery(service, names=names).begin(service.epoch, group)
            await until(lambda: len(receiver.requests) == 1)
            await until(lambda: {f"{name}.lab.test" for name in slow} <= set(server.asked))
            # Whatever uses the threads of the process goes on, too.
            assert threading.active_count() <= threads + 1
            begun = loop.time()
            await asyncio.to_thread(int)
            assert loop.time() - begun < 0.3
        assert receiver.ids() == ["b1.started.1.bob.mine"]
        rows: list[MessageRow] = await service.rows(MessageRow)
        problems = {row.problem for row in rows if row.owner != "bob"}
        assert problems == {"no answer within 0.5 s"}


@contextlib.asynccontextmanager
async def closing_names(server: str) -> AsyncGenerator[Names]:
    names = Names([server])
    try:
        yield names
    finally:
        await names.close()


async def test_no_more_messages_wait_for_a_receiver_than_the_setting_says(
    service: ServiceHarness,
) -> None:
    await subscribe(service, "http://127.0.0.1:1/")
    await service.handle(*(a_change(service, 1, TaskState.RUNNING, f"t{n}") for n in range(40)))
    found = [stage for _, stage, _ in await stages(service)]
    assert (found.count(Stage.WAITING), found.count(Stage.DEAD)) == (30, 10)


async def test_a_notification_is_about_the_tasks_and_occasions_that_it_names(
    service: ServiceHarness,
) -> None:
    url = "https://example.org/"
    await subscribe(service, url, "own")
    await subscribe(service, url, "team", tasks=NotifiedTasks.TEAM, team="vision")
    await subscribe(service, url, "all", owner="root", tasks=NotifiedTasks.ALL)
    await service.handle(
        a_change(service, 1, TaskState.RUNNING, "t1"),
        a_change(service, 1, TaskState.RUNNING, "t2", owner="bob"),
        a_change(service, 1, TaskState.RUNNING, "t3", owner="bob", team="speech"),
        # No occasion of these notifications.
        a_change(service, 2, TaskState.SUCCEEDED, "t1"),
        a_change(service, 2, TaskState.PREEMPTING, "t2"),
    )
    rows: list[MessageRow] = await service.rows(MessageRow)
    assert sorted((row.name, row.task_id) for row in rows) == [
        ("all", "t1"),
        ("all", "t2"),
        ("all", "t3"),
        ("own", "t1"),
        ("team", "t1"),
        ("team", "t2"),
    ]


async def test_a_message_names_no_other_task_that_its_notification_does_not_reach(
    service: ServiceHarness,
) -> None:
    """The API calls such a task ``hidden-1``, so a message does too."""
    url = "https://example.org/"
    for owner, tasks in (
        ("ann", NotifiedTasks.OWN),
        ("bob", NotifiedTasks.OWN),
        ("eve", NotifiedTasks.TEAM),
        ("root", NotifiedTasks.ALL),
    ):
        team = "vision" if tasks is NotifiedTasks.TEAM else ""
        occasions = (Occasion.PREEMPTED,)
        await subscribe(service, url, owner=owner, tasks=tasks, team=team, occasions=occasions)
    anns, bobs, speechs, unknown = (f"t{letter * 20}" for letter in "abcd")
    await service.handle(
        a_change(service, 1, TaskState.RUNNING, anns),
        a_change(service, 1, TaskState.RUNNING, bobs, owner="bob"),
        a_change(service, 1, TaskState.RUNNING, speechs, owner="amy", team="speech"),
    )
    for version, other in enumerate((anns, bobs, speechs, unknown), start=1):
        event = a_change(service, version, TaskState.PREEMPTING, anns)
        reason = Reason(code=ReasonCode.RECLAIMED_BY, names={"task": other, "cluster": "vision"})
        await service.handle(
            event.model_copy(update={"version": 2 * version, "reason": reason}),
            a_change(service, 2 * version + 1, TaskState.RUNNING, anns),
        )
    found: dict[str, list[str]] = {}
    for row in sorted(await service.rows(MessageRow), key=lambda row: row.id):
        data = json.loads(row.body)["data"]
        assert data["task_id"] == anns
        named = re.findall(r"hidden-\d|t[a-z]{20}", data["reason"])
        found.setdefault(row.owner, []).extend(named)
    assert found == {
        "ann": [anns, "hidden-1", "hidden-1", "hidden-1"],
        "eve": [anns, bobs, "hidden-1", "hidden-1"],
        "root": [anns, bobs, speechs, "hidden-1"],
    }


async def test_a_quota_that_is_used_up_is_notified_once_for_each_stay_in_the_queue(
    service: ServiceHarness,
) -> None:
    await subscribe(service, "https://example.org/", occasions=(Occasion.QUOTA_REACHED,))
    states = [
        (TaskState.QUEUED, ReasonCode.WAITS_FOR_QUOTA),
        (TaskState.QUEUED, ReasonCode.WAITS_FOR_CAPACITY),
        (TaskState.QUEUED, ReasonCode.WAITS_FOR_QUOTA),
        (TaskState.RUNNING, ReasonCode.QUEUED),
        (TaskState.QUEUED, ReasonCode.WAITS_FOR_QUOTA),
    ]
    for version, (state, reason) in enumerate(states, start=1):
        await service.handle(a_change(service, version, state, reason=reason))
    rows: list[MessageRow] = await service.rows(MessageRow)
    assert [row.id for row in rows] == [
        "t1.quota_reached.1.ann.mine",
        "t1.quota_reached.5.ann.mine",
    ]


async def test_a_task_that_waits_for_long_is_notified_once(service: ServiceHarness) -> None:
    await subscribe(service, "https://example.org/", occasions=(Occasion.WAITING,))
    await service.handle(a_submission(service))
    await service.lead()
    await service.step("waiting")
    assert await service.rows(MessageRow) == []
    service.clock.advance(SETTINGS.waiting_seconds + 1)
    await service.step("waiting")
    await service.step("waiting")
    (row,) = await service.rows(MessageRow)
    data = json.loads(row.body)["data"]
    assert data["waited_seconds"] == 3601
    assert data["reason"] == (
        "in the queue for 1 h: is new in the queue; nothing is decided about it yet"
    )
    assert data["suggestion"] == "shiftwork explain t1"


async def test_a_long_wait_is_notified_with_the_reasons_sentence(service: ServiceHarness) -> None:
    await subscribe(service, "https://example.org/", occasions=(Occasion.WAITING,))
    change = a_change(service, 1, TaskState.QUEUED)
    reason = Reason(code=ReasonCode.WAITS_FOR_CAPACITY)
    await service.handle(change.model_copy(update={"reason": reason}))
    await service.lead()
    service.clock.advance(SETTINGS.waiting_seconds + 1)
    await service.step("waiting")
    (row,) = await service.rows(MessageRow)
    found = json.loads(row.body)["data"]["reason"]
    assert found == "in the queue for 1 h: waits for free capacity"


async def test_a_notification_that_cannot_be_read_holds_back_no_other(
    platform: MemoryPlatform,
) -> None:
    service = ServiceHarness(platform, WIRING, SETTINGS)
    async with receiving() as receiver:
        await subscribe(service, receiver.url, "bad")
        await subscribe(service, receiver.url, "good", owner="bob", tasks=NotifiedTasks.ALL)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        platform.database.break_row(TABLES, NotificationRow, "ann", "bad", column="tasks")
        await deliver(service)
        assert receiver.ids() == ["t1.started.1.bob.good"]
        rows: list[MessageRow] = await service.rows(MessageRow)
        (kept,) = [row for row in rows if row.name == "bad"]
        assert (kept.stage, kept.problem) == (Stage.WAITING, "the notification cannot be read")


async def test_a_receiver_whose_row_cannot_be_read_gets_messages_again(
    platform: MemoryPlatform,
) -> None:
    service = ServiceHarness(platform, WIRING, SETTINGS)
    async with receiving(503) as failing, receiving() as receiver:
        await subscribe(service, failing.url, "bad")
        await subscribe(service, receiver.url, "good", owner="bob", tasks=NotifiedTasks.ALL)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await deliver(service)
        platform.database.break_row(TABLES, ReceiverRow, "ann", "bad", column="failures")
        await service.handle(a_change(service, 2, TaskState.FAILED))
        for _ in range(2):
            service.clock.advance(10)
            await deliver(service)
        assert receiver.ids() == ["t1.started.1.bob.good", "t1.failed.2.bob.good"]
        (row,) = await service.rows(ReceiverRow)
        assert (row.name, "503" in row.problem) == ("bad", True)


@pytest.mark.parametrize("point", [Point.BEGIN, Point.BEFORE_COMMIT])
async def test_a_fault_of_the_database_does_not_end_the_delivery(
    platform: MemoryPlatform, point: Point
) -> None:
    service = ServiceHarness(platform, WIRING, SETTINGS)
    faults = 0

    async def fault(reached: Point, schema: str) -> None:
        nonlocal faults
        del schema
        if reached is point:
            faults += 1
            raise DatabaseFaultError("InsufficientPrivilegeError (42501): permission denied")

    async with receiving() as receiver:
        await subscribe(service, receiver.url)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await service.lead()
        assert service.epoch is not None
        quick = SETTINGS.model_copy(update={"delivery_tick_seconds": 0.02})
        delivery = a_delivery(service, quick)
        no_fault, platform.database.fault = platform.database.fault, fault
        await delivery.step(service.epoch)
        running = asyncio.ensure_future(delivery.run())
        await until(lambda: faults > 0 or running.done())
        await asyncio.sleep(0.2)
        assert not running.done()
        assert len(receiver.requests) <= 1, "what was not recorded is not sent again at once"
        platform.database.fault = no_fault
        service.clock.advance(61)

        def delivered() -> bool:
            (row,) = platform.database.rows(TABLES, MessageRow).values()
            return row.stage is Stage.DELIVERED

        await until(delivered)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_notifications_are_bounded_and_a_removed_one_gets_nothing(
    service: ServiceHarness,
) -> None:
    async with receiving() as receiver:
        await subscribe(service, receiver.url, "one")
        await subscribe(service, receiver.url, "two")
        third = SetNotification(
            owner="ann",
            name="three",
            url=receiver.url,
            occasions=(Occasion.STARTED,),
            tasks=NotifiedTasks.OWN,
        )
        assert "has 2 notifications, the most" in (await service.ask(third)).refusal.detail
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        for name in ("one", "two"):
            assert (await service.ask(RemoveNotification(owner="ann", name=name))).refusal is None
        missing = await service.ask(RemoveNotification(owner="ann", name="one"))
        assert missing.refusal.detail == "ann has no notification named one"
        await deliver(service)
        assert receiver.requests == []


def test_the_pauses_of_the_settings_end_within_a_week() -> None:
    default = MonitorSettings(database_url="-", nats_url="-")
    assert timedelta(seconds=default.delivery_failing_seconds_max) < timedelta(days=7)
