"""Passwords, where a site has them: login, change, and what slows those who guess."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import passwords
from services.gateway.login_delays import KEYS_MAX, Delays, LoginDelays, network_of
from services.gateway.problems import ProblemError
from services.gateway.rows import PasswordRow
from services.gateway.sessions import CSRF_HEADER
from services.gateway.tables import TABLES
from tests.kit.clock import FakeClock
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness

GOOD, OTHER = "correct horse battery", "another long password"
with_passwords = pytest.mark.parametrize("harness", [{"passwords": True}], indirect=True)


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "MEMORY_KIB", 1024)


async def log_in(
    client: httpx.AsyncClient, password: str = GOOD, user: str = "ann", **headers: str
) -> httpx.Response:
    body = {"user": user, "password": password}
    return await client.post("/v1/login/password", json=body, headers=headers)


async def set_password(harness: GatewayHarness, user: str = "ann") -> str:
    """A user with a password; its token."""
    token = await harness.member(user)
    async with harness.client() as admin:
        reply = await admin.put(f"/v1/users/{user}/password", json={"password": GOOD})
        assert reply.status_code == 204, reply.text
    return token


async def test_a_site_has_no_passwords_unless_it_says_so(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    async with harness.client(None) as client:
        assert (await client.get("/v1/login")).json() == {"oidc": None, "password": False}
        reply = await log_in(client)
    assert (reply.status_code, "SHIFTWORK_GATEWAY_PASSWORDS" in reply.text) == (404, True)
    assert (await admin.put("/v1/users/admin/password", json={"password": GOOD})).status_code == 404


@with_passwords
async def test_a_password_begins_a_session(harness: GatewayHarness) -> None:
    await set_password(harness)
    async with harness.client(None) as client:
        reply = await log_in(client)
        assert (reply.status_code, reply.json()["user"]) == (200, "ann")
        assert "HttpOnly; SameSite=Lax" in reply.headers["set-cookie"]
        me = (await client.get("/v1/session")).json()
        assert me["csrf"] == reply.json()["csrf"]
    (row,) = harness.database.rows(TABLES, PasswordRow).values()
    assert "argon2id" in str(row)
    async with harness.client() as admin:
        trail = await admin.get("/v1/audit")
    assert GOOD not in trail.text
    assert trail.json()["items"][0]["action"] == "login.password"


@pytest.mark.parametrize("harness", [{"passwords": True, "refusals_seconds": 0.05}], indirect=True)
async def test_failed_logins_are_in_the_audit_trail_by_account(harness: GatewayHarness) -> None:
    """Wrong passwords, those of a user who has none, and those that are slowed; a token that comes
    with the request says nothing about who tried. A name that no user has may be a password."""
    await set_password(harness)
    token = await harness.member("bob")
    typed = "hunter2"
    async with harness.client(token) as client, harness.client() as admin:
        for _ in range(harness.settings.password_tries_free + 2):
            await log_in(client, "wrong")
        assert (await log_in(client, "wrong")).status_code == 429
        await log_in(client, "wrong", user="bob")
        await log_in(client, "wrong", user=typed)

        async def entries() -> set[tuple[str, str, str]]:
            found = await admin.get("/v1/audit?action=login")
            assert typed not in found.text
            assert all(each["detail"].endswith(each["address"]) for each in found.json()["items"])
            return {
                (each["who"], each["target"], each["outcome"]) for each in found.json()["items"]
            }

        async def complete() -> bool:
            return len(await entries()) == 4

        await until(complete)
        assert await entries() == {
            ("ann", "ann", "unauthenticated"),
            ("ann", "ann", "too-many"),
            ("bob", "bob", "unauthenticated"),
            ("", "unknown user", "unauthenticated"),
        }
        found = (await admin.get("/v1/audit?target=ann&outcome=too-many")).json()["items"]
        assert {each["action"] for each in found} == {"login.password"}


@with_passwords
async def test_another_sites_page_cannot_log_a_browser_in(harness: GatewayHarness) -> None:
    await set_password(harness)
    async with harness.client(None) as client:
        assert (await log_in(client, origin="http://evil.test")).status_code == 403
        assert (await log_in(client, **{"sec-fetch-site": "cross-site"})).status_code == 403


@with_passwords
async def test_users_change_their_own_password_with_the_old_one(harness: GatewayHarness) -> None:
    token = await set_password(harness)
    async with harness.client(None) as here, harness.client(None) as elsewhere:
        csrf = (await log_in(here)).json()["csrf"]
        await log_in(elsewhere)
        path, headers = "/v1/users/ann/password", {CSRF_HEADER: csrf}
        for body, status in (
            ({"password": OTHER}, 422),
            ({"password": OTHER, "old": "wrong"}, 403),
            ({"password": "short", "old": GOOD}, 422),
            ({"password": OTHER, "old": GOOD}, 204),
        ):
            reply = await here.put(path, json=body, headers=headers)
            assert reply.status_code == status, body
            assert OTHER not in reply.text
        # The other browser is logged out; the token goes on.
        assert (await here.get("/v1/session")).status_code == 200
        assert (await elsewhere.get("/v1/session")).status_code == 401
        assert (await log_in(elsewhere)).status_code == 401
        assert (await log_in(elsewhere, OTHER)).status_code == 200
    async with harness.client(token) as ann:
        assert (await ann.get("/v1/whoami")).status_code == 200
        reply = await ann.put("/v1/users/admin/password", json={"password": OTHER})
        assert reply.status_code == 403


@with_passwords
async def test_a_disabled_user_cannot_log_in(harness: GatewayHarness) -> None:
    await set_password(harness)
    async with harness.client() as admin, harness.client(None) as client:
        await admin.patch("/v1/users/ann", json={"disabled": True})
        reply = await log_in(client)
    assert (reply.status_code, "wrong" in reply.json()["detail"]) == (401, True)


@with_passwords
async def test_errors_do_not_repeat_a_password(harness: GatewayHarness) -> None:
    async with harness.client(None) as client:
        for password in ("a secret " * 100, ["a secret"], 777_777):
            body = {"user": "ann", "password": password}
            reply = await client.post("/v1/login/password", json=body)
            assert reply.status_code == 422
            assert "a secret" not in reply.text
            assert "777" not in reply.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "harness", [{"passwords": True, "password_tries_free": 1000}], indirect=True
)
async def test_unknown_users_take_as_long_as_known_ones(harness: GatewayHarness) -> None:
    await set_password(harness)

    async def seconds(user: str) -> float:
        begin = time.perf_counter()
        assert (await log_in(client, "wrong", user)).status_code == 401
        return time.perf_counter() - begin

    async with harness.client(None) as client:
        await seconds("nobody")
        pairs = [(await seconds("ann"), await seconds("nobody")) for _ in range(4)]
        known, unknown = (statistics.median(each) for each in zip(*pairs, strict=True))
    # Without the hash of nobody it is fifty times faster.
    assert unknown > known / 3


@with_passwords
async def test_a_guesser_waits_and_what_exists_goes_on(harness: GatewayHarness) -> None:
    token = await set_password(harness)
    async with harness.client(None) as here, harness.client(None) as guesser:
        csrf = (await log_in(here)).json()["csrf"]
        found = [(await log_in(guesser, "wrong")).status_code for _ in range(8)]
        assert found == [401] * 5 + [429] * 3
        reply = await log_in(guesser)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        assert (await here.get("/v1/session")).status_code == 200
        # Guesses of the old password count, too.
        body = {"password": OTHER, "old": "wrong"}
        reply = await here.put("/v1/users/ann/password", json=body, headers={CSRF_HEADER: csrf})
        assert reply.status_code == 429
        harness.clock.advance(2)
        assert (await log_in(guesser)).status_code == 200
    async with harness.client(token) as ann:
        assert (await ann.get("/v1/whoami")).status_code == 200


@with_passwords
async def test_guesses_at_the_same_time_are_counted(harness: GatewayHarness) -> None:
    await set_password(harness)
    async with harness.client(None) as client:
        replies = await asyncio.gather(*(log_in(client, "wrong") for _ in range(20)))
    assert sum(reply.status_code == 401 for reply in replies) == 5


def delays(clock: FakeClock) -> LoginDelays:
    return LoginDelays(clock, free=5, longest_seconds=900, account_longest_seconds=30)


def admitted(found: LoginDelays, account: str, address: str) -> bool:
    try:
        found.begin(account, address)
    except ProblemError:
        return False
    return True


def test_nobody_is_locked_out_by_guesses_elsewhere() -> None:
    clock = FakeClock()
    found = delays(clock)
    assert admitted(found, "ann", "10.0.0.1")
    found.succeeded("ann", "10.0.0.1")
    for number in range(2000):
        admitted(found, "ann", f"192.0.2.{number % 250}")
        clock.advance(1)
    # Where ann has logged in before, at once; at a new place after half a minute.
    assert admitted(found, "ann", "10.0.0.1")
    clock.advance(31)
    assert admitted(found, "ann", "10.9.9.9")
    # And others are not concerned at all.
    assert admitted(found, "bob", "10.9.9.9")


def test_an_address_that_tries_many_accounts_waits() -> None:
    clock = FakeClock()
    found = delays(clock)
    tried = sum(admitted(found, f"user{number}", "192.0.2.1") for number in range(1000))
    assert tried == 20
    assert admitted(found, "user1", "192.0.2.2")


@given(st.lists(st.sampled_from(["try", "wait"]), max_size=60))
def test_delays_grow_to_their_longest_and_end(steps: list[str]) -> None:
    clock = FakeClock()
    found = Delays(clock, free=3, longest_seconds=60)
    tries = 0
    for step in steps:
        if step == "wait":
            clock.advance(7)
        elif found.left("key") == 0:
            found.failed("key")
            tries += 1
            over = tries - 3
            # The fake clock ticks with each reading.
            assert found.left("key") == pytest.approx(min(60, 2**over) if over >= 0 else 0, abs=0.1)
    clock.advance(61)
    assert found.left("key") == 0


def test_the_memory_for_delays_is_bounded() -> None:
    clock = FakeClock()
    found = Delays(clock, free=3, longest_seconds=60)
    for number in range(KEYS_MAX + 100):
        found.failed(str(number))
    assert len(found) == KEYS_MAX


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_address_of_ipv6_counts_with_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_a_cookie_without_a_site_is_no_secret_in_a_log(
    harness: GatewayHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    async with harness.client(None) as client:
        headers: dict[str, Any] = {"cookie": "shiftwork=a-stolen-secret"}
        assert (await client.get("/v1/session", headers=headers)).status_code == 401
    assert "a-stolen-secret" not in capsys.readouterr().out
