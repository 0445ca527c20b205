"""Notifications: messages about tasks to people and programs. The monitor keeps and delivers them;
these routes decide about whose tasks a caller may have them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway.api import notification_shapes as shapes
from services.gateway.api.deps import Caller, Context, Parts, allows, answer, router_of
from services.gateway.api.people import user_or_404
from services.gateway.auth import Identity, not_permitted
from services.gateway.bodies import NotificationBody
from services.gateway.json_values import rfc3339
from services.gateway.permissions import (
    Action,
    NotPermitted,
    Reach,
    Role,
    refusal_to_reach_others,
)
from services.gateway.problems import invalid
from services.gateway.recipients import reach_on_tasks
from services.gateway.rows import UserRow

router = router_of("notifications")
User = Annotated[
    str | None, Query(max_length=63, description="whose it is; left out: the caller's")
]
# The reach on tasks that each choice needs.
_NEEDS = {"own": Reach.OWN, "team": Reach.TEAM, "all": Reach.ALL}


@router.get("/notifications", response_model=shapes.NotificationList)
@allows(Action.READ_NOTIFICATIONS)
async def list_notifications(
    caller: Caller,
    parts: Parts,
    *,
    user: User = None,
    everybody: Annotated[bool, Query(description="those of all users")] = False,
) -> Response:
    """The caller's notifications; ``everybody``: those of all users. Secrets are never shown, and
    of a URL of others only its host."""
    owner = await _owner_there(caller, parts, user)
    if everybody and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(Action.READ_NOTIFICATIONS, caller.user))
    query = m.ListNotifications(owner="" if everybody else owner)
    reply = await parts.commands.ask(query, m.ListNotificationsReply)
    return answer({"items": [_shown(each, caller) for each in reply.notifications]})


@router.put("/notifications/{name}", response_model=shapes.NotificationSet)
@allows(Action.CHANGE_NOTIFICATIONS, inside=True)
async def put_notification(
    name: str, body: NotificationBody, caller: Caller, parts: Parts
) -> Response:
    """Make a notification, or replace it: it gets messages again if it was paused. A secret that is
    made is in this answer and nowhere else, ever."""
    async with parts.changing(caller, "notification.set", name) as change:
        owner = _owner(caller, body.user)
        row = await _require_sight(parts, owner, body.tasks)
        _check_target(body, row)
        words = " ".join(body.occasions)
        change.detail = f"for {owner} by {body.channel}: {words} of {body.tasks}"
        command = m.SetNotification(
            owner=owner,
            name=name,
            channel=m.NotificationChannel[body.channel.upper()],
            url=body.url or "",
            occasions=tuple(m.Occasion[word.upper()] for word in body.occasions),
            tasks=m.NotifiedTasks[body.tasks.upper()],
            team=row.team if body.tasks == "team" else "",
            secret=body.secret.get_secret_value() if body.secret else "",
            owner_added_at=row.created_at,
        )
        reply = await change.ask(command, m.SetNotificationReply)
    assert reply.notification is not None, "the monitor returns what it stored"
    shown = _shown(reply.notification, caller)
    headers = {"cache-control": "no-store"}
    return answer({**shown, "secret": reply.secret or None}, headers=headers)


@router.delete("/notifications/{name}", status_code=204)
@allows(Action.CHANGE_NOTIFICATIONS, inside=True)
async def remove_notification(
    name: str, caller: Caller, parts: Parts, *, user: User = None
) -> Response:
    """Remove a notification; what waits for it is not sent."""
    async with parts.changing(caller, "notification.remove", name) as change:
        owner = _owner(caller, user)
        change.detail = f"of {owner}"
        await change.ask(m.RemoveNotification(owner=owner, name=name), m.RemoveNotificationReply)
    return Response(status_code=204)


@router.get("/notifications/{name}/undelivered", response_model=shapes.UndeliveredList)
@allows(Action.READ_NOTIFICATIONS)
async def list_undelivered(
    name: str, caller: Caller, parts: Parts, *, user: User = None
) -> Response:
    """The messages that were given up, newest first: at most the last 200."""
    owner = await _owner_there(caller, parts, user)
    query = m.ListUndeliveredMessages(owner=owner, name=name)
    reply = await parts.commands.ask(query, m.ListUndeliveredMessagesReply)
    return answer({"items": [_undelivered(each) for each in reply.undelivered]})


@router.post(
    "/notifications/{name}/replay", status_code=202, response_model=shapes.NotificationReplay
)
@allows(Action.CHANGE_NOTIFICATIONS, inside=True)
async def replay_undelivered(
    name: str, caller: Caller, parts: Parts, *, user: User = None
) -> Response:
    """Let the messages that were given up be tried again, each under the id that it had."""
    async with parts.changing(caller, "notification.replay", name) as change:
        command = m.ReplayUndeliveredMessages(owner=_owner(caller, user), name=name)
        reply = await change.ask(command, m.ReplayUndeliveredMessagesReply)
    return answer({"messages": reply.messages}, 202)


async def _owner_there(caller: Identity, parts: Context, user: str | None) -> str:
    """Whose notifications are read; a problem that names a user who is not there."""
    owner = _owner(caller, user)
    if owner != caller.user:
        async with parts.store.transaction() as tx:
            await user_or_404(tx, owner, "user")
    return owner


def _owner(caller: Identity, user: str | None) -> str:
    """Whose notification is meant. Raises a problem for those of others that are out of reach."""
    if user is not None and user != caller.user and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(caller.action, caller.user))
    return user or caller.user


async def _require_sight(parts: Context, owner: str, tasks: str) -> UserRow:
    """The owner's row. Raises a problem unless the owner sees these tasks."""
    async with parts.store.transaction() as tx:
        row = await user_or_404(tx, owner, "user")
    if reach_on_tasks(Role(row.role), parts.settings.visibility) < _NEEDS[tasks]:
        message = f"{owner} may not see the tasks of {'everybody' if tasks == 'all' else 'others'}"
        raise not_permitted(NotPermitted(message, "give tasks: own"))
    return row


