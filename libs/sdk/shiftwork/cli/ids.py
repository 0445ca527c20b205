"""Short ids and names of tasks, for people. Pure.

An id begins with its time, so the ids of a list share their first characters. Its last ten are
random: the last six tell a task among thousands, and every TASK argument takes them.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping

from shiftwork.cli import parse

SHORT = 6
TAIL = re.compile(r"[a-z2-7]{6,26}")
# An id as it stands in a sentence; and with an attempt behind it, a run's.
_IN_TEXT = re.compile(r"\bt[a-z2-7]{20}\b")


def short(task_id: str) -> str:
    """The last characters of one id."""
    return task_id[-SHORT:]


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """For each of these ids its last characters: as many as tell it from the others."""
    known = set(ids)
    found: dict[str, str] = {}
    length = SHORT
    while known:
        by_tail: dict[str, list[str]] = {}
        for task_id in known:
            by_tail.setdefault(task_id[-length:], []).append(task_id)
        alone = {same[0]: tail for tail, same in by_tail.items() if len(same) == 1}
        whole = {each: each for each in known if len(each) <= length}
        found.update({**alone, **whole})
        known -= set(found)
        length += 1
    return found


def called(task_id: str, tasks: Mapping[str, Any]) -> str:
    """``train (abc234)``, with ``tasks`` by id; the short id alone if its name is not known."""
    name = parse.fields(tasks.get(task_id)).get("name")
    return f"{name} ({short(task_id)})" if name else short(task_id)


def named(text: str, tasks: Mapping[str, Any]) -> str:
    """A sentence with names instead of ids; in commands, which stand in backticks, short ids."""
    parts = text.split("`")
    for place, part in enumerate(parts):
        command = place % 2 == 1
        parts[place] = _IN_TEXT.sub(
            lambda found, command=command: (  # type: ignore[misc]
                short(found.group()) if command else called(found.group(), tasks)
            ),
            part,
        )
    return "`".join(parts)
