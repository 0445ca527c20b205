"""Authentication: turns tokens into identities. ``api/guard.py`` calls it before every route.

What an identity may do is in ``permissions.py``.

Two kinds of bearer tokens: people's (only their SHA-256 is stored) and run tokens (derived by the
launcher, good for the SDK's routes alone). Browsers have sessions instead
(``browser_sessions.py``), which are looked up, remembered and ended like people's tokens. None of
them is ever logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from libs.contracts.ids import RunId
from libs.contracts.messages import FieldError
from libs.contracts.run_token import PREFIX as RUN_PREFIX
from libs.contracts.run_token import verify_run_token
from libs.service.clock import Clock
from libs.service.loop import Wake, pause
from libs.store.port import (
    ConflictError,
    DatabaseFaultError,
    Delta,
    Order,
    Store,
    StoreUnavailableError,
    Tx,
    UnreadableRowError,
)
from services.gateway.browser_sessions import ends_at, session_hash
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.login_delays import network_of
from services.gateway.permissions import (
    Action,
    NotPermitted,
    Reach,
    Role,
    Scope,
    Visibility,
    reach_of,
    refusal_of,
    whom_to_ask,
)
from services.gateway.problems import CONFLICT, FORBIDDEN, TOO_MANY, UNAUTHENTICATED, ProblemError
from services.gateway.rows import (
    SessionRow,
    TaskRow,
    TeamRow,
    TokenRow,
    TokenUseRow,
    UserRow,
)
from services.gateway.sight import Sight

R = TypeVar("R")
LookUp = Callable[[str], Awaitable["Identity"]]
SESSION_OVER = "this session is over; log in again"
FIRST_ADMIN = "admin"
# The token id of the first administrator's file, which speaks for whoever runs the machine.
ADMIN_FILE = "admin-token-file"
FILE_TOKEN_CHARACTERS = 16
# Seconds between checks that the tokens of open streams are still valid.
WATCH_SECONDS = 1.0
_log = structlog.stdlib.get_logger(__name__)
CHALLENGE = {"www-authenticate": 'Bearer realm="shiftwork"'}


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or program that has shown a token."""

    user: str
    role: Role
    team: str
    token_id: str
    token_name: str = ""
    expires_at: datetime | None = None
    # Of the token; never shown.
    digest: str = field(default="", repr=False)
    # A browser's session: ``token_id`` and ``digest`` are the session's.
    is_session: bool = False
    # A session that was made with a token.
    is_of_token: bool = False
    # What the token is good for; none: all that its user may do.
    scopes: tuple[Scope, ...] = ()
    # Where and how the user's tasks are submitted that do not say so; empty: as the platform's.
    default_group: str = ""
    default_priority: str = ""
    # Those of ``group`` and ``priority`` whose default is the team's, because the user has none.
    defaults_of_team: frozenset[str] = frozenset()
    # From where the present request came, and what it does.
    address: str = ""
    action: Action = Action.KNOW_ONESELF
    # The site's setting. Where it is not known, the narrowest.
    visibility: Visibility = Visibility.OWN

    @property
    def is_admin(self) -> bool:
        """An administrator: some places are kept free for these."""
        return self.role is Role.ADMIN

    @property
    def is_limited(self) -> bool:
        """True for a token with scopes or an expiry, and for a session that was made with a token:
        it must not set a password, whose sessions do not end with that."""
        if self.is_session:
            return self.is_of_token
        return bool(self.scopes) or self.expires_at is not None

    @property
    def reach(self) -> Reach:
        """Whose things the present request reaches."""
        return reach_of(self.action, self.role, self.scopes, self.visibility)

    @property
    def sight(self) -> Sight:
        """Whose tasks the caller sees, whatever the present request does."""
        reach = reach_of(Action.READ_TASKS, self.role, self.scopes, self.visibility)
        team = self.team if reach is Reach.TEAM else ""
        return Sight() if reach is Reach.ALL else Sight(self.user, team)

    @property
    def sees_team(self) -> bool:
        """True if the caller sees what the team's other members submit: who they are is known."""
        return bool(self.team) and (self.sight.is_full or bool(self.sight.team))

    def reaches_all(self, action: Action) -> bool:
        """True if the caller may do this to the things of everybody."""
        reach = reach_of(action, self.role, self.scopes, self.visibility)
        return reach is Reach.ALL

    def doing(self, action: Action) -> Identity:
        """The identity for a request that does this; ``check`` before it is done."""
        return replace(self, action=action)

    def check(self, verb: str = "") -> None:
        """Raises 403 if the present request reaches nothing. ``verb`` is more exact than the
        action's own."""
        if self.reach is Reach.NONE:
            raise not_permitted(refusal_of(self.action, self.user, self.role, self.scopes, verb))


