"""Short ids and names of tasks, for people. Only ``Names`` sends requests to the server.

An id begins with its time, so the ids of a list share their first characters. Its last ten are
random: the last six identify a task among thousands, and every TASK argument accepts them.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping

from shiftwork.cli import parse
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure
from shiftwork.client.paths import part

SHORT = 6
TAIL = re.compile(r"[a-z2-7]{6,26}")
# An id that is a word of a sentence, or with an attempt behind it a run's. Punctuation of sentences
# may stand around it. In a path, a URI or a name of something else it is never a word.
_IN_TEXT = re.compile(
    r"""(?<![^\s("'\[{<])t[a-z2-7]{20}(?=(?:\.\d+)?(?:'s)?[)"'\]}>,;:.!?]*(?:\s|$))"""
)
# So many tasks are looked up for a table: each is a request.
LOOKUPS_MAX = 20
# Names do not change, so a table that is drawn again asks for none twice.
_REMEMBERED: dict[tuple[str, str], Any] = {}
REMEMBERED_MAX = 10_000


def short(task_id: str) -> str:
    """The last characters of one id."""
    return task_id[-SHORT:]


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """Return for each id as many of its last characters as distinguish it from the others."""
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


class Names:
    """The names of the tasks that texts mention; the server is asked for those not known yet."""

    def __init__(
        self,
        api: Api,
        known: Mapping[str, Any] | None = None,
        lookups_max: float = LOOKUPS_MAX,
    ) -> None:
        self._api = api
        self._tasks: dict[str, Any] = dict(known or {})
        self._lookups_left = lookups_max

    def put_into(self, text: str) -> str:
        """The text with names instead of ids. A task that cannot be read keeps its short id."""
        for task_id in _IN_TEXT.findall(text):
            if task_id not in self._tasks:
                self._look_up(task_id)
        return named(text, self._tasks)

    def _look_up(self, task_id: str) -> None:
        key = self._api.url, task_id
        if key not in _REMEMBERED and self._lookups_left > 0:
            self._lookups_left -= 1
            try:
                found = self._api.get("/v1/tasks/" + part(task_id))
            except Failure:
                found = {}
            if len(_REMEMBERED) >= REMEMBERED_MAX:
                _REMEMBERED.clear()
            _REMEMBERED[key] = {"name": found.get("name")}
        if key in _REMEMBERED:
            self._tasks[task_id] = _REMEMBERED[key]


def named(text: str, tasks: Mapping[str, Any]) -> str:
    """A sentence with names instead of ids; in commands, which stand in backticks, short ids."""
    parts = text.split("`")
    for place, text_part in enumerate(parts):
        command = place % 2 == 1
        parts[place] = _IN_TEXT.sub(
            lambda found, command=command: (  # type: ignore[misc]
                short(found.group()) if command else called(found.group(), tasks)
            ),
            text_part,
        )
    return "`".join(parts)
