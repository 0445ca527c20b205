"""The server of the memory bus: one stream of events that keeps its promises and no more.

All services of a simulated platform share one ``MemoryBroker``; ``memory.py`` is a service's side
of it. Its faults are drawn from the random source it is given and its time is the running loop's,
so that one seed on a virtual-time loop gives one history. Messages are kept encoded, as on a real
server, and everything is delivered at least once: no fault loses an acknowledged publication,
except a restart that forgets, as a host that dies before its disk has the last seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from libs.bus.port import Backlog, BusUnavailableError
from libs.bus.topology import STORE_BYTES, ConsumerSpec
from libs.contracts.envelope import BATCH_BYTES_MAX, PAYLOAD_BYTES_MAX, Envelope, within_bytes
from libs.contracts.subjects import matches

# A timer may fire this much early; what is due within it is due.
RESOLUTION_S = 1e-6
# Settlements are remembered so long, because a restart may forget them.
SETTLED_KEPT_S = 600.0

Inbox = Callable[[str, Mapping[str, str], bytes], None]
Answers = asyncio.Future[tuple[Mapping[str, str], bytes]]
Endpoint = Callable[[Mapping[str, str], bytes, Answers], None]


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely each thing goes wrong (0 to 1), and how long things take at most (seconds)."""

    # A message is handed over and never arrives; it comes again after the ack wait.
    lose_delivery: float = 0.0
    # A message comes a second time, acknowledged or not.
    duplicate_delivery: float = 0.0
    # A message is held back while others pass it; a fetched batch arrives shuffled.
    delay_delivery: float = 0.0
    delay_s_max: float = 5.0
    reorder: float = 0.0
    # Settling a message fails, noted by the server or not.
    lose_ack: float = 0.0
    # Publishing fails, each message of the batch stored or not.
    fail_publish: float = 0.0
    # A command, its reply, a piece of telemetry gets lost.
    lose_request: float = 0.0
    lose_reply: float = 0.0
    lose_telemetry: float = 0.0
    # How long anything is on its way.
    latency_s_max: float = 0.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a service set apart."""

    subject: str
    reason: str
    body: bytes


@dataclass(eq=False, slots=True)
class Stored:
    """One message of the stream."""

    number: int
    subject: str
    headers: Mapping[str, str]
    body: bytes
    stored_at: float


@dataclass(eq=False, slots=True)
class Pending:
    """A message that a durable has not settled; it is handed over (again) when it is due."""

    message: Stored
    due_at: float
    deliveries: int = 0
    # Held back once while others passed it.
    held: bool = False
    # A second copy, which no acknowledgement removes.
    echo: bool = False


@dataclass(eq=False, slots=True)
class Durable:
    """One service's place in the stream."""

    spec: ConsumerSpec
    # The index in the stream where it reads on.
    position: int = 0
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    echoes: list[Pending] = field(default_factory=list[Pending])
    settled: deque[tuple[float, Stored]] = field(default_factory=deque[tuple[float, Stored]])

    def due(self, now: float) -> list[Pending]:
        """What is to be handed over now, in stream order."""
        waiting = [*self.pending.values(), *self.echoes]
        found = [each for each in waiting if each.due_at <= now + RESOLUTION_S]
        return sorted(found, key=lambda each: each.message.number)

    def next_due_at(self) -> float | None:
        """The time at which the next timer is due."""
        return min((each.due_at for each in (*self.pending.values(), *self.echoes)), default=None)


