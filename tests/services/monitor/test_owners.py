"""Messages follow their owner: what the gateway says of a user now decides for both channels."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import (
    ListNotifications,
    ListUndeliveredMessages,
    NotifiedTasks,
    Reason,
    ReasonCode,
    RemoveNotification,
    ReplayUndeliveredMessages,
    TaskState,
)
from libs.service.wiring import Wiring
from libs.store.port import Store
from services.monitor.domain.recipients import is_about, is_of, may_know
from services.monitor.main import WIRING
from services.monitor.store import MessageRow, NotificationRow, Stage
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.monitor import test_delivery as webhooks
from tests.services.monitor import test_mail as mails
from tests.services.monitor.events import a_change
from tests.services.monitor.people import ADDED_AT, People, a_user, serving
from tools.cluster.access import ensure_certificates

OWN, TEAM, ALL = NotifiedTasks.OWN, NotifiedTasks.TEAM, NotifiedTasks.ALL


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    settings = webhooks.SETTINGS.model_copy(update={"mail_host": "127.0.0.1"})
    return ServiceHarness(platform, WIRING, settings, store=store)


@pytest.fixture
async def people(platform: MemoryPlatform) -> AsyncGenerator[People]:
    async with serving(platform, People(a_user("ann", mail="ann@lab.test"))) as found:
        yield found


async def problems(service: ServiceHarness, name: str = "mine") -> list[str]:
    reply = await service.ask(ListUndeliveredMessages(owner="ann", name=name))
    assert reply.refusal is None
    return [each.problem for each in reply.undelivered]


CHANGES = {
    "disabled": (a_user("ann", disabled=True), "ann is disabled"),
    "smaller role": (a_user("ann", sees=OWN), "may not get messages about this task any more"),
    "another team": (
        a_user("ann", sees=TEAM, team="speech"),
        "may not get messages about this task any more",
    ),
    "removed": (None, "ann is no user any more"),
    "somebody else": (
        a_user("ann", added_at=ADDED_AT + timedelta(days=1)),
        "the notification is of an earlier user named ann",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_webhook_is_sent_by_what_its_owner_may_see_now(
    service: ServiceHarness, people: People, change: str
) -> None:
    user, problem = CHANGES[change]
    async with webhooks.receiving() as receiver:
        await webhooks.subscribe(service, receiver.url, tasks=ALL, owner_added_at=ADDED_AT)
        await service.handle(a_change(service, 1, TaskState.RUNNING, "t1", owner="bob"))
        if user is None:
            del people["ann"]
        else:
            people["ann"] = user
        await webhooks.deliver(service)
        assert receiver.requests == []
        (found,) = await problems(service)
        assert problem in found
        # Nothing is lost: whoever may get it again replays it.
        people["ann"] = a_user("ann")
        await service.ask(ReplayUndeliveredMessages(owner="ann", name="mine"))
        await webhooks.deliver(service)
        assert receiver.ids() == ["t1.started.1.ann.mine"]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_mail_has_what_its_owner_may_see_now(
    service: ServiceHarness, people: People, change: str, tmp_path: Path
) -> None:
    user, problem = CHANGES[change]
    ensure_certificates(tmp_path, ["127.0.0.1"])
    async with mails.serving(tmp_path, **mails.PLAIN) as smtp:
        await mails.subscribe(service, tasks=ALL, owner_added_at=ADDED_AT)
        await service.handle(a_change(service, 1, TaskState.FAILED, "t1", owner="bob"))
        if user is None:
            del people["ann"]
        else:
            people["ann"] = user.model_copy(update={"mail": "ann@lab.test"})
        await mails.deliver(service, smtp)
        assert smtp.connections == 0
        (found,) = await problems(service)
        assert problem in found
        # Not even a paused notification is left.
        people["ann"] = a_user("ann", mail="ann@lab.test")
        await service.handle(a_change(service, 1, TaskState.FAILED, "t2", owner="bob"))
        await mails.deliver(service, smtp)
        assert smtp.subjects() == ["[Shiftwork] t2 failed"]


async def test_a_mail_leaves_out_what_its_owner_may_not_see_any_more(
    service: ServiceHarness, people: People, tmp_path: Path
) -> None:
    ensure_certificates(tmp_path, ["127.0.0.1"])
    async with mails.serving(tmp_path, **mails.PLAIN) as smtp:
        await mails.subscribe(service, tasks=ALL)
        smtp.recipient = "451 4.7.1 greylisted"
        await service.handle(a_change(service, 1, TaskState.FAILED, "t1", owner="bob"))
        await service.handle(a_change(service, 1, TaskState.FAILED, "mine"))
        await mails.deliver(service, smtp)
        # The mail was tried before, with both.
        smtp.recipient = "250 OK"
        people["ann"] = a_user("ann", mail="ann@lab.test", sees=OWN)
        await mails.deliver(service, smtp)
        (mail,) = smtp.mails
        assert mail.message["Subject"] == "[Shiftwork] mine failed"
        assert "t1" not in mails.body_of(mail)
        assert {row.task_id: row.stage for row in await service.rows(MessageRow)} == {
            "t1": Stage.DEAD,
            "mine": Stage.DELIVERED,
        }


async def test_a_message_names_no_task_that_its_owner_could_see_only_before(
    service: ServiceHarness, people: People
) -> None:
    mine, other = "t" + "a" * 20, "t" + "b" * 20
    async with webhooks.receiving() as receiver:
        occasions = (webhooks.Occasion.PREEMPTED,)
        await webhooks.subscribe(service, receiver.url, tasks=ALL, occasions=occasions)
        reason = Reason(code=ReasonCode.RECLAIMED_BY, names={"task": other, "cluster": "vision"})
        preempted = a_change(service, 2, TaskState.PREEMPTING, mine)
        await service.handle(
            a_change(service, 1, TaskState.RUNNING, other, owner="bob"),
            preempted.model_copy(update={"reason": reason}),
        )
        people["ann"] = a_user("ann", sees=OWN)
        await webhooks.deliver(service)
        ((_, body),) = receiver.requests
    assert other not in body.decode()
    assert "hidden-1" in json.loads(body)["data"]["reason"]


@pytest.mark.parametrize("how", ["no answer", "unreadable"])
async def test_nothing_is_sent_or_lost_while_the_gateway_does_not_say_who_the_owner_is(
    service: ServiceHarness, platform: MemoryPlatform, how: str
) -> None:
    async with webhooks.receiving() as receiver:
        await webhooks.subscribe(service, receiver.url)
        await service.handle(
            *(a_change(service, 1, TaskState.RUNNING, f"t{number}") for number in range(3))
        )
        users = People(a_user("ann"))
        users.unreadable = {"ann"}

        async def wait() -> None:
            # Longer than a receiver may fail, and for more tries than there are.
            for _ in range(5):
                await webhooks.deliver(service)
                await webhooks.deliver(service)
                service.clock.advance(86_400)

        if how == "no answer":
            await wait()
        else:
            async with serving(platform, users):
                await wait()
            assert users.asked == 5, "not before the pause is over"
        assert receiver.requests == []
        found = await webhooks.stages(service)
        assert found == [(f"t{number}", Stage.WAITING, 0) for number in range(3)]
        (shown,) = (await service.ask(ListNotifications(owner="ann"))).notifications
        assert shown.paused_at is None
        users.unreadable.clear()
        async with serving(platform, users):
            await webhooks.deliver(service)
        assert len(receiver.requests) == 3


async def test_a_user_who_cannot_be_read_delays_nobody_else(
    service: ServiceHarness, people: People
) -> None:
    people["bob"] = a_user("bob")
    people.unreadable = {"ann"}
    async with webhooks.receiving() as receiver:
        await webhooks.subscribe(service, receiver.url)
        await webhooks.subscribe(service, receiver.url, owner="bob", tasks=ALL)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await webhooks.deliver(service)
        assert receiver.ids() == ["t1.started.1.bob.mine"]


async def test_a_notification_for_the_team_follows_its_owner_to_another_team(
    service: ServiceHarness, people: People
) -> None:
    url = "https://example.org/"
    await webhooks.subscribe(service, url, tasks=TEAM, team="vision")
    await service.lead()
    people["ann"] = a_user("ann", sees=TEAM, team="speech")
    await service.step("owners")
    await service.handle(
        a_change(service, 1, TaskState.RUNNING, "t1", owner="bob", team="vision"),
        a_change(service, 1, TaskState.RUNNING, "t2", owner="amy", team="speech"),
    )
    assert [row.task_id for row in await service.rows(MessageRow)] == ["t2"]


async def test_a_notification_of_an_earlier_user_is_removed_and_nobody_elses(
    service: ServiceHarness, people: People
) -> None:
    url = "https://example.org/"
    await webhooks.subscribe(service, url, "old", owner_added_at=ADDED_AT - timedelta(days=1))
    await webhooks.subscribe(service, url, owner_added_at=ADDED_AT)
    await webhooks.subscribe(service, url, owner="gone")
    await service.lead()
    people.unreadable = {"ann"}
    await service.step("owners")
    assert len(await service.rows(NotificationRow)) == 3, "it is not known who ann is"
    people.unreadable.clear()
    await service.step("owners")
    found = [(row.owner, row.name) for row in await service.rows(NotificationRow)]
    # One of somebody who is not there is kept: the gateway may have lost its users.
    assert found == [("ann", "mine"), ("gone", "mine")]


async def test_notifications_stay_as_they_are_while_the_gateway_does_not_answer(
    service: ServiceHarness,
) -> None:
    await webhooks.subscribe(service, "https://example.org/", tasks=TEAM, team="vision")
    before = await service.rows(NotificationRow)
    await service.lead()
    await service.step("owners")
    assert await service.rows(NotificationRow) == before


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "still there"])
async def test_a_new_user_of_a_name_gets_no_message_and_no_secret_of_the_one_before(
    service: ServiceHarness, people: People, removed: bool
) -> None:
    async with webhooks.receiving(500) as receiver:
        first = await webhooks.subscribe(service, receiver.url, owner_added_at=ADDED_AT)
        await service.handle(a_change(service, 1, TaskState.RUNNING, "dead"))
        for _ in range(3):
            await webhooks.deliver(service)
            service.clock.advance(3600)
        await service.handle(a_change(service, 1, TaskState.RUNNING, "waiting"))
        if removed:
            await service.ask(RemoveNotification(owner="ann", name="mine"))
        tried = len(receiver.requests)

        async def accept() -> int:
            return 200

        receiver.answer = accept
        new = ADDED_AT + timedelta(days=2)
        people["ann"] = a_user("ann", added_at=new)
        second = await webhooks.subscribe(service, receiver.url, owner_added_at=new)
        assert second.secret, "a secret of its own is made"
        assert second.secret != first.secret
        assert (second.notification.waiting, second.notification.undelivered) == (0, 0)
        assert await problems(service) == []
        replayed = await service.ask(ReplayUndeliveredMessages(owner="ann", name="mine"))
        assert replayed.messages == 0
        await webhooks.deliver(service)
        await webhooks.deliver(service)
        assert len(receiver.requests) == tried
        found = {row.task_id: row.stage for row in await service.rows(MessageRow)}
        assert found == {"dead": Stage.DEAD, "waiting": Stage.DEAD}


async def test_what_waited_for_a_notification_that_was_removed_is_not_sent_to_one_made_again(
    service: ServiceHarness, people: People
) -> None:
    assert people
    async with webhooks.receiving() as receiver:
        await webhooks.subscribe(service, receiver.url)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await service.ask(RemoveNotification(owner="ann", name="mine"))
        service.clock.advance(1)
        await webhooks.subscribe(service, receiver.url)
        await service.handle(a_change(service, 2, TaskState.FAILED))
        await webhooks.deliver(service)
        assert receiver.ids() == ["t1.failed.2.ann.mine"]


async def test_a_notification_of_an_earlier_version_is_its_owners(
    service: ServiceHarness, people: People
) -> None:
    """Such rows say neither when they were made nor who their owner was."""
    assert people
    async with webhooks.receiving() as receiver:
        now = service.clock.now()
        row = NotificationRow("ann", "mine", receiver.url, "started", OWN, "", webhooks.SECRET, now)
        await service.put(row)
        await service.handle(a_change(service, 1, TaskState.RUNNING))
        await webhooks.deliver(service)
        assert len(receiver.requests) == 1
        again = await webhooks.subscribe(service, receiver.url, owner_added_at=ADDED_AT)
        assert again.secret == "", "its secret stays"


PEOPLE = st.sampled_from(["ann", "bob"])
TEAMS = st.sampled_from(["", "vision", "speech"])
SIGHTS = st.sampled_from(list(NotifiedTasks))


@given(tasks=SIGHTS, sees=SIGHTS, team=TEAMS, task_owner=PEOPLE, task_team=TEAMS)
def test_an_owner_knows_no_more_than_role_and_notification_say(
    tasks: NotifiedTasks, sees: NotifiedTasks, team: str, task_owner: str, task_team: str
) -> None:
    user = a_user("ann", sees=sees, team=team)
    knows = may_know(tasks, user, task_owner=task_owner, task_team=task_team)
    visible = {
        NotifiedTasks.UNSPECIFIED: False,
        OWN: task_owner == "ann",
        TEAM: task_owner == "ann" or (team != "" and team == task_team),
        ALL: True,
    }[sees]
    about = is_about(tasks, "ann", team, task_owner=task_owner, task_team=task_team)
    assert knows == (visible and about)


def test_who_a_notification_belongs_to() -> None:
    assert is_of(at(5), at(9), at(5))
    assert not is_of(at(6), at(9), at(5)), "somebody else has the name now"
    assert is_of(at(5), at(9), None), "set by an earlier version, after the user was added"
    assert not is_of(at(10), at(9), None)
    assert is_of(None, at(9), at(5)), "set through a gateway of an earlier version"
