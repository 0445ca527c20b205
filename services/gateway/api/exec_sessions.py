"""A terminal or a command in a running rank, over a WebSocket. For the task's owner and
administrators; who opens a session, and how it ends, is entered in the audit trail."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import structlog
from fastapi import WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from libs.bus.port import BusError
from libs.bus.sessions import Session, SessionTimes, open_session
from libs.contracts import messages as m
from libs.contracts.task_states import LIVE_WORDS
from services.gateway.api.deps import (
    CALLER,
    Audited,
    Context,
    action_of,
    allows,
    context,
    router_of,
    task_or_404,
)
from services.gateway.api.events import token_of
from services.gateway.api.failures import problem_of
from services.gateway.api.guard import enter, note_refusal, refuse_upgrade
from services.gateway.auth import Identity, require_owner
from services.gateway.exec_relay import ExecQuery, RelayTimes, as_text, first_message, relay
from services.gateway.permissions import Action
from services.gateway.problems import CONFLICT, UNAVAILABLE, ProblemError, invalid, of_validation
from services.gateway.rows import TaskRow

router = router_of("training")
NORMAL, FAILED = 1000, 1011
DETAIL_CHARACTERS_MAX = 500
_log = structlog.stdlib.get_logger(__name__)


@router.websocket("/tasks/{task_id}/exec")
@allows(Action.ENTER_RANKS)
async def exec_socket(socket: WebSocket, task_id: str) -> None:
    """Open a session in a rank: ``?rank=R&role=ROLE&tty=true``. The command is in the first
    message, never in the URL."""
    parts = await context(socket)
    try:
        token, protocol = token_of(socket)
        caller: Any = await enter(parts, socket.scope, token, is_run=False)
        socket.scope[CALLER] = caller
        caller = caller.doing(action_of(exec_socket)[0])
        caller.check()
        query = _query_of(socket)
        async with parts.store.transaction() as tx:
            row = await task_or_404(tx, task_id, caller.sight)
        with parts.exec_sessions.admit(caller.user, is_admin=caller.is_admin):
            await _check_right(parts, caller, row)
            await socket.accept(subprotocol=protocol)
            await _serve(parts, socket, caller, task_id, query)
    except ProblemError as problem:
        note_refusal(parts, socket.scope, problem)
        await _refuse(socket, problem)
    except (WebSocketDisconnect, RuntimeError) as problem:
        # The client is gone: nothing can reach it.
        _log.info("a client left its session", problem=str(problem))
    except Exception as error:  # noqa: BLE001 - the client learns of it, and the log has it
        await _refuse(socket, problem_of(error, socket.url.path))


def _query_of(socket: WebSocket) -> ExecQuery:
    try:
        return ExecQuery.model_validate(dict(socket.query_params))
    except ValidationError as error:
        raise of_validation(error.errors()) from None


async def _check_right(parts: Context, caller: Identity, row: TaskRow) -> None:
    """403 for others than the owner and administrators, and 409 for a task that is over. Refusals
    are audited; what is allowed is audited once it is known what runs where."""
    if row.state not in LIVE_WORDS:
        raise ProblemError(CONFLICT, f"the task is {row.state}; nothing of it runs any more")
    if row.state == "paused":
        detail = f"the task is paused; resume it first (`shiftwork resume {row.task_id}`)"
        raise ProblemError(CONFLICT, detail)
    try:
        require_owner(caller, row, "open a session in it")
    except ProblemError:
        async with parts.changing(caller, "task.exec", row.task_id):
            require_owner(caller, row, "open a session in it")
        raise


async def _serve(
    parts: Context, socket: WebSocket, caller: Identity, task_id: str, query: ExecQuery
) -> None:
    """One session, from its command to its end."""
    settings = parts.settings
    command = await first_message(socket, settings.exec_command_seconds)
    _check_words(command.command, settings.exec_words_max, settings.exec_words_bytes_max)
    size = command.size if query.tty else None
    request = m.OpenExec(
        session=secrets.token_hex(16),
        task_id=task_id,
        rank=query.rank,
        role=query.role,
        command=tuple(command.command),
        terminal=query.tty,
        rows=size.rows if size else 0,
        columns=size.columns if size else 0,
        term=command.term,
    )
    times = SessionTimes(settings.exec_heartbeat_seconds, settings.exec_silence_seconds)
    try:
        async with (
            open_session(
                parts.bus, request.session, m.ExecInput, parts.clock.now, times
            ) as session,
            _audited(parts, caller, request) as outcome,
        ):
            end = await _converse(parts, socket, caller, session)
            outcome.append(_how(end))
    except BusError as problem:
        detail = "the bus does not answer now; try again"
        raise ProblemError(UNAVAILABLE, detail, headers={"retry-after": "1"}) from problem
    shown = {"code": end.code, "problem": end.problem}
    await socket.send_text(as_text({"exit": shown}))
    await socket.close(NORMAL)


async def _converse(
    parts: Context, socket: WebSocket, caller: Identity, session: Session
) -> m.ExecEnd:
    settings = parts.settings
    times = RelayTimes(
        idle_seconds=settings.exec_idle_seconds,
        seconds_max=settings.exec_seconds_max,
        send_seconds_max=settings.stream_send_seconds_max,
    )
    with parts.authenticator.lasting(caller) as lasting:
        try:
            return await relay(socket, session, lasting, times)
        finally:
            # If this does not arrive, our silence says the same a little later.
            await session.leave()


@contextlib.asynccontextmanager
async def _audited(
    parts: Context, caller: Identity, request: m.OpenExec
) -> AsyncGenerator[list[str]]:
    """Open the session, with an entry in the audit trail before anything runs for long and one
    after its end. The caller appends how it ended. A process that dies in between leaves the first
    entry alone, which shows that the end is not known."""
    task_id = request.task_id
    asked = f"rank {request.rank}" + (f" of role {request.role}" if request.role else "")
    words = audited_words(request.command)
    async with parts.changing(caller, "task.exec", task_id) as change:
        change.detail = f"{asked}: {words}"[:DETAIL_CHARACTERS_MAX]
        reply = await parts.commands.ask(request, m.OpenExecReply)
        where = f"attempt {reply.attempt}, rank {reply.rank} on {reply.node_id}"
        change.detail = f"{where}: {words}"[:DETAIL_CHARACTERS_MAX]
    outcome: list[str] = []
    clock = asyncio.get_running_loop().time
    began_s = clock()
    try:
        yield outcome
    except ProblemError as problem:
        outcome.append(problem.detail)
        raise
    except BaseException:
        outcome.append("the client is gone")
        raise
    finally:
        how = outcome[0] if outcome else "ended"
        detail = f"{where}, after {clock() - began_s:.1f} s: {how}"[:DETAIL_CHARACTERS_MAX]
        entry = Audited(task_id, detail=detail)
        await asyncio.shield(parts.audit(caller, "task.exec.end", [entry]))


def _how(end: m.ExecEnd) -> str:
    return f"exit code {end.code}" if end.code is not None else end.problem


def audited_words(command: Sequence[str]) -> str:
    """A command for the audit trail: its program, and how many arguments it has. Arguments may be
    secrets in ways that no pattern finds."""
    if not command:
        return "a shell"
    count = len(command) - 1
    more = f" with {count} argument" + ("" if count == 1 else "s") if count else ""
    return shlex.quote(command[0]) + more


def _check_words(command: Sequence[str], count_max: int, bytes_max: int) -> None:
    size = sum(len(word.encode()) for word in command)
    if len(command) > count_max or size > bytes_max:
        message = f"may have at most {count_max} words, of {bytes_max} bytes together"
        fix = "put it in a file, or send it through standard input"
        raise invalid("command", f"{len(command)} words, {size} bytes", message, fix)
    if any("\0" in word for word in command):
        raise invalid("command", "", "has a NUL character", "leave it out")
    if command and not command[0]:
        raise invalid("command[0]", "", "is empty", "give the program's name")


async def _refuse(socket: WebSocket, problem: ProblemError) -> None:
    """A problem as the answer to the upgrade, or, behind that, as the last message."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        if socket.application_state is WebSocketState.CONNECTING:
            await refuse_upgrade(socket, problem)
        elif socket.application_state is WebSocketState.CONNECTED:
            await socket.send_text(as_text({"problem": problem.document()}))
            await socket.close(FAILED, problem.kind.type)
