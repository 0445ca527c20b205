"""Whose tasks a notification may be about, and what others see of it."""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
import pytest

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


@pytest.mark.slow
async def test_each_command_of_the_command_line_reaches_the_monitor(
    harness: GatewayHarness,
) -> None:
    async def notify(url: str, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shiftwork", "--url", url, "notify", *words),
            env={**os.environ, "SHIFTWORK_TOKEN": ADMIN_TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async with served(harness) as url:
        assert "whsec_" in await notify(url, "set", "mine", "--to", URL, "--on", "failed")
        assert URL in await notify(url, "ls")
        assert "nothing was given up" in await notify(url, "undelivered", "mine")
        assert "0 messages" in await notify(url, "replay", "mine", "--user", "admin")
        assert "mine is removed" in await notify(url, "rm", "mine", "--user", "admin")
