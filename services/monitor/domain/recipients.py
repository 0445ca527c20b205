"""Whether a message may be sent to its owner now. Pure.

A notification is made with the rights of its owner at that time. A user may since have been
disabled, moved to another team, given a smaller role, or replaced by another one of the same name.
"""

from __future__ import annotations

from datetime import datetime

from libs.contracts.messages import NotifiedTasks, Recipient


def is_of(added_at: datetime | None, changed_at: datetime, owner_added_at: datetime | None) -> bool:
    """True if a notification belongs to the user that was added at ``added_at``.

    ``changed_at`` and ``owner_added_at`` are the notification's. A gateway of an earlier version
    gives no ``added_at``, and what it has set has no ``owner_added_at``.
    """
    if added_at is None:
        return True
    if owner_added_at is None:
        return added_at <= changed_at
    return added_at == owner_added_at


def is_about(
    tasks: NotifiedTasks, owner: str, team: str, *, task_owner: str, task_team: str
) -> bool:
    """True if a notification about ``tasks``, of this owner in this team, is about a task."""
    if tasks is NotifiedTasks.ALL:
        return True
    if tasks is NotifiedTasks.TEAM:
        return bool(task_team) and task_team == team
    return task_owner == owner


def may_know(
    tasks: NotifiedTasks, recipient: Recipient, *, task_owner: str, task_team: str
) -> bool:
    """True if a notification about ``tasks`` may tell its owner of a task, with the owner's role
    and team of now."""
    owner, team = recipient.user, recipient.team
    if not is_about(tasks, owner, team, task_owner=task_owner, task_team=task_team):
        return False
    if recipient.sees is NotifiedTasks.ALL:
        return True
    if recipient.sees is NotifiedTasks.TEAM and team and task_team == team:
        return True
    return recipient.sees is not NotifiedTasks.UNSPECIFIED and task_owner == owner
