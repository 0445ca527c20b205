"""How a command fails: what, where, fix, and the exit code that scripts can trust.

Raised anywhere in the command line; ``session.App`` turns it into a message and an exit code.
"""

from __future__ import annotations

from typing import Any, Mapping, cast

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


class Failure(Exception):  # noqa: N818 - it ends a command, which need not be an error
    """A command that cannot go on.

    Args:
        what: one sentence for people.
        where: the address, file or field it is about; may be empty.
        fix: what to do; may be empty.
        code: the exit code.
        problem: the server's own problem document, if there is one.
        retry_seconds: how long the server asks to wait before the next try.
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

    def document(self) -> dict[str, Any]:
        """The failure as one problem object, for ``--json``."""
        if self.problem:
            return self.problem
        field = {"field": self.where, "value": "", "message": self.what, "fix": self.fix}
        return {
            "type": _TYPES.get(self.code, "failed"),
            "title": _TITLES.get(self.code, "The command failed"),
            "status": None,
            "detail": self.what,
            "errors": [field] if self.where or self.fix else [],
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
    problem: Mapping[str, Any], status: int, where: str, retry_after: str | None = None
) -> Failure:
    """The server said no, with a problem document or without."""
    told = dict(problem)
    detail = str(told.get("detail") or told.get("title") or f"the server answered {status}")
    fixes: list[str] = []
    errors: Any = told.get("errors")
    for named in cast("list[Any]", errors) if isinstance(errors, list) else []:
        error = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
        if error.get("fix"):
            field = error.get("field")
            fixes.append(f"{field}: {error['fix']}" if field else str(error["fix"]))
    if not fixes and status in _FIXES:
        fixes.append(_FIXES[status])
    if not fixes and status == 404 and "/v1/tasks" in where:  # noqa: PLR2004 - Not Found
        fixes.append("`shiftwork ls --all` lists the tasks there are")
    told.setdefault("status", status)
    told.setdefault("title", "The server refused")
    told.setdefault("detail", detail)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    return Failure(detail, where=where, fix="; ".join(fixes), problem=told, retry_seconds=seconds)


_FIXES = {
    401: "give a valid token with --token, SHIFTWORK_TOKEN or a context",
    403: "ask an administrator, or use another token",
    503: "a part of the platform does not answer now: try again, or run `shiftwork doctor`",
}
