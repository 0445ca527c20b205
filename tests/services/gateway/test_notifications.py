"""Whose tasks a notification may be about, and what others see of it."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.json_values import rfc3339
from services.gateway.permissions import Role
from services.gateway.rows import UserRow
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, served

URL = "https://example.org/hook/path-that-is-a-secret"
BODY = {"url": URL, "occasions": ["failed"]}


async def recipients(harness: GatewayHarness, *users: str) -> dict[str, m.Recipient]:
    """What the gateway answers the monitor."""
    query = m.ReadRecipients(users=users)
    reply = await harness.connection("monitor").request(query, timeout_s=5)
    assert isinstance(reply, m.ReadRecipientsReply)
    assert (reply.refusal, reply.unreadable) == (None, ())
    return {each.user: each for each in reply.recipients}


@pytest.mark.parametrize("harness", [{"visibility": "team"}], indirect=True)
async def test_the_monitor_learns_who_a_user_is_now_and_whose_tasks_the_user_sees(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    await harness.member("ann", role=Role.USER)
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"sees": m.NotifiedTasks.TEAM, "team": "", "disabled": False}),
        ({"team": "vision"}, {"sees": m.NotifiedTasks.TEAM, "team": "vision"}),
        ({"role": "operator"}, {"sees": m.NotifiedTasks.ALL}),
        ({"role": "viewer"}, {"sees": m.NotifiedTasks.TEAM}),
        ({"archived": True}, {"disabled": True}),
    ]
    for change, expected in changes:
        assert (await admin.patch("/v1/users/ann", json=change)).status_code == 200
        found = await recipients(harness, "ann", "nobody")
        assert found.keys() == {"ann"}
        assert {name: getattr(found["ann"], name) for name in expected} == expected
    shown = (await admin.get("/v1/users/ann")).json()
    assert rfc3339(found["ann"].added_at) == shown["created_at"]


async def test_a_user_who_cannot_be_read_is_not_taken_for_one_who_is_not_there(
    harness: GatewayHarness,
) -> None:
    await harness.member("ann", role=Role.USER)
    async with harness.gateway.ports.store.transaction() as tx:
        row = await tx.get(UserRow, "ann")
        assert row is not None
        tx.put(replace(row, role="emperor"))
    monitor = harness.connection("monitor")
    reply = await monitor.request(m.ReadRecipients(users=("ann", "admin")), timeout_s=5)
    assert isinstance(reply, m.ReadRecipientsReply)
    assert [each.user for each in reply.recipients] == ["admin"]
    assert reply.unreadable == ("ann",)
    many = m.ReadRecipients(users=("ann",) * 201)
    refused = await monitor.request(many, timeout_s=5)
    assert isinstance(refused, m.ReadRecipientsReply)
    assert refused.refusal is not None
    assert refused.refusal.detail == "users: 201 are too many; give at most 200"


@pytest.mark.parametrize("harness", [{"visibility": "team"}], indirect=True)
async def test_nobody_is_told_about_tasks_that_the_user_does_not_see(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    ann = await harness.member("ann", role=Role.USER)
    await admin.patch("/v1/users/ann", json={"team": "vision"})
    async with harness.client(ann) as client:
        for tasks, status in (("own", 200), ("team", 200), ("all", 403)):
            reply = await client.put("/v1/notifications/mine", json={**BODY, "tasks": tasks})
            assert reply.status_code == status, reply.text
    # An administrator gives ann nothing that ann does not see either.
    theirs = {**BODY, "tasks": "all", "user": "ann"}
    assert (await admin.put("/v1/notifications/theirs", json=theirs)).status_code == 403
    assert (
        await admin.put("/v1/notifications/x", json={**BODY, "tasks": "all"})
    ).status_code == 200


async def test_the_secret_is_shown_once_and_the_path_of_the_url_to_its_owner_alone(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    ann = await harness.member("ann", role=Role.USER)
    async with harness.client(ann) as client:
        made = (await client.put("/v1/notifications/mine", json=BODY)).json()
        assert made["secret"].startswith("whsec_")
        again = (await client.put("/v1/notifications/mine", json=BODY)).json()
        assert again["secret"] is None
        listed = await client.get("/v1/notifications")
        assert [each["url"] for each in listed.json()["items"]] == [URL]
        assert made["secret"] not in listed.text
    shown = await admin.get("/v1/notifications?everybody=true")
    assert [each["url"] for each in shown.json()["items"]] == ["https://example.org/…"]
    audit = await admin.get("/v1/audit?limit=100")
    assert "notification.set" in audit.text
    for text in (shown.text, audit.text):
        assert "path-that-is-a-secret" not in text
        assert made["secret"] not in text


async def test_what_is_wrong_has_its_field_value_and_fix(admin: httpx.AsyncClient) -> None:
    reply = await admin.put(
        "/v1/notifications/mine", json={**BODY, "url": "https://169.254.169.254/latest"}
    )
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert error["field"] == "url"
    assert error["fix"] == "ask whoever runs the site to allow it"
    missing = await admin.delete("/v1/notifications/none")
    assert missing.status_code == 404
    assert missing.json()["detail"] == "admin has no notification named none"


async def test_mail_goes_to_the_address_that_an_administrator_has_set(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    ann = await harness.member("ann", role=Role.USER)
    body = {"channel": "mail", "occasions": ["failed"]}

    async def address() -> str:
        return (await recipients(harness, "ann"))["ann"].mail

    async with harness.client(ann) as client:
        refused = await client.put("/v1/notifications/mine", json=body)
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["message"] == "ann has no mail address"
        assert "user set ann --mail" in error["fix"]
        # Nobody gives an address to themselves, or mails somebody else.
        own = await client.patch("/v1/users/ann", json={"mail": "ann@lab.test"})
        assert own.status_code == 403
        to = await client.put("/v1/notifications/x", json={**body, "url": "mailto:bob@lab.test"})
        assert to.json()["errors"][0]["field"] == "url"
        theirs = await client.put("/v1/notifications/x", json={**body, "user": "admin"})
        assert theirs.status_code == 403
        assert await address() == ""
        set_ = await admin.patch("/v1/users/ann", json={"mail": "ann@lab.test"})
        assert set_.json()["mail"] == "ann@lab.test"
        made = (await client.put("/v1/notifications/mine", json=body)).json()
        assert (made["channel"], made["url"], made["secret"]) == ("mail", None, None)
        (listed,) = (await client.get("/v1/notifications")).json()["items"]
        assert (listed["channel"], listed["url"]) == ("mail", None)
    assert await address() == "ann@lab.test"
    await admin.patch("/v1/users/ann", json={"disabled": True})
    assert (await recipients(harness, "ann"))["ann"].disabled
    await admin.patch("/v1/users/ann", json={"disabled": False, "mail": ""})
    assert await address() == ""


@pytest.mark.parametrize(
    "address",
    ["nobody", "a b@lab.test", "a@lab.test\r\nBcc: b@lab.test", "a@lab.test,b@lab.test", "<a@b>"],
)
async def test_what_is_no_mail_address_is_refused(admin: httpx.AsyncClient, address: str) -> None:
    reply = await admin.post("/v1/users", json={"name": "ann", "mail": address})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "mail"


@pytest.mark.slow
async def test_each_command_of_the_command_line_reaches_the_monitor(
    harness: GatewayHarness,
) -> None:
    async def typed(url: str, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shiftwork", "--url", url, *words),
            env={**os.environ, "SHIFTWORK_TOKEN": ADMIN_TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async with served(harness) as url:
        assert "whsec_" in await typed(url, "notify", "set", "mine", "--to", URL, "--on", "failed")
        assert URL in await typed(url, "notify", "ls")
        assert "nothing was given up" in await typed(url, "notify", "undelivered", "mine")
        assert "0 messages" in await typed(url, "notify", "replay", "mine", "--user", "admin")
        await typed(url, "user", "set", "admin", "--mail", "admin@lab.test")
        assert "failed of own" in await typed(
            url, "notify", "set", "mails", "--to", "mail", "--on", "failed"
        )
        assert "mine is removed" in await typed(url, "notify", "rm", "mine", "--user", "admin")
