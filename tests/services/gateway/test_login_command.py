"""``shiftwork login`` with a password, as a program against a served gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from services.gateway import passwords
from tests.login.browser import command
from tests.services.gateway.gateway_harness import GatewayHarness, served

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.parametrize("harness", [{"passwords": True}], indirect=True),
]
PASSWORD = "correct horse battery"


@pytest_asyncio.fixture
async def url(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A site with passwords, where ann has one."""
    monkeypatch.setattr(passwords, "MEMORY_KIB", 1024)
    await harness.member("ann")
    async with harness.client() as admin:
        set_ = await admin.put("/v1/users/ann/password", json={"password": PASSWORD})
        assert set_.status_code == 204, set_.text
    async with served(harness) as found:
        yield found


async def run(url: str, home: Path, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Its status, and everything that it printed."""
    with command(url, home, *arguments) as program:
        out, err = await asyncio.to_thread(program.communicate, typed, 40)
    return program.returncode, out + err


async def test_a_person_logs_in_with_a_password_and_out_again(url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    code, printed = await run(url, home, "login", "--user", "ann", typed="wrong wrong wrong\n")
    assert (code, "user or password are wrong" in printed) == (1, True), printed
    assert not (home / ".config/shiftwork/tokens").exists()
    # A piped password is never taken for a name.
    code, printed = await run(url, home, "login", typed=f"{PASSWORD}\n")
    assert (code, "give --user NAME" in printed, PASSWORD in printed) == (2, True, False), printed

    code, printed = await run(url, home, "login", "--user", "ann", typed=f"{PASSWORD}\n")
    assert (code, "you are ann" in printed) == (0, True), printed
    assert PASSWORD not in printed
    assert "swt_" not in printed
    (kept,) = (home / ".config/shiftwork/tokens").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in kept.read_text()

    # Later commands use the token by themselves, until it is revoked.
    code, printed = await run("", home, "whoami")
    assert (code, "ann" in printed) == (0, True), printed
    code, printed = await run("", home, "logout")
    assert (code, "logged out" in printed) == (0, True), printed
    assert not kept.exists()
    code, printed = await run("", home, "whoami")
    assert (code, "you are logged out" in printed) == (1, True), printed
    assert "fix: shiftwork login" in " ".join(printed.split())


async def test_a_new_login_revokes_the_token_that_it_replaces(
    url: str, harness: GatewayHarness, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Nobody has that token any more; it would be valid for months."""
    home = tmp_path / "home"
    for _ in range(3):
        code, printed = await run(url, home, "login", "--user", "ann", typed=f"{PASSWORD}\n")
        assert (code, "warning" in printed) == (0, False), printed
    valid = (await admin.get("/v1/tokens?user=ann&revoked=false")).json()["items"]
    (kept,) = (home / ".config/shiftwork/tokens").iterdir()
    async with harness.client(kept.read_text().strip()) as ann:
        mine = (await ann.get("/v1/whoami")).json()["token"]["id"]
    logins = [each["id"] for each in valid if (each.get("name") or "").startswith("login")]
    assert logins == [mine]


async def test_a_new_login_goes_on_where_the_former_token_is_void(url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):
        code, printed = await run(url, home, "login", "--user", "ann", typed=f"{PASSWORD}\n")
        assert (code, "warning" in printed) == (0, False), printed
        (kept,) = (home / ".config/shiftwork/tokens").iterdir()
        kept.write_text("swt_revoked-elsewhere\n")
