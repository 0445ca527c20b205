"""Whose tasks a caller sees: one rule, for the conditions of lists and for single rows.

A caller sees its own tasks and those that were submitted under its present team, as far as the
site's setting allows. The rule reads ``owner`` and ``team`` of a row, so it holds alike for tasks
and for events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ne
from typing import Any

from libs.store.port import Op, Where

Conditions = tuple[Where, ...]
_COMPARE: Mapping[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: eq,
    Op.NE: ne,
    Op.IN: lambda value, several: value in several,
}


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller sees of tasks. Without a user: all of them."""

    user: str = ""
    # Whose tasks the caller sees as well; empty: of no team.
    team: str = ""

    @property
    def is_full(self) -> bool:
        """True if every task is seen."""
        return not self.user

    def alternatives(self) -> tuple[Conditions, ...]:
        """The rule: a row is seen if it meets all conditions of one of these. No row meets two, and
        the first condition of each names a value that an index finds."""
        if self.is_full:
            return ((),)
        own = (Where("owner", Op.EQ, self.user),)
        if not self.team:
            return (own,)
        return own, (Where("team", Op.EQ, self.team), Where("owner", Op.NE, self.user))

    def shows(self, row: object) -> bool:
        """True if the caller sees this row of a task or of an event about one."""
        return any(meets(row, conditions) for conditions in self.alternatives())


EVERY_TASK = Sight()


def meets(row: object, conditions: Sequence[Where]) -> bool:
    """True if a row meets each condition, as the store tests it."""
    return all(_COMPARE[each.op](getattr(row, each.column), each.value) for each in conditions)


def key_of(conditions: Sequence[Where]) -> tuple[str, object]:
    """A column with the value that each row has there that meets the conditions; ``ANY`` if the
    conditions name none."""
    return next(((each.column, each.value) for each in conditions if each.op is Op.EQ), ANY)


ANY: tuple[str, object] = ("", "")
