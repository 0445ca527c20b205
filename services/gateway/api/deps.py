"""The dependencies of every route: the gateway's parts and the authenticated caller."""

from __future__ import annotations

import hashlib
import json
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar, get_args, get_origin

import orjson
import structlog
from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query as QueryInfo
from fastapi.routing import APIRoute
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.responses import Response

from libs.bus.port import Bus
from libs.contracts.ids import RunId
from libs.contracts.messages import FieldError, Message
from libs.contracts.wording import Suggestions, cut
from libs.service import observability
from libs.service.clock import Clock
from libs.store.port import ConflictError, Store, Tx, UnreadableRow
from services.gateway import store as rows_of
from services.gateway.audit import audit
from services.gateway.auth import Authenticator, Identity
from services.gateway.browser_sessions import COOKIE, CSRF_HEADER
from services.gateway.capacity import Capacity
from services.gateway.command_client import Commands
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.event_stream import LiveEvents, StreamLimit
from services.gateway.ids import Mint
from services.gateway.large_bodies import LARGE_BYTES, LargeBodies
from services.gateway.listeners import Listeners
from services.gateway.login_delays import network_of
from services.gateway.oidc import Provider
from services.gateway.passwords import Passwords
from services.gateway.permissions import Action, Role
from services.gateway.problems import (
    ERRORS_MAX,
    INTERNAL,
    INVALID,
    UNAVAILABLE,
    ProblemError,
    absent,
    invalid,
)
from services.gateway.queue_cursors import QueueCursors
from services.gateway.rate_limits import RateLimits
from services.gateway.rejected_requests import RejectedRequest, RejectionAudit
from services.gateway.rows import AcceptedRow, TaskRow
from services.gateway.settings import GatewaySettings
from services.gateway.sight import Sight
from services.gateway.store import Paging
from services.gateway.strict_input import InvalidInputError, json_of

# The key of a request's scope under which the guard stores the caller: an Identity or a RunId.
CALLER = "shiftwork.caller"
# And the parts of the gateway that serves the request: the application itself has none.
PARTS = "shiftwork.gateway"
ETAG_BYTES = 12
# Of an answer that the caller has already.
KEPT_HEADERS = ("etag", "cache-control", "vary", "x-shiftwork-position")
# How often a write is tried that other transactions overtake.
WRITE_TRIES = 8
R = TypeVar("R")
M = TypeVar("M", bound=Message)
# In the audit trail: a command was sent whose outcome is not known, because this process ended or
# because the owner's reply did not come.
OUTCOME_STARTED = "started"
OUTCOME_UNKNOWN = "unknown"


async def retried(write: Callable[[], Awaitable[R]]) -> R:
    """Run a write until no other transaction overtakes it. ConflictError after ``WRITE_TRIES``.

    ``write`` opens its own transaction: a conflict has stored nothing, and the next try reads the
    rows of the other writer. It needs no pause: of the writers that meet, one succeeds each time,
    and the others have waited for it.
    """
    for _ in range(WRITE_TRIES - 1):
        try:
            return await write()
        except ConflictError:
            continue
    return await write()


@dataclass(frozen=True, slots=True)
class Audited:
    """One entry of the audit trail; ``outcome`` is ``done``, the kind of the refusal,
    ``OUTCOME_STARTED`` or ``OUTCOME_UNKNOWN``."""

    target: str
    outcome: str = "done"
    detail: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    # The entry that this one replaces; empty: it is new.
    entry_id: str = ""


