"""Login at real providers, through their forms, as people do it: npm's oidc-provider, which is
certified (make test-login), and Keycloak (make test-keycloak)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.gateway.oidc import Provider
from tests.login.browser import (
    CALLBACK,
    OTHER_CLIENT,
    browser,
    code_in,
    command,
    confirm,
    follow,
    free_port,
    settings_of,
)
from tests.login.providers import CertifiedProvider, Keycloak, LoginProvider
from tests.services.gateway.gateway_harness import GatewayHarness, served

pytestmark = [pytest.mark.login, pytest.mark.timeout(300)]
PROVIDERS = [
    pytest.param("certified", id="certified"),
    pytest.param("keycloak", marks=pytest.mark.keycloak, id="keycloak"),
]


@pytest.fixture(scope="module")
def port() -> int:
    """The gateway's; the provider must know its address."""
    return free_port()


@pytest.fixture(scope="module", params=PROVIDERS)
def provider(
    request: pytest.FixtureRequest, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoginProvider]:
    callback = f"http://127.0.0.1:{port}{CALLBACK}"
    found: LoginProvider = (
        Keycloak(callback, tmp_path_factory.mktemp("keycloak"))
        if request.param == "keycloak"
        else CertifiedProvider(callback)
    )
    yield found
    found.stop()


@dataclass
class Site:
    """A gateway whose people log in at the provider."""

    url: str
    harness: GatewayHarness
    provider: LoginProvider

    async def logged_in(self, client: httpx.AsyncClient, name: str = "") -> dict[str, Any]:
        """The session after a login; without a name of who is logged in at the provider."""
        begin = f"{self.url}/v1/login/oidc?next=/v1/session"
        typed = self.provider.typed(name) if name else {}
        reply = await follow(client, begin, "/v1/session", **typed)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def begun(self, client: httpx.AsyncClient) -> httpx.URL:
        """Where a browser that begins a login is sent."""
        reply = await client.get(f"{self.url}/v1/login/oidc")
        assert reply.status_code == 303, reply.text
        return httpx.URL(reply.headers["location"])


@pytest_asyncio.fixture
async def site(tmp_path: Path, provider: LoginProvider, port: int) -> AsyncIterator[Site]:
    more = {
        "oidc_scopes": provider.scopes,
        "oidc_roles": {"ops": "operator"},
        "oidc_teams": {"see": "vision"},
        "oidc_email_domains": ["lab.test"],
    }
    harness = GatewayHarness(tmp_path, settings_of(provider.issuer, port, **more))
    # The provider's clock is the machine's.
    harness.clock.current_time = datetime.now(UTC)
    async with harness.running(), served(harness, port) as url:
        yield Site(url, harness, provider)


async def test_a_person_logs_in_and_out(site: Site) -> None:
    url = site.url
    async with browser() as client:
        me = await site.logged_in(client, "ann")
        assert (me["user"], me["role"]) == ("ann", "user")
        headers = {"x-shiftwork-csrf": me["csrf"], "origin": url}
        assert (await client.delete(f"{url}/v1/session", headers=headers)).status_code == 204
        assert (await client.get(f"{url}/v1/session")).status_code == 401
        # The provider still knows the person: nothing is typed this time.
        me = await site.logged_in(client)
        assert me["user"] == "ann"
        # The page at which the provider forgets her; then somebody else can log in.
        headers = {"x-shiftwork-csrf": me["csrf"], "origin": url}
        reply = await client.delete(f"{url}/v1/session", headers=headers)
        await confirm(client, reply.headers["x-shiftwork-logout"])
        assert (await site.logged_in(client, "bob"))["user"] == "bob"


async def test_groups_give_role_and_team_at_each_login(site: Site) -> None:
    async with browser() as client:
        for groups, role, team in ((["ops", "see"], "operator", "vision"), ([], "user", None)):
            site.provider.set_groups("olga", groups)
            me = await site.logged_in(client, "olga")
            assert (me["user"], me["role"], me["team"]) == ("olga", role, team)


