"""A service's connection to the NATS servers, and the requests under way on it.

``jetstream.py`` builds the bus on it and ``provision.py`` sets a server up through it; nothing
else imports ``nats``. All requests (publish, settle, request) share one inbox and one table of
futures, so that a batch is pipelined, and a lost connection or a refused subject fails them at
once instead of by a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.command import (
    pub_cmd,  # pyright: ignore[reportUnknownVariableType] - the library declares no types
)

from libs.bus.command_replies import COMMANDS_MAX, COMMANDS_WAITING_MAX
from libs.bus.port import BusDeniedError, BusTooLargeError, BusUnavailableError
from libs.bus.topology import inbox_prefix
from libs.bus.trust import trust, wants_tls
from libs.contracts.base import Message

# So many events' headers are remembered.
HEADERS_MAX = 2048
NO_RESPONDERS: str = "503"
PROBLEMS_LOGGED_MAX = 20
REFUSED = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the server."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BusConfig:
    """The servers' addresses, the service that connects, and how much may wait."""

    urls: tuple[str, ...]
    service: str
    credentials: Credentials
    # The event types of this service's durable.
    consumes: tuple[type[Message], ...] = ()
    # It copies events for monitoring users.
    copies: bool = False
    # For tls:// addresses: the authority (PEM) that vouches for the servers; None: the machine's.
    ca_file: Path | None = None
    connect_timeout_s: float = 30.0
    # For the server's own answers: an event is stored, an acknowledgement is noted.
    reply_timeout_s: float = 5.0
    close_timeout_s: float = 2.0
    reconnect_wait_s: float = 0.25
    # A server that is silent for about three of these is gone.
    ping_interval_s: float = 5.0
    # Events on their way to the server at once, commands being answered at once, telemetry that
    # waits for a slow reader.
    publish_window: int = 512
    commands_max: int = COMMANDS_MAX
    commands_waiting_max: int = COMMANDS_WAITING_MAX
    listen_max: int = 1_000


@contextlib.contextmanager
def _propagating_cancellation() -> Generator[None]:
    """The library swallows a cancellation while it writes, and Python 3.11's ``wait_for`` one that
    comes together with the answer; the task would go on for ever."""
    task = asyncio.current_task()
    asked_before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > asked_before:
        raise asyncio.CancelledError


@lru_cache(maxsize=HEADERS_MAX)
def _header_lines(raw: bytes) -> Mapping[str, str]:
    """Header lines as the library reads them; the same event comes to several services."""
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        words = name.split()
        if colon and len(words) == 1 and name.isascii():
            found[words[0]] = value.strip()
    return found


class ServerClient(Client):
    """A client that no error of the server ends for good: it connects again instead.

    Its flush is reliable: the library writes its ping before data that still waits to be written,
    so only the answer to a second ping shows that the server has received everything.
    """

    def __init__(self, *, tls_only: bool = False) -> None:
        super().__init__()
        self._tls_only = tls_only

    def _connect_command(self) -> bytes:
        """User and password; the library would send them also to a server without TLS."""
        if self._tls_only and not self._server_info.get("tls_required"):
            raise nats.errors.Error(
                "the server does not speak TLS, and its address begins with tls://"
            )
        return super()._connect_command()

    async def flush(self, timeout: int = 10) -> None:  # noqa: ASYNC109 - the library's signature
        """Return when the server has received everything sent so far; ``timeout`` in seconds."""
        for _ in range(2):
            with _propagating_cancellation():
                await super().flush(timeout)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """The library's rules at a third of its time: every event has ten of these lines."""
        return dict(_header_lines(bytes(raw)))

    async def _flush_pending(self, force_flush: bool = False) -> None:
        """Write what waits."""
        with _propagating_cancellation():
            await super()._flush_pending(force_flush)

    async def _process_err(self, err_msg: str) -> None:
        if REFUSED.search(err_msg) or "stale connection" in err_msg:
            await super()._process_err(err_msg)
        else:
            error = nats.errors.Error(f"nats: {err_msg}")
            await self._error_cb(error)
            await self._process_op_err(error)

    async def publish_all(self, subjects: Sequence[str], body: bytes) -> None:
        """The same to several subjects, in their order, as one piece of the connection."""
        if subjects:
            self.stats["out_msgs"] += len(subjects)
            self.stats["out_bytes"] += len(subjects) * len(body)
            await self._send_command(b"".join(pub_cmd(each, "", body) for each in subjects))
            if self._flush_queue is not None and self._flush_queue.empty():
                await self._flush_pending()

    @property
    def server_id(self) -> str:
        """The id that the server gave itself when it started."""
        return str(self._server_info.get("server_id", ""))