@dataclass(frozen=True)
class Context:
    """The gateway's parts, as the routes see them."""

    settings: GatewaySettings
    store: Store
    clock: Clock
    commands: Commands
    authenticator: Authenticator
    live: LiveEvents
    streams: StreamLimit
    waits: StreamLimit
    exec_sessions: StreamLimit
    mint: Mint
    bus: Bus
    wrong_tokens: RateLimits
    checkpoints: RateLimits
    run_writes: RateLimits
    state_reads: RateLimits
    requests: RateLimits
    run_requests: RateLimits
    large_bodies: LargeBodies
    usage_questions: ConcurrencyLimit
    queue_questions: ConcurrencyLimit
    queue_cursors: QueueCursors
    log_questions: ConcurrencyLimit
    dry_runs: RateLimits
    capacity: Capacity
    listeners: Listeners
    rejections: RejectionAudit
    logins: RateLimits
    oidc: Provider | None
    passwords: Passwords

    @asynccontextmanager
    async def changing(
        self, identity: Identity, action: str, target: str, *, verb: str = ""
    ) -> AsyncGenerator[Change]:
        """Check the caller's permission and audit what happens inside: ``done``, or the kind of the
        problem raised. ``verb`` completes "ann may not ...". Many refusals of one user are summed
        up."""
        change = Change(target, partial(self._start, identity, action))
        try:
            identity.check(verb)
            yield change
        except ProblemError as problem:
            kind, detail = problem.kind.type, problem.detail
            problem.audited = True
            if change.entry_id and problem.kind is UNAVAILABLE:
                kind, detail = OUTCOME_UNKNOWN, "no reply came: it may have been carried out"
            if not self.rejections.entries.take(identity.user):
                self.rejections.note(RejectedRequest(identity.user, "", action, kind))
                raise
            await self._audit(identity, action, change, outcome=kind, detail=detail)
            raise
        await self._audit(identity, action, change, outcome="done", detail=change.detail)

    async def _start(
        self, identity: Identity, action: str, change: Change, command: Message, reply_type: type[M]
    ) -> M:
        """The owner's reply to a command. That it is sent is in the audit trail first: the entry
        stays as it is if this process dies before it knows the outcome."""
        if not change.entry_id:
            change.entry_id = self.mint.id()
            await self._audit(identity, action, change, outcome=OUTCOME_STARTED, detail="")
        return await self.commands.ask(command, reply_type)

    async def _audit(
        self, identity: Identity, action: str, change: Change, *, outcome: str, detail: str
    ) -> None:
        entry = Audited(change.target, outcome, detail, entry_id=change.entry_id)
        if outcome in ("done", OUTCOME_STARTED, OUTCOME_UNKNOWN):
            entry = replace(entry, before=change.before, after=change.after)
        await self.audit(identity, action, [entry], accepted=change.rows)

    async def audit(
        self,
        identity: Identity,
        action: str,
        entries: Sequence[Audited],
        *,
        accepted: Sequence[AcceptedRow] = (),
    ) -> None:
        """Enter changes in the audit trail, together with the tasks that they made."""

        async def write() -> None:
            async with self.store.transaction() as tx:
                await rows_of.accept(tx, accepted)
                for entry in entries:
                    audit(
                        tx,
                        self.mint,
                        identity,
                        action=action,
                        target=entry.target,
                        outcome=entry.outcome,
                        detail=entry.detail,
                        before=entry.before,
                        after=entry.after,
                        entry_id=entry.entry_id,
                    )

        # The owner has carried the change out already: its entry must not be lost to a conflict.
        await retried(write)