async def test_the_providers_answer_is_good_once_and_in_one_browser(site: Site) -> None:
    url, typed = site.url, site.provider.typed("bob")
    async with browser() as client, browser() as other:
        at_provider = str(await site.begun(client))
        kept = dict(client.cookies)
        client.cookies.clear()
        callback = await follow(client, at_provider, CALLBACK, **typed)
        # Without the cookie that the login began with.
        assert callback.status_code == 401
        address = str(callback.request.url)
        assert (await other.get(address)).status_code == 401
        client.cookies.update(kept)
        assert (await client.get(address)).status_code == 303
        client.cookies.clear()
        client.cookies.update(kept)
        again = await client.get(address)
        assert (again.status_code, "invalid_grant" in again.json()["detail"]) == (401, True)
        assert (await client.get(f"{url}/v1/session")).status_code == 401


async def test_a_login_with_another_state_is_refused(site: Site) -> None:
    async with browser() as client:
        address = (await site.begun(client)).copy_set_param("state", "x" * 43)
        reply = await follow(client, str(address), CALLBACK, **site.provider.typed("bob"))
    assert (reply.status_code, "belongs to another login" in reply.json()["detail"]) == (401, True)


async def test_a_login_with_another_nonce_is_refused(site: Site) -> None:
    async with browser() as client:
        address = (await site.begun(client)).copy_set_param("nonce", "x" * 43)
        reply = await follow(client, str(address), CALLBACK, **site.provider.typed("bob"))
    detail = reply.json()["detail"]
    assert (reply.status_code, "token belongs to another login" in detail) == (401, True), detail


async def test_a_code_for_another_program_is_refused(site: Site) -> None:
    async with browser() as client:
        address = (await site.begun(client)).copy_set_param("client_id", OTHER_CLIENT)
        reply = await follow(client, str(address), CALLBACK, **site.provider.typed("bob"))
    assert (reply.status_code, "invalid_grant" in reply.json()["detail"]) == (401, True)


async def test_a_token_for_another_program_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider's own token, with the right nonce and a right signature, for another client."""
    exchange = Provider._exchange  # pyright: ignore[reportPrivateUsage]

    async def as_the_other(self: Provider, found: Any, code: str, verifier: str) -> Any:
        ours = self._settings  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(
            self, "_settings", ours.model_copy(update={"oidc_client_id": OTHER_CLIENT})
        )
        try:
            return await exchange(self, found, code, verifier)
        finally:
            monkeypatch.setattr(self, "_settings", ours)

    monkeypatch.setattr(Provider, "_exchange", as_the_other)
    async with browser() as client:
        address = (await site.begun(client)).copy_set_param("client_id", OTHER_CLIENT)
        reply = await follow(client, str(address), CALLBACK, **site.provider.typed("bob"))
    detail = reply.json()["detail"]
    assert (reply.status_code, "token is for another program" in detail) == (401, True), detail


