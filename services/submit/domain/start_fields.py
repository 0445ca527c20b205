"""Checks of the order in which roles start, and of how they become ready. Called by
``spec_fields.py``, which checks the bounds of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from libs.contracts.messages import FieldError, Role, TaskSpec
from libs.contracts.start_order import find_cycle
from libs.contracts.wording import Suggestions, cut, field_error
from services.submit.domain.facts import Limits

Errors = Iterator[FieldError]
PATH_CHARACTERS_MAX = 1024


def check_start(spec: TaskSpec, limits: Limits) -> Errors:
    """Every error in what roles wait for."""
    names = [role.name for role in spec.roles]
    errors = 0
    suggestions = Suggestions()
    for index, role in enumerate(spec.roles[: limits.roles_max]):
        yield from _ready(f"roles[{index}].ready", role, suggestions)
        at = f"roles[{index}].starts_after"
        for error in _starts_after(at, role, names, limits, suggestions):
            errors += 1
            yield error
    cycle = () if errors or len(names) > limits.roles_max else find_cycle(spec.roles)
    if cycle:
        yield field_error(
            f"roles[{names.index(cycle[0])}].starts_after",
            " -> ".join(cycle),
            "is a cycle: none of these roles could ever start",
            "remove one of these conditions",
        )


def _starts_after(
    at: str, role: Role, names: list[str], limits: Limits, suggestions: Suggestions
) -> Errors:
    if len(role.starts_after) > limits.roles_max:
        fix = "name each role once"
        why = f"has more than {limits.roles_max} roles"
        yield field_error(at, f"{len(role.starts_after)} roles", why, fix)
    seen = set[str]()
    for index, each in enumerate(role.starts_after[: limits.roles_max]):
        field = f"{at}[{index}].role"
        if each.role == role.name:
            yield field_error(field, each.role, "is this role itself", "name another role")
        elif each.role not in names:
            others = [name for name in names if name != role.name]
            known = f"use one of {', '.join(others)}" if others else "the task has no other role"
            fix = f"{suggestions.meant(each.role, others)} {known}".strip()
            yield field_error(field, each.role, f"there is no role {each.role}", fix)
        elif each.role in seen:
            yield field_error(field, each.role, "is named twice", "name each role once")
        seen.add(each.role)


def _ready(at: str, role: Role, suggestions: Suggestions) -> Errors:
    probe = role.ready
    if probe is None:
        return
    ports = [port.name for port in role.ports]
    if probe.port and probe.port not in ports:
        known = f"use one of {', '.join(ports)}" if ports else "declare it in the role's ports"
        fix = f"{suggestions.meant(probe.port, ports)} {known}".strip()
        yield field_error(f"{at}.port", probe.port, f"role {role.name} has no such port", fix)
    if not probe.path:
        return
    path = f"{at}.path"
    if not probe.port:
        yield field_error(path, probe.path, "has no port", "name the port at which it is served")
    if len(probe.path) > PATH_CHARACTERS_MAX:
        fix = f"use at most {PATH_CHARACTERS_MAX} characters"
        yield field_error(path, f"{len(probe.path)} characters", "is too long for a path", fix)
    elif not probe.path.startswith("/"):
        yield field_error(
            path, probe.path, "does not begin with /", f"begin it with /: {_as_path(probe.path)}"
        )
    elif not probe.path.isascii() or not _is_one_word(probe.path):
        message = "has spaces, control characters or letters beyond ASCII"
        yield field_error(path, probe.path, message, f"encode them: {_as_path(probe.path)}")


def _as_path(text: str) -> str:
    """What was meant, as the path of a URL."""
    path = "/" + text.removeprefix("http://").lstrip("/")
    return cut(quote(path, safe="/%?=&+:@,;~"))


def _is_one_word(text: str) -> bool:
    return text.isprintable() and " " not in text