class Change:
    """What a route adds to the audit of its change, stored in the same transaction."""

    def __init__(self, target: str, start: Callable[..., Awaitable[Any]]) -> None:
        self.target = target
        self._start = start
        # Of the entry that says that a command was sent.
        self.entry_id = ""
        self.detail = ""
        self.before: Mapping[str, Any] | None = None
        self.after: Mapping[str, Any] | None = None
        self.rows: list[AcceptedRow] = []

    def note(self, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        """What was there before the change and is there after it; None: nothing."""
        self.before, self.after = before, after

    async def ask(self, command: Message, reply_type: type[M]) -> M:
        """Send the command that makes the change; returns the owner's reply. A refusal is raised as
        its problem, no reply as 503."""
        reply: M = await self._start(self, command, reply_type)
        return reply


async def context(connection: HTTPConnection) -> Context:
    """The gateway's parts. A coroutine, as everything that routes depend on: each plain function
    would be given to a thread."""
    parts: Context = connection.scope[PARTS]
    return parts


_cookie = APIKeyCookie(
    name=f"__Host-{COOKIE}",
    scheme_name="session",
    auto_error=False,
    description=f"a browser's session; what changes something needs the header {CSRF_HEADER} too."
    f" Where a site has no TLS the cookie is {COOKIE}",
)
_bearer = HTTPBearer(auto_error=False, description="a user's token, or a run's on /v1/run")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
Parts = Annotated[Context, Depends(context)]


async def person(
    request: Request,
    credentials: Credentials,
    session: Annotated[str | None, Security(_cookie)],
) -> Identity:
    """The caller, which the guard authenticated before this route was called."""
    del credentials, session  # for the description
    caller: Identity = request.scope[CALLER]
    return caller


async def run_id(request: Request, credentials: Credentials) -> RunId:
    """Which run is asking, as the guard found out before this route was called."""
    del credentials  # for the description
    run: RunId = request.scope[CALLER]
    return run


BeforeBody = Callable[[Context, RunId], Awaitable[None]]


class _StrictRequest(Request):
    """A request whose JSON is read so strictly that it can be stored and shown."""

    async def json(self) -> Any:  # noqa: ANN401 - any JSON
        parts: Context = self.scope[PARTS]
        settings = parts.settings
        is_batch = self.scope["path"].endswith(":batch")
        most = settings.batch_values_max if is_batch else settings.body_values_max
        try:
            body = await self.body()
            if len(body) <= LARGE_BYTES:
                return json_of(body, most)
            return await parts.large_bodies.parse(_counted_as(self), body, most)
        except InvalidInputError as problem:
            # FastAPI answers this one error with the reason in it.
            raise json.JSONDecodeError(str(problem), "", 0) from None


def _is_small(request: Request) -> bool:
    """True if there is no body, or a short one by its declared length."""
    if "transfer-encoding" in request.headers:
        return False
    length = request.headers.get("content-length", "0")
    return length.isdigit() and int(length[:20]) <= LARGE_BYTES


def _counted_as(request: Request) -> str:
    """Whose bodies count together: those of a user, of a task, or of an address."""
    caller = request.scope.get(CALLER)
    if isinstance(caller, RunId):
        return f"task {caller.task_id}"
    if isinstance(caller, Identity):
        return caller.user
    return f"address {network_of(request.client.host if request.client else '')}"


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_ACTIONS: dict[Callable[..., Any], tuple[Action, bool]] = {}


def allows(action: Action, *, inside: bool = False) -> Callable[[Endpoint], Endpoint]:
    """Decorates an endpoint with the action whose permission its callers need.

    It is checked before anything of the request is read, or, with ``inside``, by
    ``Context.changing``, so that the refusal's entry in the audit trail has what was to be changed.
    """

    def note(endpoint: Endpoint) -> Endpoint:
        _ACTIONS[endpoint] = (action, inside)
        return endpoint

    return note


def action_of(endpoint: Callable[..., Any]) -> tuple[Action, bool]:
    """What an endpoint does, and whether the check is inside it. Raises TypeError for an endpoint
    without ``@allows``."""
    try:
        return _ACTIONS[endpoint]
    except KeyError:
        raise TypeError(f"{endpoint.__name__} has no action: decorate it with @allows") from None


# Endpoints that read a query which others write.
_FREE_QUERIES: set[Callable[..., Any]] = set()


def any_query(endpoint: Endpoint) -> Endpoint:
    """Decorates an endpoint that accepts query parameters besides those that it declares."""
    _FREE_QUERIES.add(endpoint)
    return endpoint


def require_query(given: QueryParams, known: Collection[str], lists: Collection[str] = ()) -> None:
    """422 for query parameters that a route does not have, or that are given twice and are not
    among ``lists``: a misspelt filter would be no filter. Their values are not repeated, because
    they may be secrets. Strangers choose the names: the guard bounds how many there are, and the
    first ones alone are compared with those of the route."""
    errors: list[FieldError] = []
    suggestions = Suggestions()
    count = 0
    for name in given:
        if name in known and (name in lists or len(given.getlist(name)) == 1):
            continue
        count += 1
        if count > ERRORS_MAX:
            continue
        message, fix = "is given more than once", "give it once"
        if name not in known:
            message = "there is no such query parameter"
            has = f"this route has {', '.join(sorted(known))}" if known else "this route has none"
            fix = f"{suggestions.meant(name, known)} {has}".strip()
        errors.append(FieldError(field=cut(name), value="", message=message, fix=fix))
    if errors:
        first, more = errors[0], f" (and {count - 1} more)" if count > 1 else ""
        detail = f"{first.field}: {first.message}; {first.fix}{more}"
        raise ProblemError(INVALID, detail, errors)


def _queries_of(route: APIRoute) -> dict[str, bool]:
    """The query parameters that a route and its dependencies declare; True for those that may be
    given several times."""
    found: dict[str, bool] = {}
    for field in get_flat_params(route.dependant):
        if isinstance(field.field_info, QueryInfo):
            annotation = field.field_info.annotation
            found[field.alias] = any(
                get_origin(kind) is list for kind in (annotation, *get_args(annotation))
            )
    return found


def _validated(request: Request, response: Response, position: int | None) -> Response:
    """A complete answer with its ETag and its place in the event log, or 304 without a body if the
    caller has it already. ``position`` is of before the answer's rows were read: the events behind
    it, and perhaps some that the answer has in it already, are what changes the answer."""
    if response.status_code != HTTPStatus.OK or type(response) is not Response:
        return response
    if position is not None:
        response.headers["x-shiftwork-position"] = str(position)
    digest = hashlib.blake2b(response.body, digest_size=ETAG_BYTES).hexdigest()
    etag = response.headers.setdefault("etag", f'"{digest}"')
    # What one user sees is not another's, and is checked again each time.
    response.headers.setdefault("cache-control", "private, no-cache")
    response.headers.setdefault("vary", "Authorization, Cookie, Accept")
    known = request.headers.get("if-none-match", "")
    if etag not in {each.strip().removeprefix("W/") for each in known.split(",")} and known != "*":
        return response
    kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=kept)


