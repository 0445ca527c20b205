"""Errors that no route expects, as problems: those of the store, and defects of the gateway.

Called by ``app`` for requests, by the guard, and by the WebSockets, which no handler of the
framework serves. What happened is logged here.
"""

from __future__ import annotations

import traceback

import structlog

from libs.store.port import (
    ConflictError,
    StoreUnavailableError,
    UnfitValueError,
    UnreadableRowError,
)
from services.gateway.problems import CONFLICT, INTERNAL, INVALID, UNAVAILABLE, ProblemError

# Of the kinds of errors, those with an answer of their own.
STORE_ERRORS = (StoreUnavailableError, ConflictError, UnfitValueError, UnreadableRowError)
_log = structlog.stdlib.get_logger(__name__)


def problem_of(error: Exception, path: str) -> ProblemError:
    """The answer to a request for this path that ended with this error."""
    if isinstance(error, StoreUnavailableError):
        _log.warning("database not reached", path=path, problem=str(error))
        detail = "the gateway's database does not answer now; try again"
        return ProblemError(UNAVAILABLE, detail, headers={"retry-after": "1"})
    if isinstance(error, ConflictError):
        _log.info("two changes met", path=path, problem=str(error))
        return ProblemError(CONFLICT, "another request changed the same thing; read it again")
    if isinstance(error, UnfitValueError):
        _log.warning("a value cannot be stored", path=path, problem=str(error))
        return ProblemError(INVALID, "a value in the request cannot be stored; change it")
    if isinstance(error, UnreadableRowError):
        _log.error("a row cannot be read", path=path, problem=str(error))
        return ProblemError(INTERNAL, f"{error}; an administrator has to repair this row")
    # As text: the values of variables, which may be secrets, stay out of the log.
    trace = "".join(traceback.format_exception(error))
    _log.error("a route failed", path=path, traceback=trace)
    return ProblemError(INTERNAL, "this is a defect of the gateway; its log has more")
