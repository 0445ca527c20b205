"""Delivers by mail: all that waits for a person goes as one mail, as often as the rates allow.

Each step records what a mail holds before it is sent. So a mail that was sent, but not recorded, is
sent again with the same ``Message-ID``, whatever has come meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.messages import NotificationChannel
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
from services.monitor.messages.cooldown import Cooldown
from services.monitor.messages.mail import Mail, MailServer
from services.monitor.messages.message_metrics import GivenUp, note, note_given_up
from services.monitor.messages.recipients import Recipients, RecipientUnknownError
from services.monitor.settings import MonitorSettings
from services.monitor.store import (
    MailboxRow,
    MessageRow,
    NotificationRow,
    ReceiverRow,
    Stage,
    after_failed_try,
    given_up,
    mailbox,
)

# In one mail; what is beyond is in the next one.
MESSAGES_MAX = 1000
ID_DIGITS = 32
# A mail server that is down is tried so often at least.
SERVER_PAUSE_SECONDS_MAX = 600.0
# The mailbox of the site's mail server.
SITE = ""
MAIL = NotificationChannel.MAIL
# After it was not known whether a person may be sent anything.
UNKNOWN_PAUSE_SECONDS = 60.0
_log = observability.log("monitor")
# What a mail may hold, each message with its notification.
Chosen = Sequence[tuple[MessageRow, NotificationRow]]


@dataclass(frozen=True, slots=True)
class _Tried:
    """How a mail went."""

    result: Result
    problem: str
    # Messages that the owner may not be sent, which are not in the mail, and why.
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    # The mail server was not asked: no mail was sent.
    unsent: bool = False


@dataclass
class Mailing:
    """Mails on the leader; ``begin`` is called by the delivery."""

    store: Store
    clock: Clock
    settings: MonitorSettings
    recipients: Recipients
    # Why the last mail could not be sent through the site's server; empty: it could.
    problem: str = ""
    _busy: set[str] = field(default_factory=set[str])
    _cooldown: Cooldown[str] = field(default_factory=Cooldown[str])

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
            if not await store.due(tx, MAIL, 1):
                return
        async with self.store.transaction(epoch=epoch) as tx:
            begun = await self._compose(tx)
        for owner, chosen in begun.items():
            self._busy.add(owner)
            group.create_task(self._deliver(epoch, owner, chosen, when_done))

    async def _compose(self, tx: Tx) -> dict[str, Chosen]:
        """Choose what is sent now. What may not be sent yet is put off until it may be, so that it
        is not in the way of others."""
        begun: dict[str, Chosen] = {}
        due: dict[str, list[MessageRow]] = {}
        left_out = self._busy | self._cooldown.all(self.clock.now())
        for _ in range(self.settings.mails_at_once):
            # One person's messages are not in the way of another's.
            others = (Where("owner", Op.NE, each) for each in sorted(left_out | set(due)))
            rows = await store.due(tx, MAIL, MESSAGES_MAX, *others)
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
            begun[owner] = chosen
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

    async def _choose(self, tx: Tx, owner: str) -> Chosen:
        """The messages of the next mail to a person: those of a mail that was tried, or all."""
        waiting = await store.waiting_mail(tx, owner, MESSAGES_MAX)
        tried = next((row.mail_id for row in waiting if row.mail_id), "")
        chosen: list[tuple[MessageRow, NotificationRow]] = []
        for row in waiting:
            try:
                notification = await tx.get(NotificationRow, owner, row.name)
            except UnreadableRowError:
                if row.due_at <= tx.now:
                    problem = "the notification cannot be read"
                    after = after_failed_try(row, self._pauses, tx.now, problem)
                    tx.put(after)
                    if after.stage is Stage.DEAD:
                        note_given_up(MAIL, GivenUp.FAILED)
                continue
            if not _is_for(notification, row):
                tx.put(given_up(row, tx.now, "the notification was removed"))
                note_given_up(MAIL, GivenUp.NOT_WANTED)
            elif not _has_text(row):
                tx.put(given_up(row, tx.now, "the message cannot be read"))
                note_given_up(MAIL, GivenUp.UNREADABLE)
            elif row.mail_id == tried and notification is not None:
                chosen.append((row, notification))
        if tried or not chosen:
            return chosen
        ids = "\n".join(row.id for row, _ in chosen)
        mail_id = hashlib.sha256(ids.encode()).hexdigest()[:ID_DIGITS]
        chosen = [(replace(row, mail_id=mail_id), notification) for row, notification in chosen]
        tx.put(*(row for row, _ in chosen))
        return chosen

    async def _deliver(
        self, epoch: int, owner: str, chosen: Chosen, when_done: Callable[[], None]
    ) -> None:
        """Send a mail, and record how it went."""
        rows = [row for row, _ in chosen]
        try:
            tried = await self._try(owner, chosen)
            async with self.store.transaction(epoch=epoch) as tx:
                await self._record(tx, owner, rows, tried)
        except (TermOverError, StoreUnavailableError) as problem:
            _log.info("a mail is not recorded and will be repeated", problem=str(problem))
        except Exception:  # noqa: BLE001 - the other mails go
            self._cooldown.add(owner, self.clock.now())
            observability.RETRIES.labels("monitor", "mail").inc()
            _log.exception("a mail is not recorded and will be repeated", owner=owner)
        finally:
            self._busy.discard(owner)
            when_done()

    async def _try(self, owner: str, chosen: Chosen) -> _Tried:
        """Send what the owner may be sent now. A mail that was tried before keeps its id without
        the messages that its owner may not be sent any more."""
        try:
            sifted = await self.recipients.sift(owner, chosen)
        except RecipientUnknownError as problem:
            return _Tried(Result.UNKNOWN, str(problem), unsent=True)
        if not sifted.messages:
            return _Tried(Result.FORBIDDEN, "", sifted.refused, unsent=True)
        if not sifted.mail:
            problem = f"{owner} has no mail address"
            return _Tried(Result.GONE, problem, sifted.refused, unsent=True)
        entries = [_entry(row) for row in sifted.messages]
        text = render(entries, self.settings.mail_messages_shown_max)
        mail = Mail(sifted.messages[0].mail_id, text)
        result, problem = await self._server.send(mail, sifted.mail, self.clock.now())
        return _Tried(result, problem, sifted.refused)

    async def _record(self, tx: Tx, owner: str, rows: Sequence[MessageRow], tried: _Tried) -> None:
        """Record a try."""
        mail_id, names = rows[0].mail_id, list(dict.fromkeys(row.name for row in rows))
        # Replayed, or put off when their notifications were set again, in the meantime.
        now = [await store.message(tx, row.id) for row in rows]
        waiting = [each for each in now if each and each.stage is Stage.WAITING]
        waiting = [row for row in waiting if row.mail_id == mail_id]
        forbidden = [row for row in waiting if row.id in tried.refused]
        tx.put(*(given_up(row, tx.now, tried.refused[row.id]) for row in forbidden))
        note_given_up(MAIL, GivenUp.NOT_WANTED, len(forbidden))
        box, result = await self._charge(tx, owner, tried)
        if result is Result.FORBIDDEN:
            return
        left = [row for row in waiting if row.id not in tried.refused]
        note(MAIL, result, len(left))
        if result is Result.UNKNOWN:
            await self._wait_for_gateway(tx, owner, left, tried.problem)
            return
        happened_at = max(row.happened_at for row in rows)
        for before in left:
            row = replace(before, tries=before.tries + 1)
            if result is Result.DELIVERED:
                tx.put(replace(row, stage=Stage.DELIVERED, due_at=tx.now, problem=""))
            elif box is None or self._is_last(tx, row.tries, happened_at, result, box):
                tx.put(given_up(row, tx.now, tried.problem))
                note_given_up(MAIL, GivenUp.FAILED)
            else:
                due_at = box.held_until or tx.now
                if result is Result.NO_WAY:
                    due_at = max(due_at, tx.now + self._server_pause(row.tries))
                tx.put(replace(row, due_at=due_at, problem=tried.problem))
        for name in names:
            await self._show(tx, owner, name, result, tried.problem)
        if result is Result.GONE:
            others = await store.waiting_mail(tx, owner, MESSAGES_MAX)
            paused = [row for row in others if row.name in names]
            tx.put(*(given_up(r, tx.now, f"the mail is paused: {tried.problem}") for r in paused))
            note_given_up(MAIL, GivenUp.FAILED, len(paused))

    async def _wait_for_gateway(
        self, tx: Tx, owner: str, rows: Sequence[MessageRow], problem: str
    ) -> None:
        """Hold back a person of whom the gateway does not say what may be sent. That counts
        as no try."""
        tx.put(*(replace(row, problem=problem) for row in rows))
        box = await self._box(tx, owner)
        held_until = tx.now + timedelta(seconds=UNKNOWN_PAUSE_SECONDS)
        tx.put(replace(box, held_until=held_until))

    async def _charge(self, tx: Tx, owner: str, tried: _Tried) -> tuple[MailboxRow | None, Result]:
        """Note for the person and the site how a try went, and return the mailbox that is held
        back, if one is. What was not sent uses up neither rate, and tells nothing of the server."""
        if not tried.unsent:
            box, result = await self._fail(tx, owner, tried.result)
            self._note(result, tried.problem)
            return box, result
        box, site = await self._box(tx, owner), await self._site_box(tx)
        tx.put(
            replace(box, rate_until=self._person.given_back(box.rate_until)),
            replace(site, rate_until=self._site.given_back(site.rate_until)),
        )
        return None, tried.result

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

    async def _fail(self, tx: Tx, owner: str, result: Result) -> tuple[MailboxRow | None, Result]:
        """Hold back the person, or everybody if it is the server that fails; or end that. None: it
        was taken, or refused for good.

        A server that fails for one person while it takes the mail of others is at fault for that
        person alone: UNREACHABLE.
        """
        site, box = await self._site_box(tx), await self._box(tx, owner)
        if result is Result.NO_WAY:
            since = box.failing_since
            if since is None or (site.failing_since and site.failing_since <= since):
                if site.held_until is None or site.held_until <= tx.now:
                    site = _held(site, tx.now, self._pauses, SERVER_PAUSE_SECONDS_MAX)
                    tx.put(site)
                tx.put(replace(box, failing_since=since or tx.now))
                return site, result
            result = Result.UNREACHABLE
        elif site.failures:
            tx.put(_well(site))
        if result is Result.UNREACHABLE:
            box = _held(box, tx.now, self._pauses, self._pauses.most_seconds)
            tx.put(box)
            return box, result
        if box.failing_since:
            tx.put(_well(box))
        return None, result

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


def _is_for(notification: NotificationRow | None, row: MessageRow) -> bool:
    """True for the notification that the message was put for, and that sends mail."""
    if notification is None or notification.channel is not MAIL:
        return False
    return notification.key == row.notification


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
