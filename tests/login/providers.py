"""The login providers that the tests run against, each a real one in a process of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx

from tests.login.browser import CLIENT, OTHER_CLIENT, SECRET, follow, free_port
from tools.keycloak import distribution, environment

FOLDER = Path(__file__).parents[1] / "oidc_provider"
PASSWORD = "a-long-password"
# Who has an account, and in which of the provider's groups.
PEOPLE: dict[str, list[str]] = {"ann": [], "bob": [], "cleo": [], "dan": [], "olga": ["ops", "see"]}
START_SECONDS_MAX = 240


class LoginProvider(ABC):
    """One provider with the clients ``CLIENT`` and ``OTHER_CLIENT`` and the accounts ``PEOPLE``."""

    issuer: str
    # What the gateway asks for so that the groups are among the claims.
    scopes: str
    process: subprocess.Popen[str]

    @abstractmethod
    def typed(self, name: str) -> dict[str, str]:
        """What a person types into the provider's form."""

    @abstractmethod
    async def declined(self, client: httpx.AsyncClient, address: str, until: str) -> httpx.Response:
        """The site's answer after a person who was sent to ``address`` has declined there. Needs
        one who has consented to nothing before: the account ``cleo``."""

    @abstractmethod
    def disable(self, name: str) -> None:
        """Disable an account."""

    @abstractmethod
    def set_groups(self, name: str, groups: list[str]) -> None:
        """Put an account into these groups and no others."""

    @abstractmethod
    def rotate_keys(self) -> None:
        """Sign with another key from now on, and publish the old one no more."""

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Meanwhile it takes connections and does not answer."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it: connections are refused."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


