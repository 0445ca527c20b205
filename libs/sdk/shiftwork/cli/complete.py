"""Completion of names and values by the shell: what the server has, asked once and briefly.

Given to Typer as ``autocompletion``. Errors are never printed, because the shell is in the middle
of a line.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Sequence, Tuple
from urllib.parse import urlencode

import typer

from shiftwork.cli import (
    choices,
    contexts,
    ids,
    parse,
    render,
    server_choices,
    task_options,
    timeline,
)
from shiftwork.transport import Connection

ANSWER_SECONDS = 0.8
SHOWN_MAX = 200

Found = List[Tuple[str, str]]


def _items(ctx: typer.Context, path: str, until: float | None = None) -> list[Any]:
    """A list of the server's; an empty one if there is no answer soon, or by ``until``."""
    seconds = ANSWER_SECONDS if until is None else until - time.monotonic()
    if seconds <= 0:
        return []
    given = ctx.find_root().params
    try:
        target = contexts.target(
            url=str(given.get("url") or ""),
            token=str(given.get("token") or ""),
            context=str(given.get("context") or ""),
            environ=os.environ,
        )
        client = Connection(target.url, target.token)
        try:
            answer = client.call("GET", path, timeout_seconds=seconds)
        finally:
            client.close()
        return parse.listed(parse.fields(answer.json()).get("items"))
    except Exception:  # noqa: BLE001 - whatever it is, the shell gets no suggestions
        return []


def _beginning(found: Sequence[tuple[str, str]], incomplete: str) -> Found:
    return [(value, help_) for value, help_ in found if value.startswith(incomplete)][:SHOWN_MAX]


def _names(path: str, key: str = "name") -> Callable[[typer.Context, str], Found]:
    def complete(ctx: typer.Context, incomplete: str) -> Found:
        return _beginning([(str(each[key]), "") for each in _items(ctx, path)], incomplete)

    return complete


users = _names("/v1/users?limit=1000")
teams = _names("/v1/teams?limit=1000")
groups = _names("/v1/groups")
notifications = _names("/v1/notifications")
nodes = _names("/v1/nodes?limit=1000", "id")


# Which tasks the server is asked for, in this order, and what completes the text: a name; an id,
# only where no name begins so, because all ids begin with the same characters; the end of an id,
# as tables show it.
_FORMS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("name_prefix", lambda task: str(task["name"])),
    ("id_prefix", lambda task: str(task["id"])),
    ("", lambda task: ids.short(str(task["id"]))),
)


def _tasks(query: str) -> Callable[[typer.Context, str], Found]:
    def complete(ctx: typer.Context, incomplete: str) -> Found:
        until = time.monotonic() + ANSWER_SECONDS
        for filter_, text_of in _FORMS:
            given = {filter_: incomplete} if filter_ and incomplete else {}
            asked = urlencode({**given, "limit": SHOWN_MAX})
            tasks = _items(ctx, f"/v1/tasks?{query}{asked}", until)
            help_of = "name" if filter_ != "name_prefix" else "state"
            named = {text_of(task): str(task[help_of]) for task in reversed(tasks)}
            found = _beginning(list(reversed(named.items())), incomplete)
            if found or not incomplete:
                return found
        return []

    return complete


tasks = _tasks("")
live_tasks = _tasks("all=false&")


def _words(words: Sequence[str]) -> Callable[[str], Found]:
    def complete(incomplete: str) -> Found:
        before, comma, last = incomplete.rpartition(",")
        return [(f"{before}{comma}{word}", "") for word in words if word.startswith(last)]

    return complete


priorities = _words(task_options.PRIORITIES)
contracts = _words(task_options.CONTRACTS)
run_modes = _words(task_options.RUN_MODES)
states = _words(parse.STATES)
outputs = _words(("wide", *render.DOCUMENTS))
roles = _words(server_choices.ROLES)
scopes = _words(server_choices.SCOPES)
services = _words(server_choices.SERVICES)
occasions = _words(server_choices.OCCASIONS)
notified_tasks = _words(server_choices.NOTIFIED_TASKS)
shells = _words(choices.SHELLS)
preemptions = _words(server_choices.PREEMPTIONS)
usage_dimensions = _words(server_choices.USAGE_DIMENSIONS)
usage_outcomes = _words(server_choices.USAGE_OUTCOMES)
audit_actions = _words(server_choices.AUDIT_ACTIONS)
audit_outcomes = _words(server_choices.AUDIT_OUTCOMES)
abnormal_rules = _words(server_choices.ABNORMAL_RULES)
quota_defaults = _words(("unlimited", "normal"))
facts = _words(tuple(sorted(timeline.SENTENCES)))


def tokens(ctx: typer.Context, incomplete: str) -> Found:
    """Tokens that are not revoked, by id, with whose and what they are for."""
    items = _items(ctx, "/v1/tokens?revoked=false&limit=1000")
    named = [(each["id"], f"{each['user']} {each.get('name') or ''}".strip()) for each in items]
    return _beginning(named, incomplete)


def orders(incomplete: str) -> Found:
    """The orders of ``ls --sort``, falling ones too."""
    falling = incomplete[:1] if incomplete.startswith("-") else ""
    return _beginning([(falling + word, "") for word in choices.TASK_ORDERS], incomplete)


def tasks_then_priority(ctx: typer.Context, incomplete: str) -> Found:
    """Complete ``priority TASK... PRIORITY``, where either a task or a priority may follow."""
    return live_tasks(ctx, incomplete) + priorities(incomplete)


def context_names(incomplete: str) -> Found:
    """Contexts by name."""
    try:
        _, known = contexts.load(contexts.default_path())
    except Exception:  # noqa: BLE001 - as above
        return []
    return _beginning([(name, one.url) for name, one in sorted(known.items())], incomplete)
