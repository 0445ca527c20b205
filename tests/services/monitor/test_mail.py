"""Messages reach a real SMTP server, with STARTTLS and a login: as single mails and digests, tried
again, given up, and the same mail after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from libs.contracts.messages import (
    ListNotifications,
    ListUndeliveredMessages,
    NotificationChannel,
    NotifiedTasks,
    Occasion,
    RemoveNotification,
    ReplayUndeliveredMessages,
    SetNotification,
    TaskState,
)
from libs.service.wiring import Wiring
from libs.store.memory import MemoryStore
from libs.store.port import Store
from services.monitor.domain.mail_texts import NAME_MAX, SUBJECT_MAX, VERBS, Entry, one_line, render
from services.monitor.main import WIRING
from services.monitor.messages.delivery import Delivery
from services.monitor.messages.mail import Mail, MailServer
from services.monitor.messages.mailing import Mailing
from services.monitor.messages.message_outbox import MessageOutbox, TaskOccasion
from services.monitor.messages.recipients import Recipients
from services.monitor.settings import MonitorSettings
from services.monitor.store import MailboxRow, MessageRow, NotificationRow, Stage, TaskRow
from services.monitor.tables import TABLES
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.monitor.events import a_change, a_submission
from tests.services.monitor.people import People, a_user
from tests.services.monitor.people import serving as answering
from tools.cluster.access import ensure_certificates

PASSWORD = "correct-horse-battery"
BASE: dict[str, Any] = {
    "database_url": "-",
    "nats_url": "-",
    "mail_host": "127.0.0.1",
    "mail_from": "shiftwork@lab.test",
    "mail_reply_to": "operators@lab.test",
    "mail_seconds_max": 1.0,
    "mail_messages_shown_max": 5,
    "delivery_tries_max": 3,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    ensure_certificates(folder, ["127.0.0.1"])
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "wrong").write_text("not-the-password-at-all")
    return folder


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    return ServiceHarness(platform, WIRING, MonitorSettings(**BASE), store=store)


@dataclass
class Received:
    """A mail, and how it came."""

    message: EmailMessage
    raw: bytes
    to: list[str]
    encrypted: bool
    user: str


@dataclass
class Smtp:
    """A real SMTP server; ``data`` and ``recipient`` are what it answers."""

    settings: MonitorSettings
    recipient: str = "250 OK"
    # It closes the connection for this address.
    failing: str = ""
    data: str = "250 taken"
    mails: list[Received] = field(default_factory=list[Received])
    connections: int = 0
    # Called when a mail is taken, before that is answered.
    on_taken: Callable[[], Awaitable[None]] | None = None

    async def handle_EHLO(  # noqa: N802 - the library's name
        self, server: SMTP, session: Session, envelope: Envelope, host: str, answers: list[str]
    ) -> list[str]:
        del server, envelope
        self.connections += 1
        session.host_name = host
        return answers

    async def handle_RCPT(  # noqa: N802 - the library's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        del server, session, options
        if address == self.failing:
            return "421 4.7.0 try again later"
        if self.recipient.startswith("2"):
            envelope.rcpt_tos.append(address)
        return self.recipient

    async def handle_DATA(  # noqa: N802 - the library's name
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        del server
        raw = envelope.content
        assert isinstance(raw, bytes)
        if self.data.startswith("2"):
            login = session.auth_data.decode() if session.auth_data else ""
            message = email.message_from_bytes(raw, policy=email.policy.default)
            assert isinstance(message, EmailMessage)
            encrypted = session.ssl is not None
            self.mails.append(Received(message, raw, envelope.rcpt_tos, encrypted, login))
        if self.on_taken is not None:
            await self.on_taken()
        return self.data

    def subjects(self) -> list[str]:
        return [each.message["Subject"] for each in self.mails]

    def ids(self) -> list[str]:
        return [each.message["Message-ID"] for each in self.mails]


def check_login(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
) -> AuthResult:
    del server, session, envelope, mechanism
    assert isinstance(data, LoginPassword)
    right = data.password == PASSWORD.encode()
    return AuthResult(success=right, handled=False, auth_data=data.login)


@contextlib.asynccontextmanager
async def serving(keys: Path, *, secure: bool = True, **changes: Any) -> AsyncGenerator[Smtp]:
    options: dict[str, Any] = {}
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        options = {"tls_context": context, "require_starttls": True, "auth_required": True}
        options["authenticator"] = check_login
    smtp = Smtp(MonitorSettings(**BASE))

    def connection() -> SMTP:
        return SMTP(smtp, hostname="mail.lab.test", **options)

    loop = asyncio.get_running_loop()
    listening = await loop.create_server(connection, "127.0.0.1", 0)
    login = {
        "mail_user": "shiftwork",
        "mail_password_file": keys / "password",
        "mail_ca_file": keys / "ca.crt",
    }
    port = listening.sockets[0].getsockname()[1]
    smtp.settings = MonitorSettings(**BASE | login | {"mail_port": port} | changes)
    try:
        yield smtp
    finally:
        listening.close()


PLAIN: dict[str, Any] = {
    "secure": False,
    "mail_security": "none",
    "mail_user": "",
    "mail_password_file": None,
}


@contextlib.asynccontextmanager
async def people(service: ServiceHarness, **found: str) -> AsyncGenerator[People]:
    """The gateway, which knows these addresses."""
    users = People(*(a_user(name, mail=mail) for name, mail in found.items()), everybody=True)
    async with answering(service.platform, users):
        yield users


async def subscribe(service: ServiceHarness, name: str = "mine", **changes: Any) -> None:
    command: dict[str, Any] = {
        "owner": "ann",
        "name": name,
        "channel": NotificationChannel.MAIL,
        "occasions": tuple(Occasion)[1:],
        "tasks": NotifiedTasks.OWN,
    }
    reply = await service.ask(SetNotification(**(command | changes)))
    assert reply.refusal is None, reply.refusal
    assert reply.secret == "", "mail is not signed"


def a_delivery(service: ServiceHarness, settings: MonitorSettings) -> Delivery:
    ports = service.service.ports
    recipients = Recipients(ports.bus, ports.store)
    mailing = Mailing(ports.store, ports.clock, settings, recipients)
    return Delivery(ports.store, ports.clock, settings, MessageOutbox(500), mailing, recipients)


async def deliver(
    service: ServiceHarness, smtp: Smtp, delivery: Delivery | None = None, after: float = 11.0
) -> None:
    """What is due after a while, to the end."""
    service.clock.advance(after)
    await service.lead()
    assert service.epoch is not None
    async with asyncio.TaskGroup() as group:
        await (delivery or a_delivery(service, smtp.settings)).begin(service.epoch, group)


async def stages(service: ServiceHarness) -> list[tuple[str, Stage, int]]:
    rows: list[MessageRow] = await service.rows(MessageRow)
    return sorted((row.task_id, row.stage, row.tries) for row in rows)


async def preempted(service: ServiceHarness, *tasks: str, version: int = 1) -> None:
    changes = (a_change(service, version, TaskState.PREEMPTING, task) for task in tasks)
    await service.handle(*changes)


def body_of(received: Received) -> str:
    return received.message.get_content()


async def test_a_mail_is_encrypted_logged_in_and_says_how_to_stop_it(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await service.handle(a_submission(service), a_change(service, 1, TaskState.RUNNING))
        await deliver(service, smtp)
        (mail,) = smtp.mails
    assert (mail.to, mail.encrypted, mail.user) == (["ann@lab.test"], True, "shiftwork")
    head = mail.message
    assert head["From"] == "Shiftwork <shiftwork@lab.test>"
    assert (head["To"], head["Reply-To"]) == ("ann@lab.test", "operators@lab.test")
    assert head["Subject"] == "[Shiftwork] train started"
    assert head["Message-ID"].endswith("@lab.test>")
    assert head["Auto-Submitted"] == "auto-generated"
    assert head.get_content_type() == "text/plain"
    assert "train (t1, of ann)" in body_of(mail)
    assert "shiftwork notify rm mine" in body_of(mail)
    assert await stages(service) == [("t1", Stage.DELIVERED, 1)]


async def happens(service: ServiceHarness, occasion: Occasion, **details: str) -> None:
    """An occasion of the task t1, as the monitor's loops and handlers add it."""
    async with service.store.transaction() as tx:
        task = await tx.get(TaskRow, "t1")
        assert task is not None
        task_occasion = TaskOccasion(task, occasion, tx.now, occasion.name, details)
        await MessageOutbox(500).put(tx, task_occasion)


