"""Passwords, where a site has them: login, change, and what slows those who guess."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.store.port import Delta, StoreUnavailableError
from services.gateway import browser_sessions, passwords
from services.gateway.browser_sessions import CSRF_HEADER
from services.gateway.login_delays import KEYS_MAX, Delays, LoginDelays, network_of
from services.gateway.problems import TOO_MANY, ProblemError
from services.gateway.rows import AuditRow, PasswordRow, SessionRow
from services.gateway.settings import GatewaySettings
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
        shown = await admin.get("/v1/users/ann")
    assert GOOD not in trail.text
    assert trail.json()["items"][0]["action"] == "login.password"
    assert (shown.json()["password"]["changed_by"], "argon2" in shown.text) == ("admin", False)


@pytest.mark.parametrize(
    "harness", [{"passwords": True, "sessions_per_user_max": 2}], indirect=True
)
async def test_a_session_that_a_new_login_ends_is_in_the_audit_trail(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """In the login's own transaction: what ended, who ended it, and from where."""
    await set_password(harness)
    commits: list[set[str]] = []

    def on_commit(delta: Delta) -> None:
        kinds = {type(row).__name__ for row in delta.put if isinstance(row, AuditRow)}
        kinds |= {kind.__name__ for kind, _ in delta.deleted}
        commits.append(kinds)

    harness.gateway.ports.store.observe(on_commit)
    begun: list[str] = []
    for _ in range(4):
        async with harness.client(None) as client:
            assert (await log_in(client)).status_code == 200
            rows = harness.database.rows(TABLES, SessionRow).values()
            begun.append(max(rows, key=lambda row: row.created_at).id)
    ended = (await admin.get("/v1/audit?action=session.end")).json()["items"]
    assert [each["target"] for each in ended] == [begun[1], begun[0]]
    assert {(each["who"], each["address"], each["outcome"]) for each in ended} == {
        ("ann", "127.0.0.1", "done")
    }
    assert [each["token"] for each in ended] == [begun[3], begun[2]]
    assert ended[0]["detail"] == "of ann, who may have 2: a new login ended the oldest"
    with_end = [each for each in commits if "SessionRow" in each]
    assert with_end == [{"SessionRow", "TokenUseRow", "AuditRow"}] * 2


@pytest.mark.parametrize("harness", [{"passwords": True, "refusals_seconds": 0.05}], indirect=True)
async def test_failed_logins_are_in_the_audit_trail_by_account(harness: GatewayHarness) -> None:
    """Wrong passwords, those of a user who has none, and those that are slowed; neither the account
    nor a token that comes with the request says who tried. A name that no user has may be a
    password."""
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
            ("", "ann", "unauthenticated"),
            ("", "ann", "too-many"),
            ("", "bob", "unauthenticated"),
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