def token_hash(token: str) -> str:
    """What is stored of a token. Tokens are random and long, so a plain hash cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of an ``Authorization: Bearer`` header; empty if there is none."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


ANOTHER = (
    "run `shiftwork login`, make another with a token that is valid (POST /v1/tokens), or ask an"
    " administrator for one"
)


def unauthenticated(detail: str) -> ProblemError:
    """A 401 with the challenge that names the scheme."""
    return ProblemError(UNAUTHENTICATED, detail, headers=CHALLENGE)


def forbidden(detail: str) -> ProblemError:
    """A 403; the detail names the users that may."""
    return ProblemError(FORBIDDEN, detail)


def not_permitted(why: NotPermitted) -> ProblemError:
    """The same as a 403."""
    error = FieldError(field="", value="", message=why.message, fix=why.fix)
    return ProblemError(FORBIDDEN, f"{why.message}; {why.fix}", [error])


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
        lookups: ConcurrencyLimit,
        lookups_waiting_max: int,
        uses_seconds: float,
        session_idle_seconds: float,
        visibility: Visibility,
    ) -> None:
        self._visibility = visibility
        self._store = store
        self._clock = clock
        self._admin_hash = token_hash(admin_token) if admin_token else None
        self._run_token_key = run_token_key
        self._cache_for = timedelta(seconds=cache_seconds)
        self._cache_max = cache_max
        self._lookups = lookups
        self._waiting_max = lookups_waiting_max
        self._known: dict[str, tuple[datetime, Identity]] = {}
        # Tokens that were valid at their last lookup, the most recently used last.
        self._valid_before: OrderedDict[str, None] = OrderedDict()
        # Streams that are open now, by the tokens that opened them.
        self._lasting: dict[str, set[StreamAuthorization]] = {}
        self._changed = Wake()
        self._uses_seconds = uses_seconds
        self._session_idle_seconds = session_idle_seconds
        # Uses that are not written yet: when, and from where, by the token's id.
        self._uses: dict[str, tuple[datetime, str]] = {}
        store.observe(self._on_commit)

    async def person(self, token: str, address: str) -> Identity:
        """The user behind a token; raises 401, or 403 for a genuine run token."""
        if token.startswith(RUN_PREFIX):
            run = self._verified_run(token)
            detail = "a run token is good for /v1/run alone; use a user's token here"
            raise forbidden(detail).of(run.task_id)
        return await self._person(token_hash(token), address, self._look_up)

    async def session(self, secret: str, address: str) -> Identity:
        """The user behind a browser's session; raises 401."""
        return await self._person(session_hash(secret), address, self._look_up_session)

    async def _person(self, digest: str, address: str, look_up: LookUp) -> Identity:
        if self._admin_hash and hmac.compare_digest(digest, self._admin_hash):
            return await self._first_admin(digest)
        identity = self._remembered(digest)
        if identity is None:
            # A token that was valid before does not queue behind other tokens of its address.
            line = digest if digest in self._valid_before else network_of(address)
            if self._lookups.count(line) >= self._waiting_max:
                detail = "too many tokens of one address are being looked up; try again"
                raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
            async with self._lookups.of(line):
                identity = self._remembered(digest) or await self._find(digest, look_up)
            is_good = identity.expires_at is None or identity.expires_at > self._clock.now()
            if is_good and (identity.token_id in self._uses or len(self._uses) < self._cache_max):
                self._uses[identity.token_id] = (self._clock.now(), address)
        if identity.expires_at is not None and identity.expires_at <= self._clock.now():
            if identity.is_session:
                raise unauthenticated(SESSION_OVER).of(identity.user)
            raise unauthenticated(f"this token has expired; {ANOTHER}").of(identity.user)
        return replace(identity, visibility=self._visibility)

    async def _first_admin(self, digest: str) -> Identity:
        """The holder of the admin token's file, with the team and defaults of the user ``admin``.
        It is good whatever the row says, and without it: it repairs what is wrong."""
        if (known := self._remembered(digest)) is not None:
            return known
        team, group, priority = "", "", ""
        of_team: frozenset[str] = frozenset()
        with contextlib.suppress(DatabaseFaultError, StoreUnavailableError, UnreadableRowError):
            async with self._store.transaction() as tx:
                user = await tx.get(UserRow, FIRST_ADMIN)
                above = await _team_of(tx, user)
            if user is not None:
                team = user.team
                group = user.default_group or above.default_group
                priority = user.default_priority or above.default_priority
                of_team = _of_team(user)
        found = Identity(
            FIRST_ADMIN,
            Role.ADMIN,
            team,
            ADMIN_FILE,
            "the admin token's file",
            digest=digest,
            default_group=group,
            default_priority=priority,
            defaults_of_team=of_team,
        )
        self._known[digest] = (self._clock.now() + self._cache_for, found)
        return found

    def _remembered(self, digest: str) -> Identity | None:
        until, identity = self._known.get(digest, (None, None))
        if until is None:
            return None
        # More than the whole time is left after the clock was set back.
        left = until - self._clock.now()
        return identity if timedelta() < left <= self._cache_for else None

    async def _find(self, digest: str, look_up: LookUp) -> Identity:
        now = self._clock.now()
        try:
            identity = await look_up(digest)
        except ProblemError:
            # Only a definite answer makes it invalid; after a failed lookup it keeps its own queue.
            self._valid_before.pop(digest, None)
            raise
        self._valid_before[digest] = None
        self._valid_before.move_to_end(digest)
        if len(self._valid_before) > self._cache_max:
            self._valid_before.popitem(last=False)
        if len(self._known) >= self._cache_max:
            self._known.clear()
        self._known[digest] = (now + self._cache_for, identity)
        return identity

    async def run(self, token: str, address: str) -> RunId:
        """The run behind a run token; raises 401, or 403 for a user's good token. Whether the run
        is over is the routes' to ask: its token ends with it.
        """
        if not token.startswith(RUN_PREFIX):
            person = await self.person(token, address)
            detail = "only a run's own token (SHIFTWORK_RUN_TOKEN) is good for /v1/run"
            raise forbidden(detail).of(person.user)
        return self._verified_run(token)

    def _verified_run(self, token: str) -> RunId:
        key = self._run_token_key
        run_id = verify_run_token(key, token) if key else None
        if run_id is None:
            raise unauthenticated("this run token is not genuine")
        return run_id

    async def _look_up(self, digest: str) -> Identity:
        async with self._store.transaction() as tx:
            row = await tx.get(TokenRow, digest)
            user = await tx.get(UserRow, row.user) if row is not None else None
            team = await _team_of(tx, user)
        if row is None or user is None:
            raise unauthenticated("this token is not known")
        if row.revoked_at is not None:
            raise unauthenticated(f"this token was revoked; {ANOTHER}").of(row.user)
        return _identity(
            user, team, row.id, row.name, row.expires_at, digest=digest, scopes=row.scopes
        )

    async def _look_up_session(self, digest: str) -> Identity:
        async with self._store.transaction() as tx:
            row = await tx.get(SessionRow, digest)
            use = await tx.get(TokenUseRow, row.id) if row is not None else None
            user = await tx.get(UserRow, row.user) if row is not None else None
            team = await _team_of(tx, user)
        if row is None or user is None or not self._is_token_known(row):
            raise unauthenticated(SESSION_OVER)
        use = self._use_of(row.id, {row.id: use})
        until = ends_at(row, use, self._session_idle_seconds)
        made_by = f"session ({row.made_by})"
        identity = _identity(
            user, team, row.id, made_by, until, digest=digest, is_session=True, scopes=row.scopes
        )
        return replace(identity, is_of_token=bool(row.token_id))

    def _is_token_known(self, row: SessionRow) -> bool:
        """False for a session made with an administrator's token whose file has changed. Sessions
        of other tokens are deleted with them."""
        if not row.token_id.startswith(ADMIN_FILE):
            return True
        digest = self._admin_hash
        return digest is not None and row.token_id == file_token_id(digest)

    @contextlib.contextmanager
    def lasting(self, identity: Identity) -> Generator[StreamAuthorization]:
        """For a stream: ``over`` is set once the identity that opened it does not hold any more."""
        lasting = StreamAuthorization(identity)
        self._lasting.setdefault(identity.digest, set()).add(lasting)
        try:
            yield lasting
        finally:
            those = self._lasting[identity.digest]
            those.discard(lasting)
            if not those:
                del self._lasting[identity.digest]

    async def watch(self) -> None:
        """End streams whose token, user or role has changed, until cancelled: at once for changes
        that this process made, within ``WATCH_SECONDS`` for those of others.

        Costs two reads a round, however many streams are open.
        """
        while True:
            # The database's absence ends no stream: what was allowed stays so until it is known.
            try:
                await self._end_unauthorized_streams()
            except StoreUnavailableError:
                pass
            except DatabaseFaultError as problem:
                _log.warning("the tokens of open streams cannot be checked", problem=str(problem))
            await self._changed.wait(WATCH_SECONDS)

    async def record_uses(self) -> None:
        """Write when tokens were last used, until cancelled. What a process has not written when it
        dies is lost."""
        while True:
            await pause(self._uses_seconds)
            uses, self._uses = self._uses, {}
            if not uses:
                continue
            try:
                async with self._store.transaction() as tx:
                    for token_id, (at, address) in uses.items():
                        tx.put(TokenUseRow(token_id, at, address))
            except ConflictError:
                # Another process has just written one of them.
                self._uses = {**uses, **self._uses}
            except (StoreUnavailableError, DatabaseFaultError) as problem:
                _log.warning("the last uses of tokens are not kept", problem=str(problem))

    async def _end_unauthorized_streams(self) -> None:
        digests = [digest for digest in self._lasting if digest != self._admin_hash]
        if not digests:
            return
        of_sessions = [
            digest
            for digest in digests
            if any(each.identity.is_session for each in self._lasting[digest])
        ]
        of_tokens = [digest for digest in digests if digest not in of_sessions]
        async with self._store.transaction() as tx:
            shown: dict[str, TokenRow | SessionRow | None] = {
                **await _readable(tx, TokenRow, of_tokens),
                **await _readable(tx, SessionRow, of_sessions),
            }
            names = sorted({row.user for row in shown.values() if row is not None})
            users = await _readable(tx, UserRow, names)
            uses = await _readable(
                tx, TokenUseRow, [row.id for row in shown.values() if isinstance(row, SessionRow)]
            )
        for digest, row in shown.items():
            if row is not None and row.user not in users:
                continue
            user = users[row.user] if row is not None else None
            until = None if row is None else row.expires_at
            if isinstance(row, SessionRow):
                until = ends_at(row, self._use_of(row.id, uses), self._session_idle_seconds)
            for lasting in tuple(self._lasting.get(digest, ())):
                why = _why_over(lasting.identity, row, user, until, self._clock.now())
                if why:
                    lasting.end(why)

    def _use_of(
        self, session_id: str, uses: Mapping[str, TokenUseRow | None]
    ) -> TokenUseRow | None:
        """The last use of a session, also if it is not written yet."""
        if session_id in self._uses:
            at, address = self._uses[session_id]
            return TokenUseRow(session_id, at, address)
        return uses.get(session_id)

    def _on_commit(self, delta: Delta) -> None:
        """What a commit of this process changes of identities counts at once in it."""
        if changes_identities(delta):
            self.forget()

    def forget(self) -> None:
        """Drop all cached identities, so that the next request looks them up."""
        self._known.clear()
        if self._lasting:
            self._changed.set()


