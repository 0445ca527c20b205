"""What a mail says: one message, or a digest of many. Pure.

Names of tasks are written by people, and may have line breaks, characters that turn the direction
of text, and thousands of letters. They come into a subject or a line only through ``one_line``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts.messages import Occasion

NAME_MAX, REASON_MAX, SUBJECT_MAX = 80, 300, 200
# One and several tasks.
VERBS: dict[Occasion, tuple[str, str]] = {
    Occasion.STARTED: ("started", "started"),
    Occasion.PREEMPTED: ("was preempted", "were preempted"),
    Occasion.FAILED: ("failed", "failed"),
    Occasion.FINISHED: ("finished", "finished"),
    Occasion.WAITING: ("has waited for long", "have waited for long"),
    Occasion.QUOTA_REACHED: ("waits for a quota", "wait for a quota"),
    Occasion.ABNORMAL: ("is abnormal", "are abnormal"),
}
# They join letters and emoji; all other characters without a shape are left out.
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message in a mail."""

    notification: str
    occasion: Occasion
    happened_at: str
    task_id: str
    task_name: str
    owner: str
    # Why, and how the task ended; empty: nothing is known.
    reason: str
    # What the owner may do; empty: nothing is suggested.
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class MailText:
    """Subject and body."""

    subject: str
    body: str


def one_line(text: str, most: int) -> str:
    """The text on one line, without control characters, and not longer than ``most``."""
    clean = "".join(each if _is_shown(each) else " " for each in text[: 8 * most])
    line = " ".join(clean.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _is_shown(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character)[0] not in "CZ"


def render(entries: Sequence[Entry], shown_max: int) -> MailText:
    """The text of a mail about these messages, of which it lists ``shown_max``."""
    assert entries, "a mail is about something"
    kinds = {
        occasion: [entry for entry in entries if entry.occasion is occasion]
        for occasion in Occasion
    }
    found = {occasion: listed for occasion, listed in kinds.items() if listed}
    phrases = [_phrase(occasion, listed) for occasion, listed in found.items()]
    lines: list[str] = []
    left = shown_max
    for phrase, listed in zip(phrases, found.values(), strict=True):
        lines.append(f"{phrase}:")
        lines += [line for entry in listed[:left] for line in _lines(entry)]
        if len(listed) > left:
            lines.append(f"  and {len(listed) - left} more; `shiftwork ls` lists your tasks")
        left = max(0, left - len(listed))
        lines.append("")
    subject = one_line(f"[Shiftwork] {', '.join(phrases)}", SUBJECT_MAX)
    return MailText(subject, "\n".join([*lines, *_ending(entries)]) + "\n")


def _phrase(occasion: Occasion, listed: Sequence[Entry]) -> str:
    one, several = VERBS[occasion]
    tasks = {entry.task_id for entry in listed}
    if len(tasks) == 1:
        return f"{_name(listed[0])} {one}"
    return f"{len(tasks)} tasks {several}"


def _name(entry: Entry) -> str:
    return one_line(entry.task_name, NAME_MAX) or entry.task_id


def _lines(entry: Entry) -> list[str]:
    lines = [f"  {entry.happened_at}  {_name(entry)} ({entry.task_id}, of {entry.owner})"]
    more = (one_line(text, REASON_MAX) for text in (entry.reason, entry.suggestion))
    return [*lines, *(f"    {line}" for line in more if line)]


def _ending(entries: Sequence[Entry]) -> list[str]:
    """How to stop it; the names of notifications have no character that needs a quote."""
    names = sorted({entry.notification for entry in entries})
    stop = [f"To end the notification {name}: shiftwork notify rm {name}" for name in names]
    return ["-- ", "You get this mail because you set it up.", *stop]
