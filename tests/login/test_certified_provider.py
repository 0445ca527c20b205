"""Login at npm's oidc-provider, a certified one: through its forms, as people do it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from tests.login.browser import CALLBACK, browser, code_in, command, follow, free_port, settings_of
from tests.services.gateway.gateway_harness import GatewayHarness, served

pytestmark = pytest.mark.login
FOLDER = Path(__file__).parents[1] / "oidc_provider"


@pytest.fixture(scope="module")
def port() -> int:
    """The gateway's; the provider must know its address."""
    return free_port()


@pytest.fixture(scope="module")
def issuer(port: int) -> Iterator[str]:
    node = shutil.which("node")
    assert node, "install node 20 or newer"
    callback = f"http://127.0.0.1:{port}{CALLBACK}"
    running = subprocess.Popen(
        [node, "server.js", callback], cwd=FOLDER, stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline().strip()
        assert line.startswith("http"), "make test-login installs the provider"
        yield line
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(10)
        running.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]


@pytest_asyncio.fixture
async def url(tmp_path: Path, issuer: str, port: int) -> AsyncIterator[str]:
    more = {
        "oidc_scopes": "openid profile email groups",
        "oidc_roles": {"ops": "operator"},
        "oidc_email_domains": ["lab.test"],
    }
    harness = GatewayHarness(tmp_path, settings_of(issuer, port, **more))
    # The provider's clock is the machine's.
    harness.clock.current_time = datetime.now(UTC)
    async with harness.running(), served(harness, port) as found:
        yield found


async def test_a_person_logs_in_and_out(url: str) -> None:
    async with browser() as client:
        reply = await follow(
            client,
            f"{url}/v1/login/oidc?next=/v1/session",
            "/v1/session",
            login="ann",
            password="x",
        )
        me = reply.json()
        assert (me["user"], me["role"]) == ("ann", "user")
        headers = {"x-shiftwork-csrf": me["csrf"], "origin": url}
        assert (await client.delete(f"{url}/v1/session", headers=headers)).status_code == 204
        assert (await client.get(f"{url}/v1/session")).status_code == 401
        # The provider still knows the person: no form this time.
        reply = await follow(client, f"{url}/v1/login/oidc?next=/v1/session", "/v1/session")
        assert reply.json()["user"] == "ann"


async def test_groups_give_the_role(url: str) -> None:
    async with browser() as client:
        begin = f"{url}/v1/login/oidc?next=/v1/session"
        reply = await follow(client, begin, "/v1/session", login="olga", password="x")
    assert (reply.json()["user"], reply.json()["role"]) == ("olga", "operator")


async def test_the_providers_answer_is_good_once_and_in_one_browser(url: str) -> None:
    async with browser() as client, browser() as other:
        reply = await client.get(f"{url}/v1/login/oidc")
        kept = dict(client.cookies)
        at_provider = reply.headers["location"]
        client.cookies.clear()
        callback = await follow(client, at_provider, CALLBACK, login="bob", password="x")
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


async def test_a_person_who_aborts_the_login_gets_no_session(url: str) -> None:
    async with browser() as client:
        reply = await client.get(f"{url}/v1/login/oidc")
        form = await client.get(reply.headers["location"])
        page = str(form.headers["location"])
        provider = reply.headers["location"].split("/auth?")[0]
        aborted = await follow(client, f"{provider}{page}/abort", CALLBACK)
        assert (aborted.status_code, "access_denied" in aborted.json()["detail"]) == (401, True)
        assert (await client.get(f"{url}/v1/session")).status_code == 401


async def test_the_command_line_gets_a_token(url: str, tmp_path: Path) -> None:
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
            page = await follow(client, address, "/v1/login/cli", login="ann", password="x")
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


async def test_a_code_is_of_no_use_to_another_command(url: str) -> None:
    async with browser() as client:
        address = f"{url}/v1/login/cli?challenge={'c' * 43}"
        page = await follow(client, address, "/v1/login/cli", login="ann", password="x")
        body = {"code": code_in(page.text), "verifier": "v" * 43}
        for _ in range(2):
            reply = await client.post(f"{url}/v1/login/token", json=body)
            assert reply.status_code == 401
