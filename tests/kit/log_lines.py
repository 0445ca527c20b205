"""The lines that services log, as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from libs.service import observability


@contextmanager
def log_lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    out = io.StringIO()
    observability.set_up_logs("json", "info", out)
    try:
        yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    finally:
        structlog.reset_defaults()
