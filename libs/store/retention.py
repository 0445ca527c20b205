"""What keeps each table from growing without bound, declared beside the table.

``Retention`` is documentation that tests check: its settings must be those of the service, its
rule must be one that the service's prune loop runs, and a table of a service without a declaration
fails ``tests/services/test_retention.py``. ``tools/retention_page.py`` makes the page of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Retention:
    """When rows of one table are deleted, or why there cannot be many."""

    # A sentence's end for people: "a year after the task's end".
    text: str
    # Fields of the service's settings that change it.
    settings: tuple[str, ...] = ()
    # The ``PruneRule.what`` of each rule that deletes rows; none if handlers or another loop do.
    rules: tuple[str, ...] = ()
    # The row whose end takes these rows with it, and which has a retention of its own.
    parent: type[Any] | None = None


def deleted_by_age(setting: str, since: str, *, rule: str) -> Retention:
    """Rows go so long after ``since``; beyond a number of rows the oldest go earlier."""
    return Retention(f"by age after {since}, and by number", (setting, "kept_rows_max"), (rule,))


def goes_with(parent: type[Any], text: str = "") -> Retention:
    """Rows are deleted together with the row that they belong to."""
    return Retention(text or "deleted with it", parent=parent)


def live_only(text: str) -> Retention:
    """Rows describe what exists now, and handlers delete them when it ends."""
    return Retention(text)


def one_per(what: str, *, setting: str = "", rule: str = "") -> Retention:
    """There is at most one row for each of something that has a bound of its own; ``rule`` deletes
    the rows of those that are gone."""
    suffix = "; of what was removed, by age" if rule else ""
    return Retention(
        f"one for each {what}{suffix}", (setting,) if setting else (), (rule,) if rule else ()
    )