def changes_identities(delta: Delta) -> bool:
    """True if a remembered identity may be another after this commit: a user, a team or a token was
    changed or removed, or a session ended."""
    return any(isinstance(row, TokenRow | UserRow | TeamRow) for row in delta.put) or any(
        kind in {TokenRow, UserRow, TeamRow, SessionRow} for kind, _ in delta.deleted
    )


@dataclass(eq=False)
class StreamAuthorization:
    """An identity for as long as a stream of its lasts."""

    identity: Identity
    over: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""

    def end(self, why: str) -> None:
        """It does not hold any more."""
        self.why = why
        self.over.set()

    async def until_over(self) -> None:
        """Raises 401 once it does not hold any more."""
        await self.over.wait()
        raise unauthenticated(self.why)


async def _team_of(tx: Tx, user: UserRow | None) -> TeamRow:
    """A user's team; one without defaults if there is none. A team's row that cannot be read shuts
    nobody out."""
    with contextlib.suppress(UnreadableRowError):
        found = await tx.get(TeamRow, user.team) if user is not None and user.team else None
        if found is not None:
            return found
    return TeamRow("", tx.now)


async def _readable(tx: Tx, kind: type[R], keys: Sequence[str]) -> dict[str, R | None]:
    """Rows by their keys. Those that cannot be read are left out: like the database's absence they
    do not prove that a token is invalid."""
    await tx.load(kind, *((key,) for key in keys))
    found: dict[str, R | None] = {}
    for key in keys:
        with contextlib.suppress(UnreadableRowError):
            found[key] = await tx.get(kind, key)
    return found


