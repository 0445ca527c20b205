"""Whose tasks a notification may be about, and what others see of it."""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.permissions import Role
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, served

URL = "https://example.org/hook/path-that-is-a-secret"
BODY = {"url": URL, "occasions": ["failed"]}


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
    monitor = harness.connection("monitor")

    async def address() -> str:
        reply = await monitor.request(m.ReadMailAddress(user="ann"), timeout_s=5)
        assert isinstance(reply, m.ReadMailAddressReply)
        return reply.address

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
    assert await address() == "", "who is disabled gets no mail"
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
