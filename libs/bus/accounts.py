"""The NATS accounts of the platform: one for the streams, one for each service.

Whoever writes a server's configuration calls ``accounts_of``. Subject permissions are not enough:
with JetStream the *server* publishes to whatever reply subject a request names, so that in a single
account a service could have the body of one of its own events delivered to ``cmd.submit.set_goal``,
or an answer delivered to ``$JS.API.STREAM.PURGE.EVT``. Between accounts the server replaces the
reply subject by one of its own and delivers the answer into the account of the requester alone.

Reference: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from libs.bus.topology import (
    CONSUMERS_INFO,
    LIVE,
    STREAM_INFO,
    WATCHED_CONSUMERS,
    WATCHED_STREAM,
    Permissions,
)
from libs.contracts.subjects import matches

# The account that holds JetStream and the administrator, who makes streams and durables.
STREAMS_ACCOUNT = "platform"

Json = dict[str, Any]


def accounts_of(
    users: Mapping[str, Permissions], admin: str, password: Callable[[str], str]
) -> Json:
    """The ``accounts`` block of the server's configuration, as JSON.

    ``users`` names each service and each monitoring user with what it may do; each is the only user
    of an account of its name. ``password`` gives the text that stands for a user's password.
    """
    streams: Json = {
        "jetstream": "enabled",
        "users": [{"user": admin, "password": password(admin)}],
        "exports": [],
        "imports": [],
    }
    accounts: Json = {STREAMS_ACCOUNT: streams}
    for name, allowed in users.items():
        user = {"user": name, "password": password(name), "permissions": allowed.as_config()}
        accounts[name] = {"users": [user], "exports": [], "imports": []}
        if allowed.connections_max:
            accounts[name]["limits"] = {
                "max_connections": allowed.connections_max,
                "max_subscriptions": allowed.subscriptions_max,
            }
    for name, allowed in users.items():
        _connect_to_streams(accounts, name, allowed)
        _connect_to_services(accounts, name, users)
    return accounts


def _connect_to_streams(accounts: Json, name: str, allowed: Permissions) -> None:
    """The events that a service stores and those of its durable; its telemetry is stored, too."""
    for subject in (*allowed.stores, *allowed.durable):
        _export(accounts, "service", STREAMS_ACCOUNT, subject, name)
    for subject in allowed.pulls:
        # One request is answered with many messages.
        _export(accounts, "service", STREAMS_ACCOUNT, subject, name, response_type="stream")
        _rename(accounts, name, subject, allowed.called(subject))
    for subject in allowed.asks:
        _export(accounts, "service", STREAMS_ACCOUNT, subject, name)
        _rename(accounts, name, subject, allowed.called(subject))
    for subject in allowed.sends:
        _export(accounts, "stream", name, subject, STREAMS_ACCOUNT)
    for subject in allowed.live:
        _export(accounts, "stream", STREAMS_ACCOUNT, f"{LIVE}.{subject}", name)
        _rename(accounts, name, f"{LIVE}.{subject}", subject)
    if allowed.watches:
        for subject, called in (
            (STREAM_INFO, WATCHED_STREAM),
            (CONSUMERS_INFO, WATCHED_CONSUMERS),
        ):
            _export(accounts, "service", STREAMS_ACCOUNT, subject, name)
            _rename(accounts, name, subject, called)


def _rename(accounts: Json, name: str, subject: str, called: str) -> None:
    """Give the last import of an account another name there."""
    if called != subject:
        accounts[name]["imports"][-1]["to"] = called


def _connect_to_services(accounts: Json, name: str, users: Mapping[str, Permissions]) -> None:
    """The commands that a service may request of others, and the telemetry, the frames of
    sessions and the samples that it receives."""
    allowed = users[name]
    for other, others in users.items():
        if other == name:
            continue
        for subject in others.serves:
            if any(matches(pattern, subject) for pattern in allowed.requests):
                _export(accounts, "service", other, subject, name)
        for subject in others.sends:
            if any(matches(pattern, subject) for pattern in allowed.receives):
                _export(accounts, "stream", other, subject, name)
        for subject in others.talks:
            if subject in allowed.hears:
                _export(accounts, "stream", other, subject, name)


def _export(accounts: Json, kind: str, owner: str, subject: str, to: str, **more: str) -> None:
    """Let one account use a subject of another one. An export names all accounts that may."""
    exports: list[Json] = accounts[owner]["exports"]
    for export in exports:
        if export.get(kind) == subject:
            export["accounts"].append(to)
            break
    else:
        exports.append({kind: subject, "accounts": [to], **more})
    accounts[to]["imports"].append({kind: {"account": owner, "subject": subject}})
