"""What ``show``, ``explain``, ``events`` and a dry run say about failures and retries: the class of
a failure, the retries that are used, and the restart rules of roles. Pure.
"""

from __future__ import annotations

from typing import Any, Mapping

from shiftwork.cli import parse

Document = Mapping[str, Any]
# Of a failure: who is likely to be at fault.
CLASSES = {
    "user": "the task's own fault (class user)",
    "transient": "a passing cause (class transient)",
    "platform": "the fault of the platform or the cluster (class platform)",
    "unknown": "of unknown cause (class unknown)",
}
SHARED = "max_retries"


def class_of(ended: Document) -> str:
    """The class of a failed or lost run in words; empty if it has none."""
    return CLASSES.get(str(ended.get("fault_class") or ""), "")


def used(task: Document) -> str:
    """``1 of 3; transient 2 of 5``: the retries that are used of those that are allowed."""
    limits, counts = parse.fields(task.get("retry")), parse.fields(task.get("retries_used"))
    parts = [f"{counts.get(SHARED) or 0} of {limits[SHARED]}"] if limits.get(SHARED) else []
    parts += [
        f"{name} {counts.get(name) or 0} of {limit}"
        for name, limit in limits.items()
        if name != SHARED and limit is not None
    ]
    return "; ".join(parts)


def limits(task: Document) -> str:
    """``3; transient 5``: the retries that are allowed."""
    given = parse.fields(task.get("retry"))
    parts = [str(given[SHARED])] if given.get(SHARED) else []
    parts += [
        f"{name} {limit}" for name, limit in given.items() if name != SHARED and limit is not None
    ]
    return "; ".join(parts)


def rules(task: Document) -> str:
    """``worker: on exit codes 128-255; ps: never``: the restart rules of roles that have one."""
    parts: list[str] = []
    for role in parse.listed(task.get("roles")):
        rule = parse.fields(role.get("restart"))
        if rule:
            parts.append(f"{role['name']}: {_rule(rule)}")
    return "; ".join(parts)


def _rule(rule: Document) -> str:
    when = str(rule.get("when") or "").replace("_", " ")
    if rule.get("exit_codes"):
        when = f"on exit codes {', '.join(parse.listed(rule['exit_codes']))}"
    if rule.get("scope") != "rank":
        return when
    most = rule.get("max_restarts")
    return f"{when}, in place" + ("" if most is None else f", at most {most} times")
