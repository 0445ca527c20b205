"""The store's port, with the adapters ``sql`` (PostgreSQL) and ``memory``.

Rows are the service's own frozen dataclasses. ``tests/contract/test_store.py`` checks that both
adapters do what ``Store`` and ``Tx`` promise.
"""

from __future__ import annotations

from libs.store.core import Store
from libs.store.sums import Span, SpanGroup, SpanQuery
from libs.store.terms import (
    ConflictError,
    DatabaseFaultError,
    Delta,
    EventTooLargeError,
    Leadership,
    NotLeaderError,
    Observer,
    ObserverError,
    Op,
    Order,
    RefusedEvent,
    StoreUnavailableError,
    TermOverError,
    UnfitValueError,
    UnreadableRow,
    UnreadableRowError,
    Where,
    is_full,
)
from libs.store.unit import Tx

__all__ = [
    "ConflictError",
    "DatabaseFaultError",
    "Delta",
    "EventTooLargeError",
    "Leadership",
    "NotLeaderError",
    "Observer",
    "ObserverError",
    "Op",
    "Order",
    "RefusedEvent",
    "Span",
    "SpanGroup",
    "SpanQuery",
    "Store",
    "StoreUnavailableError",
    "TermOverError",
    "Tx",
    "UnfitValueError",
    "UnreadableRow",
    "UnreadableRowError",
    "Where",
    "is_full",
]