async def test_a_token_of_the_provider_is_no_token_of_this_site(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Provider._exchange  # pyright: ignore[reportPrivateUsage]
    given: list[Any] = []

    async def kept(self: Provider, found: Any, code: str, verifier: str) -> Any:
        given.append(await exchange(self, found, code, verifier))
        return given[-1]

    monkeypatch.setattr(Provider, "_exchange", kept)
    async with browser() as client:
        await site.logged_in(client, "ann")
    async with browser() as client:
        for name in ("id_token", "access_token"):
            headers = {"authorization": f"Bearer {given[0][name]}"}
            reply = await client.get(f"{site.url}/v1/whoami", headers=headers)
            assert reply.status_code == 401, name


async def test_a_person_who_declines_gets_no_session(site: Site) -> None:
    async with browser() as client:
        address = str(await site.begun(client))
        declined = await site.provider.declined(client, address, CALLBACK)
        assert (declined.status_code, "access_denied" in declined.json()["detail"]) == (401, True)
        assert (await client.get(f"{site.url}/v1/session")).status_code == 401


async def test_a_user_who_is_disabled_here_is_refused_at_once(site: Site) -> None:
    async with browser() as client:
        await site.logged_in(client, "bob")
        async with site.harness.client() as admin:
            reply = await admin.patch("/v1/users/bob", json={"disabled": True})
            assert reply.status_code == 200, reply.text
        assert (await client.get(f"{site.url}/v1/session")).status_code == 401
        reply = await follow(client, f"{site.url}/v1/login/oidc", CALLBACK)
        detail = reply.json()["detail"]
        assert (reply.status_code, "user bob is disabled" in detail) == (403, True), detail


async def test_an_account_that_is_disabled_during_a_login_gets_no_session(site: Site) -> None:
    async with browser() as client:
        address = str(await site.begun(client))
        kept = dict(client.cookies)
        client.cookies.clear()
        reply = await follow(client, address, CALLBACK, **site.provider.typed("dan"))
        site.provider.disable("dan")
        client.cookies.update(kept)
        reply = await client.get(str(reply.request.url))
        assert (reply.status_code, "invalid_grant" in reply.json()["detail"]) == (401, True)


async def test_the_provider_replaces_its_key(site: Site) -> None:
    async with browser() as client, browser() as later:
        await site.logged_in(client, "ann")
        site.provider.rotate_keys()
        # Keys are fetched again after a pause, at the first token that none of them has signed.
        site.harness.clock.advance(6)
        assert (await site.logged_in(later, "ann"))["user"] == "ann"


async def test_the_command_line_gets_a_token(site: Site, tmp_path: Path) -> None:
    url, typed = site.url, site.provider.typed("ann")
    home = tmp_path / "home"
    with command(url, home, "login", "--no-browser") as login:
        assert login.stderr is not None

        def printed() -> str:
            assert login.stderr is not None
            for line in login.stderr:
                if "/v1/login/cli?" in line:
                    return line.strip()
            raise AssertionError("it printed no address")

        address = await asyncio.to_thread(printed)
        async with browser() as client:
            page = await follow(client, address, "/v1/login/cli", **typed)
        code = code_in(page.text)
        out, err = await asyncio.to_thread(login.communicate, f"{code.lower()}\n")
        assert login.returncode == 0, err
        assert "you are ann" in err
        assert "swt_" not in out + err
    (kept,) = (home / ".config/shiftwork/tokens").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    for arguments, wanted in ((("whoami",), "ann"), (("logout",), "logged out")):
        with command("", home, *arguments) as run:
            out, err = await asyncio.to_thread(run.communicate)
            assert (run.returncode, wanted in out + err) == (0, True), out + err
    assert not kept.exists()


async def test_a_code_is_of_no_use_to_another_command(site: Site) -> None:
    url, typed = site.url, site.provider.typed("ann")
    async with browser() as client:
        address = f"{url}/v1/login/cli?challenge={'c' * 43}"
        page = await follow(client, address, "/v1/login/cli", **typed)
        body = {"code": code_in(page.text), "verifier": "v" * 43}
        for _ in range(2):
            reply = await client.post(f"{url}/v1/login/token", json=body)
            assert reply.status_code == 401


async def test_a_provider_that_hangs_fails_new_logins_until_it_answers(site: Site) -> None:
    async with browser() as client, browser() as late:
        with site.provider.frozen():
            reply = await late.get(f"{site.url}/v1/login/oidc")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert "login provider cannot be used now" in reply.json()["detail"]
        site.harness.clock.advance(6)
        assert (await site.logged_in(client, "ann"))["user"] == "ann"


async def test_a_provider_that_is_down_fails_new_logins_alone(site: Site) -> None:
    """The last one: the provider does not come back."""
    async with browser() as client, browser() as late:
        await site.logged_in(client, "ann")
        address = str(await site.begun(late))
        kept = dict(late.cookies)
        late.cookies.clear()
        callback = await follow(late, address, CALLBACK, **site.provider.typed("bob"))
        late.cookies.update(kept)
        site.provider.stop()
        reply = await late.get(str(callback.request.url))
        detail = reply.json()["detail"]
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert f"Error at {httpx.URL(site.provider.issuer).netloc.decode()}; tokens and" in detail
        assert (await client.get(f"{site.url}/v1/session")).status_code == 200
