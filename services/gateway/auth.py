"""Who is asking, and what they may do. Called by ``api/deps.py`` before every route.

Two kinds of bearer tokens: people's (only their SHA-256 is stored) and run tokens (derived by the
launcher, good for the SDK's routes alone). Neither is ever logged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from libs.contracts.ids import RunId
from libs.contracts.run_token import PREFIX as RUN_PREFIX
from libs.contracts.run_token import verify_run_token
from libs.service.clock import Clock
from libs.store.port import Delta, Store, Tx
from services.gateway.problems import FORBIDDEN, UNAUTHENTICATED, ProblemError
from services.gateway.rows import AuditRow, TaskRow, TeamRow, TokenRow, UserRow

ADMIN = "admin"
MEMBER = "member"
FIRST_ADMIN = "admin"
CHALLENGE = {"www-authenticate": 'Bearer realm="shiftwork"'}


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or program that has shown a token."""

    user: str
    role: str
    team: str
    token_id: str
    token_name: str = ""
    expires_at: datetime | None = None

    @property
    def is_admin(self) -> bool:
        """May everything."""
        return self.role == ADMIN


@dataclass(frozen=True, slots=True)
class Mint:
    """Makes secrets and ids; injected, so that tests and simulations decide them."""

    secret: Callable[[], str]
    id: Callable[[], str]


def token_hash(token: str) -> str:
    """What is stored of a token. Tokens are random and long, so a plain hash cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


def unauthenticated(detail: str) -> ProblemError:
    """401, saying how to show who one is."""
    return ProblemError(UNAUTHENTICATED, detail, headers=CHALLENGE)


def forbidden(detail: str) -> ProblemError:
    """403; the detail says who may."""
    return ProblemError(FORBIDDEN, detail)


class Authenticator:
    """Turns bearer tokens into identities, remembering them for a few seconds."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        admin_token: str | None,
        run_token_key: bytes | None,
        cache_seconds: float,
        cache_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._admin_hash = token_hash(admin_token) if admin_token else None
        self._run_token_key = run_token_key
        self._cache_for = timedelta(seconds=cache_seconds)
        self._cache_max = cache_max
        self._known: dict[str, tuple[datetime, Identity]] = {}
        store.observe(self._on_commit)

    async def person(self, token: str) -> Identity:
        """The user behind a token; raises 401, or 403 for a run token."""
        if token.startswith(RUN_PREFIX):
            raise forbidden("a run token is good for /v1/run alone; use a user's token here")
        digest = token_hash(token)
        if self._admin_hash and hmac.compare_digest(digest, self._admin_hash):
            return Identity(FIRST_ADMIN, ADMIN, "", "admin-token-file", "the admin token's file")
        now = self._clock.now()
        until, identity = self._known.get(digest, (None, None))
        if until is None or identity is None or until <= now:
            identity = await self._look_up(digest)
            if len(self._known) >= self._cache_max:
                self._known.clear()
            self._known[digest] = (now + self._cache_for, identity)
        if identity.expires_at is not None and identity.expires_at <= now:
            raise unauthenticated("this token has expired; ask an administrator for another")
        return identity

    def run(self, token: str) -> RunId:
        """The run behind a run token; raises 401, or 403 for a user's token."""
        if not token.startswith(RUN_PREFIX):
            raise forbidden("only a run's own token (SHIFTWORK_RUN_TOKEN) is good for /v1/run")
        key = self._run_token_key
        run_id = verify_run_token(key, token) if key else None
        if run_id is None:
            raise unauthenticated("this run token is not genuine")
        return run_id

    async def _look_up(self, digest: str) -> Identity:
        async with self._store.transaction() as tx:
            row = await tx.get(TokenRow, digest)
            user = await tx.get(UserRow, row.user) if row is not None else None
        if row is None or user is None:
            raise unauthenticated("this token is not known; see `shiftwork token`")
        if row.revoked_at is not None:
            raise unauthenticated("this token was revoked; ask an administrator for another")
        if user.disabled:
            raise unauthenticated(f"user {user.name} is disabled; ask an administrator")
        return Identity(user.name, user.role, user.team, row.id, row.name, row.expires_at)

    def _on_commit(self, delta: Delta) -> None:
        """A changed user or token counts at once in this process."""
        if any(isinstance(row, TokenRow | UserRow) for row in delta.put):
            self.forget()

    def forget(self) -> None:
        """Look everybody up again."""
        self._known.clear()


def require_admin(identity: Identity, what: str) -> None:
    """403 unless an administrator asks."""
    if not identity.is_admin:
        raise forbidden(f"{identity.user} may not {what}; ask an administrator")


def require_owner(identity: Identity, row: TaskRow, what: str) -> None:
    """403 unless the task's owner or an administrator asks."""
    if not may_change(identity, row):
        raise forbidden(
            f"{identity.user} may not {what} of {row.task_id}; ask its owner, {row.owner}, or an"
            " administrator"
        )


def may_change(identity: Identity, row: TaskRow) -> bool:
    """Owners and administrators change a task, and see its environment."""
    return identity.is_admin or identity.user == row.owner


async def ensure_first_admin(tx: Tx) -> None:
    """The user whom the admin token's file speaks for is there like any other."""
    row = await tx.get(UserRow, FIRST_ADMIN)
    if row is None or row.role != ADMIN or row.disabled:
        since = row.created_at if row else tx.now
        tx.put(UserRow(FIRST_ADMIN, ADMIN, row.team if row else "", False, since))


async def team_exists(tx: Tx, team: str) -> bool:
    """True for no team, and for one that is there."""
    return not team or await tx.get(TeamRow, team) is not None


def audit(
    tx: Tx,
    mint: Mint,
    identity: Identity,
    *,
    action: str,
    target: str,
    outcome: str = "done",
    detail: str = "",
) -> None:
    """Enter a change, or the refusal of one, in the audit trail."""
    tx.put(
        AuditRow(
            id=mint.id(),
            at=tx.now,
            who=identity.user,
            action=action,
            target=target,
            outcome=outcome,
            detail=detail,
        )
    )
