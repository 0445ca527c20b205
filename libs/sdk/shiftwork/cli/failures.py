"""How a command fails: what, where, fix, and the exit code that scripts can trust.

Raised anywhere in the command line; ``session.App`` turns it into a message and an exit code.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Generator, Mapping, cast

from shiftwork.cli import installed

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
    if not fixes and (fix := _fix(status)):
        fixes.append(fix)
    if not fixes and status == 404 and "/v1/tasks" in where:  # noqa: PLR2004 - Not Found
        fixes.append("`shiftwork ls --all` lists the tasks there are")
    told.setdefault("status", status)
    told.setdefault("title", "The server refused")
    told.setdefault("detail", detail)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    return Failure(detail, where=where, fix="; ".join(fixes), problem=told, retry_seconds=seconds)


def as_typed(failure: Failure, flags: Mapping[str, str], file: str = "") -> Failure:
    """A refusal in the words of who typed the command: an option in place of the API's field.

    Args:
        failure: what the server said; anything else stays as it is.
        flags: ``{field: option}``. What lies below a field belongs to its option, too.
        file: where fields without an option come from.
    """
    errors = [e for e in _objects(failure.problem.get("errors")) if e.get("field")]
    if not errors:
        return failure
    names = [_flag(str(error["field"]), flags) for error in errors]
    first, *more = errors
    what = failure.what
    if what.startswith(f"{first['field']}: "):
        value = f" {first['value']}" if names[0].startswith("-") and first.get("value") else ""
        what = f"{names[0]}{value}: {first.get('message')}"
        what += f" (and {len(more)} more)" if more else ""
    lines = [
        (f"{name}: {_shown(error)}; " if more else f"{name}: ") + str(error.get("fix"))
        for name, error in zip(names, errors)
    ]
    # Names in the API's spelling inside a sentence.
    spelt = {field: flag for field, flag in flags.items() if "_" in field or field == "force"}
    fix = "\n         ".join(lines)
    for field, flag in sorted(spelt.items(), key=lambda pair: -len(pair[0])):
        fix = re.sub(rf"(?<![\w.-]){re.escape(field)}(?![\w-])", flag, fix)
    from_file = file and any(name not in flags.values() for name in names)
    return Failure(
        what,
        where=file if from_file else names[0],
        fix=fix,
        code=failure.code,
        problem=failure.problem,
        retry_seconds=failure.retry_seconds,
    )


@contextmanager
def told_as_typed(flags: Mapping[str, str], file: str = "") -> Generator[None, None, None]:
    """A block whose refusals are told so."""
    try:
        yield
    except Failure as failure:
        raise as_typed(failure, flags, file) from None


def _shown(error: Mapping[str, Any]) -> str:
    value = f"{error['value']!r} " if error.get("value") else ""
    return f"{value}{error.get('message')}"


def _flag(field: str, flags: Mapping[str, str]) -> str:
    for known in sorted(flags, key=len, reverse=True):
        if field == known or field.startswith((f"{known}.", f"{known}[")):
            return flags[known]
    return field


def _objects(value: object) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in items if isinstance(each, dict)]


def _fix(status: int) -> str:
    """What to do about an answer of this status that does not say it itself."""
    return {
        401: "give a valid token with --token, SHIFTWORK_TOKEN or a context",
        403: "ask an administrator, or use another token",
        503: "a part of the platform does not answer now: try again, or run "
        + installed.platform("doctor"),
    }.get(status, "")