def _role_or_none(user: UserRow) -> Role | None:
    try:
        return Role(user.role)
    except ValueError:
        return None


def _disabled(name: str) -> ProblemError:
    """The 401 for a genuine token or session of a disabled user. Another token would not help."""
    message = f"user {name} is disabled"
    fix = f"ask an administrator to enable the user: PATCH /v1/users/{name} with disabled: false"
    error = FieldError(field="", value="", message=message, fix=fix)
    detail = f"{message}; {fix}"
    return ProblemError(UNAUTHENTICATED, detail, [error], headers=CHALLENGE).of(name)


def file_token_id(digest: str) -> str:
    """What a session notes of the administrator's token that it was made with: with another token
    in the file, it is over."""
    return f"{ADMIN_FILE}:{digest[:FILE_TOKEN_CHARACTERS]}"


def session_token_id(token: Identity) -> str:
    """What a session notes of the token that it was made with."""
    is_file = token.token_id == ADMIN_FILE
    return file_token_id(token.digest) if is_file else token.token_id


def _identity(
    user: UserRow,
    team: TeamRow,
    token_id: str,
    token_name: str,
    expires_at: datetime | None,
    *,
    digest: str,
    scopes: Sequence[str] = (),
    is_session: bool = False,
) -> Identity:
    """Who has shown a token or a session. Raises 401 for a user who is disabled, or whose role this
    version does not know."""
    if user.disabled:
        raise _disabled(user.name)
    try:
        role, known = Role(user.role), tuple(Scope(each) for each in scopes)
    except ValueError as problem:
        raise unauthenticated(
            f"this version does not know what {user.name} may do: {problem}; ask an administrator"
        ).of(user.name) from None
    return Identity(
        user.name,
        role,
        user.team,
        token_id,
        token_name,
        expires_at,
        digest,
        is_session,
        scopes=known,
        default_group=user.default_group or team.default_group,
        default_priority=user.default_priority or team.default_priority,
        defaults_of_team=_of_team(user),
    )


