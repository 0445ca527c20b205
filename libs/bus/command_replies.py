"""Answers commands: what both adapters of the bus do between a request and its reply.

Every request gets a reply. A request that cannot be read or that fails is refused with a reason. So
is one that waited until its requester was gone (it is not handled), and one that arrives while too
many requests wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import TaskGroup
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import ValidationError

from libs.bus.port import BusError, CommandHandler, InvalidCommandError, NotNowError
from libs.bus.topology import served_by
from libs.contracts.base import Message
from libs.contracts.messages import FieldError, Refusal, RefusalCode
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.tracing import context

FIELD_ERRORS_MAX = 20
VALUE_CHARACTERS_MAX = 200
# So many requests are answered at once and so many more wait for their turn; any further one is
# refused as busy.
COMMANDS_MAX = 64
COMMANDS_WAITING_MAX = 1_024
# How long the requester waits, in milliseconds from when the request arrives. It is a duration, as
# in gRPC, because the clocks of two machines differ, and a jump would reject every request.
TIMEOUT_HEADER = "shiftwork-timeout-ms"

# Until when the requester waits for the reply to the command that this task answers, in the event
# loop's seconds; None: unknown. Code that queues commands again checks it (``expired``).
answer_until: ContextVar[float | None] = ContextVar("answer_until", default=None)

_log = structlog.stdlib.get_logger(__name__)


def reply_type(kind: type[Message]) -> type[Message]:
    """The declared reply to a command; ValueError if ``kind`` is no command."""
    reply = ROUTES[kind].reply
    if ROUTES[kind].kind is not Kind.COMMAND or reply is None:
        raise ValueError(f"{kind.__name__} is no command with a reply")
    return reply


def check_served(service: str, handlers: Mapping[type[Message], CommandHandler]) -> None:
    """ValueError if ``service`` wants to serve a command that is not its own."""
    foreign = [kind.__name__ for kind in handlers if kind not in served_by(service)]
    if foreign:
        raise ValueError(f"{service} serves commands of another service: {', '.join(foreign)}")


def headers_of(
    message: Message, source: str, message_id: str, timeout_s: float | None = None
) -> dict[str, str]:
    """CloudEvents attributes of a command or reply (the optional time is left out); with a command
    how long its requester waits."""
    found = {
        "ce-specversion": "1.0",
        "ce-id": message_id,
        "ce-source": source,
        "ce-type": ROUTES[type(message)].type_name,
        "content-type": "application/json",
    }
    if traceparent := context.current():
        found[context.HEADER] = traceparent
    if timeout_s is not None:
        found[TIMEOUT_HEADER] = str(max(1, round(timeout_s * 1000)))
    return found


def until_of(headers: Mapping[str, str]) -> float | None:
    """The time until which the requester of a command that has just arrived waits, in the event
    loop's seconds. None without the header, as from requesters of earlier versions."""
    text = headers.get(TIMEOUT_HEADER, "")
    if not text.isascii() or not text.isdigit():
        return None
    return asyncio.get_running_loop().time() + int(text[:12]) / 1000


def expired(until: float | None) -> bool:
    """True if the requester no longer waits for the reply."""
    return until is not None and asyncio.get_running_loop().time() >= until


def too_late(kind: type[Message]) -> Message:
    """The reply to a request that waited longer than its requester."""
    detail = "not carried out: the time its requester waits was over before its turn; try again"
    return refuse(kind, Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))