class CertifiedProvider(LoginProvider):
    """npm's oidc-provider. Its program takes orders from its standard input."""

    scopes = "openid profile email groups"

    def __init__(self, callback: str) -> None:
        node = shutil.which("node")
        assert node, "install node 20 or newer"
        self.process = subprocess.Popen(
            [node, "server.js", callback],
            cwd=FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.issuer = self._line("http")
        for name, groups in PEOPLE.items():
            self.set_groups(name, groups)

    def typed(self, name: str) -> dict[str, str]:
        return {"login": name, "password": PASSWORD}

    async def declined(self, client: httpx.AsyncClient, address: str, until: str) -> httpx.Response:
        form = await client.get(address)
        return await follow(client, f"{self.issuer}{form.headers['location']}/abort", until)

    def disable(self, name: str) -> None:
        self._order(disable=name)

    def set_groups(self, name: str, groups: list[str]) -> None:
        self._order(account=name, groups=groups)

    def rotate_keys(self) -> None:
        self._order(rotate=True)

    def stop(self) -> None:
        super().stop()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        self._line("done")

    def _line(self, begins: str) -> str:
        """The next line that begins so; the library prints others."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(begins):
                return line.strip()
        raise AssertionError("the provider ended; make test-login installs it")


class Keycloak(LoginProvider):
    """Keycloak with a database in memory and a realm of its own, changed by its admin API."""

    # Groups come by a mapper of the client: Keycloak has no scope of that name.
    scopes = "openid profile email"
    realm = "lab"

    def __init__(self, callback: str, folder: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self.issuer = f"{self._url}/realms/{self.realm}"
        self._password = secrets.token_urlsafe()
        self._output = folder / "keycloak.log"
        arguments = (
            "--cache=local",
            "--http-enabled=true",
            "--http-host=127.0.0.1",
            f"--http-port={port}",
            f"--hostname={self._url}",
        )
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [str(_home(folder) / "bin" / "kc.sh"), "start", "--optimized", *arguments],
                env=environment(
                    KC_BOOTSTRAP_ADMIN_USERNAME="admin",
                    KC_BOOTSTRAP_ADMIN_PASSWORD=self._password,
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        try:
            self._client = httpx.Client(base_url=self._url, trust_env=False, timeout=60)
            self._wait()
            self._admin("POST", "/admin/realms", json=_realm(self.realm, callback))
        except BaseException:
            self.stop()
            raise

    def typed(self, name: str) -> dict[str, str]:
        return {"username": name, "password": PASSWORD}

    async def declined(self, client: httpx.AsyncClient, address: str, until: str) -> httpx.Response:
        return await follow(client, address, until, press="cancel", **self.typed("cleo"))

    def disable(self, name: str) -> None:
        self._admin("PUT", self._user(name), json={"enabled": False})

    def set_groups(self, name: str, groups: list[str]) -> None:
        user = self._user(name)
        for each in self._admin("GET", f"{user}/groups").json():
            self._admin("DELETE", f"{user}/groups/{each['id']}")
        for each in self._admin("GET", self._path("groups")).json():
            if each["name"] in groups:
                self._admin("PUT", f"{user}/groups/{each['id']}")

    def rotate_keys(self) -> None:
        keys = {"type": "org.keycloak.keys.KeyProvider"}
        before = self._admin("GET", self._path("components"), params=keys).json()
        signing = [each for each in before if each["providerId"] == "rsa-generated"]
        assert signing
        fresh = {
            "name": secrets.token_hex(4),
            "providerId": "rsa-generated",
            "providerType": keys["type"],
            "config": {"priority": ["200"]},
        }
        self._admin("POST", self._path("components"), json=fresh)
        for each in signing:
            self._admin("DELETE", self._path(f"components/{each['id']}"))

    def stop(self) -> None:
        super().stop()
        self._client.close()

    def _wait(self) -> None:
        """Until it answers."""
        ends = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                if self._client.get("/realms/master").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        raise AssertionError(f"Keycloak does not start:\n{self._output.read_text()[-4000:]}")

    def _path(self, rest: str) -> str:
        return f"/admin/realms/{self.realm}/{rest}"

    def _user(self, name: str) -> str:
        query = {"username": name, "exact": "true"}
        (user,) = self._admin("GET", self._path("users"), params=query).json()
        return self._path(f"users/{user['id']}")

    def _admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        # An administrator's token is good for a minute.
        form = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": "admin",
            "password": self._password,
        }
        reply = self._client.post("/realms/master/protocol/openid-connect/token", data=form)
        assert reply.is_success, reply.text
        headers = {"authorization": f"Bearer {reply.json()['access_token']}"}
        reply = self._client.request(method, path, headers=headers, **more)
        assert reply.is_success, (method, path, reply.status_code, reply.text[:2000])
        return reply


def _home(folder: Path) -> Path:
    """The distribution with a ``data`` folder of its own."""
    home = folder / "home"
    home.mkdir()
    for each in distribution().iterdir():
        if each.name == "bin":
            # Its script takes the folder above its own one for its home.
            shutil.copytree(each, home / each.name)
        elif each.name != "data":
            (home / each.name).symlink_to(each)
    return home


def _realm(name: str, callback: str) -> dict[str, Any]:
    return {
        "realm": name,
        "enabled": True,
        "groups": [{"name": each} for each in sorted({*chain(*PEOPLE.values())})],
        "clients": [_client(each, callback) for each in (CLIENT, OTHER_CLIENT)],
        "users": [
            {
                "username": user,
                "enabled": True,
                "email": f"{user}@lab.test",
                "emailVerified": True,
                "firstName": user,
                "lastName": "of the lab",
                "credentials": [{"type": "password", "value": PASSWORD}],
                "groups": [f"/{each}" for each in groups],
            }
            for user, groups in PEOPLE.items()
        ],
    }


def _client(name: str, callback: str) -> dict[str, Any]:
    groups = {
        "name": "groups",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-group-membership-mapper",
        "config": {
            "claim.name": "groups",
            "full.path": "false",
            "id.token.claim": "true",
            "userinfo.token.claim": "true",
        },
    }
    return {
        "clientId": name,
        "secret": SECRET,
        "redirectUris": [callback],
        "standardFlowEnabled": True,
        "consentRequired": True,
        "attributes": {"pkce.code.challenge.method": "S256"},
        "protocolMappers": [groups],
    }
