"""What became of messages, and what waits, is counted by channel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from libs.contracts.messages import NotifiedTasks, RemoveNotification, TaskState
from libs.service.wiring import Wiring
from libs.store.port import Store
from services.monitor.main import WIRING
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.monitor import test_delivery as webhooks
from tests.services.monitor import test_mail as mails
from tests.services.monitor.events import a_change
from tests.services.monitor.people import People, a_user, serving
from tools.cluster.access import ensure_certificates

PREFIX = "shiftwork_monitor_message"


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    settings = webhooks.SETTINGS.model_copy(
        update={"mail_host": "127.0.0.1", "notifications_per_owner_max": 9}
    )
    return ServiceHarness(platform, WIRING, settings, store=store)


@pytest.fixture
async def people(platform: MemoryPlatform) -> AsyncGenerator[People]:
    async with serving(platform, People(a_user("ann", mail="ann@lab.test"))) as found:
        yield found


def _series() -> Iterator[tuple[str, float]]:
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                labels = (sample.labels.get(name, "") for name in ("channel", "why"))
                short = sample.name.removeprefix(PREFIX).removeprefix("s").removeprefix("_")
                yield " ".join([short.removesuffix("_total"), *labels]).strip(), sample.value


def changes(before: Mapping[str, float]) -> dict[str, float]:
    now = dict(_series())
    return {name: value - before[name] for name, value in now.items() if value != before[name]}


def test_series_of_alerts_are_there_before_the_first_event() -> None:
    """An increase from nothing would not be seen."""
    shown = generate_latest().decode()
    for channel in ("webhook", "mail"):
        assert f'{PREFIX}s_sent_total{{channel="{channel}"}}' in shown
        for why in ("no_way", "unknown", "unreachable", "refused", "gone"):
            assert f'{PREFIX}_tries_failed_total{{channel="{channel}",why="{why}"}}' in shown
        for why in ("failed", "paused or full", "not permitted or removed", "unreadable"):
            assert f'{PREFIX}s_given_up_total{{channel="{channel}",why="{why}"}}' in shown


async def test_webhooks_are_counted_by_what_became_of_them(
    service: ServiceHarness, people: People
) -> None:
    before = dict(_series())
    async with webhooks.receiving() as receiver, webhooks.receiving(404) as refusing:
        await webhooks.subscribe(service, receiver.url, "good")
        await webhooks.subscribe(service, refusing.url, "refusing")
        await webhooks.subscribe(service, "http://127.0.0.1:1/", "dead")
        await webhooks.subscribe(service, receiver.url, "others", tasks=NotifiedTasks.ALL)
        await webhooks.subscribe(service, receiver.url, "removed")
        await service.handle(a_change(service, 1, TaskState.RUNNING, "t1"))
        await service.handle(a_change(service, 1, TaskState.RUNNING, "t2", owner="bob"))
        await service.ask(RemoveNotification(owner="ann", name="removed"))
        people["ann"] = a_user("ann", sees=NotifiedTasks.OWN)
        for _ in range(3):
            await webhooks.deliver(service)
            service.clock.advance(3600)
    assert changes(before) == {
        "sent webhook": 2,
        "tries_failed webhook refused": 3,
        "tries_failed webhook unreachable": 3,
        "given_up webhook failed": 2,
        # The removed one, and what ann may not see any more.
        "given_up webhook not permitted or removed": 2,
    }


async def test_mails_are_counted_by_what_became_of_their_messages(
    service: ServiceHarness, people: People, tmp_path: Path
) -> None:
    ensure_certificates(tmp_path, ["127.0.0.1"])
    before = dict(_series())
    async with mails.serving(tmp_path, **mails.PLAIN) as smtp:
        await mails.subscribe(service)
        await mails.preempted(service, "t1", "t2")
        await mails.deliver(service, smtp)
        assert changes(before) == {"sent mail": 2}
        smtp.data = "554 5.7.1 looks like spam"
        await mails.preempted(service, "t3")
        await mails.deliver(service, smtp)
        people.unreadable = {"ann"}
        await mails.preempted(service, "t4")
        await mails.deliver(service, smtp)
    assert changes(before) == {
        "sent mail": 2,
        "tries_failed mail refused": 1,
        "tries_failed mail unknown": 1,
        "given_up mail failed": 1,
    }


async def test_what_waits_is_shown_with_its_age_by_the_leader_alone(
    service: ServiceHarness, people: People
) -> None:
    assert people
    await webhooks.subscribe(service, "http://127.0.0.1:1/")
    await service.handle(a_change(service, 1, TaskState.RUNNING))
    service.clock.advance(90)
    await service.handle(a_change(service, 2, TaskState.FAILED))
    await service.lead()
    await service.step("messages")
    shown = dict(_series())
    assert shown["waiting webhook"] == 2
    assert shown["oldest_age_seconds webhook"] == 90
    assert shown["overdue_seconds webhook"] == 90
    assert shown["waiting mail"] == shown["overdue_seconds mail"] == 0
    # A receiver that fails holds its messages back: they are not overdue.
    await webhooks.deliver(service)
    await service.step("messages")
    shown = dict(_series())
    assert (shown["waiting webhook"], shown["overdue_seconds webhook"]) == (2, 0)
    service.service.on_lead_end()
    assert "waiting webhook" not in dict(_series())
