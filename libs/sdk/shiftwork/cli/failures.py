"""How a command fails: what, where, fix, and the exit code that scripts can trust.

Raised anywhere in the command line. ``session.report`` turns it into a message, in the terms of
the command line that was typed (``typed.translated``), and ``session.Root`` into an exit code.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Generator, Mapping, cast

from shiftwork.cli import installed

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
# Of exec, whose other codes are the command's: there is no session, or it was lost.
SESSION = 255


class Failure(Exception):  # noqa: N818 - it ends a command, which need not be an error
    """A command that cannot go on.

    Args:
        what: one sentence for people.
        where: the address, file, option or argument it is about; may be empty.
        fix: what to do; may be empty.
        code: the exit code.
        problem: the server's own problem document, if there is one.
        retry_seconds: how long to wait before the next try, as the server requests.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        code: int = REFUSED,
        problem: Mapping[str, Any] | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        self.code = code
        self.problem = dict(problem or {})
        self.retry_seconds = retry_seconds
        # What ``naming`` adds.
        self.fields: dict[str, str] = {}
        self.file = ""
        self.task = ""
        # What ``typed.translated`` adds.
        self.errors: list[dict[str, str]] = []

    def document(self) -> dict[str, Any]:
        """The failure as one problem object, for ``--json``."""
        return {
            "type": _TYPES.get(self.code, "failed"),
            "title": _TITLES.get(self.code, "The command failed"),
            "status": None,
            **self.problem,
            "detail": self.what,
            "where": self.where,
            "errors": self.errors,
        }


_TYPES = {USAGE: "usage", UNREACHABLE: "unreachable", INTERRUPTED: "interrupted"}
_TITLES = {
    REFUSED: "The command was refused or failed",
    USAGE: "The command is not understood",
    UNREACHABLE: "The server cannot be reached",
    INTERRUPTED: "Interrupted",
}


def usage(what: str, *, where: str = "", fix: str = "") -> Failure:
    """The command line itself is wrong."""
    return Failure(what, where=where, fix=fix, code=USAGE)


def refused(
    problem: Mapping[str, Any],
    status: int,
    *,
    server: str,
    request: str,
    retry_after: str | None = None,
    data: str = "",
) -> Failure:
    """The server refused, with a problem document or without.

    Args:
        problem: the answer.
        status: its status.
        server: the server's address.
        request: the request's method and path, which help where the server itself has failed.
        retry_after: the header.
        data: the server's data folder, if it runs on this machine and that is known.
    """
    found = dict(problem)
    detail = str(found.get("detail") or found.get("title") or f"the server answered {status}")
    fixes = [
        f"{error['field']}: {error['fix']}" if error.get("field") else str(error["fix"])
        for error in objects(found.get("errors"))
        if error.get("fix")
    ]
    if not fixes and (fix := _fix(status, data)):
        fixes.append(fix)
    if not fixes and status == 404 and "/v1/tasks" in request:  # noqa: PLR2004 - Not Found
        fixes.append("`shiftwork ls --all` lists the tasks")
    found.setdefault("status", status)
    found.setdefault("title", "The server refused")
    found.setdefault("detail", detail)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    method, _, path = request.partition(" ")
    where = f"{method} {server}{path}" if status >= 500 else server  # noqa: PLR2004 - its own fault
    return Failure(detail, where=where, fix="; ".join(fixes), problem=found, retry_seconds=seconds)


@contextmanager
def naming(
    fields: Mapping[str, str] | None = None, *, file: str = "", task: str = ""
) -> Generator[None, None, None]:
    """Sets what the API's names mean in a block, for the errors that it raises.

    Args:
        fields: ``{field: option}``, where the option has another name than the field. What lies
            below a field belongs to its option, too.
        file: fields without an option come from this file, and options are those in ``fields``.
        task: "the task" of an error is this one.
    """
    try:
        yield
    except Failure as failure:
        failure.fields = {**(fields or {}), **failure.fields}
        failure.file = failure.file or file
        failure.task = failure.task or task
        raise


def objects(value: object) -> list[dict[str, Any]]:
    """The JSON objects of a list; an empty list for anything else."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in items if isinstance(each, dict)]


def _fix(status: int, data: str) -> str:
    """The fix for an answer of this status that has none."""
    return {
        401: "give a valid token with --token, SHIFTWORK_TOKEN or a context",
        403: "ask an administrator, or use another token",
        503: "a part of the platform does not answer now: try again, or run "
        + installed.platform("doctor", data=data),
    }.get(status, "")
