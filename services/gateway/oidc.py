"""Login at an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

The provider's description and keys are fetched when the first login needs them, and remembered. A
provider that is down fails logins alone. joserfc verifies signatures; this module checks what a
token claims. Called by ``api/login.py``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeGuard, cast
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import httpx
import structlog
from joserfc import jwk, jws
from joserfc.errors import JoseError

from libs.service.clock import Clock, ForwardClock
from services.gateway.auth import unauthenticated
from services.gateway.problems import UNAVAILABLE, ProblemError, invalid
from services.gateway.settings import GatewaySettings

# Signatures with the provider's private key alone: a secret that both sides know (HS256), or none
# at all, proves nothing here.
ALGORITHMS = {
    "RS256": "sha256",
    "RS384": "sha384",
    "RS512": "sha512",
    "PS256": "sha256",
    "PS384": "sha384",
    "PS512": "sha512",
    "ES256": "sha256",
    "ES384": "sha384",
    "ES512": "sha512",
    "EdDSA": "sha512",
    "Ed25519": "sha512",
}
ANSWER_BYTES_MAX = 262_144
KEYS_MAX = 100
# How far the provider's clock may be from ours.
LEEWAY_SECONDS = 60.0
# After a failed request to the provider, and between fetches of its keys.
PAUSE = timedelta(seconds=5)
BEGIN = "/v1/login/oidc"
CALLBACK = f"{BEGIN}/callback"
ENDPOINTS = (
    *("authorization_endpoint", "token_endpoint", "jwks_uri"),
    *("userinfo_endpoint", "end_session_endpoint"),
)
NEXT_DEFAULT = "/docs"
NEXT_CHARACTERS_MAX = 2000
SUBJECT_CHARACTERS_MAX = 255
Claims = Mapping[str, Any]
_log = structlog.stdlib.get_logger(__name__)


def local_path(text: str) -> str:
    """A path of this site to go on with after a login. Raises 422 for everything that a browser
    could take as another site's address."""
    parts = urlsplit(text) if text.isascii() and text.isprintable() else None
    is_local = (
        parts is not None
        and text.startswith("/")
        and not text.startswith("//")
        and "\\" not in text
        and not parts.scheme
        and not parts.netloc
        and len(text) <= NEXT_CHARACTERS_MAX
    )
    if not is_local:
        fix = "give a path that begins with one slash, such as /docs, percent-encoded"
        raise invalid("next", text, "is not a path of this site", fix)
    return text


@dataclass(frozen=True, slots=True)
class LoginState:
    """A login that a browser has begun, kept in a signed cookie of that browser.

    State, nonce and PKCE's verifier are derived from the secret, each in its own way.
    """

    secret: str
    next: str
    expires_at: datetime

    @property
    def state(self) -> str:
        """What the provider gives back; binds its answer to the browser that has the cookie."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Binds the ID token to this login."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Proves to the provider that the code was requested here (PKCE)."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """What the provider compares the verifier with."""
        return _base64url(hashlib.sha256(self.verifier.encode()).digest())

    def _derived(self, what: str) -> str:
        return _base64url(hmac.digest(self.secret.encode(), what.encode(), "sha256"))

    def signed(self, key: bytes) -> str:
        """As a cookie's value."""
        content = [self.secret, self.next, int(self.expires_at.timestamp())]
        text = _base64url(json.dumps(content).encode())
        return f"{text}.{_base64url(hmac.digest(key, text.encode(), 'sha256'))}"


def read_state(cookie: str, key: bytes, now: datetime) -> LoginState:
    """The login that a cookie holds. Raises 401 if there is none, or it has taken too long."""
    text, _, signature = cookie.partition(".")
    genuine = _base64url(hmac.digest(key, text.encode(), "sha256"))
    if not cookie or not hmac.compare_digest(signature.encode(), genuine.encode()):
        raise failed_login("this browser has not begun a login, or its cookies are not accepted")
    secret, next_path, expires = json.loads(_unbase64url(text))
    found = LoginState(secret, next_path, datetime.fromtimestamp(expires, now.tzinfo))
    if found.expires_at <= now:
        raise failed_login("this login has taken too long")
    return found