def _of_team(user: UserRow) -> frozenset[str]:
    """The defaults that a user has from the team."""
    own = {"group": user.default_group, "priority": user.default_priority}
    return frozenset(name for name, value in own.items() if not value)


def _why_over(
    identity: Identity,
    row: TokenRow | SessionRow | None,
    user: UserRow | None,
    until: datetime | None,
    now: datetime,
) -> str:
    """Why an identity does not hold any more; empty if it does. ``until``: when it expires."""
    what = "session" if identity.is_session else "token"
    if row is None or (isinstance(row, TokenRow) and row.revoked_at is not None):
        return f"this {what} was {'ended' if identity.is_session else 'revoked'}; the stream ends"
    if until is not None and until <= now:
        return f"this {what} has expired; the stream ends"
    if user is None or user.disabled:
        return f"user {identity.user} is disabled; the stream ends"
    if (_role_or_none(user), user.team) != (identity.role, identity.team):
        return f"the role or team of {identity.user} has changed; open the stream again"
    return ""


def require_owner(identity: Identity, row: TaskRow, what: str) -> None:
    """403 unless the present action reaches this task. ``what`` is a verb phrase."""
    if identity.reach is Reach.ALL or identity.user == row.owner:
        return
    message = f"the task is {row.owner}'s, and {identity.user} may not {what}"
    fix = f"ask {row.owner} or {whom_to_ask(identity.action)}"
    error = FieldError(field="task_id", value=row.task_id, message=message, fix=fix)
    raise ProblemError(FORBIDDEN, f"task_id: {message}; {fix}", [error])


