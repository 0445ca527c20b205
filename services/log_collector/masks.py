"""Masks the secrets of tasks in the output of pods, before anything of it is kept or published.

The process runtime masks on the node; containers write to files of the kubelet, which nothing of
the platform masks. So log-collector asks the launcher by which texts the secrets of a run are
found, and keeps them in memory only. As long as it does not know them, it does not read the run's
output, which stays with its source. Wired in ``main.py``; ``collector.py`` masks with what is known
here, in a thread and for a limited time (``Turns``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from libs.bus.port import Bus, BusError
from libs.contracts.messages import ListSecretForms, ListSecretFormsReply, RefusalCode
from libs.service.clock import Clock
from libs.service.loop import Loop, Wake
from libs.service.masking import Masker
from libs.service.observability import log
from services.log_collector.domain import NEWLINE, Folded, Timestamp
from services.log_collector.state import READ_BYTES_MAX, SERVICE, Run, State

# So many runs are asked for at a time; one that got no answer is asked for again after so long,
# which doubles with each failure.
REQUESTS_MAX = 32
REQUEST_SECONDS = 5.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 60.0
# After these, and without an answer, the launcher may only be away for a time.
AWAY = frozenset({None, RefusalCode.UNAVAILABLE})
# Without a run that is new there is nothing to ask for.
QUIET_SECONDS = 60.0
# So long is masked before something else is done; what is left waits for the next pass.
PASS_SECONDS = 0.25
# Masking what is read at once of an output takes so long at most, but for so few bytes.
MASK_SECONDS_MAX = 0.05
MASKED_BYTES_MIN = 65_536
# Less than this is forgotten of what an owner's output took.
SPENT_SECONDS_MIN = 1e-6
T = TypeVar("T")


@dataclass
class Turns:
    """Whose output is masked first: that of owners whose output took the least time of late. So one
    owner's slow output costs the others a piece of it at most in each pass."""

    _spent: dict[str, float] = field(default_factory=dict)
    _left: float = PASS_SECONDS

    def begin_pass(self) -> None:
        """Forget by half what was spent, and begin."""
        halves = {owner: seconds / 2 for owner, seconds in self._spent.items()}
        self._spent = {each: half for each, half in halves.items() if half > SPENT_SECONDS_MIN}
        self.begin()

    def begin(self) -> None:
        """There is time again."""
        self._left = PASS_SECONDS

    def spent(self, owner: str) -> float:
        """The time that an owner's output took of late."""
        return self._spent.get(owner, 0.0)

    def work(self, parts: Sequence[tuple[str, Callable[[], T]]]) -> list[tuple[T, float] | None]:
        """The result of each part, which is an owner's, and the seconds that it took; None for
        what is left when the time is over. At least one is done after ``begin``. Call it in a
        thread: other asyncio tasks go on meanwhile."""
        done: list[tuple[T, float] | None] = []
        for owner, part in parts:
            if self._left <= 0:
                done.append(None)
                continue
            begin = time.thread_time()
            result = part()
            seconds = time.thread_time() - begin
            done.append((result, seconds))
            self._left -= seconds
            self._spent[owner] = self.spent(owner) + seconds
        return done