@pytest.mark.parametrize("occasion", tuple(Occasion)[1:])
async def test_a_mail_says_what_happened_for_every_occasion(
    service: ServiceHarness, keys: Path, occasion: Occasion
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await service.handle(a_submission(service))
        await subscribe(service)
        await happens(service, occasion, reason="the reason of it")
        await deliver(service, smtp)
        (mail,) = smtp.mails
    subject = mail.message["Subject"]
    assert subject.startswith("[Shiftwork] train "), subject
    assert f"{subject.removeprefix('[Shiftwork] ')}:" in body_of(mail).splitlines()
    assert "train (t1, of ann)" in body_of(mail)
    assert "the reason of it" in body_of(mail)


async def test_a_mail_about_an_abnormal_task_says_what_was_found_and_what_to_do(
    service: ServiceHarness, keys: Path
) -> None:
    found = {"rule": "idle_gpus", "detail": "2 GPUs were idle", "suggestion": "end the task"}
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await service.handle(a_submission(service))
        await subscribe(service)
        await happens(service, Occasion.ABNORMAL, **found)
        await deliver(service, smtp)
        (mail,) = smtp.mails
    assert mail.message["Subject"] == "[Shiftwork] train is abnormal"
    assert "2 GPUs were idle" in body_of(mail)
    assert "end the task" in body_of(mail)


async def test_a_burst_is_one_mail_of_a_bounded_size(service: ServiceHarness, keys: Path) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, *(f"t{n}" for n in range(12)))
        await service.handle(a_change(service, 1, TaskState.FAILED, "u1"))
        await deliver(service, smtp)
        (mail,) = smtp.mails
    assert mail.message["Subject"] == "[Shiftwork] 12 tasks were preempted, u1 failed"
    assert body_of(mail).count(", of ann)") == 5
    assert "and 7 more" in body_of(mail)
    assert len(await stages(service)) == 13
    assert {stage for _, stage, _ in await stages(service)} == {Stage.DELIVERED}


