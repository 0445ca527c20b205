"""How a fault in what a task asks of its pods is told: field, value, what is wrong, what to do.

Used by every module here; ``services/submit`` refuses with them, the launcher again at launch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from libs.contracts.messages import FieldError

VALUE_SHOWN_MAX = 80
FIELD_SHOWN_MAX = 300
# Of one request so many faults are looked for: finding each costs time.
FAULTS_MAX = 50


def fault(field: str, value: object, message: str, fix: str) -> FieldError:
    """One fault. Long values are cut; callers give no secret as ``value``."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"
    place = field if len(field) <= FIELD_SHOWN_MAX else field[: FIELD_SHOWN_MAX - 1] + "…"
    return FieldError(field=place, value=shown, message=message, fix=fix)


class PodRefusedError(Exception):
    """What a task asks of its pods is not allowed here, or makes no sense."""

    def __init__(self, faults: Sequence[FieldError]) -> None:
        self.faults = tuple(faults)
        first = self.faults[0]
        more = len(self.faults) - 1
        text = f"{first.field}: {first.message}; {first.fix}"
        super().__init__(text + (f" (and {more} more)" if more else ""))
