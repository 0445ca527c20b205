"""Builds the errors for a task's pod request: field, value, what is wrong, what to do.

Submit rejects a task with them; the launcher rejects it again at launch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from libs.contracts import wording
from libs.contracts.messages import FieldError
from libs.contracts.wording import cut

FIELD_SHOWN_MAX = 300
# Validation stops after this many errors: finding each costs time.
FIELD_ERRORS_MAX = 50


def field_error(field: str, value: object, message: str, fix: str) -> FieldError:
    """Build one error. Long values are cut. Callers must not pass a secret as ``value``."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return wording.field_error(cut(field, FIELD_SHOWN_MAX), text, message, fix)


class PodRefusedError(Exception):
    """A task's pod request is invalid, or not allowed by the policy."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        more = len(self.errors) - 1
        text = f"{first.field}: {first.message}; {first.fix}"
        super().__init__(text + (f" (and {more} more)" if more else ""))