async def test_a_message_waits_for_those_that_come_with_it(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, "t1")
        await deliver(service, smtp, after=5)
        assert smtp.mails == []
        await preempted(service, "t2")
        await deliver(service, smtp, after=6)
        assert smtp.subjects() == ["[Shiftwork] 2 tasks were preempted"]


async def test_a_person_gets_a_burst_of_mails_and_then_digests(
    service: ServiceHarness, keys: Path
) -> None:
    limits = {"mail_person_burst": 2, "mail_person_seconds": 600}
    async with (
        serving(keys, **PLAIN, **limits) as smtp,
        people(service, ann="a@lab.test", bob="b@lab.test"),
    ):
        await subscribe(service)
        await subscribe(service, owner="bob")
        for number in range(6):
            await preempted(service, f"t{number}")
            await deliver(service, smtp)
        assert len(smtp.mails) == 2
        # One person's limit is not another's.
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        await deliver(service, smtp)
        assert smtp.subjects()[2:] == ["[Shiftwork] b1 failed"]
        # A new leader, which knows rows alone, grants no second burst.
        await deliver(service, smtp)
        assert len(smtp.mails) == 3
        await deliver(service, smtp, after=600)
        assert smtp.subjects()[3:] == ["[Shiftwork] 4 tasks were preempted"]


async def test_the_site_sends_no_more_than_its_rate(service: ServiceHarness, keys: Path) -> None:
    limits = {"mail_site_burst": 3, "mail_site_seconds": 60, "mails_at_once": 64}
    names = [f"user{n}" for n in range(6)]
    found = {name: f"{name}@lab.test" for name in names}
    async with serving(keys, **PLAIN, **limits) as smtp, people(service, **found):
        for name in names:
            await subscribe(service, owner=name)
            await service.handle(a_change(service, 1, TaskState.FAILED, f"t{name}", owner=name))
        await deliver(service, smtp)
        assert len(smtp.mails) == 3
        for count in (4, 5, 6):
            await deliver(service, smtp, after=61)
            assert len(smtp.mails) == count
    assert sorted(each.to[0] for each in smtp.mails) == sorted(found.values())


MONTH = 30 * 86_400.0