def sees_secrets(identity: Identity, row: TaskRow) -> bool:
    """True if the caller may see the task's environment."""
    reach = reach_of(Action.READ_SECRETS, identity.role, identity.scopes)
    return reach is Reach.ALL or (reach is Reach.OWN and identity.user == row.owner)


async def ensure_first_admin(tx: Tx) -> None:
    """Create the user of the admin token's file, if it does not exist."""
    try:
        row = await tx.get(UserRow, FIRST_ADMIN)
    except UnreadableRowError as problem:
        # The admin token works without the row, so a bad row must not stop the leader.
        _log.warning("the first administrator's row cannot be read", problem=str(problem))
        return
    if row is None or row.role != Role.ADMIN or row.disabled:
        new = UserRow(FIRST_ADMIN, Role.ADMIN.value, "", disabled=False, created_at=tx.now)
        # Its team and defaults stay.
        good = {"role": new.role, "disabled": False, "archived": False, "disabled_at": None}
        tx.put(replace(row, disabled_by="", **good) if row is not None else new)


async def require_below_user_limit(tx: Tx, most: int) -> None:
    """409 if there are as many users as the site allows."""
    if await tx.select(UserRow, order_by=(Order("name"),), offset=most - 1, limit=1):
        fix = "an administrator may remove some, or raise SHIFTWORK_GATEWAY_USERS_MAX"
        raise ProblemError(CONFLICT, f"there are {most} users, as many as the site allows; {fix}")


async def team_exists(tx: Tx, team: str) -> bool:
    """True for no team, and for one that is there."""
    return not team or await tx.get(TeamRow, team) is not None