# Actions whose callers are no people: there is no permission to check.
UNLIKE_PEOPLE = frozenset({Action.BE_A_RUN, Action.LOG_IN})


class _StrictRoute(APIRoute):
    """A route that checks the caller's permission, and reads queries and bodies strictly."""

    before_large_body: BeforeBody | None = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
        action, _ = action_of(endpoint)
        shown = {
            "action": action.name.lower(),
            "scope": action.value.scope.value,
            "reach": {role.value: action.value.reach(role).name.lower() for role in Role},
        }
        if action is Action.LOG_IN:
            options["openapi_extra"] = {**(options.get("openapi_extra") or {}), "security": []}
        elif action is not Action.BE_A_RUN:
            options["openapi_extra"] = {
                **(options.get("openapi_extra") or {}),
                "x-permission": shown,
            }
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given strict requests of callers who may make them."""
        handler = super().get_route_handler()
        action, inside = action_of(self.endpoint)
        queries = None if self.endpoint in _FREE_QUERIES else _queries_of(self)
        lists = [name for name, is_list in (queries or {}).items() if is_list]

        async def strict(request: Request) -> Response:
            # The guard has seen to it that runs, and runs alone, reach the routes of runs, and that
            # nobody is known on the routes of logins.
            if action not in UNLIKE_PEOPLE:
                caller: Identity = request.scope[CALLER].doing(action)
                request.scope[CALLER] = caller
                if not inside:
                    caller.check()
            if queries is not None:
                require_query(request.query_params, queries, lists)
            if request.method != "GET":
                changing = _StrictRequest(request.scope, request.receive)
                if _is_small(request):
                    return await handler(changing)
                parts: Context = request.scope[PARTS]
                # Before a byte of it is read.
                if self.before_large_body is not None and action is Action.BE_A_RUN:
                    await self.before_large_body(parts, request.scope[CALLER])
                async with parts.large_bodies.of(_counted_as(request)):
                    return await handler(changing)
            parts = request.scope[PARTS]
            position = parts.live.position
            response = await handler(_StrictRequest(request.scope, request.receive))
            return _validated(request, response, position)

        return strict


def router_of(tag: str, before_large_body: BeforeBody | None = None) -> APIRouter:
    """A router of the API, whose routes check permissions, and read queries and bodies strictly.

    ``before_large_body`` raises a problem for a run of which no large body is read."""

    class Route(_StrictRoute):
        pass

    Route.before_large_body = before_large_body and staticmethod(before_large_body)
    return APIRouter(tags=[tag], route_class=Route)


Caller = Annotated[Identity, Depends(person)]
CallingRun = Annotated[RunId, Depends(run_id)]


async def paging(
    parts: Parts,
    limit: Annotated[int | None, Query(ge=1, description="at most 1000")] = None,
    cursor: Annotated[
        str | None, Query(max_length=2000, description="next_cursor of the page before")
    ] = None,
) -> Paging:
    """The limits of a page."""
    most = parts.settings.page_max
    if limit is not None and limit > most:
        raise invalid("limit", limit, f"is more than {most}", f"give {most} or less, and cursor")
    return Paging(limit or parts.settings.page_default, cursor or None)


PageQuery = Annotated[Paging, Depends(paging)]
Force = Annotated[bool, Query(description="accept users, teams and groups that are to come")]


# Made now: an alert sees the first row as an increase.
UNREADABLE = observability.UNREADABLE_ROWS.labels("gateway", "answer")
_log = structlog.stdlib.get_logger(__name__)


def answer(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(document), status, headers=headers, media_type="application/json")


def answer_page(
    rows: Sequence[R],
    view: Callable[[R], object],
    name: Callable[[R], str],
    next_cursor: str | None,
    *,
    left_out: Sequence[UnreadableRow] = (),
    **more: object,
) -> Response:
    """One page of a list. A row that cannot be shown, whatever the reason, is set apart under
    ``unreadable`` with its name: the others are not its hostages. ``left_out``: rows of this page,
    or of what is shown with them, that the store could not read.
    """
    items: list[orjson.Fragment] = []
    apart = [{"id": row.id, "problem": f"it cannot be read: {row.problem}"} for row in left_out]
    for row in rows:
        try:
            items.append(orjson.Fragment(orjson.dumps(view(row))))
        except Exception as problem:  # noqa: BLE001 - each row's fault is that row's
            apart.append({"id": name(row), "problem": unreadable(name(row), problem)})
    document: dict[str, object] = {"items": items, "next_cursor": next_cursor, **more}
    if apart:
        document["unreadable"] = apart
    return answer(document)


def unreadable(name: str, problem: Exception) -> str:
    """Count and log a row that cannot be shown; returns the warning for the response."""
    UNREADABLE.inc()
    # Its type alone: the text may repeat what a task keeps to itself.
    kind = type(problem).__name__
    _log.error("a row cannot be shown", row=name, problem=kind)
    return f"it cannot be shown ({kind}); the gateway's log names it"


def answer_one(name: str, view: Callable[[], object]) -> Response:
    """One row; the problem 500 that names it if it cannot be shown."""
    try:
        return answer(view())
    except (TypeError, ValueError) as problem:
        raise ProblemError(INTERNAL, f"{name}: {unreadable(name, problem)}") from problem


async def task_or_404(tx: Tx, task_id: str, sight: Sight) -> TaskRow:
    """A task that the caller sees, or the problem that there is none."""
    row = await rows_of.seen_task(tx, task_id, sight)
    if row is None:
        raise absent("task_id", "task", task_id)
    return row


def base_url(request: Request) -> str:
    """The URL of this API as the caller sees it."""
    return str(request.base_url).rstrip("/")