@dataclass(frozen=True, slots=True)
class _Description:
    """What the provider publishes about itself."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str
    # Empty: it has none.
    end_session_endpoint: str
    basic: bool
    names_issuer: bool


class Provider:
    """The login provider of this site."""

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        # Of what is remembered here.
        self._elapsed = ForwardClock(clock)
        self._secret = settings.client_secret()
        self._fetching = asyncio.Lock()
        self._description: tuple[datetime, _Description] | None = None
        self._keys: tuple[datetime, list[Any]] | None = None
        self._failed: tuple[datetime, str] | None = None

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back to."""
        return self._settings.public_url + CALLBACK

    async def address(self, login: LoginState) -> str:
        """Where a browser goes to log in. Raises 503 if the provider does not answer."""
        found = await self._described()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self._settings.oidc_scopes,
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": login.challenge,
            "code_challenge_method": "S256",
        }
        mark = "&" if urlsplit(found.authorization_endpoint).query else "?"
        return f"{found.authorization_endpoint}{mark}{urlencode(query, quote_via=quote)}"

    async def logout_address(self) -> str:
        """Where a browser goes to log out at the provider, too; empty if the provider has no such
        page, or does not answer.

        No address to come back to is given: providers refuse one that is not registered there.
        """
        try:
            found = await self._described()
        except ProblemError:
            return ""
        if not found.end_session_endpoint:
            return ""
        mark = "&" if urlsplit(found.end_session_endpoint).query else "?"
        query = urlencode({"client_id": self._settings.oidc_client_id}, quote_via=quote)
        return f"{found.end_session_endpoint}{mark}{query}"

    async def claims(self, login: LoginState, query: Mapping[str, str]) -> Claims:
        """What the provider says about the person, from the query that it sent the browser back
        with. Raises 401 for an answer that proves nothing, 503 if the provider does not answer."""
        if not hmac.compare_digest(query.get("state", "").encode(), login.state.encode()):
            raise failed_login("the provider's answer belongs to another login")
        found = await self._described()
        issuer = query.get("iss")
        if issuer != self._settings.oidc_issuer and (issuer is not None or found.names_issuer):
            raise failed_login("the answer comes from another provider")
        if error := query.get("error"):
            raise failed_login(f"the provider refused it ({_plain(error)})")
        if not (code := query.get("code")):
            raise failed_login("the provider's answer has no code")
        tokens = await self._exchange(found, code, login.verifier)
        id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(id_token, str) or not isinstance(access_token, str):
            raise failed_login("the provider's answer has no ID token or no access token")
        header, claims = await self._verified(id_token)
        _check_claims(claims, self._settings, login.nonce, self._clock.now())
        _check_at_hash(claims, header, access_token)
        return await self._completed(found, claims, access_token)

    async def _completed(self, found: _Description, claims: Claims, access_token: str) -> Claims:
        """With the claims that the provider has not put into the token."""
        settings = self._settings
        wanted = {settings.oidc_username_claim}
        if settings.oidc_roles or settings.oidc_teams or settings.oidc_groups:
            wanted.add(settings.oidc_groups_claim)
        if settings.oidc_email_domains:
            wanted |= {"email", "email_verified"}
        if found.userinfo_endpoint and not wanted <= claims.keys():
            headers = {"authorization": f"Bearer {access_token}"}
            more = await self._json("GET", found.userinfo_endpoint, headers=headers)
            if more.get("sub") != claims["sub"]:
                raise failed_login("the provider describes another person than its token")
            claims = {**more, **claims}
        if missing := sorted(wanted - claims.keys()):
            # Without groups everybody gets the lowest role, which looks like a mistake of ours.
            fix = "let the provider send them, or set the names of its claims and scopes here"
            _log.warning("the login provider sends no such claims", claims=missing, fix=fix)
        return claims

    async def _exchange(self, found: _Description, code: str, verifier: str) -> Claims:
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        if self._secret and found.basic:
            pair = f"{quote_plus(settings.oidc_client_id)}:{quote_plus(self._secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = settings.oidc_client_id
            if self._secret:
                form["client_secret"] = self._secret
        return await self._json("POST", found.token_endpoint, form=form, headers=headers)

    async def _described(self) -> _Description:
        """What the provider publishes, at most ``oidc_cache_seconds`` old. If it cannot be fetched
        again, what was known before still holds."""
        now = self._elapsed.now()
        if self._description is not None and self._description[0] > now:
            return self._description[1]
        async with self._fetching:
            if self._description is not None and self._description[0] > now:
                return self._description[1]
            issuer = self._settings.oidc_issuer
            address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = _description(await self._json("GET", address), issuer)
            except ProblemError:
                if self._description is None:
                    raise
                found = self._description[1]
            until = now + timedelta(seconds=self._settings.oidc_cache_seconds)
            self._description = until, found
            return found

    async def _verified(self, token: str) -> tuple[Claims, Claims]:
        """Header and claims of a token whose signature is the provider's."""
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError) as problem:
            raise failed_login("the provider's token cannot be read") from problem
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise failed_login(f"the provider's token is signed with {_plain(algorithm)}")
        kid = header.get("kid")
        for key in await self._candidates(kid, algorithm):
            try:
                found = jws.deserialize_compact(token, key, algorithms=[algorithm])
                claims = json.loads(found.payload or b"")
            except (JoseError, ValueError, TypeError):
                continue
            if isinstance(claims, dict):
                return header, cast("dict[str, Any]", claims)
        raise failed_login("the provider's token is not signed with one of its keys")

    async def _candidates(self, kid: object, algorithm: str) -> Sequence[Any]:
        """The provider's keys that may have signed. They are fetched again if none fits, because a
        provider changes its keys."""
        now = self._elapsed.now()
        before = self._keys
        if before is not None and before[0] + self._cache > now:
            found = _fitting(before[1], kid, algorithm)
            if found or before[0] + PAUSE > now:
                return found
        async with self._fetching:
            if self._keys is before:
                uri = (self._description or (now, None))[1]
                if uri is None:  # pragma: no cover - a login reads the description first
                    return []
                self._keys = now, _keys(await self._json("GET", uri.jwks_uri))
        return _fitting(self._keys[1], kid, algorithm) if self._keys is not None else []

    @property
    def _cache(self) -> timedelta:
        return timedelta(seconds=self._settings.oidc_cache_seconds)

    async def _json(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Claims:
        """One bounded request to the provider. Raises 503 if it does not answer as it should, 401
        if it refuses."""
        now = self._elapsed.now()
        if self._failed is not None and self._failed[0] + PAUSE > now:
            raise _down(self._failed[1])
        seconds = self._settings.oidc_timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds),
                self._client(seconds) as client,
                client.stream(
                    method,
                    url,
                    data=dict(form) if form is not None else None,
                    headers={"accept": "application/json", **(headers or {})},
                ) as reply,
            ):
                body = await _bounded(reply)
                status = reply.status_code
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as problem:
            why = f"{type(problem).__name__} at {urlsplit(url).netloc}"
            self._failed = now, why
            _log.warning("the login provider does not answer", problem=why)
            raise _down(why) from problem
        self._failed = None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        document = cast("dict[str, Any]", document) if isinstance(document, dict) else None
        if status in {400, 401, 403} and (form is not None or headers):
            error = _plain((document or {}).get("error"))
            _log.warning("the login provider refuses a request", status=status, error=error)
            raise failed_login(f"the provider refused it ({error})")
        if status != HTTPStatus.OK or document is None:
            why = f"status {status} from {urlsplit(url).netloc}"
            _log.warning("the login provider does not answer as it should", problem=why)
            raise _down(why)
        return document

    def _client(self, seconds: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=seconds, follow_redirects=False)


