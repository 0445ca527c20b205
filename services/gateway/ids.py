"""Ids and secrets that this service makes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Mint:
    """Makes secrets and ids; injected, so that tests and simulations decide them."""

    secret: Callable[[], str]
    id: Callable[[], str]


def sortable_id(at: datetime, more: bytes) -> str:
    """An id that sorts by time."""
    raw = int(at.timestamp() * 1000).to_bytes(6, "big") + more
    return base64.b32hexencode(raw).decode().lower()
