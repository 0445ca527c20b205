"""What a token can make of itself: nothing reachable with one has more scopes or a later end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from services.gateway import passwords
from services.gateway.browser_sessions import CSRF_HEADER
from services.gateway.permissions import Role, Scope, scopes_of
from services.gateway.rows import (
    ExternalIdentityRow,
    LoginCodeRow,
    PasswordRow,
    SessionRow,
    TokenRow,
    UserRow,
)
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import GatewayHarness
from tests.services.gateway.test_access import CASES

GOOD, OTHER = "correct horse battery", "another long password"
HOUR = 3600
# Beside the cases of every route that changes something: what makes a credential, with what such a
# request may say.
MORE: list[tuple[str, str, Any]] = [
    *(("POST", "/v1/tokens", {"user": user}) for user in ("ann", "admin", "robot")),
    ("POST", "/v1/tokens", {}),
    ("POST", "/v1/tokens", {"expires_in_seconds": 2 * HOUR}),
    *(("POST", "/v1/tokens", {"scopes": [scope.value]}) for scope in Scope),
    ("POST", "/v1/users", {"name": "robot", "role": "admin"}),
    *(
        ("PUT", f"/v1/users/{name}/password", {"password": OTHER, "old": "a wrong password"})
        for name in ("ann", "admin", "robot", "vic")
    ),
    *(
        ("PUT", f"/v1/users/{name}/password", {"password": OTHER})
        for name in ("ann", "admin", "robot", "vic")
    ),
    ("GET", f"/v1/login/cli?challenge={'c' * 43}", None),
]
# What ends the credentials with which the requests are made.
ENDINGS = {("DELETE", "/v1/tokens/{token}"), ("DELETE", "/v1/session")}
# Ways to be limited: by time, by scopes, and by both.
LIMITS: list[tuple[tuple[Scope, ...], int | None]] = [
    ((), HOUR),
    ((Scope.TOKENS,), None),
    ((Scope.PEOPLE, Scope.TOKENS), None),
    (tuple(scope for scope in Scope if scope is not Scope.TOKENS), None),
    (tuple(Scope), HOUR),
]


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "MEMORY_KIB", 1024)


@dataclass(frozen=True)
class Made:
    """The credentials that the database has."""

    tokens: dict[str, TokenRow]
    # Sessions, passwords, codes and accounts: whoever has one can do all that its user may.
    whole: dict[tuple[str, str], object]
    # Sessions that were made with a token.
    sessions: dict[str, SessionRow]
    # The role of each user.
    roles: dict[str, str]

    @classmethod
    def of(cls, harness: GatewayHarness) -> Made:
        """Read now."""
        tables = harness.database
        kinds = (PasswordRow, LoginCodeRow, ExternalIdentityRow)
        sessions = {str(key): row for key, row in tables.rows(TABLES, SessionRow).items()}
        whole: dict[tuple[str, str], object] = {
            ("SessionRow", key): row for key, row in sessions.items() if not row.token_id
        }
        whole |= {
            (kind.__name__, str(key)): row
            for kind in kinds
            for key, row in tables.rows(TABLES, kind).items()
        }
        roles = {row.name: row.role for row in tables.rows(TABLES, UserRow).values()}
        of_tokens = {key: row for key, row in sessions.items() if row.token_id}
        return cls(dict(tables.rows(TABLES, TokenRow)), whole, of_tokens, roles)


# Every request of every route, with each limited token and with a session made of it.
@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.USER, Role.ADMIN])
@pytest.mark.parametrize(
    "harness",
    [{"passwords": True, "password_tries_free": 1000, "wrong_tokens_burst": 1000}],
    indirect=True,
)
async def test_no_request_with_a_limited_token_makes_a_credential_that_is_less_limited(
    harness: GatewayHarness, role: Role
) -> None:
    whole = await harness.member("ann", role=role)
    await harness.member("vic", role=Role.VIEWER)
    async with harness.client() as admin:
        # One that has a password, and others that have none.
        made = await admin.put("/v1/users/vic/password", json={"password": GOOD})
        assert made.status_code == 204
    async with harness.client(whole) as ann:
        task = await harness.submitted(ann)
        limited = [
            (scopes, seconds, (await ann.post("/v1/tokens", json=_body(scopes, seconds))).json())
            for scopes, seconds in _limits_of(role)
        ]
    cases = [case for case in CASES if case.method != "GET"]
    requests = [(case.method, case.path, case.body) for case in cases] + MORE
    for scopes, seconds, token in limited:
        before = Made.of(harness)
        until = at_or_none(before, token["id"])
        async with harness.client(token["token"]) as client:
            csrf = (await client.post("/v1/session")).json()["csrf"]
            cookies = client.cookies
        async with harness.client(token["token"]) as client, harness.client(None) as browser:
            # A session that was made with the token is no way around its limits.
            browser.cookies, browser.headers[CSRF_HEADER] = cookies, csrf
            for method, path, body in requests:
                # It would end what the others need.
                if (method, path) in ENDINGS:
                    continue
                at_task = path.format(task=task["id"], token="none", session="none")
                await client.request(method, at_task, json=body)
                await browser.request(method, at_task, json=body)
            assert (await browser.get("/v1/session")).status_code == 200
        after = Made.of(harness)
        assert after.whole == before.whole, (scopes, seconds)
        # A role is no credential: an administrator gives it with any token that changes people,
        # and it stays when the token is over.
        gives_roles = role is Role.ADMIN and (not scopes or Scope.PEOPLE in scopes)
        assert gives_roles or after.roles == before.roles, (scopes, seconds)
        made_now = [row for key, row in after.tokens.items() if key not in before.tokens]
        sessions = [row for key, row in after.sessions.items() if key not in before.sessions]
        assert sessions
        for row in (*made_now, *sessions):
            assert not scopes or (row.scopes and {*row.scopes} <= {*scopes, Scope.READ}), scopes
            assert until is None or (row.expires_at is not None and row.expires_at <= until)
    # The tokens made some, so that the test above is about something.
    assert len(Made.of(harness).tokens) > len(LIMITS) + 3


def _limits_of(role: Role) -> list[tuple[tuple[Scope, ...], int | None]]:
    """The limits with the scopes that are of use to a role: others are refused."""
    return [
        (tuple(scope for scope in scopes if scope in scopes_of(role)), seconds)
        for scopes, seconds in LIMITS
    ]


def _body(scopes: tuple[Scope, ...], seconds: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"scopes": [scope.value for scope in scopes]}
    return body if seconds is None else {**body, "expires_in_seconds": seconds}


def at_or_none(made: Made, token_id: str) -> datetime | None:
    (row,) = (row for row in made.tokens.values() if row.id == token_id)
    return row.expires_at


@pytest.mark.parametrize("harness", [{"passwords": True}], indirect=True)
async def test_a_limited_token_changes_its_users_password_with_the_old_one_alone(
    harness: GatewayHarness,
) -> None:
    token = await harness.member("ann")
    path = "/v1/users/ann/password"
    async with harness.client(token) as ann:
        body = {"expires_in_seconds": HOUR, "scopes": ["tokens"]}
        short = (await ann.post("/v1/tokens", json=body)).json()["token"]
        async with harness.client(short) as limited:
            refused = await limited.put(path, json={"password": GOOD})
            assert (refused.status_code, refused.json()["errors"][0]["fix"][:6]) == (403, "log in")
            # Without a limit: the first one, and no old one is there to be given.
            assert (await ann.put(path, json={"password": GOOD})).status_code == 204
            # Whoever knows the password has all of it already.
            body = {"password": OTHER, "old": GOOD}
            assert (await limited.put(path, json=body)).status_code == 204


@pytest.mark.parametrize("harness", [{"passwords": True}], indirect=True)
async def test_administrators_set_passwords_with_a_session_or_an_unlimited_token(
    harness: GatewayHarness,
) -> None:
    path, body = "/v1/users/ann/password", {"password": OTHER}
    await harness.member("ann")
    whole = await harness.member("eve", role=Role.ADMIN)
    async with harness.client(whole) as eve:
        short = (await eve.post("/v1/tokens", json={"expires_in_seconds": HOUR})).json()["token"]
        assert (await eve.put("/v1/users/eve/password", json={"password": GOOD})).status_code == 204
        assert (await eve.put(path, json=body)).status_code == 204
    async with harness.client(short) as limited:
        assert (await limited.put(path, json=body)).status_code == 403
    async with harness.client(None) as browser:
        login = {"user": "eve", "password": GOOD}
        csrf = (await browser.post("/v1/login/password", json=login)).json()["csrf"]
        assert (await browser.put(path, json=body, headers={CSRF_HEADER: csrf})).status_code == 204


@pytest.mark.parametrize("harness", [{"passwords": True}], indirect=True)
async def test_a_user_of_the_provider_gets_a_first_password_from_administrators_alone(
    harness: GatewayHarness,
) -> None:
    """It would go on working when the provider removes the person."""
    token = await harness.member("ann")
    async with harness.gateway.ports.store.transaction() as tx:
        tx.put(ExternalIdentityRow("https://login.test", "subject", "ann", at(0)))
    path, body = "/v1/users/ann/password", {"password": GOOD}
    async with harness.client(token) as ann, harness.client() as admin:
        refused = await ann.put(path, json=body)
        assert (refused.status_code, "provider" in refused.json()["detail"]) == (403, True)
        assert (await admin.put(path, json=body)).status_code == 204
        # One that an administrator has given is changed as any other.
        body = {"password": OTHER, "old": GOOD}
        assert (await ann.put(path, json=body)).status_code == 204
