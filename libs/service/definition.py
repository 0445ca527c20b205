"""The definition of a service, as a value: the events it handles, its commands and its loops.

``services/<name>/main.py`` has ``build(settings, ports) -> Service``; ``run.py`` runs it, and the
same build serves production, ``shiftwork up``, ``make dev`` and the deterministic simulation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.bus.port import Bus
from libs.contracts.base import Message
from libs.service.clock import Clock
from libs.service.loop import Loop
from libs.service.traces import KeptTraces
from libs.store.port import Store, Tx
from libs.tracing.spans import OFF, Tracing

# A handler records one event's facts in the transaction; it cannot reach bus or runtime.
Handler = Callable[[Tx, Any], Awaitable[None]]
# Which rows a handler will ask for, each as (kind, *key): read for a whole batch at once.
Reads = Callable[[Any], Iterable[tuple[Any, ...]]]
# A command handler records and answers; refusing is an answer, not an exception.
CommandHandler = Callable[[Tx, Any], Awaitable[Message]]
# A query handler answers from memory, or reads by a transaction of its own; it changes nothing.
QueryHandler = Callable[[Any], Awaitable[Message]]
Asgi = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Ports:
    """A service's connections to everything outside of it."""

    store: Store
    bus: Bus
    clock: Clock
    tracing: Tracing = OFF
    # Where the traces of the tasks go on that its loops act on; None: it keeps none.
    kept_traces: KeptTraces | None = None


@dataclass(frozen=True)
class Service:
    """A service, wired but not running."""

    name: str
    ports: Ports
    handlers: Mapping[type[Message], Handler]
    commands: Mapping[type[Message], CommandHandler]
    # By event: the rows that its handler gets by their keys, as far as the event names them.
    reads: Mapping[type[Message], Reads] = field(default_factory=dict[type[Message], Reads])
    # Reads what else a batch's handlers need, for all of them at once.
    prepare: Callable[[Tx, Sequence[Message]], Awaitable[None]] | None = None
    # Answered like commands, but without a lock and a transaction: they delay nothing.
    queries: Mapping[type[Message], QueryHandler] = field(
        default_factory=dict[type[Message], QueryHandler]
    )
    loops: Sequence[Loop] = ()
    # Answer commands on the leader only (the working set is there), or on every process.
    commands_on_leader_only: bool = True
    # Called by a new leader before it fetches: load the working set.
    on_lead: Callable[[int], Awaitable[None]] | None = None
    # Called when this process leads no longer.
    on_lead_end: Callable[[], None] = lambda: None
    # More HTTP than /healthz /readyz /metrics (the gateway's API).
    app: Asgi | None = None
    # Why the leader cannot do its work though bus and database are there; empty: it can.
    problem: Callable[[], str] = str
    # What an operator should know although the service is ready; empty: nothing.
    warning: Callable[[], str] = str
    # Long-lived tasks that every process of the service runs, leader or not.
    tasks: Sequence[Callable[[], Awaitable[None]]] = field(default_factory=tuple)