async def test_mails_sent_while_the_clock_was_ahead_hold_back_nobody(
    service: ServiceHarness, keys: Path
) -> None:
    limits = {"mail_site_burst": 2, "mail_site_seconds": 60, "mail_person_burst": 1}
    async with (
        serving(keys, **PLAIN, **limits) as smtp,
        people(service, ann="a@lab.test", bob="b@lab.test"),
    ):
        await subscribe(service)
        await subscribe(service, owner="bob")
        service.clock.advance(MONTH)
        await preempted(service, "t1")
        await deliver(service, smtp)
        # Put off by the rate, in the time of the clock that is ahead.
        await preempted(service, "t2")
        await deliver(service, smtp)
        assert smtp.subjects() == ["[Shiftwork] t1 was preempted"]
        service.clock.advance(-MONTH)
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        for _ in range(3):
            await deliver(service, smtp, after=61)
        assert sorted(smtp.subjects()[1:]) == [
            "[Shiftwork] b1 failed",
            "[Shiftwork] t2 was preempted",
        ]
        # The rates count again.
        await preempted(service, "t3")
        await deliver(service, smtp)
        assert len(smtp.mails) == 3


@pytest.mark.parametrize("down", [True, False])
async def test_pauses_from_a_clock_that_was_ahead_hold_back_nobody(
    service: ServiceHarness, keys: Path, down: bool
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        await subscribe(service)
        await subscribe(service, owner="bob")
        service.clock.advance(MONTH)
        await preempted(service, "t1")
        smtp.recipient = "451 4.7.1 greylisted"
        there = smtp.settings.model_copy(update={"mail_port": 1}) if down else smtp.settings
        await deliver(service, smtp, a_delivery(service, there))
        service.clock.advance(-MONTH)
        smtp.recipient = "250 OK"
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        await deliver(service, smtp)
        await deliver(service, smtp, after=61)
        subjects = ["[Shiftwork] b1 failed", "[Shiftwork] t1 was preempted"]
        assert sorted(smtp.subjects()) == subjects


async def test_a_mail_that_is_not_recorded_is_sent_again_with_the_same_id_and_text(
    platform: MemoryPlatform, keys: Path
) -> None:
    """The process dies after the server has taken the mail, before the commit."""
    service = ServiceHarness(platform, WIRING, MonitorSettings(**BASE))
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, "t1", "t2")

        async def die() -> None:
            assert isinstance(service.store, MemoryStore)
            service.store.crash()

        smtp.on_taken = die
        await deliver(service, smtp)
        smtp.on_taken = None
        await service.restart()
        assert {stage for _, stage, _ in await stages(service)} == {Stage.WAITING}
        # What comes meanwhile is in the next mail.
        await preempted(service, "t3")
        await deliver(service, smtp)
        await deliver(service, smtp)
    first, again, other = smtp.ids()
    assert first == again != other
    assert body_of(smtp.mails[0]) == body_of(smtp.mails[1])
    assert smtp.subjects()[1:] == [
        "[Shiftwork] 2 tasks were preempted",
        "[Shiftwork] t3 was preempted",
    ]


async def test_an_address_that_is_refused_for_good_pauses_its_mail(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, "t1", "t2")
        smtp.recipient = "550 5.1.1 no such mailbox"
        await deliver(service, smtp)
        tried = smtp.connections
        await preempted(service, "t3")
        await deliver(service, smtp, after=86_400)
        assert smtp.connections == tried, "an address that is not there is not tried again"
        (shown,) = (await service.ask(ListNotifications(owner="ann"))).notifications
        assert shown.paused_at is not None
        assert "550" in shown.problem
        dead = (await service.ask(ListUndeliveredMessages(owner="ann", name="mine"))).undelivered
        assert sorted(each.task_id for each in dead) == ["t1", "t2", "t3"]
        # The dead letters are those of webhooks, and are replayed in the same way.
        smtp.recipient = "250 OK"
        reply = await service.ask(ReplayUndeliveredMessages(owner="ann", name="mine"))
        assert reply.messages == 3
        await deliver(service, smtp)
        assert smtp.subjects() == ["[Shiftwork] 3 tasks were preempted"]


async def test_a_mail_that_is_refused_holds_back_no_other(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, "t1")
        smtp.data = "554 5.7.1 looks like spam"
        await deliver(service, smtp)
        assert await stages(service) == [("t1", Stage.DEAD, 1)]
        smtp.data = "250 taken"
        await preempted(service, "t2")
        await deliver(service, smtp)
        assert smtp.subjects() == ["[Shiftwork] t2 was preempted"]