@with_passwords
@pytest.mark.parametrize("what", ["login", "change"])
async def test_tries_that_were_not_checked_count_as_no_wrong_passwords(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def busy(*_: object) -> bool:
        raise ProblemError(TOO_MANY, "too many passwords are being checked")

    token = await set_password(harness)
    real = passwords.Passwords.matches
    async with harness.client(token) as ann, harness.client(None) as client:

        async def try_it() -> httpx.Response:
            if what == "login":
                return await log_in(client)
            body = {"password": OTHER, "old": GOOD}
            return await ann.put("/v1/users/ann/password", json=body)

        for _ in range(30):
            monkeypatch.setattr(passwords.Passwords, "matches", busy)
            assert "being checked" in (await try_it()).text
        monkeypatch.setattr(passwords.Passwords, "matches", real)
        assert (await try_it()).status_code in (200, 204)


@with_passwords
async def test_a_right_password_counts_as_no_wrong_one_when_its_session_cannot_be_written(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("away")

    await set_password(harness)
    async with harness.client(None) as client:
        with monkeypatch.context() as patched:
            patched.setattr(browser_sessions, "begin", away)
            for _ in range(30):
                assert (await log_in(client)).status_code == 503
        assert (await log_in(client)).status_code == 200


@with_passwords
async def test_a_password_that_is_changed_while_it_is_verified_begins_no_session(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_password(harness)
    real = passwords.Passwords.matches

    async def change_meanwhile(*given: Any) -> bool:
        found = await real(*given)
        async with harness.client() as admin:
            path = "/v1/users/ann/password"
            assert (await admin.put(path, json={"password": OTHER})).status_code == 204
        return found

    monkeypatch.setattr(passwords.Passwords, "matches", change_meanwhile)
    async with harness.client(None) as client:
        assert (await log_in(client)).status_code == 401
        assert "set-cookie" not in (await log_in(client)).headers
    assert harness.database.rows(TABLES, SessionRow) == {}


def test_a_login_leaves_the_count_of_its_address() -> None:
    """Whoever has an account does not reset what counts for all accounts with it."""
    found = delays(FakeClock())
    tried = 0
    for number in range(1000):
        if admitted(found, f"user{number}", "192.0.2.1"):
            tried += 1
        with contextlib.suppress(ProblemError):
            found.succeeded(found.begin(f"mine{number}", "192.0.2.1"))
    # A right password takes back its own try, no others.
    assert tried == 20


def test_a_try_that_was_not_made_counts_nowhere() -> None:
    found = delays(FakeClock())
    for _ in range(100):
        found.withdrawn(found.begin("ann", "192.0.2.1"))


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
    found.succeeded(found.begin("ann", "10.0.0.1"))
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
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("unknown", "unknown"),
        # Each process of this machine can use all of them.
        ("127.0.0.1", "127.0.0.0/8"),
        ("127.9.8.7", "127.0.0.0/8"),
        ("::ffff:127.0.0.1", "127.0.0.0/8"),
    ],
)
def test_an_address_counts_with_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_a_cookie_without_a_site_is_no_secret_in_a_log(
    harness: GatewayHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    async with harness.client(None) as client:
        headers: dict[str, Any] = {"cookie": "shiftwork=a-stolen-secret"}
        assert (await client.get("/v1/session", headers=headers)).status_code == 401
    assert "a-stolen-secret" not in capsys.readouterr().out


def test_who_is_known_at_a_shared_address_passes_its_delay() -> None:
    """Behind a proxy that is not named, everybody has one address."""
    clock = FakeClock()
    found = delays(clock)
    found.succeeded(found.begin("bob", "10.9.9.9"))
    tried = sum(admitted(found, f"nobody{number}", "10.9.9.9") for number in range(100))
    assert tried == 20
    assert not admitted(found, "ann", "10.9.9.9")
    # Guesses at bob from there are slowed as before.
    assert sum(admitted(found, "bob", "10.9.9.9") for _ in range(100)) == 5


def test_a_right_password_ends_no_delay_that_others_have_caused() -> None:
    """Else an attacker with an account would log in between two guesses."""
    clock = FakeClock()
    found = delays(clock)
    own = found.begin("eve", "192.0.2.1")
    guessed = sum(admitted(found, f"user{number}", "192.0.2.1") for number in range(100))
    found.succeeded(own)
    assert guessed == 19
    assert not admitted(found, "ann", "192.0.2.1")
    found.succeeded(found.begin("eve", "192.0.2.1"))
    assert not admitted(found, "ann", "192.0.2.1")


def test_invented_names_do_not_make_a_victims_count_forgotten() -> None:
    clock = FakeClock()
    found = delays(clock)
    for number in range(10):
        assert admitted(found, "ann", f"192.0.2.{number}")
    assert not admitted(found, "ann", "198.51.100.1")
    for number in range(KEYS_MAX + 100):
        assert admitted(
            found, f"n{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        )
    assert not admitted(found, "ann", "198.51.100.2")


def test_a_try_that_was_not_made_leaves_nothing() -> None:
    clock = FakeClock()
    found = delays(clock)
    for number in range(100):
        found.withdrawn(found.begin(f"n{number}", f"10.0.0.{number}"))
    assert len(found) == 0


async def test_logins_of_strangers_fill_no_place_of_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = GatewaySettings(
        database_url="-", nats_url="-", password_waiting_max=6, password_waiting_per_address_max=2
    )
    found = passwords.Passwords(settings, FakeClock())
    stored = await found.hash(GOOD, passwords.Line("", is_known=True))
    await found.matches(None, "", passwords.Line("", is_known=True))
    verified = threading.Event()
    verify = found._verify

    def slow(stored: str, password: str) -> bool:
        assert verified.wait(10)
        return verify(stored, password)

    monkeypatch.setattr(found, "_verify", slow)

    async def status(name: str, *, is_known: bool) -> str:
        try:
            line = passwords.Line(name, is_known=is_known)
            return "right" if await found.matches(stored, GOOD, line) else "wrong"
        except ProblemError as problem:
            return str(problem.kind.status)

    strangers = [
        asyncio.ensure_future(status(f"192.0.2.{number % 5}", is_known=False))
        for number in range(100)
    ]
    await asyncio.sleep(0)
    known = [asyncio.ensure_future(status("bob@10.0.0.1", is_known=True)) for _ in range(3)]
    await asyncio.sleep(0)
    verified.set()
    found_of = Counter(await asyncio.gather(*strangers))
    assert found_of == {"right": 6, "429": 94}
    assert Counter(await asyncio.gather(*known)) == {"right": 2, "429": 1}
    assert await status("192.0.2.1", is_known=False) == "right"


@pytest.mark.parametrize(
    "harness",
    [
        {
            "passwords": True,
            "password_tries_free": 100,
            "refusal_entries_burst": 1,
            "refusal_entries_per_second": 0.0001,
            "refusals_seconds": 0.05,
        }
    ],
    indirect=True,
)
async def test_guesses_at_an_account_take_no_entry_of_its_own_in_the_audit_trail(
    harness: GatewayHarness,
) -> None:
    token = await set_password(harness)

    def actions() -> list[str]:
        rows = harness.database.rows(TABLES, AuditRow).values()
        return [row.action for row in rows if "ann" in {row.who, row.target}]

    async with harness.client(None) as guesser, harness.client(token) as ann:
        for _ in range(3):
            assert (await log_in(guesser, "wrong")).status_code == 401
        await until(lambda: "login.password" in actions())
        assert (await ann.put("/v1/quotas", json={"limit": 1})).status_code == 403
    assert "quota.set" in actions()


@pytest.mark.parametrize(
    "harness",
    [
        {
            "passwords": True,
            "password_tries_free": 100,
            "refusal_entries_burst": 1,
            "refusal_entries_per_second": 0.001,
            "refusals_seconds": 0.05,
        }
    ],
    indirect=True,
)
async def test_guesses_beyond_the_limit_of_entries_are_found_by_their_action(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await set_password(harness)

    async def guesses() -> list[str]:
        found = (await admin.get("/v1/audit?target=ann&action=login.password")).json()["items"]
        return [each["detail"] for each in found]

    async with harness.client(None) as guesser:
        assert (await log_in(guesser, "wrong")).status_code == 401

        async def is_entered() -> bool:
            return len(await guesses()) == 1

        await until(is_entered)
        for _ in range(7):
            assert (await log_in(guesser, "wrong")).status_code == 401
    await asyncio.sleep(0.2)
    assert len(await guesses()) == 1
    harness.clock.advance(3600)

    async def are_entered() -> bool:
        return "7 times, summed up" in await guesses()

    await until(are_entered)


def test_a_clock_that_is_set_back_does_not_lengthen_a_delay() -> None:
    clock = FakeClock()
    clock.advance(86_400 * 365)
    delays = LoginDelays(clock, free=5, longest_seconds=900, account_longest_seconds=30)
    for _ in range(5):
        delays.begin("ann", "192.0.2.1")
    clock.advance(-86_400 * 365)
    with pytest.raises(ProblemError) as found:
        delays.begin("ann", "192.0.2.1")
    assert int(found.value.headers["retry-after"]) <= 1
    clock.advance(1)
    delays.begin("ann", "192.0.2.1")
