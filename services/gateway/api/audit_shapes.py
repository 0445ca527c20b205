"""What the routes of the audit trail answer."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable


class AuditEntry(TypedDict):
    """A change, or the refusal of one. ``before`` and ``after`` are there as far as the change has
    such."""

    id: str
    at: str
    who: str
    action: str
    target: str
    outcome: str
    detail: str
    address: str | None
    token: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(TypedDict):
    """One page of the audit trail."""

    items: list[AuditEntry]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