async def test_a_mail_that_is_refused_for_now_is_tried_again_as_the_same_and_given_up(
    service: ServiceHarness, keys: Path
) -> None:
    async with (
        serving(keys, **PLAIN) as smtp,
        people(service, ann="ann@lab.test", bob="bob@lab.test"),
    ):
        await subscribe(service)
        await preempted(service, "t1")
        smtp.recipient = "451 4.7.1 greylisted"
        await deliver(service, smtp)
        await deliver(service, smtp, after=1)
        assert await stages(service) == [("t1", Stage.WAITING, 1)], "not before the pause is over"
        await preempted(service, "t2")
        smtp.recipient = "250 OK"
        await deliver(service, smtp)
        await deliver(service, smtp)
        assert smtp.subjects() == [
            "[Shiftwork] t1 was preempted",
            "[Shiftwork] t2 was preempted",
        ]
        smtp.recipient = "451 4.7.1 greylisted"
        await preempted(service, "t3")
        for _ in range(3):
            await deliver(service, smtp, after=3600)
        assert ("t3", Stage.DEAD, 3) in await stages(service)


async def test_a_server_that_is_down_holds_back_mail_and_gives_up_none_for_days(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        await subscribe(service)
        await subscribe(service, owner="bob")
        await preempted(service, "t1")
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        down = smtp.settings.model_copy(update={"mail_port": 1, "mails_at_once": 1})
        delivery = a_delivery(service, down)
        for after in (11, 1, 1, 11):
            await deliver(service, smtp, delivery, after)
        assert "mail cannot be sent" in delivery.mailing.problem
        tries = [tries for _, _, tries in await stages(service)]
        assert sum(tries) == 2, "one probe for all, after each pause"
        for _ in range(10):
            await deliver(service, smtp, delivery, after=3600)
        assert {stage for _, stage, _ in await stages(service)} == {Stage.WAITING}
        back = a_delivery(service, smtp.settings)
        await deliver(service, smtp, back, after=3600)
        await deliver(service, smtp, back, after=3600)
        assert sorted(smtp.subjects()) == ["[Shiftwork] b1 failed", "[Shiftwork] t1 was preempted"]
        assert back.mailing.problem == ""


async def test_a_server_that_is_down_for_longer_makes_dead_letters(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test"):
        await subscribe(service)
        await preempted(service, "t1")
        down = smtp.settings.model_copy(update={"mail_port": 1})
        for _ in range(5):
            await deliver(service, smtp, a_delivery(service, down), after=86_400)
        assert [stage for _, stage, _ in await stages(service)] == [Stage.DEAD]


async def test_a_mail_for_which_the_server_always_fails_is_given_up_while_others_go(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        smtp.failing = "a@lab.test"
        await subscribe(service)
        await subscribe(service, owner="bob")
        await preempted(service, "t1")
        for number in range(8):
            change = a_change(service, 1, TaskState.FAILED, f"b{number}", owner="bob")
            await service.handle(change)
            await deliver(service, smtp)
            await deliver(service, smtp, after=43_200)
        assert sorted(smtp.subjects()) == [f"[Shiftwork] b{number} failed" for number in range(8)]
        # By its age, after few tries: pauses are random, so there are three or four.
        [(stage, tries)] = [found[1:] for found in await stages(service) if found[0] == "t1"]
        assert stage is Stage.DEAD
        assert tries in {3, 4}


async def due_in(service: ServiceHarness, owner: str, seconds: float) -> None:
    due_at = service.clock.now() + timedelta(seconds=seconds)
    rows: list[MessageRow] = await service.rows(MessageRow)
    waiting = [row for row in rows if row.owner == owner and row.stage is Stage.WAITING]
    await service.put(*(replace(row, due_at=due_at) for row in waiting))


async def test_a_server_that_fails_for_one_person_delays_nobody_else(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        smtp.failing = "a@lab.test"
        delivery = a_delivery(service, smtp.settings)
        await subscribe(service)
        await subscribe(service, owner="bob")
        await preempted(service, "t1")
        await deliver(service, smtp, delivery)
        assert "421" in delivery.mailing.problem, "it may be the server, so all mail waits"
        await due_in(service, "ann", 60)
        await service.handle(a_change(service, 1, TaskState.FAILED, "b0", owner="bob"))
        await deliver(service, smtp, delivery)
        # The server takes mail: the next failure is about ann alone.
        await due_in(service, "ann", 0)
        await deliver(service, smtp, delivery, after=0)
        assert ("t1", Stage.WAITING, 2) in await stages(service)
        assert delivery.mailing.problem == ""
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        await due_in(service, "bob", 0)
        await deliver(service, smtp, delivery, after=0)
        assert smtp.subjects() == ["[Shiftwork] b0 failed", "[Shiftwork] b1 failed"]


async def test_a_server_that_answers_slowly_is_left_in_time(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN, mail_seconds_max=0.2) as smtp, people(service, ann="a@b"):
        await subscribe(service)
        await preempted(service, "t1")

        async def wait() -> None:
            await asyncio.sleep(5)

        smtp.on_taken = wait
        begun = asyncio.get_running_loop().time()
        await deliver(service, smtp)
        assert asyncio.get_running_loop().time() - begun < 2
        smtp.on_taken = None
        await deliver(service, smtp)
        # Its outcome was unknown; the server can recognize the second one.
        assert len(smtp.mails) == 2
        assert len(set(smtp.ids())) == 1
        assert await stages(service) == [("t1", Stage.DELIVERED, 2)]


@pytest.mark.parametrize(
    ("secure", "changes", "problem"),
    [
        (True, {"mail_ca_file": None}, "certificate"),
        (False, {}, "STARTTLS"),
        (True, {"mail_password_file": "wrong"}, "535"),
    ],
)
async def test_nothing_is_sent_to_a_server_that_is_not_the_one_or_refuses_the_login(
    service: ServiceHarness,
    keys: Path,
    secure: bool,
    changes: dict[str, Any],
    problem: str,
) -> None:
    if "mail_password_file" in changes:
        changes = {"mail_password_file": keys / "wrong"}
    with capture_logs() as logs:
        async with (
            serving(keys, secure=secure, **changes) as smtp,
            people(service, ann="ann@lab.test"),
        ):
            await subscribe(service)
            await preempted(service, "t1")
            delivery = a_delivery(service, smtp.settings)
            await deliver(service, smtp, delivery)
            assert smtp.mails == []
            assert problem.lower() in delivery.mailing.problem.lower()
    rows: list[Any] = [*await service.rows(MessageRow), *await service.rows(MailboxRow)]
    for text in (repr(logs), repr(rows), repr(smtp.settings), delivery.mailing.problem):
        assert PASSWORD not in text
        assert "not-the-password-at-all" not in text


async def test_who_has_no_address_gets_no_mail_and_the_reason_is_shown(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service) as found:
        await subscribe(service)
        await preempted(service, "t1")
        await deliver(service, smtp)
        assert smtp.connections == 0
        (shown,) = (await service.ask(ListNotifications(owner="ann"))).notifications
        assert shown.problem == "ann has no mail address"
        # The address is read for each mail; nobody else's can be named.
        found["ann"] = a_user("ann", mail="new@lab.test")
        await subscribe(service)
        await preempted(service, "t2")
        await deliver(service, smtp)
        assert [each.to for each in smtp.mails] == [["new@lab.test"]]


async def test_mail_waits_for_a_gateway_that_does_not_answer(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp:
        await subscribe(service)
        await preempted(service, "t1")
        # For longer than a mail server may be down, and for more tries than there are.
        for _ in range(5):
            await deliver(service, smtp, after=86_400)
        assert await stages(service) == [("t1", Stage.WAITING, 0)], "nothing was tried"
        async with people(service, ann="ann@lab.test"):
            await deliver(service, smtp, after=1)
            assert smtp.mails == [], "not before the pause is over"
            await deliver(service, smtp, after=61)
        assert smtp.subjects() == ["[Shiftwork] t1 was preempted"]


@pytest.mark.parametrize("why", ["unknown", "forbidden", "no address"])
async def test_a_mail_that_is_not_sent_uses_no_rate_of_the_person_and_the_site(
    service: ServiceHarness, keys: Path, why: str
) -> None:
    limits: dict[str, Any] = {"mail_person_burst": 1, "mail_person_seconds": 3600}
    limits |= {"mail_site_burst": 1, "mail_site_seconds": 3600}
    async with serving(keys, **PLAIN, **limits) as smtp:
        await subscribe(service)
        # One that no longer counts.
        service.clock.advance(7200)
        await preempted(service, "t1")
        unsent = {"forbidden": a_user("ann", disabled=True), "no address": a_user("ann", mail="")}
        if why == "unknown":
            await deliver(service, smtp)
        else:
            async with answering(service.platform, People(unsent[why])):
                await deliver(service, smtp)
        assert smtp.connections == 0
        for each in await service.rows(MailboxRow):
            assert each.rate_until <= service.clock.now(), each
        async with people(service, ann="ann@lab.test"):
            await subscribe(service)
            await preempted(service, "t2")
            await deliver(service, smtp, after=61)
            # A mail that was composed before stays as it is.
            task_id = "t1" if why == "unknown" else "t2"
            assert smtp.subjects() == [f"[Shiftwork] {task_id} was preempted"]
            # The one that was sent counts.
            await preempted(service, "t3")
            await deliver(service, smtp, after=61)
            assert len(smtp.mails) == 1


async def test_a_person_without_an_address_ends_no_pause_of_the_mail_server(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp:
        there = smtp.settings.model_copy(update={"mail_port": 1})
        delivery = a_delivery(service, there)
        await subscribe(service)
        await subscribe(service, owner="bob")
        async with people(service, ann="ann@lab.test", bob=""):
            await preempted(service, "t1")
            await deliver(service, smtp, delivery)
            await service.ask(RemoveNotification(owner="ann", name="mine"))
            await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
            await deliver(service, smtp, delivery, after=700)
        assert [stage for task, stage, _ in await stages(service) if task == "b1"] == [Stage.DEAD]
        (site,) = [each for each in await service.rows(MailboxRow) if not each.owner]
        assert site.failures == 1
        assert delivery.mailing.problem


@pytest.mark.parametrize("owner", ["ann", ""])
async def test_a_mailbox_that_cannot_be_read_holds_back_nobody(
    platform: MemoryPlatform, keys: Path, owner: str
) -> None:
    service = ServiceHarness(platform, WIRING, MonitorSettings(**BASE))
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        await subscribe(service)
        await subscribe(service, owner="bob")
        for version in (1, 2):
            state = (TaskState.PREEMPTING, TaskState.FAILED)[version - 1]
            for name in ("ann", "bob"):
                change = a_change(service, version, state, f"t{name}", owner=name)
                await service.handle(change)
            await deliver(service, smtp)
            platform.database.break_row(TABLES, MailboxRow, owner, column="failures")
        to = [each.to[0] for each in smtp.mails]
        assert sorted(to) == ["a@lab.test", "a@lab.test", "b@lab.test", "b@lab.test"]


async def test_a_message_or_notification_that_cannot_be_read_holds_back_no_other(
    platform: MemoryPlatform, keys: Path
) -> None:
    service = ServiceHarness(platform, WIRING, MonitorSettings(**BASE))
    async with serving(keys, **PLAIN) as smtp, people(service, ann="a@lab.test", bob="b@lab.test"):
        await subscribe(service)
        await subscribe(service, "bad")
        await subscribe(service, owner="bob")
        await preempted(service, "t1", "t2")
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        platform.database.break_row(TABLES, NotificationRow, "ann", "bad", column="tasks")
        async with service.store.transaction() as tx:
            message = await tx.get(MessageRow, "t1.preempted.1.ann.mine")
            assert message is not None
            tx.put(replace(message, body="[]"))
        await deliver(service, smtp)
        subjects = ["[Shiftwork] b1 failed", "[Shiftwork] t2 was preempted"]
        assert sorted(smtp.subjects()) == subjects
        rows: list[MessageRow] = await service.rows(MessageRow)
        problems = {row.id: (row.stage, row.problem) for row in rows if row.problem}
        apart = (Stage.WAITING, "the notification cannot be read")
        assert problems == {
            "t1.preempted.1.ann.mine": (Stage.DEAD, "the message cannot be read"),
            "t1.preempted.1.ann.bad": apart,
            "t2.preempted.1.ann.bad": apart,
        }


async def test_an_address_that_no_mail_can_be_written_to_holds_back_nobody_else(
    service: ServiceHarness, keys: Path
) -> None:
    found = {"ann": "no address", "bob": "b@lab.test"}
    async with serving(keys, **PLAIN, mails_at_once=1) as smtp, people(service, **found):
        await subscribe(service)
        await subscribe(service, owner="bob")
        await preempted(service, "t1")
        await service.handle(a_change(service, 1, TaskState.FAILED, "b1", owner="bob"))
        await deliver(service, smtp)
        await deliver(service, smtp, after=1)
        assert smtp.subjects() == ["[Shiftwork] b1 failed"]
        rows: list[MessageRow] = await service.rows(MessageRow)
        (kept,) = [row for row in rows if row.owner == "ann"]
        assert "cannot be written" in kept.problem


async def test_a_notification_that_is_removed_or_becomes_a_webhook_mails_no_more(
    service: ServiceHarness, keys: Path
) -> None:
    async with serving(keys, **PLAIN) as smtp, people(service, ann="ann@lab.test"):
        await subscribe(service)
        await preempted(service, "t1")
        assert (await service.ask(RemoveNotification(owner="ann", name="mine"))).refusal is None
        await deliver(service, smtp)
        assert smtp.connections == 0
        assert [stage for _, stage, _ in await stages(service)] == [Stage.DEAD]


async def test_a_site_without_a_mail_server_says_so(platform: MemoryPlatform, store: Store) -> None:
    settings = MonitorSettings(database_url="-", nats_url="-")
    service = ServiceHarness(platform, WIRING, settings, store=store)
    command = SetNotification(
        owner="ann",
        name="mine",
        channel=NotificationChannel.MAIL,
        occasions=(Occasion.FAILED,),
        tasks=NotifiedTasks.OWN,
    )
    (error,) = (await service.ask(command)).refusal.errors
    assert (error.field, error.value) == ("channel", "mail")
    assert "SHIFTWORK_MONITOR_MAIL_HOST" in error.fix


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mail_from": ""}, "needs SHIFTWORK_MONITOR_MAIL_FROM"),
        ({"mail_from": "nobody"}, "is no mail address"),
        ({"mail_from": "a@lab.test\r\nBcc: b@lab.test"}, "is no mail address"),
        ({"mail_user": "x"}, "only one is set"),
        ({"mail_user": "x", "mail_security": "none"}, "only one is set"),
    ],
)
def test_settings_of_mail_are_checked_at_the_start(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MonitorSettings(**BASE | changes)


def test_a_password_is_not_sent_without_encryption(keys: Path) -> None:
    login = {"mail_user": "x", "mail_password_file": keys / "password"}
    with pytest.raises(ValidationError, match="unencrypted"):
        MonitorSettings(**BASE | login | {"mail_security": "none"})


NASTY = st.text(max_size=400) | st.sampled_from(
    ["a\r\nBcc: evil@lab.test", "a\n\nbody", "\u202eabc", "=?utf-8?q?x?=", "🧪" * 200, "é" * 500]
)


def test_each_occasion_has_a_verb_in_the_subject() -> None:
    assert set(VERBS) == set(Occasion) - {Occasion.UNSPECIFIED}
    for occasion, (verb, _) in VERBS.items():
        entry = Entry("mine", occasion, "2026-01-01 00:00:00 UTC", "t1", "train", "ann", "")
        assert render([entry], 50).subject == f"[Shiftwork] train {verb}"


@given(name=NASTY, reason=NASTY)
def test_no_name_of_a_task_breaks_out_of_its_header_or_line(name: str, reason: str) -> None:
    entry = Entry("mine", Occasion.FAILED, "2026-01-01 00:00:00 UTC", "t1", name, "ann", reason)
    text = render([entry], 50)
    mail = Mail("id", text)
    message = MailServer(MonitorSettings(**BASE)).message(mail, "ann@lab.test", at(0))
    raw = message.as_bytes()
    found = email.message_from_bytes(raw, policy=email.policy.default)
    assert [key for key, _ in found.items()] == [
        "From",
        "To",
        "Reply-To",
        "Subject",
        "Date",
        "Message-ID",
        "Auto-Submitted",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    ]
    shown = one_line(name, NAME_MAX) or "t1"
    assert found["To"] == "ann@lab.test"
    assert isinstance(found, EmailMessage)
    lines = found.get_content().splitlines()
    assert lines[0] == f"{shown} failed:"
    assert len(text.subject) <= SUBJECT_MAX
    assert raw.isascii()
    assert max(map(len, raw.split(b"\r\n"))) <= 998
