"""Delivers by mail: all that waits for a person goes as one mail, as often as the rates allow.

Each step records what a mail holds before it is sent. So a mail that was sent, but not recorded, is
sent again with the same ``Message-ID``, whatever has come meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.bus.port import Bus, BusError
from libs.contracts.messages import NotificationChannel, ReadMailAddress, ReadMailAddressReply
from libs.service import observability
from libs.service.clock import Clock
from libs.store.port import (
    Op,
    Store,
    StoreUnavailableError,
    TermOverError,
    Tx,
    UnreadableRowError,
    Where,
)
from services.monitor import store
from services.monitor.domain.mail_rates import MailRate
from services.monitor.domain.mail_texts import Entry, render
from services.monitor.domain.retries import (
    Pauses,
    Result,
    gives_up,
    pause_seconds,
    pauses_receiver,
)
from services.monitor.mail import Mail, MailServer
from services.monitor.set_aside import SetAside
from services.monitor.settings import MonitorSettings
from services.monitor.store import (
    MailboxRow,
    MessageRow,
    NotificationRow,
    ReceiverRow,
    Stage,
    given_up,
    mailbox,
    tried_in_vain,
)
from services.monitor.webhook import Outcome

# In one mail; what is beyond is in the next one.
MESSAGES_MAX = 1000
ID_DIGITS = 32
ADDRESS_SECONDS_MAX = 5.0
# A mail server that is down is tried so often at least.
SERVER_PAUSE_SECONDS_MAX = 600.0
# The mailbox of the site's mail server.
SITE = ""
_log = observability.log("monitor")
AddressOf = Callable[[str], Awaitable[str]]


def addresses(bus: Bus) -> AddressOf:
    """Ask the gateway, which has the users, for an address. Raises BusError if none answers."""

    async def address_of(user: str) -> str:
        query = ReadMailAddress(user=user)
        reply = await bus.request(query, timeout_s=ADDRESS_SECONDS_MAX)
        assert isinstance(reply, ReadMailAddressReply), "the declared reply"
        return reply.address

    return address_of


@dataclass
class Mailing:
    """Mails on the leader; ``begin`` is called by the delivery."""

    store: Store
    clock: Clock
    settings: MonitorSettings
    address_of: AddressOf
    # Why the last mail could not be sent through the site's server; empty: it could.
    problem: str = ""
    _busy: set[str] = field(default_factory=set[str])
    _set_aside: SetAside[str] = field(default_factory=SetAside[str])

    def __post_init__(self) -> None:
        self._server = MailServer(self.settings)
        self._pauses: Pauses = self.settings.pauses()
        self._person: MailRate = self.settings.mail_rate_of_person()
        self._site: MailRate = self.settings.mail_rate_of_site()

    async def begin(
        self, epoch: int, group: asyncio.TaskGroup, when_done: Callable[[], None]
    ) -> None:
        """Begin the mails that are due, at most one at a time for each person."""
        async with self.store.transaction() as tx:
            if not await store.due(tx, NotificationChannel.MAIL, 1):
                return
        async with self.store.transaction(epoch=epoch) as tx:
            begun = await self._compose(tx)
        for mail, rows in begun:
            self._busy.add(mail.owner)
            group.create_task(self._deliver(epoch, mail, rows, when_done))

    async def _compose(self, tx: Tx) -> list[tuple[Mail, Sequence[MessageRow]]]:
        """Choose what is sent now. What may not be sent yet is put off until it may be, so that it
        is not in the way of others."""
        begun: list[tuple[Mail, Sequence[MessageRow]]] = []
        due: dict[str, list[MessageRow]] = {}
        left_out = self._busy | self._set_aside.all(self.clock.now())
        for _ in range(self.settings.mails_at_once):
            # One person's messages are not in the way of another's.
            others = (Where("owner", Op.NE, each) for each in sorted(left_out | set(due)))
            rows = await store.due(tx, NotificationChannel.MAIL, MESSAGES_MAX, *others)
            for row in rows:
                due.setdefault(row.owner, []).append(row)
            if len(rows) < MESSAGES_MAX:
                break
        site = await self._site_box(tx)
        for owner, rows in due.items():
            box = await self._box(tx, owner)
            ready_at = max(_ready(site, self._site), _ready(box, self._person))
            if ready_at > tx.now:
                tx.put(*(replace(row, due_at=ready_at) for row in rows))
                continue
            if len(self._busy) + len(begun) >= self.settings.mails_at_once:
                break
            chosen = await self._choose(tx, owner)
            if not chosen:
                continue
            begun.append((self._mail(owner, chosen), chosen))
            tx.put(replace(box, rate_until=self._person.used(box.rate_until, tx.now)))
            site = replace(site, rate_until=self._site.used(site.rate_until, tx.now))
        if begun:
            tx.put(site)
        return begun

    async def _site_box(self, tx: Tx) -> MailboxRow:
        return _counted(await mailbox(tx, SITE), self._site, SERVER_PAUSE_SECONDS_MAX, tx.now)

    async def _box(self, tx: Tx, owner: str) -> MailboxRow:
        most_seconds = self._pauses.most_seconds
        return _counted(await mailbox(tx, owner), self._person, most_seconds, tx.now)

    @property
    def longest_wait(self) -> timedelta:
        """No message waits for longer than that until it is tried."""
        rates = max(self._person.longest, self._site.longest)
        pauses = max(
            SERVER_PAUSE_SECONDS_MAX, self._pauses.most_seconds, self.settings.mail_gather_seconds
        )
        return max(rates, timedelta(seconds=pauses))

    async def _choose(self, tx: Tx, owner: str) -> Sequence[MessageRow]:
        """The messages of the next mail to a person: those of a mail that was tried, or all."""
        waiting = await store.waiting_mail(tx, owner, MESSAGES_MAX)
        tried = next((row.mail_id for row in waiting if row.mail_id), "")
        chosen: list[MessageRow] = []
        for row in waiting:
            try:
                notification = await tx.get(NotificationRow, owner, row.name)
            except UnreadableRowError:
                if row.due_at <= tx.now:
                    problem = "the notification cannot be read"
                    tx.put(tried_in_vain(row, self._pauses, tx.now, problem))
                continue
            if notification is None or notification.channel is not NotificationChannel.MAIL:
                tx.put(given_up(row, tx.now, "the notification was removed"))
            elif not _has_text(row):
                tx.put(given_up(row, tx.now, "the message cannot be read"))
            elif row.mail_id == tried:
                chosen.append(row)
        if tried or not chosen:
            return chosen
        ids = "\n".join(row.id for row in chosen)
        mail_id = hashlib.sha256(ids.encode()).hexdigest()[:ID_DIGITS]
        chosen = [replace(row, mail_id=mail_id) for row in chosen]
        tx.put(*chosen)
        return chosen

    def _mail(self, owner: str, rows: Sequence[MessageRow]) -> Mail:
        names = tuple(dict.fromkeys(row.name for row in rows))
        text = render([_entry(row) for row in rows], self.settings.mail_messages_shown_max)
        return Mail(rows[0].mail_id, owner, names, text)

    async def _deliver(
        self, epoch: int, mail: Mail, rows: Sequence[MessageRow], when_done: Callable[[], None]
    ) -> None:
        """Send a mail, and record how it went."""
        try:
            outcome = await self._try(mail)
            async with self.store.transaction(epoch=epoch) as tx:
                await self._record(tx, mail, rows, outcome)
        except (TermOverError, StoreUnavailableError) as problem:
            _log.info("a mail is not recorded and will be repeated", problem=str(problem))
        except Exception:  # noqa: BLE001 - the other mails go
            self._set_aside.add(mail.owner, self.clock.now())
            observability.RETRIES.labels("monitor", "mail").inc()
            _log.exception("a mail is not recorded and will be repeated", owner=mail.owner)
        finally:
            self._busy.discard(mail.owner)
            when_done()

    async def _try(self, mail: Mail) -> Outcome:
        try:
            address = await self.address_of(mail.owner)
        except BusError as problem:
            return Result.NO_WAY, f"the gateway does not answer where the mail goes: {problem}"
        if not address:
            return Result.GONE, f"{mail.owner} has no mail address, or is disabled"
        return await self._server.send(mail, address, self.clock.now())

    async def _record(
        self, tx: Tx, mail: Mail, rows: Sequence[MessageRow], outcome: Outcome
    ) -> None:
        """Record a try."""
        result, problem = outcome
        self._note(result, problem)
        box = await self._fail(tx, mail, result)
        happened_at = max(row.happened_at for row in rows)
        for before in rows:
            # Replayed, or put off when its notification was set again, in the meantime.
            row = await store.message(tx, before.id)
            if row is None or row.stage is not Stage.WAITING or row.mail_id != mail.id:
                continue
            row = replace(row, tries=row.tries + 1)
            if result is Result.DELIVERED:
                tx.put(replace(row, stage=Stage.DELIVERED, due_at=tx.now, problem=""))
            elif box is None or self._is_last(tx, row.tries, happened_at, result, box):
                tx.put(given_up(row, tx.now, problem))
            else:
                due_at = box.held_until or tx.now
                if result is Result.NO_WAY:
                    due_at = max(due_at, tx.now + self._server_pause(row.tries))
                tx.put(replace(row, due_at=due_at, problem=problem))
        for name in mail.notifications:
            await self._show(tx, mail.owner, name, result, problem)
        if result is Result.GONE:
            for row in await store.waiting_mail(tx, mail.owner, MESSAGES_MAX):
                if row.name in mail.notifications:
                    tx.put(given_up(row, tx.now, f"the mail is paused: {problem}"))

    def _server_pause(self, tries: int) -> timedelta:
        """The pause of a mail for which the server fails: others may go meanwhile, and end the
        pause of all mail."""
        seconds = min(SERVER_PAUSE_SECONDS_MAX, pause_seconds(self._pauses, tries))
        return timedelta(seconds=seconds)

    def _is_last(
        self, tx: Tx, tries: int, happened_at: datetime, result: Result, box: MailboxRow
    ) -> bool:
        """True if a message was tried for long enough. Tries at a mail server that is down do not
        count, but its time does: for all mail, and for one that the server does not take while it
        takes others. ``happened_at``: the newest of its mail, so that the mail stays whole."""
        if pauses_receiver(self._pauses, result, box.failing_since, tx.now):
            return True
        if not gives_up(self._pauses, tries):
            return False
        longest = timedelta(seconds=self._pauses.failing_seconds_max)
        return result is Result.UNREACHABLE or tx.now - happened_at >= longest

    async def _fail(self, tx: Tx, mail: Mail, result: Result) -> MailboxRow | None:
        """Hold back the person, or everybody if it is the server that fails; or end that. None: it
        was taken, or refused for good."""
        site, box = await self._site_box(tx), await self._box(tx, mail.owner)
        if result is Result.NO_WAY:
            if site.held_until is None or site.held_until <= tx.now:
                site = _held(site, tx.now, self._pauses, SERVER_PAUSE_SECONDS_MAX)
                tx.put(site)
            return site
        if site.failures:
            tx.put(_well(site))
        if result is Result.UNREACHABLE:
            box = _held(box, tx.now, self._pauses, self._pauses.most_seconds)
            tx.put(box)
            return box
        if box.failures:
            tx.put(_well(box))
        return None

    async def _show(self, tx: Tx, owner: str, name: str, result: Result, problem: str) -> None:
        """Let the list of notifications show how it went."""
        receiver = await store.receiver(tx, owner, name)
        if result is Result.DELIVERED:
            if receiver is not None:
                tx.delete(ReceiverRow, owner, name)
            return
        shown = replace(receiver or ReceiverRow(owner, name), problem=problem)
        tx.put(replace(shown, paused_at=tx.now) if result is Result.GONE else shown)

    def _note(self, result: Result, problem: str) -> None:
        """Keep for operators why the server takes nothing."""
        found = f"mail cannot be sent: {problem}" if result is Result.NO_WAY else ""
        if found and not self.problem:
            _log.warning("mail cannot be sent", problem=problem)
        self.problem = found


def _counted(box: MailboxRow, rate: MailRate, most_seconds: float, now: datetime) -> MailboxRow:
    """The mailbox without times that lie too far ahead: the clock was set back since."""
    held = box.held_until
    if held is not None and held > now + timedelta(seconds=most_seconds):
        held = None
    return replace(box, rate_until=rate.counted(box.rate_until, now), held_until=held)


def _ready(box: MailboxRow, rate: MailRate) -> datetime:
    free_at = rate.free_at(box.rate_until)
    return free_at if box.held_until is None else max(free_at, box.held_until)


def _held(box: MailboxRow, now: datetime, pauses: Pauses, most_seconds: float) -> MailboxRow:
    failures = box.failures + 1
    pause = timedelta(seconds=min(most_seconds, pause_seconds(pauses, failures)))
    since = box.failing_since or now
    return replace(box, held_until=now + pause, failing_since=since, failures=failures)


def _well(box: MailboxRow) -> MailboxRow:
    return replace(box, held_until=None, failing_since=None, failures=0)


def _has_text(row: MessageRow) -> bool:
    try:
        _entry(row)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _entry(row: MessageRow) -> Entry:
    data = json.loads(row.body)["data"]
    # Of an abnormal task, the finding says what was found.
    reason, ended = data.get("reason") or data.get("detail", ""), data.get("exit", "")
    return Entry(
        notification=row.name,
        occasion=row.occasion,
        happened_at=f"{row.happened_at:%Y-%m-%d %H:%M:%S} UTC",
        task_id=row.task_id,
        task_name=data["name"],
        owner=data["owner"],
        # The reason of most failures has how the run ended already.
        reason=f"{reason}; {ended}" if ended and ended not in reason else reason,
        suggestion=data.get("suggestion", ""),
    )