def _check_target(body: NotificationBody, owner: UserRow) -> None:
    """Raise a problem for a webhook without URL, and for mail to somebody without address."""
    if body.channel == "webhook":
        if body.url is None:
            fix = 'give the https://HOST/PATH of a webhook, or "channel": "mail"'
            raise invalid("url", "", "is missing", fix)
        return
    for field, given in (("url", body.url), ("secret", body.secret)):
        if given is not None:
            message = "is for webhooks; mail goes to the address of the user"
            raise invalid(field, "", message, "leave it out")
    if not owner.mail:
        fix = f"an administrator sets it: shiftwork user set {owner.name} --mail ADDRESS"
        raise invalid("channel", "mail", f"{owner.name} has no mail address", fix)


def _shown(row: m.Notification, caller: Identity) -> dict[str, Any]:
    # The path of a webhook is often a secret by itself.
    url = row.url if row.owner == caller.user or not row.url else _host_of(row.url)
    return {
        "name": row.name,
        "user": row.owner,
        # A monitor of an earlier version names none, and has webhooks alone.
        "channel": "mail" if row.channel is m.NotificationChannel.MAIL else "webhook",
        "url": url or None,
        "occasions": [each.name.lower() for each in row.occasions],
        "tasks": row.tasks.name.lower(),
        "changed_at": rfc3339(row.changed_at),
        "paused_at": rfc3339(row.paused_at),
        "problem": row.problem or None,
        "waiting": row.waiting,
        "undelivered": row.undelivered,
    }


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/…"


def _undelivered(row: m.Undelivered) -> dict[str, Any]:
    return {
        "id": row.id,
        "task_id": row.task_id,
        "occasion": row.occasion.name.lower(),
        "happened_at": rfc3339(row.happened_at),
        "tries": row.tries,
        "problem": row.problem,
    }
