"""Answering commands: what both adapters of the bus do between a request and its reply.

A request is never met with silence: what cannot be read or fails inside is refused with a reason.
"""

from __future__ import annotations

import contextlib
from asyncio import TaskGroup
from collections.abc import AsyncGenerator, Mapping

import structlog
from pydantic import ValidationError

from libs.bus.port import BusError, CommandHandler, NotNowError, UnfitError
from libs.bus.topology import served_by
from libs.contracts.base import Message
from libs.contracts.messages import FieldError, Refusal, RefusalCode
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind

FIELD_ERRORS_MAX = 20
VALUE_CHARACTERS_MAX = 200

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


def headers_of(message: Message, source: str, message_id: str) -> dict[str, str]:
    """CloudEvents attributes of a command or reply (the optional time is left out)."""
    return {
        "ce-specversion": "1.0",
        "ce-id": message_id,
        "ce-source": source,
        "ce-type": ROUTES[type(message)].type_name,
        "content-type": "application/json",
    }


def refuse(kind: type[Message], refusal: Refusal) -> Message:
    """The reply to command ``kind`` that says no; every reply type has the field ``refusal``."""
    return reply_type(kind).model_validate({"refusal": refusal})


async def answer(
    kind: type[Message], handler: CommandHandler, headers: Mapping[str, str], body: bytes
) -> Message:
    """The reply to a request for ``kind``; raises nothing but cancellation."""
    declared = ROUTES[kind].type_name
    if headers.get("ce-type") != declared:
        detail = f"header ce-type is {headers.get('ce-type')!r}; this endpoint takes {declared}"
        return refuse(kind, Refusal(code=RefusalCode.INVALID, detail=detail))
    try:
        command = kind.model_validate_json(body)
    except ValidationError as error:
        return refuse(kind, _invalid(error))
    try:
        return await handler(command)
    except NotNowError as error:
        _log.warning("command waits", command=kind.__name__, problem=str(error))
        detail = f"{declared} could not be carried out now; try again"
        return refuse(kind, Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))
    except UnfitError as error:
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
