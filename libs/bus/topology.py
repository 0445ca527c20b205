"""Streams, durables and permissions as values, derived from the messages' own declarations.

``provision.py`` makes a server have them; ``accounts.py`` turns each service's ``permissions_of``
into the server's configuration. Services are passed in by name: this module knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from libs.contracts.base import Message
from libs.contracts.envelope import PAYLOAD_BYTES_MAX
from libs.contracts.messages import TaskStateChanged
from libs.contracts.public_form import withheld_version
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.subjects import dead_letter_subject, filter_of, types_of

EVENTS = "EVT"
LOGS = "LOG"
DEAD_LETTERS = "DLQ"
# A copy of the events for monitoring users, in their public form (``contracts/public_form.py``).
# EVT keeps an event until the services have it, and a reader that does not acknowledge would fill
# it; readers of the copy delay nobody.
HISTORY = "HISTORY"
# The durable of what copies events, and the first token of the subjects on which it publishes them:
# HISTORY stores them without it.
COPIER = "history"
# How many events are copied at once.
COPIED_AT_ONCE = 500
# On which subjects the server gives out what HISTORY has stored, in the account of the streams.
LIVE = "live"
# The JetStream domain under which monitoring users find HISTORY. To the plain subjects of its API
# the server would answer for their own account, which has no streams.
HISTORY_DOMAIN = "shiftwork"
# What the name of a monitoring user begins with: no service has such a name.
MONITORING_PREFIX = "monitoring_"
# The names that people give them. Each has an account, a durable and connections of its own.
MONITORING_NAME_FORM = "[a-z][a-z0-9_]{0,30}"
MONITORING_USERS_MAX = 32

# How full the stream of events is: the subject at the server, and its name in the account of the
# service that watches it: under its own name the server would answer for that account, which has
# no streams.
STREAM_INFO = f"$JS.API.STREAM.INFO.{EVENTS}"
WATCHED_STREAM = f"watch.{EVENTS}"
# In the same way, how far each durable is.
CONSUMERS_INFO = f"$JS.API.CONSUMER.LIST.{EVENTS}"
WATCHED_CONSUMERS = f"{WATCHED_STREAM}.consumers"

DAY_S = 86_400.0
# Dead letters are kept so long: the rows, and their copies in the stream.
DEAD_LETTER_AGE_S = 30 * DAY_S
MIB = 1024 * 1024
# What the server's store for streams may hold (``max_file_store``) by default.
STORE_BYTES = 16 * 1024 * MIB
# The rest of the store is left for the files' own overhead.
STORE_SHARE = 0.9


# How many unacknowledged messages a durable may have; it delivers no new ones above that.
MAX_ACK_PENDING = 2_000


class Full(Enum):
    """What a stream does with one more message when it is full."""

    # The oldest message goes.
    DROP_OLDEST = "drop oldest"
    # The message is refused: its publisher keeps it and tries again. What every durable has
    # acknowledged is deleted at once, so only messages that are still to be delivered take space.
    REFUSE_NEW = "refuse new"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream, kept in files."""

    name: str
    subjects: tuple[str, ...]
    max_age_s: float
    # Disk space at most.
    max_bytes: int
    full: Full = Full.DROP_OLDEST
    # Within this time a second message with the same id is not stored.
    duplicate_window_s: float = 120.0
    replicas: int = 1
    # Messages cross from their sender's account with the reply subject that the sender named. An
    # acknowledgement would be published there, in the account of the streams.
    no_ack: bool = False
    # Its messages are published on these subjects behind this first token, and stored without it.
    published_as: str = ""
    # The server also sends out what it has stored, on these subjects behind this first token.
    sends_as: str = ""
    # The version of its messages' form: a stream with another one is removed and made again.
    form: str = ""

    @property
    def published_subjects(self) -> tuple[str, ...]:
        """The subjects on which its messages are published."""
        prefix = f"{self.published_as}." if self.published_as else ""
        return tuple(prefix + subject for subject in self.subjects)


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One service's durable: it receives these subjects from the first message kept.

    A message that is not acknowledged within ``ack_wait_s`` comes again, as often as it takes;
    setting a hopeless one apart is the service's decision, never the server's.
    """

    durable: str
    filters: tuple[str, ...]
    # What the service handles of it; empty: everything.
    only: tuple[str, ...] = ()
    # What a leader that was killed had been given waits so long for its successor. Longer than any
    # batch takes; what comes again too early is in the inbox already.
    ack_wait_s: float = 3.0
    max_ack_pending: int = MAX_ACK_PENDING
    stream: str = EVENTS

    @property
    def handled(self) -> tuple[str, ...]:
        """The filters of what the service handles."""
        return self.only or self.filters


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything a server must have before the services start."""

    streams: tuple[StreamSpec, ...]
    consumers: tuple[ConsumerSpec, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the streams keep. Together they fit into the store, so that none of them can take
    the space of another: the server reserves the maximum of each."""

    store_bytes: int = STORE_BYTES
    event_age_s: float = 14 * DAY_S
    log_age_s: float = DAY_S
    log_bytes: int = 256 * MIB
    dead_letter_age_s: float = DEAD_LETTER_AGE_S
    dead_letter_bytes: int = 64 * MIB
    # The copy of the events that monitoring users read; it is made for the first of them.
    history_age_s: float = 14 * DAY_S
    history_bytes: int = 256 * MIB
    replicas: int = 1

    @property
    def event_bytes(self) -> int:
        """What the other streams leave of the store; ValueError if that is next to nothing."""
        others = self.log_bytes + self.dead_letter_bytes + self.history_bytes
        left = int(self.store_bytes * STORE_SHARE) - others
        if left < 2 * PAYLOAD_BYTES_MAX:
            raise ValueError(
                f"a store of {self.store_bytes} bytes leaves {left} for events beside "
                f"{self.log_bytes} for logs, {self.dead_letter_bytes} for dead letters and "
                f"{self.history_bytes} for monitoring users; "
                "give the server a larger max_file_store"
            )
        return left


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one service's user may publish and receive; everything else is refused.

    ``accounts.py`` makes an account of it, so that what a service names as the subject of a reply
    never leaves that account.
    """

    # Where it receives answers.
    inbox: str
    # Stored in the streams: the events that it owns, and its dead letters.
    stores: tuple[str, ...] = ()
    # The settling of its own durable's messages, and the requests that the server answers with
    # messages.
    durable: tuple[str, ...] = ()
    pulls: tuple[str, ...] = ()
    # Commands of others that it requests, and commands that it answers.
    requests: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    # Telemetry that it sends, and telemetry of others that it receives.
    sends: tuple[str, ...] = ()
    receives: tuple[str, ...] = ()
    # Its own frames of sessions and samples, and those of others that it receives. No stream stores
    # them.
    talks: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()
    # Hints between its own processes: they never leave its account.
    hints: tuple[str, ...] = ()
    # It may ask how full the stream of events is, and how far each durable is.
    watches: bool = False
    # Questions to the server that are answered once, and change nothing.
    asks: tuple[str, ...] = ()
    # Subjects on which the server sends it what HISTORY stores.
    live: tuple[str, ...] = ()
    # The domain under which it addresses the server's API; empty: none.
    domain: str = ""
    # No more connections and subscriptions than these; 0: as the server allows.
    connections_max: int = 0
    subscriptions_max: int = 0

    @property
    def publish(self) -> tuple[str, ...]:
        """Every subject on which it may publish."""
        watched = (WATCHED_STREAM, WATCHED_CONSUMERS) if self.watches else ()
        own = (*self.stores, *self.sends, *self.talks, *self.hints)
        api = tuple(self.called(subject) for subject in (*self.pulls, *self.asks))
        return (*own, *self.requests, *self.durable, *watched, *api)

    @property
    def subscribe(self) -> tuple[str, ...]:
        """Every subject to which it may subscribe."""
        return (self.inbox, *self.serves, *self.receives, *self.hears, *self.hints, *self.live)

    def called(self, subject: str) -> str:
        """How this user calls a subject of the server's API."""
        api = f"$JS.{self.domain}.API." if self.domain else "$JS.API."
        return api + subject.removeprefix("$JS.API.")

    def as_config(self) -> dict[str, object]:
        """The ``permissions`` block of a user in the server's configuration (JSON is accepted)."""
        allowed: dict[str, object] = {
            "publish": {"allow": list(self.publish)},
            "subscribe": {"allow": list(self.subscribe)},
        }
        # It may answer a request once, on the subject that the request names.
        responses = {"allow_responses": {"max": 1, "expires": "5m"}}
        return allowed | (responses if self.serves else {})


def _everything(kind: Kind) -> str:
    """The filter for every message of one kind: they share their first token, and no other does."""
    (root,) = {filter_of(message).partition(".")[0] for message in types_of(kind)}
    return f"{root}.>"


def streams_of(limits: Limits) -> tuple[StreamSpec, ...]:
    """The platform's three streams."""
    return (
        StreamSpec(
            EVENTS,
            (_everything(Kind.EVENT),),
            max_age_s=limits.event_age_s,
            max_bytes=limits.event_bytes,
            full=Full.REFUSE_NEW,
            replicas=limits.replicas,
        ),
        StreamSpec(
            LOGS,
            (_everything(Kind.TELEMETRY),),
            max_age_s=limits.log_age_s,
            max_bytes=limits.log_bytes,
            replicas=limits.replicas,
            no_ack=True,
        ),
        StreamSpec(
            DEAD_LETTERS,
            (dead_letter_subject("*", ">"),),
            max_age_s=limits.dead_letter_age_s,
            max_bytes=limits.dead_letter_bytes,
            replicas=limits.replicas,
        ),
    )


def consumer_of(service: str, kinds: Iterable[type[Message]]) -> ConsumerSpec:
    """Return the durable of a service for these event types; ValueError if one is no event.

    A service that handles changes of tasks' states, nearly half of all events, receives every event
    and skips the rest: for a durable with filters that is behind, the server searches all subjects
    of a block again for each next message.
    """
    consumed = tuple(kinds)
    filters = _filters(consumed, Kind.EVENT)
    if TaskStateChanged not in consumed:
        return ConsumerSpec(durable=service, filters=filters)
    return ConsumerSpec(durable=service, filters=(_everything(Kind.EVENT),), only=filters)


def history_of(limits: Limits) -> StreamSpec:
    """The copy of the events for monitoring users."""
    return StreamSpec(
        HISTORY,
        (_everything(Kind.EVENT),),
        max_age_s=limits.history_age_s,
        max_bytes=limits.history_bytes,
        replicas=limits.replicas,
        published_as=COPIER,
        sends_as=LIVE,
        form=withheld_version(),
    )


def copier() -> ConsumerSpec:
    """The durable of the service that copies events for monitoring users."""
    return ConsumerSpec(
        durable=COPIER,
        filters=(_everything(Kind.EVENT),),
        # What failed comes again before anything newer.
        max_ack_pending=COPIED_AT_ONCE,
    )


def topology_of(
    consumes: Mapping[str, Iterable[type[Message]]],
    limits: Limits | None = None,
    monitoring: Iterable[str] = (),
) -> Topology:
    """Streams and durables for services, given by name with the event types that each consumes, and
    for monitoring users, each with a durable of its name on the copy of the events."""
    limits = limits or Limits()
    consumed = {service: tuple(kinds) for service, kinds in consumes.items()}
    consumers = [consumer_of(service, kinds) for service, kinds in consumed.items() if kinds]
    streams = streams_of(limits)
    readers = [
        ConsumerSpec(
            durable=user,
            filters=(_everything(Kind.EVENT),),
            # Its messages are handled by somebody else's program.
            ack_wait_s=30.0,
            stream=HISTORY,
        )
        for user in monitoring
    ]
    if readers:
        streams += (history_of(limits),)
        consumers.append(copier())
    return Topology(streams=streams, consumers=(*consumers, *readers))


def monitoring_permissions(user: str) -> Permissions:
    """What a monitoring user may do: receive events as they are stored, read those of the last days
    from HISTORY, by its own durable or by their numbers, and nothing else.

    It makes no consumers: what a consumer delivers, the server publishes in the account of the
    streams, on whatever subject its maker has named.
    """
    at = f"{HISTORY}.{user}"
    return Permissions(
        # In an account of its own: no other user's answers come there.
        inbox="_INBOX.>",
        durable=(f"$JS.ACK.{at}.>", f"$JS.ACK._.*.{at}.>"),
        pulls=(f"$JS.API.CONSUMER.MSG.NEXT.{at}", f"$JS.API.DIRECT.GET.{HISTORY}"),
        asks=(f"$JS.API.STREAM.INFO.{HISTORY}", f"$JS.API.CONSUMER.INFO.{at}"),
        live=(_everything(Kind.EVENT),),
        domain=HISTORY_DOMAIN,
        connections_max=16,
        subscriptions_max=256,
    )


def permissions_of(
    service: str,
    *,
    consumes: Iterable[type[Message]] = (),
    requests: Iterable[type[Message]] = (),
    follows: Iterable[type[Message]] = (),
    hears: Iterable[type[Message]] = (),
    watches: bool = False,
    copies: bool = False,
) -> Permissions:
    """What the user of ``service`` may do.

    It publishes the events, telemetry, frames of sessions, samples and hints that it owns and
    serves the commands that it owns without being named here; ``consumes`` are the events of its
    durable, ``requests`` the commands it may request of others, ``follows`` the telemetry it may
    receive, ``hears`` the frames of sessions and the samples that it may receive; ``watches``: it
    may read how full the stream of events is; ``copies``: it copies events for monitoring users.
    ValueError if a type is of another kind.
    """

    def owned(kind: Kind) -> tuple[str, ...]:
        return tuple(filter_of(each) for each in types_of(kind) if ROUTES[each].owner == service)

    spec = consumer_of(service, consumes)
    durables = [f"{spec.stream}.{spec.durable}"] if spec.filters else []
    durables += [f"{EVENTS}.{COPIER}"] if copies else []
    return Permissions(
        inbox=inbox_prefix(service) + ".>",
        stores=(
            *owned(Kind.EVENT),
            dead_letter_subject(service, ">"),
            *((f"{COPIER}.{_everything(Kind.EVENT)}",) if copies else ()),
        ),
        # What settles a message, and its newer form, which names the domain (_: there is none) and
        # the account. A wildcard for the domain would also fit the older form of another durable's.
        durable=tuple(f"$JS.ACK.{form}{at}.>" for at in durables for form in ("", "_.*.")),
        pulls=tuple(f"$JS.API.CONSUMER.MSG.NEXT.{at}" for at in durables),
        requests=_filters(requests, Kind.COMMAND),
        serves=tuple(served_subject(kind, service) for kind in served_by(service)),
        sends=owned(Kind.TELEMETRY),
        # Everything of that kind, so that a narrower filter of any form is allowed.
        receives=(_everything(Kind.TELEMETRY),) if _filters(follows, Kind.TELEMETRY) else (),
        talks=(*owned(Kind.SESSION), *owned(Kind.SAMPLE)),
        hears=_filters(hears, Kind.SESSION, Kind.SAMPLE),
        hints=owned(Kind.HINT),
        watches=watches,
    )


def inbox_prefix(service: str) -> str:
    """Return where a service receives replies; no other service may listen there."""
    return f"_INBOX.{service}"


def served_by(service: str) -> tuple[type[Message], ...]:
    """The commands that ``service`` answers: its own, and those that every service answers."""
    return tuple(
        kind for kind in types_of(Kind.COMMAND) if ROUTES[kind].owner in (service, "every")
    )


def served_subject(kind: type[Message], service: str) -> str:
    """The subject on which ``service`` answers this command; the service is its only field."""
    return filter_of(kind).replace("*", service)


def _filters(messages: Iterable[type[Message]], *kinds: Kind) -> tuple[str, ...]:
    found: set[str] = set()
    for message in messages:
        if ROUTES[message].kind not in kinds:
            raise ValueError(f"{message.__name__} is no {kinds[0].value}; it cannot be used as one")
        found.add(filter_of(message))
    return tuple(sorted(found))