async def open_client(
    config: BusConfig,
    *,
    on_error: Callable[[Exception], None] | None = None,
    on_lost: Callable[[], None] | None = None,
) -> ServerClient:
    """Connect, trying until ``connect_timeout_s``; from then on the client reconnects for ever.

    BusUnavailableError if there is no server in time, BusDeniedError if it does not know the user.
    """
    tls = wants_tls(config.urls)
    client, ever_connected, logged = ServerClient(tls_only=tls), False, set[str]()

    async def error(problem: Exception) -> None:
        text = str(problem)
        if "authorization violation" in text.lower() and not ever_connected:
            raise BusDeniedError(f"the bus server refuses user {config.credentials.user!r}")
        # Each problem once per outage: a missing server is tried several times a second.
        if text not in logged and len(logged) < PROBLEMS_LOGGED_MAX:
            logged.add(text)
            _log.warning("bus error", service=config.service, problem=text)
        if on_error is not None and ever_connected:
            on_error(problem)

    async def lost() -> None:
        if on_lost is not None and ever_connected:
            on_lost()

    async def back() -> None:
        logged.clear()
        _log.info("bus is back", service=config.service, server=client.server_id)

    try:
        async with asyncio.timeout(config.connect_timeout_s):
            with _propagating_cancellation():
                await client.connect(
                    list(config.urls),
                    name=config.service,
                    user=config.credentials.user,
                    password=config.credentials.password,
                    inbox_prefix=inbox_prefix(config.service),
                    tls=trust(config.ca_file) if tls else None,
                    error_cb=error,
                    disconnected_cb=lost,
                    reconnected_cb=back,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=config.reconnect_wait_s,  # pyright: ignore[reportArgumentType] - it is slept
                    ping_interval=config.ping_interval_s,  # pyright: ignore[reportArgumentType] - it is slept
                )
    except (TimeoutError, BusDeniedError, asyncio.CancelledError) as problem:
        await client.close()
        if not isinstance(problem, TimeoutError):
            raise
        where = f"{', '.join(config.urls)} within {config.connect_timeout_s:g} s"
        raise BusUnavailableError(f"no bus server at {where}: {client.last_error}") from None
    ever_connected = True
    return client


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """A message that the server or another service replies to."""

    subject: str
    reply: asyncio.Future[Msg]


class PendingRequests:
    """All requests of a connection that have no reply yet."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._numbers = itertools.count(1)
        self._open: dict[str, PendingRequest] = {}

    async def start(self) -> None:
        """Open the inbox."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    async def send(
        self, subject: str, body: bytes, headers: dict[str, str] | None
    ) -> PendingRequest:
        """Send a request; ``replies`` returns the outcome."""
        size = len(body) + sum(len(key) + len(value) + 4 for key, value in (headers or {}).items())
        if size > self._client.max_payload:
            limit = self._client.max_payload
            raise BusTooLargeError(f"{subject}: {size} bytes are over the bus's limit of {limit}")
        if not self._client.is_connected:
            raise BusUnavailableError("the bus server is not connected")
        number = str(next(self._numbers))
        request = PendingRequest(subject, asyncio.get_running_loop().create_future())
        self._open[number] = request
        request.reply.add_done_callback(lambda _: self._open.pop(number, None))
        try:
            await self._client.publish(subject, body, f"{self._inbox}.{number}", headers)
        except (nats.errors.Error, OSError) as error:
            request.reply.cancel()
            raise BusUnavailableError(f"{subject} could not be sent: {error}") from error
        return request

    async def replies(self, requests: Sequence[PendingRequest], timeout_s: float) -> list[Msg]:
        """All answers in order; the first failure is raised after all are settled or too late."""
        try:
            if requests:
                await asyncio.wait([each.reply for each in requests], timeout=timeout_s)
        finally:
            late = [each for each in requests if each.reply.cancel()]
        failures = [
            error
            for each in requests
            if not each.reply.cancelled() and (error := each.reply.exception())
        ]
        if failures:
            raise failures[0]
        if late:
            raise BusUnavailableError(f"no answer to {late[0].subject} within {timeout_s:g} s")
        return [each.reply.result() for each in requests]

    async def _on_reply(self, message: Msg) -> None:
        request = self._open.get(message.subject.rpartition(".")[2])
        if request is None or request.reply.done():
            return
        if status(message) == NO_RESPONDERS:
            problem = f"nobody takes {request.subject} now"
            request.reply.set_exception(BusUnavailableError(problem))
        else:
            request.reply.set_result(message)

    def fail(self, problem: str) -> None:
        """Fail every pending request: the connection is gone."""
        for request in tuple(self._open.values()):
            if not request.reply.done():
                request.reply.set_exception(BusUnavailableError(problem))

    def deny(self, subject: str) -> None:
        """Fail the requests on a subject (in lower case) that the server denies."""
        for request in tuple(self._open.values()):
            if request.subject.lower() == subject and not request.reply.done():
                problem = f"this service may not request {request.subject}"
                request.reply.set_exception(BusDeniedError(problem))


def status(message: Msg) -> str | None:
    """The status of a message that the server itself made; None for everybody else's."""
    return message.headers.get("Status") if message.headers and not message.data else None


async def send_all(client: ServerClient, subjects: Sequence[str], body: bytes) -> None:
    """Send the same body to several subjects, in order, without replies."""
    if not client.is_connected:
        raise BusUnavailableError("the bus server is not connected")
    try:
        await client.publish_all(subjects, body)
    except (nats.errors.Error, OSError) as error:
        raise BusUnavailableError(f"not sent: {error}") from error


def raise_refused(subject: str, body: bytes) -> None:
    """Raise the stream's refusal: denied if the message is the cause, unavailable otherwise."""
    error = json.loads(body)["error"]
    text = f"{subject} was not stored: {error.get('description', error)}"
    raise (BusDeniedError if error.get("code") == 400 else BusUnavailableError)(text)  # noqa: PLR2004 - HTTP's


def nanoseconds(seconds: float) -> int:
    """A duration as the server takes it."""
    return int(seconds * 1_000_000_000)