@dataclass
class RequestQueue:
    """The requests that one connection of a service answers: ``at_once_max`` at a time, in the
    order of their arrival, while at most ``waiting_max`` others wait."""

    at_once_max: int
    waiting_max: int
    taken: int = 0
    _free: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.at_once_max)

    def take(
        self,
        group: TaskGroup,
        answer_one: Callable[[Message | None], Coroutine[Any, Any, None]],
        kind: type[Message],
    ) -> None:
        """Answer in a task of ``group`` when it is its turn; a busy refusal (``answer_one`` gets
        it as its argument) if too many wait. Returns at once, so that a request's time of arrival
        is known however many are before it."""
        if self.taken >= self.at_once_max + self.waiting_max:
            group.create_task(answer_one(self._busy(kind)))
            return
        self.taken += 1
        group.create_task(self._in_turn(answer_one))

    async def _in_turn(
        self, answer_one: Callable[[Message | None], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            async with self._free:
                await answer_one(None)
        finally:
            self.taken -= 1

    def _busy(self, kind: type[Message]) -> Message:
        detail = f"busy: {self.waiting_max} requests wait already; try again"
        return refuse(kind, Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))


def refuse(kind: type[Message], refusal: Refusal) -> Message:
    """The reply to command ``kind`` with a refusal; every reply type has the field ``refusal``."""
    return reply_type(kind).model_validate({"refusal": refusal})


async def answer(
    kind: type[Message],
    handler: CommandHandler,
    headers: Mapping[str, str],
    body: bytes,
    until: float | None = None,
) -> Message:
    """The reply to a request for ``kind``; raises nothing but cancellation. A request whose
    requester waits no longer (``until``, in the event loop's seconds) is not carried out."""
    if expired(until):
        return too_late(kind)
    answer_until.set(until)
    # Each answer has an asyncio task of its own.
    context.enter(headers.get(context.HEADER, ""))
    declared = ROUTES[kind].type_name
    if headers.get("ce-type") != declared:
        detail = f"header ce-type is {headers.get('ce-type')!r}; this endpoint takes {declared}"
        return refuse(kind, Refusal(code=RefusalCode.INVALID, detail=detail))
    try:
        command = kind.model_validate_json(body)
    except ValidationError as error:
        return refuse(kind, _invalid(error))
    return await _run_handler(handler, command)


async def _run_handler(handler: CommandHandler, command: Message) -> Message:
    """The handler's reply, or a refusal with the reason why there is none."""
    kind = type(command)
    declared = ROUTES[kind].type_name
    try:
        return await handler(command)
    except NotNowError as error:
        _log.warning("command waits", command=kind.__name__, problem=str(error))
        detail = f"{declared} could not be carried out now; try again"
        return refuse(kind, Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))
    except InvalidCommandError as error:
        _log.warning("command does not fit", command=kind.__name__, problem=str(error))
        detail = f"{declared} has a value that cannot be stored: {error}"
        return refuse(kind, Refusal(code=RefusalCode.INVALID, detail=detail))
    except Exception as error:  # noqa: BLE001 - one command's failure is its requester's alone
        _log.warning(
            "command failed", command=kind.__name__, error=f"{type(error).__name__}: {error}"
        )
        # Not "try again": the same command would fail the same way.
        detail = f"{declared} failed ({type(error).__name__}); its owner's log has more"
        return refuse(kind, Refusal(code=RefusalCode.FAILED, detail=detail))


def read_reply(kind: type[Message], headers: Mapping[str, str], body: bytes) -> Message:
    """The reply to a command of ours; BusError if it is not of the declared type."""
    expected = reply_type(kind)
    if headers.get("ce-type") != ROUTES[expected].type_name:
        raise BusError(f"the answer to {kind.__name__} has type {headers.get('ce-type')!r}")
    try:
        return expected.model_validate_json(body)
    except ValidationError as error:
        raise BusError(f"the answer to {kind.__name__} does not fit its type: {error}") from error


@contextlib.asynccontextmanager
async def answering() -> AsyncGenerator[TaskGroup]:
    """A group for answers under way; an exception of the body leaves it as it is, not grouped."""
    try:
        async with TaskGroup() as group:
            yield group
    except BaseExceptionGroup as grouped:
        # Answers raise nothing, so there is one: the body's.
        raise grouped.exceptions[0] from grouped.exceptions[0].__cause__


def _invalid(error: ValidationError) -> Refusal:
    """Every field that does not fit, with its value and what is wrong."""
    found = [
        FieldError(
            field=".".join(str(part) for part in problem["loc"]),
            value=str(problem["input"])[:VALUE_CHARACTERS_MAX],
            message=problem["msg"],
        )
        for problem in error.errors(include_url=False)[:FIELD_ERRORS_MAX]
    ]
    return Refusal(
        code=RefusalCode.INVALID, detail="the command does not fit its type", errors=tuple(found)
    )