def next_read_bytes(read_bytes: int, size: int, seconds: float) -> int:
    """How much is read of an output at once, after to mask ``size`` bytes of it took so long."""
    if seconds > MASK_SECONDS_MAX:
        return max(MASKED_BYTES_MIN, int(size * MASK_SECONDS_MAX / seconds))
    return min(READ_BYTES_MAX, 2 * read_bytes) if size >= read_bytes else read_bytes


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A run of which the texts are not known, after it was asked for."""

    # When it is asked for again, and after how long once more.
    due_at: datetime
    retry_seconds: float
    problem: str
    # Since when the launcher answers that it has forgotten the run or cannot read it; None while it
    # may only be away.
    since: datetime | None


@dataclass
class RunMasks:
    """The texts of the secrets of the runs whose output is collected."""

    bus: Bus
    state: State
    clock: Clock
    # A run that the launcher has forgotten or cannot read is given up so long after its exit.
    unreadable_seconds_max: float
    # Set by the collector when runs are new.
    wake: Wake = field(default_factory=Wake)
    _forms: dict[Run, tuple[bytes, ...]] = field(default_factory=dict)
    _unanswered: dict[Run, Unanswered] = field(default_factory=dict)
    _problem: str = ""

    def forms_of(self, run: Run) -> tuple[bytes, ...] | None:
        """By which texts its secrets are found; None if that is not known."""
        return self._forms.get(run)

    def problem_of(self, run: Run) -> str:
        """Why its output cannot be kept, probably for good; empty if it can or that is not known
        yet."""
        known, row = self._unanswered.get(run), self.state.runs.get(run)
        if known is None or known.since is None or row is None or row.exited_at is None:
            return ""
        waited = (self.clock.now() - max(known.since, row.exited_at)).total_seconds()
        is_over = waited >= self.unreadable_seconds_max
        return f"the secrets in it are not known: {known.problem}" if is_over else ""

    async def step(self, epoch: int) -> float | None:
        """Ask for what is missing; returns in how many seconds to do so again."""
        del epoch
        runs, now = self.state.runs, self.clock.now()
        self._forms = {run: forms for run, forms in self._forms.items() if run in runs}
        self._unanswered = {run: each for run, each in self._unanswered.items() if run in runs}
        missing = [run for run in runs if run not in self._forms]
        # Those that were never asked for come first: failures of others do not delay them.
        due = [run for run in missing if run not in self._unanswered]
        again = sorted((each.due_at, run) for run, each in self._unanswered.items())
        due += [run for due_at, run in again if due_at <= now]
        await asyncio.gather(*map(self._ask, due[:REQUESTS_MAX]))
        if len(due) > REQUESTS_MAX:
            return 0.0
        next_at = min((each.due_at for each in self._unanswered.values()), default=None)
        if next_at is None:
            return None
        return max(0.0, (next_at - self.clock.now()).total_seconds())

    async def _ask(self, run: Run) -> None:
        """Ask for one run."""
        task_id, attempt = run
        try:
            reply = await self.bus.request(
                ListSecretForms(task_id=task_id, attempt=attempt), timeout_s=REQUEST_SECONDS
            )
        except BusError as error:
            self._failed(run, str(error), None)
            return
        assert isinstance(reply, ListSecretFormsReply)
        if reply.refusal is not None:
            self._failed(run, reply.refusal.detail, reply.refusal.code)
            return
        self._forms[run], self._problem = reply.forms, ""
        self._unanswered.pop(run, None)

    def _failed(self, run: Run, problem: str, code: RefusalCode | None) -> None:
        now, before = self.clock.now(), self._unanswered.get(run)
        seconds = before.retry_seconds if before else RETRY_SECONDS
        self._unanswered[run] = Unanswered(
            due_at=now + timedelta(seconds=seconds),
            retry_seconds=min(RETRY_SECONDS_MAX, 2 * seconds),
            problem=problem,
            since=None if code in AWAY else (before and before.since) or now,
        )
        if not self._problem:
            log(SERVICE).warning(
                "output of pods waits: its secrets are not known yet", problem=problem
            )
        self._problem = problem


def masks_loop(masks: RunMasks) -> Loop:
    """Asks for the secrets of new runs; woken when there are some."""
    return Loop(
        name="masks",
        step=masks.step,
        tick_seconds=QUIET_SECONDS,
        wake=masks.wake,
        wake_on_commit=False,
    )


def mask_next(masker: Masker | None, new: Folded, *, ends: bool) -> tuple[Folded, Masker | None]:
    """New output with its secrets masked, and what goes on masking once it is kept."""
    if masker is None:
        return new, None
    after = masker.copy()
    return masked(after, new, ends=ends), after


def masked(masker: Masker, new: Folded, *, ends: bool) -> Folded:
    """New output with its secrets masked. What may be the beginning of one is held back: it is the
    ``line`` of the result, comes again with the next output, and is given back at the end."""
    if not new.data.startswith(masker.take_back()):
        # A carriage return has overwritten it.
        masker.forget()
    cuts = [each.offset for each in new.timestamps]
    pieces = [new.data[a:b] for a, b in zip([0, *cuts], [*cuts, len(new.data)], strict=True)]
    parts = [masker.feed(pieces[0])]
    size, stamps = len(parts[0]), list[Timestamp]()
    for stamp, piece in zip(new.timestamps, pieces[1:], strict=True):
        held = bool(masker.held)
        part = masker.feed(piece)
        # The beginning of its first line was written earlier if it was held back.
        begin = part.find(NEWLINE) + 1 if held and stamps else 0
        if begin < len(part) and (begin or not held or not stamps):
            stamps.append(Timestamp(size + begin, stamp.at))
        parts.append(part)
        size += len(part)
    if ends:
        parts.append(masker.flush())
    held_back = masker.held
    source = new.source[: len(new.source) - len(held_back)]
    return Folded(b"".join(parts), source, held_back + new.line, tuple(stamps))


def masked_whole(forms: Sequence[bytes] | None, data: bytes) -> bytes:
    """Some text by itself; nothing where its secrets are not known."""
    if forms is None:
        return b""
    masker = Masker(forms)
    return masker.feed(data) + masker.flush()