class MemoryBroker:
    """The stream, the durables by service, the command endpoints and the listeners.

    ``faults`` may be exchanged at any time; ``Faults()`` is a perfect network. ``history`` holds
    every envelope ever stored, in stream order, also those that a restart forgot.
    """

    def __init__(
        self,
        random: Random,
        faults: Faults | None = None,
        *,
        ack_wait_s: float = 30.0,
        duplicate_window_s: float = 120.0,
    ) -> None:
        self.random = random
        self.faults = faults or Faults()
        self.ack_wait_s = ack_wait_s
        self.payload_bytes_max = PAYLOAD_BYTES_MAX
        # Filters of subjects on which publishing is denied, as with permissions of another version.
        self.denied: tuple[str, ...] = ()
        # The limit that ``backlog`` reports; the broker does not enforce it.
        self.stream_bytes_max = STORE_BYTES
        self.history: list[Envelope] = []
        self.dead_letters: list[DeadLetter] = []
        self.running = True
        self.starts = 1
        # By subject, with the service that serves it; listeners with their filter.
        self.endpoints: dict[str, list[tuple[str, Endpoint]]] = {}
        self.listeners: list[tuple[str, Inbox]] = []
        self._partitioned: set[str] = set()
        self._duplicate_window_s = duplicate_window_s
        self._stream: list[Stored] = []
        self._known: dict[str, float] = {}
        self._durables: dict[str, Durable] = {}
        # In the order in which they came: a set's order would differ from run to run.
        self._waiting: dict[asyncio.Event, None] = {}

    # What a test does to it

    def partition(self, service: str) -> None:
        """Cut a service off until ``heal``."""
        self._partitioned.add(service)
        self.changed()

    def heal(self, service: str | None = None) -> None:
        """Let a service (every service) reach the server again."""
        self._partitioned -= {service} if service else set(self._partitioned)
        self.changed()

    def stop(self) -> None:
        """Kill the server: it is unreachable until ``start``."""
        self.running = False
        self.changed()

    def start(self, forget_s: float = 0.0) -> None:
        """Start it again, without what it stored and noted in the last ``forget_s`` seconds."""
        self.running = True
        self.starts += 1
        since = self.now() - forget_s
        if forget_s > 0:
            self._forget(since)
        self.changed()

    def restart(self, forget_s: float = 0.0) -> None:
        """Kill the broker and start it again at once; all operations under way fail."""
        self.stop()
        self.start(forget_s)

    # What the services' connections do with it

    def reaches(self, service: str) -> bool:
        """True if the service has a server."""
        return self.running and service not in self._partitioned

    def chance(self, probability: float) -> bool:
        """One throw; draws nothing from the random source if the fault is switched off."""
        return probability > 0 and self.random.random() < probability

    def now(self) -> float:
        """The time of the running loop."""
        return asyncio.get_running_loop().time()

    async def travel(self, service: str) -> None:
        """One way between a service and the server; BusUnavailableError if it gets nowhere."""
        start = self.starts
        self._check(service, start)
        latency_s = self.faults.latency_s_max
        await asyncio.sleep(self.random.uniform(0, latency_s) if latency_s else 0)  # noqa: TID251 - it is the network
        self._check(service, start)

    async def wait(self, service: str, until: float) -> None:
        """Wait for a change or until the time. Raises BusUnavailableError if the server stops."""
        start, event = self.starts, asyncio.Event()
        self._waiting[event] = None
        try:
            async with asyncio.timeout_at(until):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(event, None)
        self._check(service, start)

    def changed(self) -> None:
        """Wake all tasks that wait for something to happen."""
        for event in self._waiting:
            event.set()

    def durable(self, spec: ConsumerSpec) -> Durable:
        """A service's durable, made when it is first asked for; it outlives every connection."""
        durable = self._durables.setdefault(spec.durable, Durable(spec))
        durable.spec = spec
        return durable

    def store(self, envelope: Envelope) -> None:
        """Append an event, unless its id is known from within the duplicate window."""
        if self.now() - self._known.get(envelope.id, -self._duplicate_window_s) < (
            self._duplicate_window_s
        ):
            return
        self._known[envelope.id] = self.now()
        self.history.append(envelope)
        self.append(envelope.subject, envelope.headers(), envelope.body())

    def append(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Append anything at all, as a stranger with the right to do so could."""
        number = self._stream[-1].number + 1 if self._stream else 1
        self._stream.append(Stored(number, subject, headers, body, self.now()))
        self.changed()

    def backlog(self) -> Backlog:
        """What some durable still has to acknowledge."""
        first = min((each.position for each in self._durables.values()), default=0)
        waiting = {each.number: len(each.body) for each in self._stream[first:]}
        for durable in self._durables.values():
            waiting |= {number: len(each.message.body) for number, each in durable.pending.items()}
        consumers = {name: self._unacknowledged(each) for name, each in self._durables.items()}
        return Backlog(sum(waiting.values()), self.stream_bytes_max, len(waiting), consumers)

    def _unacknowledged(self, durable: Durable) -> int:
        patterns = durable.spec.filters
        ahead = self._stream[durable.position :]
        return len(durable.pending) + sum(
            any(matches(pattern, each.subject) for pattern in patterns) for each in ahead
        )

    def take(self, durable: Durable, messages_max: int) -> list[Pending]:
        """Hand over what is due and new, with the faults of deliveries."""
        now, faults = self.now(), self.faults
        handed = list(within_bytes(durable.due(now)[:messages_max], lambda each: each.message.body))
        size = sum(len(each.message.body) for each in handed)
        while (
            len(handed) < messages_max
            and size < BATCH_BYTES_MAX
            and durable.position < len(self._stream)
            and len(durable.pending) < durable.spec.max_ack_pending
        ):
            message = self._stream[durable.position]
            durable.position += 1
            if any(matches(pattern, message.subject) for pattern in durable.spec.handled):
                durable.pending[message.number] = Pending(message, due_at=now)
                handed.append(durable.pending[message.number])
                size += len(message.body)
        arrived = [each for each in handed if self._arrives(durable, each, now)]
        if self.chance(faults.reorder):
            self.random.shuffle(arrived)
        return arrived

    def settle(self, durable: Durable, message: Stored) -> None:
        """Note that a message needs no further delivery."""
        pending = durable.pending.get(message.number)
        # A number may have been given again after a restart that forgot.
        if pending is None or pending.message is not message:
            return
        del durable.pending[message.number]
        now = self.now()
        while durable.settled and durable.settled[0][0] <= now - SETTLED_KEPT_S:
            durable.settled.popleft()
        durable.settled.append((now, message))

    def postpone(self, durable: Durable, message: Stored, delay_s: float) -> None:
        """Note that a message is to be handed over again after a delay."""
        pending = durable.pending.get(message.number)
        if pending is not None and pending.message is message:
            pending.due_at = self.now() + delay_s
            self.changed()

    def _check(self, service: str, start: int) -> None:
        if not self.reaches(service):
            raise BusUnavailableError("the bus server is not connected")
        if self.starts != start:
            raise BusUnavailableError("the connection to the bus server was lost")

    def _arrives(self, durable: Durable, pending: Pending, now: float) -> bool:
        """Decide whether a message sent now arrives, and schedule its next delivery."""
        faults, later = self.faults, self.random.uniform
        if pending.echo:
            durable.echoes.remove(pending)
            return True
        if not pending.held and self.chance(faults.delay_delivery):
            pending.held, pending.due_at = True, now + later(0, faults.delay_s_max)
            return False
        pending.deliveries += 1
        pending.due_at = now + self.ack_wait_s
        if self.chance(faults.duplicate_delivery):
            due_at = now + later(0, faults.delay_s_max)
            durable.echoes.append(Pending(pending.message, due_at, pending.deliveries, echo=True))
        return not self.chance(faults.lose_delivery)

    def _forget(self, since: float) -> None:
        """Lose what was stored and settled after ``since``."""
        kept = [each for each in self._stream if each.stored_at <= since]
        self._stream = kept
        last = kept[-1].number if kept else 0
        self._known = {key: at for key, at in self._known.items() if at <= since}
        for durable in self._durables.values():
            durable.position = min(durable.position, len(kept))
            durable.echoes = [each for each in durable.echoes if each.message.number <= last]
            for number in [number for number in durable.pending if number > last]:
                del durable.pending[number]
            for settled_at, message in durable.settled:
                if settled_at > since and message.number <= last:
                    durable.pending[message.number] = Pending(message, self.now(), deliveries=1)
            durable.settled = deque(each for each in durable.settled if each[0] <= since)
