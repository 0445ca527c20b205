"""Makes a server have the streams and durables of a topology. The only creator of them.

Called by whoever starts a server (the all-in-one, a deployment's job) under the ``admin`` user;
services only use what is there. Safe to call again: what is as it should be is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    SubjectTransform,
)
from nats.js.errors import APIError, NotFoundError

from libs.bus.connection import REFUSED, BusConfig, Credentials, open_client
from libs.bus.port import BusDeniedError, BusUnavailableError
from libs.bus.topology import (
    COPIER,
    EVENTS,
    HISTORY,
    HISTORY_DOMAIN,
    ConsumerSpec,
    Full,
    StreamSpec,
    Topology,
)

UNLIMITED = -1
# Under which key of its metadata a stream has the form of its messages.
FORM = "form"
# The server's numbers for what trying again does not mend: a configuration that cannot be, a name
# or subjects that another stream has, several replicas where there is one server, more bytes than
# the store has.
INSUFFICIENT_STORAGE = 10047
HOPELESS = frozenset({INSUFFICIENT_STORAGE, 10052, 10058, 10065, 10074})


async def provision(
    urls: Sequence[str],
    credentials: Credentials,
    topology: Topology,
    *,
    ca_file: Path | None = None,
    reply_timeout_s: float = 5.0,
    connect_timeout_s: float = 30.0,
) -> list[str]:
    """Create what is missing and update what differs; returns what was done, in words.

    BusUnavailableError if there is no server or JetStream is not ready yet: call again.
    BusDeniedError for wrong credentials, for those of a service, and for what this server can
    never give (several replicas on a single server).
    """
    refused: list[str] = []
    done: list[str] = []
    config = BusConfig(
        urls=tuple(urls),
        service=credentials.user,
        credentials=credentials,
        ca_file=ca_file,
        connect_timeout_s=connect_timeout_s,
    )
    client = await open_client(config, on_error=lambda error: refused.extend(_refusals(error)))
    try:
        jetstream = client.jetstream(timeout=reply_timeout_s)
        # A stream that keeps only what a durable still has to receive would drop what is published
        # before the durables are there: it becomes such a stream after them. Dying in between
        # leaves a stream that keeps everything; the next call goes on from there.
        done += [each for stream in topology.streams for each in await _purge(jetstream, stream)]
        made = {stream.name: await _make_stream(jetstream, stream) for stream in topology.streams}
        done += [f"stream {name} made" for name, new in made.items() if new]
        for consumer in topology.consumers:
            done += await _have_consumer(jetstream, consumer)
        for stream in topology.streams:
            changed = await _set_stream(jetstream, stream)
            done += [f"stream {stream.name} changed"] if changed and not made[stream.name] else []
        done += await _forget_readers(jetstream, topology)
    except APIError as error:
        text = f"the streams could not be set up: {error.description}"
        if error.err_code == INSUFFICIENT_STORAGE:
            needed = sum(stream.max_bytes for stream in topology.streams)
            text += f"; they need {needed} bytes, compare the server's max_file_store"
        if error.err_code in HOPELESS:
            raise BusDeniedError(text) from error
        raise BusUnavailableError(text) from error
    except nats.errors.Error as error:
        if refused:
            text = f"user {credentials.user!r} has no permission for {refused[0]}"
            raise BusDeniedError(text) from error
        raise BusUnavailableError(f"the streams could not be set up: {error}") from error
    finally:
        await client.close()
    return done


async def enter(
    urls: Sequence[str],
    credentials: Credentials,
    *,
    ca_file: Path | None = None,
    connect_timeout_s: float = 30.0,
    reads: bool = False,
) -> None:
    """Check only whether this user can connect; ``reads``: and whether it has its durable as a
    monitoring user. Raises the errors of ``provision``."""
    config = BusConfig(
        urls=tuple(urls),
        service=credentials.user,
        credentials=credentials,
        ca_file=ca_file,
        connect_timeout_s=connect_timeout_s,
    )
    client = await open_client(config)
    try:
        if reads:
            await client.jetstream(domain=HISTORY_DOMAIN, timeout=5.0).consumer_info(
                HISTORY, credentials.user
            )
    except nats.errors.Error as error:
        raise BusUnavailableError(f"durable {HISTORY}/{credentials.user}: {error}") from error
    finally:
        await client.close()


def _refusals(error: Exception) -> list[str]:
    found = REFUSED.search(str(error))
    return [found.group(2)] if found else []


def _stream_config(spec: StreamSpec) -> StreamConfig:
    keeps_pending = spec.full is Full.REFUSE_NEW
    return StreamConfig(
        name=spec.name,
        subjects=list(spec.published_subjects),
        storage=StorageType.FILE,
        retention=RetentionPolicy.INTEREST if keeps_pending else RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW if keeps_pending else DiscardPolicy.OLD,
        max_age=spec.max_age_s,
        max_bytes=spec.max_bytes,
        duplicate_window=spec.duplicate_window_s,
        num_replicas=spec.replicas,
        no_ack=spec.no_ack,
        subject_transform=_stored(spec) if spec.published_as else None,
        republish=_sent(spec) if spec.sends_as else None,
        # Single messages are read by their numbers, without a consumer.
        allow_direct=bool(spec.sends_as),
        metadata={FORM: spec.form} if spec.form else None,
    )


def _stored(spec: StreamSpec) -> SubjectTransform:
    (subject,), (published,) = spec.subjects, spec.published_subjects
    return SubjectTransform(src=published, dest=subject)


def _sent(spec: StreamSpec) -> RePublish:
    (subject,) = spec.subjects
    return RePublish(src=subject, dest=f"{spec.sends_as}.{subject}")


async def _forget_readers(jetstream: JetStreamContext, topology: Topology) -> list[str]:
    """Remove the durables of monitoring users that are gone, and their stream with the last one."""
    wanted = {each.durable for each in topology.consumers if each.stream == HISTORY}
    if not wanted:
        # It would keep every event in EVT, for nobody.
        with contextlib.suppress(NotFoundError):
            await jetstream.delete_consumer(EVENTS, COPIER)
    try:
        found = [info.name for info in await jetstream.consumers_info(HISTORY)]
        if not wanted:
            await jetstream.delete_stream(HISTORY)
            return [f"stream {HISTORY} removed: there is no monitoring user"]
    except NotFoundError:
        return []
    gone = sorted(set(found) - wanted)
    for name in gone:
        await jetstream.delete_consumer(HISTORY, name)
    return [f"durable {HISTORY}/{name} removed" for name in gone]


async def _purge(jetstream: JetStreamContext, spec: StreamSpec) -> list[str]:
    """Remove a stream whose messages have another form than they should: those of a version that
    withheld less must not be read any more."""
    if not spec.form:
        return []
    try:
        found = (await jetstream.stream_info(spec.name)).config
    except NotFoundError:
        return []
    if (found.metadata or {}).get(FORM) == spec.form:
        return []
    await jetstream.delete_stream(spec.name)
    return [f"stream {spec.name} removed: its messages have the form of another version"]


async def _make_stream(jetstream: JetStreamContext, spec: StreamSpec) -> bool:
    """Make the stream, which keeps everything for now, if it is missing; True if it was."""
    try:
        await jetstream.stream_info(spec.name)
    except NotFoundError:
        await jetstream.add_stream(_stream_config(spec), retention=RetentionPolicy.LIMITS)
        return True
    return False


async def _set_stream(jetstream: JetStreamContext, spec: StreamSpec) -> bool:
    """Give the stream its configuration; True if it had another one."""
    wanted, found = _stream_config(spec), (await jetstream.stream_info(spec.name)).config
    # An update of a stream in use is not free of risk: only if something really differs.
    if not _differs(wanted, found, STREAM_FIELDS):
        return False
    await jetstream.update_stream(wanted)
    return True


async def _have_consumer(jetstream: JetStreamContext, spec: ConsumerSpec) -> list[str]:
    wanted = ConsumerConfig(
        name=spec.durable,
        durable_name=spec.durable,
        filter_subjects=list(spec.filters),
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=spec.ack_wait_s,
        max_deliver=UNLIMITED,
        max_ack_pending=spec.max_ack_pending,
    )
    try:
        found = (await jetstream.consumer_info(spec.stream, spec.durable)).config
    except NotFoundError:
        found = None
    if found is not None and not _differs(wanted, found, CONSUMER_FIELDS):
        return []
    await jetstream.add_consumer(spec.stream, config=wanted)
    return [f"durable {spec.stream}/{spec.durable} {'made' if found is None else 'changed'}"]


STREAM_FIELDS = (
    "subjects",
    "retention",
    "discard",
    "max_age",
    "max_bytes",
    "duplicate_window",
    "num_replicas",
    "no_ack",
)
CONSUMER_FIELDS = ("filters", "ack_wait", "max_ack_pending")


def _differs(wanted: object, found: object, fields: tuple[str, ...]) -> bool:
    return any(_value(wanted, name) != _value(found, name) for name in fields)


def _value(config: object, name: str) -> object:
    """One field of a configuration; the server writes a single filter into a field of its own, and
    leaves out what is empty."""
    if name == "filters":
        assert isinstance(config, ConsumerConfig)
        one = [config.filter_subject] if config.filter_subject else []
        return sorted(config.filter_subjects or one)
    return getattr(config, name) or None
