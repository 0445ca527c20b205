"""Login at an OpenID Connect provider: what is refused, who becomes which user, where it ends."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk
from pydantic import ValidationError
from structlog.testing import capture_logs

from services.gateway.external_users import account_of
from services.gateway.oidc import Provider, local_path
from services.gateway.problems import ProblemError
from services.gateway.rows import ExternalIdentityRow, SessionRow, UserRow
from services.gateway.settings import GatewaySettings
from services.gateway.tables import TABLES
from tests.services.gateway.fake_provider import (
    CLIENT,
    ISSUER,
    SECRET,
    FakeProvider,
    a_key,
    base64url,
    signed,
)
from tests.services.gateway.gateway_harness import GatewayHarness

SITE = "https://gateway.test"
OPTIONS: dict[str, Any] = {
    "public_url": SITE,
    "oidc_issuer": ISSUER,
    "oidc_client_id": CLIENT,
    "oidc_client_secret": SECRET,
}


def options(**more: Any) -> Any:
    return pytest.mark.parametrize("harness", [{**OPTIONS, **more}], indirect=True)


@pytest.fixture
def provider(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    found = FakeProvider(harness.clock)

    def client(_: Provider, seconds: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=found.transport(), timeout=seconds)

    monkeypatch.setattr(Provider, "_client", client)
    return found


def browser(harness: GatewayHarness) -> httpx.AsyncClient:
    assert harness.gateway.app is not None
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=harness.gateway.app), base_url=SITE)


async def logged_in(
    client: httpx.AsyncClient, provider: FakeProvider, **claims: Any
) -> httpx.Response:
    """The answer of the callback."""
    provider.claims = claims
    begun = await client.get("/v1/login/oidc")
    assert begun.status_code == 303, begun.text
    return await client.get(
        "/v1/login/oidc/callback", params=provider.consent(begun.headers["location"])
    )


@options()
async def test_a_login_ends_in_a_session_and_on_the_path_where_it_began(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        begun = await client.get("/v1/login/oidc", params={"next": "/docs?a=b"})
        address = urlsplit(begun.headers["location"])
        assert (address.netloc, address.path) == ("login.test", "/auth")
        query = httpx.QueryParams(address.query)
        assert query["redirect_uri"] == f"{SITE}/v1/login/oidc/callback"
        assert query["scope"] == "openid profile email"
        answer = provider.consent(begun.headers["location"])
        reply = await client.get("/v1/login/oidc/callback", params=answer)
        assert (reply.status_code, reply.headers["location"]) == (303, "/docs?a=b")
        (cookie,) = [
            each
            for each in reply.headers.get_list("set-cookie")
            if each.startswith("__Host-shiftwork=")
        ]
        for part in ("HttpOnly", "SameSite=Lax", "Secure", "Path=/"):
            assert part in cookie
        assert "Domain" not in cookie
        me = (await client.get("/v1/session")).json()
        assert (me["user"], me["role"]) == ("ann", "user")
    async with harness.client() as admin:
        trail = (await admin.get("/v1/audit")).json()["items"]
    assert [(each["who"], each["action"]) for each in trail[:2]] == [
        ("ann", "login.oidc"),
        ("ann", "user.link"),
    ]
    stored = str([harness.database.rows(TABLES, kind) for kind in (SessionRow, UserRow)])
    assert client.cookies["__Host-shiftwork"] not in stored


WRONG: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.test"},
    "another audience": {"aud": "other"},
    "several audiences without azp": {"aud": [CLIENT, "other"]},
    "another authorized party": {"azp": "other"},
    "another nonce": {"nonce": "x"},
    "no nonce": {"nonce": None},
    "expired": {"exp": 1},
    "no expiry": {"exp": None},
    "an expiry that is no number": {"exp": "tomorrow"},
    "issued in the future": {"iat": 2**40},
    "not valid yet": {"nbf": 2**40},
    "no subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "another access token": {"at_hash": "x"},
}


@options(logins_burst=100, wrong_tokens_burst=100)
async def test_tokens_that_prove_nothing_are_refused(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        for what, claims in WRONG.items():
            reply = await logged_in(client, provider, **claims)
            assert reply.status_code == 401, what
            assert "begin again" in reply.json()["detail"]
        assert (await client.get("/v1/session")).status_code == 401
        # The same person with the right token.
        assert (await logged_in(client, provider)).status_code == 303


def unsigned(claims: dict[str, Any]) -> str:
    parts = [base64url(json.dumps(each).encode()) for each in ({"alg": "none"}, claims)]
    return f"{'.'.join(parts)}."


@options()
async def test_signatures_of_others_and_none_are_refused(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    right = provider.keys[0]
    public = json.dumps(right.as_dict(private=False), sort_keys=True)
    shared = jwk.import_key({"kty": "oct", "k": base64url(public.encode())})
    forged = {
        "another key": lambda claims: signed(claims, a_key("first")),
        "none": unsigned,
        "a shared secret": lambda claims: signed(claims, shared, alg="HS256", kid="first"),
        "no token": lambda _: "x",
        "a changed claim": lambda claims: changed(signed(claims, right)),
    }
    async with browser(harness) as client:
        for what, sign in forged.items():
            provider.sign = sign
            assert (await logged_in(client, provider)).status_code == 401, what
            harness.clock.advance(6)


def changed(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "==")) | {"sub": "other"}
    return f"{head}.{base64url(json.dumps(claims).encode())}.{signature}"


@options()
async def test_a_key_that_the_provider_has_changed_is_fetched(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        assert (await logged_in(client, provider)).status_code == 303
        provider.keys = [a_key("second")]
        # Not at once again: a forger could make us ask the provider all the time.
        assert (await logged_in(client, provider)).status_code == 401
        harness.clock.advance(6)
        assert (await logged_in(client, provider)).status_code == 303
        assert provider.requests.count("/keys") == 2
        assert provider.requests.count("/.well-known/openid-configuration") == 1


@options()
async def test_codes_and_states_are_good_once_and_for_one_browser(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client, browser(harness) as other:
        begun = await client.get("/v1/login/oidc")
        state = dict(client.cookies)
        answer = provider.consent(begun.headers["location"])
        for params, who in (
            (answer, other),
            ({**answer, "state": "x"}, client),
            ({"code": answer["code"]}, client),
            ({"state": answer["state"]}, client),
            ({**answer, "error": "access_denied"}, client),
            ({**answer, "iss": "https://evil.test"}, client),
        ):
            reply = await who.get("/v1/login/oidc/callback", params=params)
            assert reply.status_code == 401, params
        assert (await client.get("/v1/login/oidc/callback", params=answer)).status_code == 303
        # The cookie is gone; somebody who kept it can use neither the code nor the state again.
        again = await client.get("/v1/login/oidc/callback", params=answer)
        assert again.status_code == 401
        other.cookies.update(state)
        again = await other.get("/v1/login/oidc/callback", params=answer)
        assert (again.status_code, "invalid_grant" in again.json()["detail"]) == (401, True)
        provider.codes["more"] = provider.codes[answer["code"]]
        again = await other.get(
            "/v1/login/oidc/callback", params={"code": "more", "state": answer["state"]}
        )
        assert (again.status_code, "completed already" in again.json()["detail"]) == (401, True)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"end_session_endpoint": f"{ISSUER}/end"}, f"{ISSUER}/end?client_id={CLIENT}"),
        ({"end_session_endpoint": f"{ISSUER}/end?a=b"}, f"{ISSUER}/end?a=b&client_id={CLIENT}"),
        ({"end_session_endpoint": "javascript:x"}, None),
        ({"end_session_endpoint": 7}, None),
        ({}, None),
    ],
)
@options()
async def test_a_logout_names_the_page_on_which_the_provider_logs_out(
    harness: GatewayHarness,
    provider: FakeProvider,
    described: dict[str, Any],
    expected: str | None,
) -> None:
    provider.described = described
    async with browser(harness) as client:
        assert (await logged_in(client, provider)).status_code == 303
        csrf = (await client.get("/v1/session")).json()["csrf"]
        headers = {"x-shiftwork-csrf": csrf, "origin": SITE}
        # With a provider that is down, too.
        provider.is_down = True
        harness.clock.advance(harness.settings.oidc_cache_seconds + 1)
        reply = await client.delete("/v1/session", headers=headers)
        assert (reply.status_code, reply.headers.get("x-shiftwork-logout")) == (204, expected)


@options()
async def test_a_browser_gets_a_page_with_the_reason_and_the_way_back(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with browser(harness) as client:
        begun = await client.get("/v1/login/oidc")
        state = provider.consent(begun.headers["location"])["state"]
        query = {"state": state, "error": "<script>x</script>"}
        page = await client.get("/v1/login/oidc/callback", params=query, headers=accept)
        assert page.status_code == 401
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "the provider refused it (&lt;script&gt;" in page.text
        assert "<script" not in page.text
        assert '<a href="/v1/login/oidc">' in page.text
        provider.is_down = True
        harness.clock.advance(harness.settings.oidc_cache_seconds + 1)
        for path in ("/v1/login/oidc?next=//evil.test", "/v1/login/cli?challenge=x"):
            wrong = await client.get(path, headers=accept)
            assert (wrong.status_code, "<h1>" in wrong.text) == (422, True)
        # Programs, and the rest of the API, go on as before.
        for path in ("/v1/session", "/v1/login/oidc/callback"):
            reply = await client.get(path, headers=accept if path == "/v1/session" else {})
            assert reply.headers["content-type"] == "application/problem+json"


@options()
async def test_a_login_that_takes_too_long_or_is_forged_begins_again(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        begun = await client.get("/v1/login/oidc")
        answer = provider.consent(begun.headers["location"])
        harness.clock.advance(harness.settings.login_seconds + 1)
        late = await client.get("/v1/login/oidc/callback", params=answer)
        assert (late.status_code, "too long" in late.json()["detail"]) == (401, True)
        for value in ("", "x", "x.y", "é", "." * 3000):
            headers = {"cookie": f"__Host-shiftwork-login={value}".encode()}
            async with browser(harness) as forger:
                reply = await forger.get("/v1/login/oidc/callback", params=answer, headers=headers)
            assert reply.status_code == 401


@options()
async def test_a_provider_that_is_down_harms_only_new_logins(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client, browser(harness) as late:
        await logged_in(client, provider)
        provider.is_down = True
        begun = await late.get("/v1/login/oidc")
        # Its description is known; its answer is not.
        reply = await late.get(
            "/v1/login/oidc/callback", params=provider.consent(begun.headers["location"])
        )
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert (await client.get("/v1/session")).status_code == 200
        asked = len(provider.requests)
        begun = await late.get("/v1/login/oidc")
        await late.get(
            "/v1/login/oidc/callback", params=provider.consent(begun.headers["location"])
        )
        assert len(provider.requests) == asked, "a provider that is down gets a pause"


@options()
async def test_a_clock_that_is_set_back_does_not_lengthen_the_wait_after_a_failure(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    harness.clock.advance(86_400)
    async with browser(harness) as client:
        provider.is_down = True
        assert (await client.get("/v1/login/oidc")).status_code == 503
        provider.is_down = False
        harness.clock.advance(-86_400)
        assert (await client.get("/v1/login/oidc")).status_code == 503
        harness.clock.advance(60)
        assert (await client.get("/v1/login/oidc")).status_code == 303


@options()
async def test_a_clock_that_is_set_back_does_not_keep_changed_keys_from_being_fetched(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    harness.clock.advance(86_400)
    async with browser(harness) as client:
        assert (await logged_in(client, provider)).status_code == 303
        harness.clock.advance(-86_400)
        provider.keys = [a_key("second")]
        assert (await logged_in(client, provider)).status_code == 401
        harness.clock.advance(6)
        assert (await logged_in(client, provider)).status_code == 303


@options()
async def test_a_description_of_another_provider_is_refused(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        for described in (
            {"issuer": "https://evil.test"},
            {"token_endpoint": "http://login.test/token"},
            {"jwks_uri": None},
        ):
            provider.described = described
            assert (await client.get("/v1/login/oidc")).status_code == 503, described
        provider.described = {"padding": "x" * 300_000}
        assert (await client.get("/v1/login/oidc")).status_code == 503
        harness.clock.advance(6)
        provider.described = {}
        assert (await client.get("/v1/login/oidc")).status_code == 303


@options(oidc_username_claim="email", wrong_tokens_burst=100)
async def test_a_claim_that_is_no_user_name_makes_no_user(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        provider.userinfo = {"sub": "subject-of-ann"}
        for claim in ("ann@site.test", "../ann", "ANN", "", 7, None):
            reply = await logged_in(client, provider, email=claim)
            assert reply.status_code == 403, claim
            assert "OIDC_USERNAME_CLAIM" in reply.json()["detail"]


@options()
async def test_names_that_change_or_are_given_again_reach_no_other_user(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        await logged_in(client, provider)
        # Renamed at the provider: the same user here.
        await logged_in(client, provider, preferred_username="ann-miller")
        assert (await client.get("/v1/session")).json()["user"] == "ann"
    async with harness.client() as admin:
        (account,) = (await admin.get("/v1/users/ann")).json()["accounts"]
    assert (account["issuer"], bool(account["linked_at"])) == (ISSUER, True)
    async with browser(harness) as other:
        # Somebody else has the name now.
        reply = await logged_in(other, provider, sub="another")
        assert (reply.status_code, "not bound" in reply.json()["detail"]) == (403, True)


@options()
async def test_a_local_user_is_not_taken_over(
    harness: GatewayHarness, provider: FakeProvider, ann: httpx.AsyncClient
) -> None:
    del ann
    async with browser(harness) as client:
        reply = await logged_in(client, provider)
        assert (reply.status_code, "LINK_BY_NAME" in reply.json()["detail"]) == (403, True)
        reply = await logged_in(client, provider, preferred_username="admin")
        assert (reply.status_code, "LINK_BY_NAME" in reply.json()["detail"]) == (403, False)


@options(oidc_link_by_name=True)
async def test_a_site_may_link_users_by_name_once(
    harness: GatewayHarness, provider: FakeProvider, ann: httpx.AsyncClient
) -> None:
    async with browser(harness) as client:
        assert (await logged_in(client, provider)).status_code == 303
        assert (await client.get("/v1/session")).json()["user"] == "ann"
        assert (await logged_in(client, provider, sub="another")).status_code == 403
        admin = await logged_in(client, provider, sub="third", preferred_username="admin")
        assert admin.status_code == 403
    assert (await ann.get("/v1/whoami")).status_code == 200


@options(oidc_create_users=False)
async def test_a_site_may_admit_known_users_alone(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        assert (await logged_in(client, provider)).status_code == 403


@options()
async def test_a_user_that_was_removed_is_a_new_one(
    harness: GatewayHarness, provider: FakeProvider, admin: httpx.AsyncClient
) -> None:
    async with browser(harness) as client:
        await logged_in(client, provider)
        await admin.patch("/v1/users/ann", json={"disabled": True})
        assert (await client.get("/v1/session")).status_code == 401
        assert (await logged_in(client, provider)).status_code == 403
        harness.clock.advance(60)
        assert (await admin.delete("/v1/users/ann")).status_code == 204
        assert harness.database.rows(TABLES, ExternalIdentityRow) == {}
        assert harness.database.rows(TABLES, SessionRow) == {}
        assert (await logged_in(client, provider)).status_code == 303


ROLES = {"oidc_roles": {"ops": "operator", "root": "admin"}, "oidc_teams": {"see": "vision"}}


@options(**ROLES)
async def test_groups_give_role_and_team_at_each_login(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        for groups, role, team in (
            (["ops", "see"], "operator", "vision"),
            (["root", "ops"], "admin", None),
            ([], "user", None),
        ):
            # Not in the token: the provider has them in its answer about the user.
            provider.userinfo = {"sub": "subject-of-ann", "groups": groups}
            assert (await logged_in(client, provider)).status_code == 303
            me = (await client.get("/v1/session")).json()
            assert (me["role"], me["team"]) == (role, team), groups
        provider.userinfo = {"sub": "another", "groups": ["root"]}
        assert (await logged_in(client, provider)).status_code == 401


@options()
async def test_a_login_sets_the_address_that_the_provider_has_verified(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client, harness.client() as admin:
        for claims, address in (
            ({"email": "ann@lab.test", "email_verified": False}, None),
            ({"email": "ann@lab.test", "email_verified": True}, "ann@lab.test"),
            ({"email": "a@lab.test\r\nBcc: b@lab.test", "email_verified": True}, "ann@lab.test"),
            ({"email": "other@evil.test", "email_verified": "true"}, "ann@lab.test"),
            ({}, "ann@lab.test"),
            ({"email": "ann@new.test", "email_verified": True}, "ann@new.test"),
        ):
            assert (await logged_in(client, provider, **claims)).status_code == 303
            assert (await admin.get("/v1/users/ann")).json()["mail"] == address, claims


@options(**ROLES)
async def test_what_a_login_changes_is_in_the_audit_trail(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    async with browser(harness) as client:
        for groups in ([], ["root", "see"], ["root", "see"]):
            provider.userinfo = {"sub": "subject-of-ann", "groups": groups}
            assert (await logged_in(client, provider)).status_code == 303
    async with harness.client() as admin:
        items = (await admin.get("/v1/audit")).json()["items"]
    trail = [entry for entry in reversed(items) if entry["action"] != "login.oidc"]
    assert [entry["action"] for entry in trail] == [
        *("user.add", "user.link", "team.add", "user.change")
    ]
    assert {entry["who"] for entry in trail} == {"ann"}
    added, _, team, changed = trail
    assert (added["before"], added["after"]["role"]) == (None, "user")
    assert team["target"] == team["after"]["name"] == "vision"
    assert (changed["before"]["role"], changed["before"]["team"]) == ("user", None)
    assert (changed["after"]["role"], changed["after"]["team"]) == ("admin", "vision")


@options(**ROLES)
async def test_claims_that_settings_need_and_nobody_sends_are_logged(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    provider.userinfo = {"sub": "subject-of-ann"}
    with capture_logs() as logs:
        async with browser(harness) as client:
            assert (await logged_in(client, provider)).status_code == 303
    assert [each["claims"] for each in logs if "sends no such claims" in each["event"]] == [
        ["groups"]
    ]


def settings(**more: Any) -> GatewaySettings:
    return GatewaySettings(database_url="-", nats_url="-", **more)


FEW = settings(oidc_email_domains=("lab.test",), oidc_groups=("people",))
MAPPED = settings(oidc_roles={"root": "admin", "ops": "operator"})
ALLOWED = st.fixed_dictionaries(
    {},
    optional={
        "email": st.sampled_from(["a@lab.test", "a@LAB.test", "a@evil.test", "lab.test", "a", 1]),
        "email_verified": st.sampled_from([True, False, "true", 1, None]),
        "groups": st.sampled_from([["people"], ["others"], "people", [], {}, [1, None], None]),
    },
)


@given(ALLOWED)
def test_only_verified_addresses_of_the_site_and_its_groups_are_admitted(
    claims: dict[str, Any],
) -> None:
    admitted = (
        claims.get("groups") in (["people"], "people")
        and claims.get("email_verified") is True
        and str(claims.get("email")).lower() in ("a@lab.test", "lab.test")
        and "@" in str(claims.get("email"))
    )
    try:
        account_of(FEW, {"iss": "i", "sub": "s", **claims})
        found = True
    except ProblemError:
        found = False
    assert found == admitted


@pytest.mark.parametrize(
    ("claims", "named"),
    [({}, "OIDC_GROUPS_CLAIM"), ({"groups": ["others"]}, "in none of the groups")],
)
def test_a_refusal_says_whether_groups_are_missing_or_others(
    claims: dict[str, Any], named: str
) -> None:
    with pytest.raises(ProblemError, match=named):
        account_of(FEW, {"iss": "i", "sub": "s", **claims})


@given(st.lists(st.sampled_from(["ops", "root", "x"])))
def test_the_highest_role_of_the_groups_holds(groups: list[str]) -> None:
    found = account_of(MAPPED, {"iss": "i", "sub": "s", "groups": groups})
    wanted = "admin" if "root" in groups else "operator" if "ops" in groups else "user"
    assert (found.role, found.team) == (wanted, None)


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.test/",
        "//evil.test",
        "/\\evil.test",
        "\\\\evil.test",
        "/\t/evil.test",
        "javascript:alert(1)",
        "evil.test",
        "",
        "/\r\nset-cookie: a=b",
        "/\u2028",
        "/" + "a" * 3000,
    ],
)
def test_other_sites_are_no_paths(path: str) -> None:
    with pytest.raises(ProblemError):
        local_path(path)


@given(st.text(st.characters(codec="ascii"), max_size=30).map(lambda text: f"/{text}"))
def test_a_path_leads_to_this_site_as_browsers_read_it(text: str) -> None:
    try:
        found = local_path(text)
    except ProblemError:
        return
    # Browsers drop tabs and line ends, and take a backslash for a slash.
    read = "".join(each for each in found if each not in "\t\r\n").replace("\\", "/").strip()
    assert read.startswith("/")
    assert not read.startswith("//")


@options()
async def test_open_redirects_are_refused(harness: GatewayHarness, provider: FakeProvider) -> None:
    del provider
    async with browser(harness) as client:
        reply = await client.get("/v1/login/oidc", params={"next": "//evil.test"})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "next")


@options(logins_burst=3)
async def test_logins_of_an_address_are_bounded(
    harness: GatewayHarness, provider: FakeProvider
) -> None:
    del provider
    async with browser(harness) as client:
        found = [(await client.get("/v1/login/oidc")).status_code for _ in range(4)]
    assert found == [303, 303, 303, 429]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"oidc_issuer": "http://login.test"}, "https"),
        ({"oidc_issuer": ISSUER}, "OIDC_CLIENT_ID"),
        ({**OPTIONS, "run_token_key_file": __file__, "oidc_scopes": "profile"}, "openid"),
        ({"public_url": "https://a.test/path"}, "public_url"),
        ({"oidc_roles": {"a": "root"}}, "oidc_roles"),
    ],
)
def test_settings_that_cannot_work_fail_at_the_start(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        settings(**given)


def test_the_clients_secret_is_not_shown() -> None:
    assert SECRET not in repr(settings(oidc_client_secret=SECRET))


def test_passwords_beside_a_provider_need_a_setting_of_their_own(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    both = {**OPTIONS, "run_token_key_file": key, "passwords": True}
    with pytest.raises(ValidationError, match="PASSWORDS_BESIDE_PROVIDER"):
        settings(**both)
    assert settings(**both, passwords_beside_provider=True).passwords