async def _bounded(reply: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in reply.aiter_bytes():
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("its answer is too large")
    return bytes(body)


def _description(document: Claims, issuer: str) -> _Description:
    """What a provider publishes. Raises 503 if it is another provider's, or incomplete."""
    if document.get("issuer") != issuer:
        raise _down(
            f"it names itself {_plain(document.get('issuer'))}; set SHIFTWORK_GATEWAY_OIDC_ISSUER"
            " to exactly that, if it is the right one"
        )
    found: dict[str, str] = {}
    for name in ENDPOINTS:
        address = document.get(name, "")
        scheme = urlsplit(address).scheme if isinstance(address, str) else ""
        # With an issuer on this machine plain http is allowed, as the settings check it.
        fits = scheme == "https" or (scheme == "http" and issuer.startswith("http:"))
        # Nobody's login depends on the logout.
        optional = name == "end_session_endpoint" or (name == "userinfo_endpoint" and not address)
        if not fits and not optional:
            raise _down(f"its description has no right {name}")
        found[name] = address if fits else ""
    methods = document.get("token_endpoint_auth_methods_supported")
    return _Description(
        **found,
        # The default of the specification.
        basic=not isinstance(methods, list) or "client_secret_basic" in methods,
        names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _keys(document: Claims) -> list[Any]:
    """The provider's public keys; those of kinds that are not known here are left out."""
    listed = document.get("keys")
    found: list[Any] = []
    for each in cast("list[Any]", listed)[:KEYS_MAX] if isinstance(listed, list) else ():
        try:
            # Secrets that both sides know (oct) are no public keys.
            if isinstance(each, dict) and each.get("kty") in {"RSA", "EC", "OKP"}:
                found.append(jwk.import_key(cast("dict[str, Any]", each)))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    return found


def _fitting(keys: Sequence[Any], kid: object, algorithm: str) -> Sequence[Any]:
    family = {"R": "RSA", "P": "RSA", "E": "EC"}[algorithm[0]]
    if algorithm.startswith("Ed"):
        family = "OKP"
    return [
        key
        for key in keys
        if key.key_type == family
        and (kid is None or key.kid is None or key.kid == kid)
        and key.get("use") in {None, "sig"}
        and key.get("alg") in {None, algorithm}
    ]


def _check_claims(claims: Claims, settings: GatewaySettings, nonce: str, now: datetime) -> None:
    """401 for a token that is not of this provider, for us, for this login and of now."""
    if claims.get("iss") != settings.oidc_issuer:
        raise failed_login("the token is another provider's")
    audience = claims.get("aud")
    audiences = cast("list[Any]", audience) if isinstance(audience, list) else [audience]
    if settings.oidc_client_id not in audiences:
        raise failed_login("the token is for another program")
    party = claims.get("azp")
    if (party is not None or len(audiences) > 1) and party != settings.oidc_client_id:
        raise failed_login("the token was made for another program")
    shown = claims.get("nonce")
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), nonce.encode()):
        raise failed_login("the token belongs to another login")
    at = now.timestamp()
    expires, issued = claims.get("exp"), claims.get("iat")
    if not _is_time(expires) or expires <= at - LEEWAY_SECONDS:
        raise failed_login("the token has expired; are the clocks right?")
    if not _is_time(issued) or issued > at + LEEWAY_SECONDS:
        raise failed_login("the token is of the future; are the clocks right?")
    starts = claims.get("nbf")
    if starts is not None and (not _is_time(starts) or starts > at + LEEWAY_SECONDS):
        raise failed_login("the token is not valid yet; are the clocks right?")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX:
        raise failed_login("the token names nobody")


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_at_hash(claims: Claims, header: Claims, access_token: str) -> None:
    """401 if the token was made with another access token than the one beside it."""
    if (shown := claims.get("at_hash")) is None:
        return
    digest = hashlib.new(ALGORITHMS[header["alg"]], access_token.encode()).digest()
    wanted = _base64url(digest[: len(digest) // 2])
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), wanted.encode()):
        raise failed_login("the token belongs to another access token")


def failed_login(why: str) -> ProblemError:
    """A 401 that says where to begin again."""
    return unauthenticated(f"the login failed: {why}; begin again at {BEGIN}")


def _down(why: str) -> ProblemError:
    detail = f"the login provider cannot be used now: {why}; tokens and sessions go on as before"
    return ProblemError(UNAVAILABLE, detail, headers={"retry-after": "5"})


def _plain(value: object) -> str:
    """What others wrote, short and without signs that could end a log's line."""
    text = value if isinstance(value, str) else "nothing"
    return "".join(each if each.isprintable() else "?" for each in text[:100])


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unbase64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
