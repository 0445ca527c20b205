"""What the routes of the audit trail answer, and what an entry holds of what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Union

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from services.gateway.api.node_shapes import LabelsAndTaints, Scheduling
from services.gateway.api.people_shapes import Team, Token, User
from services.gateway.api.quota_shapes import Quota, QuotaAmount
from services.gateway.api.shapes import Unreadable


class AuditedGoal(TypedDict):
    """A task's goal."""

    goal: str


class AuditedMode(TypedDict):
    """A task's run mode."""

    mode: str


class AuditedPriority(TypedDict):
    """A task's priority."""

    priority: str


AuditedPolicies = TypeAliasType(
    "AuditedPolicies",
    Annotated[
        dict[str, str | None],
        Field(
            description="Groups with the JSON text of their policy documents; null: they have"
            " none of their own."
        ),
    ],
)


class LeftOut(TypedDict):
    """Instead of a state that is too large for the audit trail: its size."""

    left_out: str


# What ``before`` and ``after`` hold, by the beginning of the action. The entries of other actions
# have neither.
STATES: Mapping[str, Any] = {
    "node.drain": Scheduling,
    "node.labels": LabelsAndTaints,
    "node.schedulable": Scheduling,
    "node.taints": LabelsAndTaints,
    "policy": AuditedPolicies,
    "quota.expire": Quota,
    "quota.set": QuotaAmount,
    "task.goal": AuditedGoal,
    "task.mode": AuditedMode,
    "task.own_priority": AuditedPriority,
    "task.priority": AuditedPriority,
    "team": Team,
    "token": Token,
    "user": User,
}
if TYPE_CHECKING:
    AuditedState = Mapping[str, object]
else:
    AuditedState = Union[*dict.fromkeys(STATES.values()), LeftOut]


class AuditEntry(TypedDict):
    """A change, or the refusal of one. ``before`` and ``after`` are there as far as the change has
    such; their type belongs to the action."""

    id: str
    at: str
    who: str
    action: str
    target: str
    outcome: str
    detail: str
    address: str | None
    token: str | None
    before: AuditedState | None
    after: AuditedState | None


class AuditPage(TypedDict):
    """One page of the audit trail."""

    items: list[AuditEntry]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
