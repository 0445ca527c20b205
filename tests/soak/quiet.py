"""No log lines of the services: thousands of tasks write millions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import structlog


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Log errors only."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
