"""What the routes of notifications answer."""

from __future__ import annotations

from typing_extensions import TypedDict


class Notification(TypedDict):
    """Where messages about tasks go, and which."""

    name: str
    user: str
    # webhook or mail.
    channel: str
    # Of another user's: only its host. Null: mail goes to the address of the user.
    url: str | None
    occasions: list[str]
    tasks: str
    changed_at: str
    # Nothing is sent until the notification is set again; null: it is not paused.
    paused_at: str | None
    # Why the last delivery failed; null: it did not.
    problem: str | None
    # Messages that wait, and those that were given up: at most 200 of each are counted.
    waiting: int
    undelivered: int


class NotificationList(TypedDict):
    """All of them; a site has few."""

    items: list[Notification]


class NotificationSet(Notification):
    """The notification as it is stored."""

    # Signs every message. One that was made now; null: the one that was there stays.
    secret: str | None


class Undelivered(TypedDict):
    """A message that was given up."""

    # The same at every try; of a webhook it is the webhook-id.
    id: str
    task_id: str
    occasion: str
    happened_at: str
    tries: int
    problem: str


class UndeliveredList(TypedDict):
    """The newest first."""

    items: list[Undelivered]


class NotificationReplay(TypedDict):
    """How many messages wait again."""

    messages: int
