"""Browser sessions: what a cookie may do, when it ends, and what other sites cannot do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from services.gateway import browser_sessions
from services.gateway.main import _authenticator
from services.gateway.problems import ProblemError
from services.gateway.rows import SessionRow, TokenUseRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import prune_rules
from services.gateway.tables import TABLES
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, served

ORIGIN = "http://gateway"


async def session(harness: GatewayHarness, user: str = "ann", secret: str = "secret") -> str:
    """A session of this user; its secret."""
    async with harness.gateway.ports.store.transaction() as tx:
        new_id = harness.gateway.ports.clock.now().isoformat() + secret
        await browser_sessions.begin(
            tx, harness.settings, secret, new_id, user=user, address="10.0.0.1", by="password"
        )
    return secret


def browser(harness: GatewayHarness, secret: str, **headers: str) -> httpx.AsyncClient:
    client = harness.client(None)
    client.headers.update({"cookie": f"other=1; shiftwork={secret}", **headers})
    return client


@pytest.fixture
def csrf() -> dict[str, str]:
    return {browser_sessions.CSRF_HEADER: browser_sessions.csrf_of("secret"), "origin": ORIGIN}


async def test_a_session_gives_the_same_identity_as_a_token(
    harness: GatewayHarness, csrf: dict[str, str]
) -> None:
    token = await harness.member("ann", team="vision", role="operator")
    secret = await session(harness)
    async with browser(harness, secret) as client, harness.client(token) as program:
        me, same = [(await each.get("/v1/whoami")).json() for each in (client, program)]
        del me["token"], same["token"]
        assert me == same
        shown = (await client.get("/v1/session")).json()
        assert shown["csrf"] == csrf[browser_sessions.CSRF_HEADER]
        assert (shown["user"], shown["role"], shown["team"]) == ("ann", "operator", "vision")
        made = await client.post("/v1/tasks", json={"command": ["x"]}, headers=csrf)
        assert (made.status_code, made.json()["owner"]) == (201, "ann")
        assert (await program.get("/v1/session")).json()["csrf"] is None
    stored = str(harness.database.rows(TABLES, SessionRow))
    assert "'secret'" not in stored
    assert browser_sessions.csrf_of("secret") not in stored


async def test_a_bearer_token_wins_over_a_cookie_and_a_cookie_is_no_bearer_token(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    del ann
    secret = await session(harness)
    async with browser(harness, secret, authorization=f"Bearer {ADMIN_TOKEN}") as client:
        assert (await client.get("/v1/session")).json()["user"] == "admin"
        assert (await client.post("/v1/teams", json={"name": "t"})).status_code == 201
    async with browser(harness, secret) as client:
        assert (await client.get("/v1/session")).status_code == 200
        # Runs have tokens alone.
        assert (await client.get("/v1/run")).status_code == 401
    async with browser(harness, secret, authorization="Bearer swt_wrong") as client:
        assert (await client.get("/v1/session")).status_code == 401
    async with harness.client(secret) as client:
        assert (await client.get("/v1/session")).status_code == 401


async def test_what_changes_something_needs_the_csrf_token_and_the_own_site(
    harness: GatewayHarness, ann: httpx.AsyncClient, csrf: dict[str, str]
) -> None:
    del ann
    secret = await session(harness)
    right = csrf[browser_sessions.CSRF_HEADER]
    cases: dict[str, tuple[dict[str, str], int]] = {
        "nothing": ({}, 403),
        "the origin alone": ({"origin": ORIGIN}, 403),
        "a wrong token": ({browser_sessions.CSRF_HEADER: "x", "origin": ORIGIN}, 403),
        "another origin": (
            {browser_sessions.CSRF_HEADER: right, "origin": "http://evil.test"},
            403,
        ),
        "no origin": ({browser_sessions.CSRF_HEADER: right, "origin": "null"}, 403),
        "another scheme": ({browser_sessions.CSRF_HEADER: right, "origin": "https://gateway"}, 403),
        "another port": ({browser_sessions.CSRF_HEADER: right, "origin": f"{ORIGIN}:81"}, 403),
        "another site": ({**csrf, "sec-fetch-site": "cross-site"}, 403),
        "a neighbour": ({**csrf, "sec-fetch-site": "same-site"}, 403),
        "right": ({**csrf, "sec-fetch-site": "same-origin"}, 201),
        "right, without an origin": ({browser_sessions.CSRF_HEADER: right}, 201),
    }
    async with browser(harness, secret) as client:
        for what, (headers, wanted) in cases.items():
            reply = await client.post("/v1/tasks", json={"command": ["x"]}, headers=headers)
            assert reply.status_code == wanted, what
        for method in ("PUT", "PATCH", "DELETE"):
            reply = await client.request(method, "/v1/users/ann")
            assert (reply.status_code, "csrf" in reply.json()["detail"]) == (403, True)


async def test_a_session_ends_by_logout_revocation_age_and_disuse(
    harness: GatewayHarness, admin: httpx.AsyncClient, csrf: dict[str, str]
) -> None:
    await harness.member("ann")
    settings = harness.settings

    async with browser(harness, await session(harness)) as client:
        reply = await client.delete("/v1/session", headers=csrf)
        assert reply.status_code == 204
        assert reply.headers["set-cookie"].startswith("shiftwork=; Path=/; Max-Age=0; HttpOnly")
        assert (await client.get("/v1/session")).status_code == 401

    async with browser(harness, await session(harness)) as client:
        (one,) = (await client.get("/v1/sessions")).json()["items"]
        assert (one["current"], one["made_by"], one["address"]) == (True, "password", "10.0.0.1")
        assert (await admin.delete(f"/v1/sessions/{one['id']}")).status_code == 204
        assert (await client.get("/v1/session")).status_code == 401

    async with browser(harness, await session(harness)) as client:
        assert (await client.get("/v1/session")).status_code == 200
        harness.clock.advance(settings.session_idle_seconds + 1)
        reply = await client.get("/v1/session")
        assert (reply.status_code, "log in again" in reply.json()["detail"]) == (401, True)
        assert (await admin.get("/v1/sessions")).json()["items"] == []

    async with browser(harness, await session(harness, secret="more")) as client:
        for _ in range(int(settings.session_seconds / settings.session_idle_seconds * 2)):
            assert (await client.get("/v1/session")).status_code == 200
            harness.clock.advance(settings.session_idle_seconds / 2)
        assert (await client.get("/v1/session")).status_code == 401


@pytest.mark.parametrize("harness", [{"sessions_per_user_max": 2}], indirect=True)
async def test_a_user_has_a_bounded_number_of_sessions(harness: GatewayHarness) -> None:
    await harness.member("ann")
    for secret in ("one", "two", "three"):
        await session(harness, secret=secret)
        harness.clock.advance(1)
    found: list[int] = []
    for secret in ("one", "two", "three"):
        async with browser(harness, secret) as client:
            found.append((await client.get("/v1/session")).status_code)
    assert found == [401, 200, 200]


ENDINGS = ("log out", "revoke", "log in again", "change the password")


@pytest.mark.parametrize(
    "harness", [{"sessions_per_user_max": 1, "passwords": True}], indirect=True
)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_last_use_of_a_session_goes_with_it(
    harness: GatewayHarness, admin: httpx.AsyncClient, csrf: dict[str, str], ending: str
) -> None:
    await harness.member("ann")
    store = harness.gateway.ports.store
    secret = await session(harness)
    (row,) = harness.database.rows(TABLES, SessionRow).values()
    async with store.transaction() as tx:
        tx.put(TokenUseRow(row.id, tx.now, "10.0.0.1"), TokenUseRow("another", tx.now, ""))
    async with browser(harness, secret) as client:
        if ending == "log out":
            await client.delete("/v1/session", headers=csrf)
        elif ending == "revoke":
            await admin.delete(f"/v1/sessions/{row.id}")
        elif ending == "log in again":
            await session(harness, secret="more")
        else:
            body = {"password": "correct horse battery"}
            await admin.put("/v1/users/ann/password", json=body)
    assert row not in harness.database.rows(TABLES, SessionRow).values()
    uses = {each.token_id for each in harness.database.rows(TABLES, TokenUseRow).values()}
    assert (row.id in uses, "another" in uses) == (False, True)


async def test_old_sessions_are_forgotten(harness: GatewayHarness) -> None:
    await session(harness)
    (rule,) = [each for each in prune_rules(harness.settings) if each.what == "sessions"]
    store = harness.gateway.ports.store
    harness.clock.advance(harness.settings.session_seconds + 1)
    async with store.transaction() as tx:
        assert await rule.drop(tx, tx.now, 100) == 1
    assert harness.database.rows(TABLES, SessionRow) == {}


async def test_users_see_and_end_their_own_sessions(
    harness: GatewayHarness, ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    await session(harness)
    (one,) = (await ann.get("/v1/sessions")).json()["items"]
    assert (await bob.get("/v1/sessions")).json()["items"] == []
    assert (await bob.delete(f"/v1/sessions/{one['id']}")).status_code == 404
    assert (await ann.delete(f"/v1/sessions/{one['id']}")).status_code == 204


async def test_a_token_that_a_browser_makes_lasts_as_long_as_the_site_says(
    harness: GatewayHarness, ann: httpx.AsyncClient, csrf: dict[str, str]
) -> None:
    del ann
    async with browser(harness, await session(harness), **csrf) as client:
        made = (await client.post("/v1/tokens", json={})).json()
        assert made["expires_at"] is not None
        assert made["expires_at"] > (await client.get("/v1/session")).json()["expires_at"]
        reply = await client.post("/v1/tokens", json={"expires_in_seconds": 1e9})
        assert reply.status_code == 422


@pytest.mark.parametrize("change", [{"disabled": True}, {"role": "viewer"}])
async def test_an_open_stream_ends_with_what_its_session_may_do(
    harness: GatewayHarness, admin: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    await harness.member("ann")
    secret = await session(harness)
    async with (
        served(harness) as url,
        httpx.AsyncClient(headers={"cookie": f"shiftwork={secret}"}, trust_env=False) as client,
        client.stream("GET", f"{url}/v1/events?follow=true") as stream,
    ):
        assert stream.status_code == 200
        await admin.patch("/v1/users/ann", json=change)
        async with asyncio.timeout(10):
            async for _ in stream.aiter_lines():
                pass


async def test_an_open_stream_ends_with_its_session(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("ann")
    secret = await session(harness)
    async with (
        served(harness) as url,
        httpx.AsyncClient(headers={"cookie": f"shiftwork={secret}"}, trust_env=False) as client,
        client.stream("GET", f"{url}/v1/events?follow=true") as stream,
    ):
        (one,) = (await admin.get("/v1/sessions")).json()["items"]
        await admin.delete(f"/v1/sessions/{one['id']}")
        async with asyncio.timeout(10):
            async for _ in stream.aiter_lines():
                pass
        assert (await client.get(f"{url}/v1/session")).status_code == 401


async def everything(socket: ClientConnection) -> None:
    while True:
        await socket.recv()


async def test_a_websocket_with_a_cookie_needs_its_origin_and_the_csrf_token(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    del ann
    cookie = {"cookie": f"shiftwork={await session(harness)}"}
    token: Any = [
        "shiftwork",
        f"{browser_sessions.CSRF_PROTOCOL}{browser_sessions.csrf_of('secret')}",
    ]
    async with served(harness) as url:
        address = url.replace("http", "ws") + "/v1/events"
        for origin, protocols in (
            (None, token),
            ("http://evil.test", token),
            (url, None),
            (url, ["shiftwork", f"{browser_sessions.CSRF_PROTOCOL}x"]),
        ):
            with pytest.raises(InvalidStatus, match="403"):
                async with connect(
                    address,
                    origin=origin,  # pyright: ignore[reportArgumentType]
                    subprotocols=protocols,
                    additional_headers=cookie,
                    proxy=None,
                ) as socket:
                    await socket.recv()
        async with connect(
            address,
            origin=url,  # pyright: ignore[reportArgumentType]
            subprotocols=token,
            additional_headers=cookie,
            proxy=None,
        ) as socket:
            assert socket.subprotocol == "shiftwork"
            async with harness.client() as admin:
                await admin.patch("/v1/users/ann", json={"disabled": True})
            with pytest.raises(ConnectionClosed, match="disabled"):
                await everything(socket)


@pytest.mark.parametrize("harness", [{"token_uses_seconds": 0.02}], indirect=True)
async def test_the_last_use_is_kept(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    async with browser(harness, await session(harness)) as client:
        await client.get("/v1/session")

    async def is_kept() -> bool:
        (one,) = (await ann.get("/v1/sessions")).json()["items"]
        return one["last_used_at"] is not None

    await until(is_kept)


SITE = GatewaySettings(database_url="-", nats_url="-", public_url="https://site.test")
ORIGINS = st.sampled_from(
    [
        None,
        "https://site.test",
        "https://site.test:443",
        "HTTPS://site.test",
        "http://site.test",
        "https://site.test:8443",
        "https://site.test.evil.test",
        "https://evil.test/https://site.test",
        "https://site.test@evil.test",
        "null",
        "",
        "https://[::1",
        "site.test",
    ]
)
SITES = st.sampled_from([None, "same-origin", "none", "same-site", "cross-site", "x"])


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "X"]),
    origin=ORIGINS,
    site=SITES,
    token=st.sampled_from(["right", "wrong", None]),
)
def test_a_request_passes_only_if_it_is_safe_or_proves_its_page(
    method: str, origin: str | None, site: str | None, token: str | None
) -> None:
    shown = {"right": browser_sessions.csrf_of("s"), "wrong": "x", None: None}[token]
    named = (("origin", origin), ("sec-fetch-site", site), (browser_sessions.CSRF_HEADER, shown))
    headers = [(name.encode(), value.encode()) for name, value in named if value is not None]
    scope = {"type": "http", "method": method, "scheme": "http", "headers": headers}
    own = origin is None or origin.lower() in ("https://site.test", "https://site.test:443")
    proven = token == "right" and own and site in (None, "same-origin", "none")
    try:
        browser_sessions.require_csrf(SITE, scope, "s")
        passes = True
    except ProblemError:
        passes = False
    assert passes == (method in ("GET", "HEAD") or proven)


def test_a_cookie_by_https_is_for_this_host_alone() -> None:
    settings = SITE
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "headers": []}
    assert browser_sessions.set_cookie(settings, scope, "x", 60) == (
        "__Host-shiftwork=x; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
    )
    for cookies, found in (
        ("__Host-shiftwork=x", "x"),
        ("a=b;__Host-shiftwork=x; c", "x"),
        ("shiftwork=x", ""),
        ("__Host-shiftwork=x; __Host-shiftwork=y", ""),
        ('"; =;;', ""),
    ):
        scope["headers"] = [(b"cookie", cookies.encode())]
        assert browser_sessions.cookie_of(settings, scope) == found, cookies


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, False),
        ({"public_url": "http://site.test"}, False),
        ({"public_url": "https://site.test"}, True),
        ({"public_url": "https://site.test", "http_trusted_proxies": "10.0.0.7"}, False),
    ],
)
def test_a_site_behind_a_proxy_that_it_does_not_trust_is_warned(
    tmp_path: Path, options: dict[str, str], warns: bool
) -> None:
    with capture_logs() as logs:
        GatewayHarness(tmp_path, options).new_gateway()
    found = [each for each in logs if "HTTP_TRUSTED_PROXIES" in each["event"]]
    assert bool(found) == warns


@pytest.mark.parametrize("name", ["run_token_key_file", "oidc_client_secret_file"])
def test_an_empty_file_is_no_key(tmp_path: Path, name: str) -> None:
    """What is signed with nothing is signed by everybody."""
    empty = tmp_path / "key"
    empty.write_text("\n")
    with pytest.raises(ValidationError, match="is empty"):
        GatewaySettings.model_validate({"database_url": "-", "nats_url": "-", name: empty})
    without = GatewaySettings(database_url="-", nats_url="-")
    assert without.queue_cursor_key() is None
    with pytest.raises(ValueError, match="run_token_key_file"):
        without.login_state_key()


@asynccontextmanager
async def with_token(
    harness: GatewayHarness, token: str
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Any]]]:
    """A browser that has logged in with a token, and the answer to that."""
    shown = {"authorization": f"Bearer {token}", "origin": ORIGIN}
    async with harness.client(None) as client:
        reply = await client.post("/v1/session", headers=shown)
        assert reply.status_code == 200, reply.text
        given = reply.json()
        assert token not in reply.text
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert token not in cookie
        assert reply.headers["cache-control"] == "no-store"
        client.headers.update({browser_sessions.CSRF_HEADER: given["csrf"], "origin": ORIGIN})
        yield client, given


async def test_a_token_begins_a_session_that_is_audited(harness: GatewayHarness) -> None:
    token = await harness.member("ann", team="vision")
    async with with_token(harness, token) as (client, given), harness.client() as admin:
        assert (given["user"], given["role"], given["team"]) == ("ann", "user", "vision")
        # Reading it says when it ends if it is not used again.
        now = (await client.get("/v1/session")).json()
        assert now.pop("expires_at") < given.pop("expires_at")
        assert now == given
        made = await client.post("/v1/tasks", json={"command": ["x"]})
        assert (made.status_code, made.json()["owner"]) == (201, "ann")
        del client.headers[browser_sessions.CSRF_HEADER]
        assert (await client.post("/v1/tasks", json={"command": ["x"]})).status_code == 403
        (row,) = (await client.get("/v1/sessions")).json()["items"]
        assert row["made_by"] == "token"
        audited = (await admin.get("/v1/audit", params={"action": "login.token"})).json()["items"]
        assert [entry["who"] for entry in audited] == ["ann"]


async def test_another_sites_page_and_a_session_cannot_begin_one(harness: GatewayHarness) -> None:
    token = await harness.member("ann")
    async with harness.client(token) as program:
        foreign = {"origin": "http://elsewhere.test"}
        assert (await program.post("/v1/session", headers=foreign)).status_code == 403
    async with with_token(harness, token) as (client, _):
        assert (await client.post("/v1/session")).status_code == 409


async def test_a_tokens_session_has_its_scopes_and_expiry(harness: GatewayHarness) -> None:
    token = await harness.member("ann")
    body = {"name": "reader", "scopes": ["read"], "expires_in_seconds": 600}
    async with harness.client(token) as program:
        reader = (await program.post("/v1/tokens", json=body)).json()
    async with with_token(harness, reader["token"]) as (client, given):
        assert given["expires_at"] == reader["expires_at"]
        assert (await client.get("/v1/tasks")).status_code == 200
        assert (await client.post("/v1/tasks", json={"command": ["x"]})).status_code == 403
        harness.clock.advance(601)
        assert (await client.get("/v1/tasks")).status_code == 401


async def test_a_tokens_session_makes_nothing_that_lasts_longer(harness: GatewayHarness) -> None:
    token = await harness.member("ann")
    body = {"name": "short", "expires_in_seconds": 600}
    async with harness.client(token) as program:
        short = (await program.post("/v1/tokens", json=body)).json()
    async with with_token(harness, short["token"]) as (client, _):
        made = await client.post("/v1/tokens", json={"name": "kept"})
        assert made.status_code in {201, 403, 422}
        if made.status_code == 201:
            assert made.json()["expires_at"] == short["expires_at"]
        longer = {"name": "longer", "expires_in_seconds": 86_400}
        assert (await client.post("/v1/tokens", json=longer)).status_code != 201


async def test_a_revoked_token_ends_its_sessions_and_no_other(harness: GatewayHarness) -> None:
    token = await harness.member("ann")
    async with harness.client(token) as program:
        second = (await program.post("/v1/tokens", json={"name": "second"})).json()
        async with (
            with_token(harness, second["token"]) as (client, _),
            with_token(harness, token) as (other, _),
        ):
            assert (await program.delete(f"/v1/tokens/{second['id']}")).status_code == 204
            assert (await client.get("/v1/tasks")).status_code == 401
            assert (await other.get("/v1/tasks")).status_code == 200


async def test_a_tokens_session_gives_the_command_line_no_code(harness: GatewayHarness) -> None:
    token = await harness.member("ann")
    path = f"/v1/login/cli?challenge={'c' * 43}"
    secret = await session(harness)
    async with browser(harness, secret) as other, with_token(harness, token) as (client, _):
        assert (await other.get(path)).status_code == 200
        # As without a session: first a login, which this site has none of.
        assert (await client.get(path)).status_code == 404


async def test_a_tokens_session_sets_no_password(tmp_path: Path) -> None:
    async with GatewayHarness(tmp_path, {"passwords": True}).running() as harness:
        token = await harness.member("ann")
        password = {"password": "a long password"}
        async with with_token(harness, token) as (client, _):
            assert (await client.put("/v1/users/ann/password", json=password)).status_code == 403


async def test_another_administrators_token_in_the_file_ends_sessions(
    harness: GatewayHarness, tmp_path: Path
) -> None:
    async with with_token(harness, ADMIN_TOKEN) as (client, given):
        assert given["role"] == "admin"
        assert (await client.get("/v1/users")).status_code == 200
    secret = client.cookies["shiftwork"]
    gate = _authenticator(harness.settings, harness.gateway.ports)
    assert (await gate.session(secret, "here")).role == "admin"
    # Another token in the file, and another process of the gateway.
    (tmp_path / "admin-token").write_text("swt_another\n")
    gate = _authenticator(harness.settings, harness.gateway.ports)
    with pytest.raises(ProblemError, match="this session is over"):
        await gate.session(secret, "here")
