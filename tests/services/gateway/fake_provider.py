"""A login provider inside the test's process, which can lie in each way that matters.

What a certified provider does is in ``tests/login``; this one shows what is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from joserfc import jwk, jws

from tests.kit.clock import FakeClock

ISSUER = "https://login.test"
CLIENT = "shiftwork"
SECRET = "the-clients-secret"


def a_key(kid: str) -> Any:
    return jwk.generate_key("EC", "P-256", {"kid": kid, "alg": "ES256", "use": "sig"})


@dataclass
class FakeProvider:
    clock: FakeClock
    keys: list[Any] = field(default_factory=lambda: [a_key("first")])
    # What the next token says, over what is right.
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)
    # Makes the ID token instead.
    sign: Any = None
    is_down: bool = False
    requests: list[str] = field(default_factory=list)
    # By code: the query of the authorization request.
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.answer)

    def consent(self, location: str) -> dict[str, str]:
        """A person logs in at the address that the gateway sent the browser to: the query of the
        callback."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return {"code": code, "state": query["state"]}

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.url.path)
        if self.is_down:
            raise httpx.ConnectError("refused")
        if request.url.path == "/.well-known/openid-configuration":
            paths = {"authorization_endpoint": "auth", "token_endpoint": "token"}
            paths |= {"jwks_uri": "keys", "userinfo_endpoint": "me"}
            found = {name: f"{ISSUER}/{path}" for name, path in paths.items()}
            return httpx.Response(200, json={"issuer": ISSUER, **found, **self.described})
        if request.url.path == "/keys":
            public = [key.as_dict(private=False) for key in self.keys]
            return httpx.Response(200, json={"keys": public})
        if request.url.path == "/me":
            return httpx.Response(200, json=self.userinfo)
        return self._token(request)

    def _token(self, request: httpx.Request) -> httpx.Response:
        pair = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        assert request.headers["authorization"] == f"Basic {pair}"
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        asked = self.codes.get(form["code"])
        challenge = base64url(hashlib.sha256(form["code_verifier"].encode()).digest())
        if asked is None or form["code"] in self.used or challenge != asked["code_challenge"]:
            return httpx.Response(400, json={"error": "invalid_grant"})
        self.used.add(form["code"])
        claims = self.right_claims(asked["nonce"]) | self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        token = self.sign(claims) if self.sign else signed(claims, self.keys[-1])
        return httpx.Response(200, json={"access_token": "access", "id_token": token})

    def right_claims(self, nonce: str) -> dict[str, Any]:
        at = self.clock.now().timestamp()
        return {
            "iss": ISSUER,
            "sub": "subject-of-ann",
            "aud": CLIENT,
            "nonce": nonce,
            "iat": int(at),
            "exp": int(at) + 300,
            "preferred_username": "ann",
        }


def signed(claims: dict[str, Any], key: Any, **header: Any) -> str:
    known = {"alg": "ES256", "kid": key.kid, **header}
    return jws.serialize_compact(known, json.dumps(claims).encode(), key, algorithms=[known["alg"]])


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
