"""What the client library raises: the server's refusals, with their fields; a server that does not
answer is ``transport.Unreachable``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, cast

if TYPE_CHECKING:
    from shiftwork.transport import Answer


@dataclass(frozen=True)
class FieldProblem:
    """One field that is wrong: its path (``roles[0].command``), its value as the server shows it,
    what is wrong with it, and how to correct it."""

    field: str
    value: str
    message: str
    fix: str


class ClientError(Exception):
    """The library cannot do what was called, such as for want of a server's address."""


class ApiError(ClientError):
    """The server refused a request, or has failed.

    ``type`` is one word for programs, ``detail`` a sentence for people, ``errors`` the fields that
    are wrong. ``retry_after_seconds`` is 0 unless the server says when to try again.
    """

    def __init__(
        self, status: int, problem: Mapping[str, Any], *, retry_after_seconds: float = 0.0
    ) -> None:
        self.status = status
        self.type = str(problem.get("type") or "unknown")
        self.title = str(problem.get("title") or f"the server answered {status}")
        self.detail = str(problem.get("detail") or self.title)
        self.errors = _fields(problem.get("errors"))
        self.retry_after_seconds = retry_after_seconds
        fixes = [f"{each.field}: {each.fix}" for each in self.errors if each.fix]
        fixes = [fix for fix in fixes if fix.partition(": ")[2] not in self.detail]
        super().__init__("; ".join([self.detail, *fixes]))


class Unauthenticated(ApiError):  # noqa: N818 - as HTTP calls it
    """401: the token is missing, wrong, revoked or expired."""


class Forbidden(ApiError):  # noqa: N818 - as HTTP calls it
    """403: the token's user, role or scopes do not allow it."""


class NotFound(ApiError):  # noqa: N818 - as HTTP calls it
    """404: there is no such thing."""


class Conflict(ApiError):  # noqa: N818 - as HTTP calls it
    """409: the present state does not allow it."""


class Gone(ApiError):  # noqa: N818 - as HTTP calls it
    """410: the event log no longer has the position; read a snapshot, and continue from that."""


class Invalid(ApiError):  # noqa: N818 - as HTTP calls it
    """422: ``errors`` names the fields."""


class TooMany(ApiError):  # noqa: N818 - as HTTP calls it
    """429: a limit of rate or number, after the library's own retries."""


class Unavailable(ApiError):  # noqa: N818 - as HTTP calls it
    """503: a part of the platform does not answer, after the library's own retries."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooMany,
    503: Unavailable,
}


def error_of(answer: Answer) -> ApiError:
    """The error of an answer of status 400 or above."""
    kind = _BY_STATUS.get(answer.status, ApiError)
    seconds = retry_after(answer) or 0.0
    return kind(answer.status, answer.fields(), retry_after_seconds=seconds)


def retry_after(answer: Answer) -> float | None:
    """The seconds of the header Retry-After; None without it."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def _fields(found: object) -> tuple[FieldProblem, ...]:
    items = cast("list[Any]", found) if isinstance(found, list) else []
    names = ("field", "value", "message", "fix")
    return tuple(
        FieldProblem(*(str(each.get(name) or "") for name in names))
        for each in (cast("dict[str, Any]", item) for item in items if isinstance(item, dict))
    )
