"""What every route gets: the gateway's parts, and who is asking. Called by FastAPI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import orjson
from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection
from starlette.responses import Response

from libs.bus.port import Bus
from libs.contracts.ids import RunId
from libs.service.clock import Clock
from libs.store.port import Store, Tx
from services.gateway import store as rows_of
from services.gateway.auth import Authenticator, Identity, Mint, audit, unauthenticated
from services.gateway.commands import Commands
from services.gateway.live import Gate, Live
from services.gateway.problems import NOT_FOUND, ProblemError, invalid
from services.gateway.rows import AcceptedRow, TaskRow
from services.gateway.settings import GatewaySettings
from services.gateway.store import Page, Paging


@dataclass(frozen=True, slots=True)
class Audited:
    """One entry of the audit trail; ``outcome`` is ``done`` or the kind of the refusal."""

    target: str
    outcome: str = "done"
    detail: str = ""


@dataclass(frozen=True)
class Context:
    """The gateway's parts, as the routes see them."""

    settings: GatewaySettings
    store: Store
    clock: Clock
    commands: Commands
    authenticator: Authenticator
    live: Live
    streams: Gate
    waits: Gate
    mint: Mint
    bus: Bus

    @asynccontextmanager
    async def changing(
        self, identity: Identity, action: str, target: str
    ) -> AsyncGenerator[Change]:
        """Audit what happens inside: ``done``, or the kind of the problem raised."""
        change = Change(target)
        try:
            yield change
        except ProblemError as problem:
            kind, detail = problem.kind.type, problem.detail
            await self._audit(identity, action, change, outcome=kind, detail=detail)
            raise
        await self._audit(identity, action, change, outcome="done", detail=change.detail)

    async def _audit(
        self, identity: Identity, action: str, change: Change, *, outcome: str, detail: str
    ) -> None:
        await self.audit(
            identity, action, [Audited(change.target, outcome, detail)], accepted=change.rows
        )

    async def audit(
        self,
        identity: Identity,
        action: str,
        entries: Sequence[Audited],
        *,
        accepted: Sequence[AcceptedRow] = (),
    ) -> None:
        """Enter changes in the audit trail, together with the tasks that they made."""
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
                )


class Change:
    """What a route adds to the audit of its change, stored in the same transaction."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.detail = ""
        self.rows: list[AcceptedRow] = []


async def context(connection: HTTPConnection) -> Context:
    """The gateway's parts. A coroutine, as everything that routes depend on: each plain function
    would be given to a thread."""
    return connection.app.state.gateway


_bearer = HTTPBearer(auto_error=False, description="a user's token, or a run's on /v1/run")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
Parts = Annotated[Context, Depends(context)]


async def person(parts: Parts, credentials: Credentials) -> Identity:
    """Who is asking: 401 without a good token."""
    if credentials is None:
        raise unauthenticated("send the header Authorization: Bearer TOKEN")
    return await parts.authenticator.person(credentials.credentials)


async def run_id(parts: Parts, credentials: Credentials) -> RunId:
    """Which run is asking: 401 without its token."""
    if credentials is None:
        raise unauthenticated("send the header Authorization: Bearer $SHIFTWORK_RUN_TOKEN")
    return parts.authenticator.run(credentials.credentials)


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


Wanted = Annotated[Paging, Depends(paging)]


def answer(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(document), status, headers=headers, media_type="application/json")


def answer_page(items: Sequence[object], page: Page) -> Response:
    """One page of a list."""
    return answer({"items": items, "next_cursor": page.next_cursor})


async def task_or_404(tx: Tx, task_id: str) -> TaskRow:
    """A task, or the problem that there is none."""
    row = await rows_of.task(tx, task_id)
    if row is None:
        raise ProblemError(
            NOT_FOUND, f"there is no task {task_id[:60]!r}; GET /v1/tasks lists those that are"
        )
    return row


def base_url(request: Request) -> str:
    """Where this API is, as the caller sees it."""
    return str(request.base_url).rstrip("/")
