"""Output of pods by the API server's log endpoint: for nodes whose log agent does not answer.

The endpoint gives a container's *current* log file from its beginning and knows no offsets. So a
stream is followed and counted; one that begins later than at the first byte skips to its place and
sees by the bytes before it that it is the right one. Where the kubelet has rotated the log
meanwhile, it searches for those bytes; if they are gone, a line in the output notes that something
may be missing. Used by ``kubernetes.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from libs.kube.transport import BROKEN
from services.log_collector.domain import OutputKey
from services.log_collector.sources.kubernetes_api import (
    NO_LOG,
    AbsentError,
    ClusterError,
    KubeApi,
)
from services.log_collector.sources.kubernetes_options import KubernetesOptions, pod_name
from services.log_collector.sources.port import ReadRequest, ReadResult

GAP = b"\n[shiftwork: output may be missing here: the log was rotated while nobody followed it]\n"


class MovedError(Exception):
    """The bytes before a place are not those that were kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position in a log file at which the output continues, and the text put before it."""

    at: int
    before: bytes = b""
    notice: bytes = b""


@dataclass(slots=True)
class Stream:
    """One pod's log, being opened or followed."""

    # The offset of its next byte, and the bytes given last, until later ones are requested.
    offset: int
    opened_at: float
    response: aiohttp.ClientResponse | None = None
    task: asyncio.Task[None] | None = None
    # Bytes that come before those of the response.
    ahead: bytes = b""
    given: bytes = b""
    ended: bool = False
    absent: bool = False
    problem: str = ""
    last_at: float = 0.0

    def close(self) -> None:
        """Let go of the connection."""
        if self.task is not None:
            self.task.cancel()
        if self.response is not None:
            self.response.close()

    def take(self, bytes_max: int) -> bytes:
        """What has come, without waiting. Raises what broke the connection."""
        if self.response is None:
            return b""
        data, self.ahead = self.ahead[:bytes_max], self.ahead[bytes_max:]
        if len(data) < bytes_max:
            data += self.response.content.read_nowait(bytes_max - len(data))
        self.offset += len(data)
        self.given = data or self.given
        self.ended = not self.ahead and self.response.content.at_eof()
        return data


@dataclass
class Streams:
    """The streams of one process, opened in the background by tasks of ``group``."""

    api: KubeApi
    options: KubernetesOptions
    monotonic: Callable[[], float]
    group: asyncio.TaskGroup
    open: dict[OutputKey, Stream] = field(default_factory=dict[OutputKey, Stream])
    # When an output whose stream ended or failed may be opened again.
    retry_at: dict[OutputKey, float] = field(default_factory=dict[OutputKey, float])
    # The offset of the first byte of the log file, where that is not 0.
    begins: dict[OutputKey, int] = field(default_factory=dict[OutputKey, int])

    def __post_init__(self) -> None:
        self.requests = asyncio.Semaphore(self.options.agent_requests_max)

    def read(self, request: ReadRequest, bytes_max: int) -> ReadResult:
        """What has come of one output since the last time; opens its stream if it has none."""
        key, now = request.address.key, self.monotonic()
        stream = self.open.get(key)
        if stream is not None and not self._fits(stream, request):
            self.drop(key)
            stream = None
        if stream is None:
            return self._open(request, now)
        if stream.given and request.offset < stream.offset:
            return ReadResult(stream.given[:bytes_max], unsure=True)
        try:
            data = stream.take(bytes_max)
        except BROKEN as error:
            stream.problem = f"the log of pod {pod_name(key)} broke off: {error}"
            data = b""
        if data:
            stream.last_at = now
            return ReadResult(data, unsure=True)
        if stream.ended or stream.problem or stream.absent:
            self.drop(key)
            self.retry_at[key] = now + self.options.stream_retry_seconds
        return ReadResult(absent=stream.absent, problem=stream.problem, unsure=True)

    def _fits(self, stream: Stream, request: ReadRequest) -> bool:
        """Whether the requested byte is the next one, or the first of those given last."""
        return request.offset in (stream.offset, stream.offset - len(stream.given))

    def _open(self, request: ReadRequest, now: float) -> ReadResult:
        key = request.address.key
        if now < self.retry_at.get(key, now):
            return ReadResult(unsure=True)
        self.retry_at.pop(key, None)
        if len(self.open) >= self.options.stream_count_max and not self._drop_quietest(now):
            return ReadResult(unsure=True)
        stream = self.open[key] = Stream(request.offset, now, last_at=now)
        stream.task = self.group.create_task(
            self._follow(stream, request), name=f"log {pod_name(key)}"
        )
        return ReadResult(unsure=True)

    def _drop_quietest(self, now: float) -> bool:
        """Close the stream that has been quiet the longest, if its minimum time is over."""
        over = [
            (stream.last_at, key)
            for key, stream in self.open.items()
            if now - stream.opened_at >= self.options.stream_turn_seconds
        ]
        if not over:
            return False
        self.drop(min(over)[1])
        return True

    def drop(self, key: OutputKey) -> None:
        """Close an output's stream, if it has one."""
        stream = self.open.pop(key, None)
        if stream is not None:
            stream.close()

    def forget(self, key: OutputKey) -> None:
        """An output is not wanted any more."""
        self.drop(key)
        self.retry_at.pop(key, None)
        self.begins.pop(key, None)

    def close(self) -> None:
        """Close all of them."""
        for key in list(self.open):
            self.drop(key)

    async def _follow(self, stream: Stream, request: ReadRequest) -> None:
        """Open a stream and go to its place. Never raises."""
        pod = pod_name(request.address.key)
        try:
            place = await self._locate(request) if request.offset else Place(0)
            response = await self.api.log(self.options.kube_namespace, pod, follow=True)
            try:
                stream.ahead = await _skip(response, place)
            except BaseException:
                response.close()
                raise
            stream.response = response
        except AbsentError:
            stream.absent = True
        except MovedError:
            stream.ended = True  # it was just rotated: locate it again
        except (ClusterError, *BROKEN) as error:
            stream.problem = str(error) or type(error).__name__

    async def fetch(self, request: ReadRequest, bytes_max: int) -> ReadResult:
        """What there is of one output after an offset, now and for certain: its pod has ended.

        Fewer bytes than requested, and not unsure: that is all.
        """
        key = request.address.key
        stream = self.open.get(key)
        if stream is not None:
            result = self.read(request, bytes_max)  # what has come already
            if result.data:
                return result
            self.drop(key)
        try:
            async with self.requests, asyncio.timeout(self.options.agent_timeout_seconds):
                return await self._fetch(request, bytes_max)
        except AbsentError:
            return ReadResult(absent=True)
        except MovedError:
            return ReadResult(unsure=True)
        except (ClusterError, *BROKEN) as error:
            return ReadResult(problem=str(error) or type(error).__name__)

    async def _fetch(self, request: ReadRequest, bytes_max: int) -> ReadResult:
        place = await self._locate(request) if request.offset else Place(0)
        pod = pod_name(request.address.key)
        response = await self.api.log(self.options.kube_namespace, pod, follow=False)
        with contextlib.closing(response):
            data = await _skip(response, place)
            while len(data) < bytes_max and (more := await response.content.readany()):
                data += more
        return ReadResult(data[:bytes_max])

    async def _locate(self, request: ReadRequest) -> Place:
        """Find the place of an offset in the current log file."""
        key = request.address.key
        at, before = request.offset - self.begins.get(key, 0), request.before
        if at < 0:
            at = request.offset
        if at < len(before):
            before = before[len(before) - at :]
        finder = Finder(at, before)
        response = await self.api.log(self.options.kube_namespace, pod_name(key), follow=False)
        with contextlib.closing(response):
            while data := await response.content.readany():
                finder.feed(data)
        place = finder.place()
        self.begins[key] = request.offset + len(place.notice) - place.at
        return place


class Finder:
    """Finds a place in a stream of bytes: by its offset, else by the bytes before it."""

    def __init__(self, offset: int, before: bytes) -> None:
        self._offset, self._before = offset, before
        self._passed = 0
        self._end = b""
        self._exact = False
        self._last: int | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        window = self._end + data
        begin = self._passed - len(self._end)
        self._passed += len(data)
        if not self._before:
            return
        found = window.rfind(self._before)
        if found >= 0:
            self._last = begin + found + len(self._before)
        at = self._offset - len(self._before) - begin
        if at >= 0 and window[at : at + len(self._before)] == self._before:
            self._exact = True
        self._end = window[-(len(self._before) - 1) :] if len(self._before) > 1 else b""

    def place(self) -> Place:
        """The position after everything was read."""
        if self._exact or (not self._before and self._passed >= self._offset):
            return Place(self._offset, self._before)
        if self._last is not None:
            return Place(self._last, self._before)
        return Place(0, notice=GAP)


async def _skip(response: aiohttp.ClientResponse, place: Place) -> bytes:
    """Read up to a place; returns what was read beyond it, with what is put before it.

    Raises ``MovedError`` if it is another place, ``AbsentError`` if this is no log.
    """
    if place.at == 0:
        data = await response.content.readany()
        if NO_LOG.fullmatch(data):
            raise AbsentError("there is no log file")
        return place.notice + data
    passed, end = 0, b""
    while passed < place.at:
        data = await response.content.readany()
        if not data:
            raise MovedError
        passed += len(data)
        end = (end + data)[-(len(place.before) + len(data)) :]
    cut = len(end) - (passed - place.at)
    if end[max(0, cut - len(place.before)) : cut] != place.before:
        raise MovedError
    return end[cut:]
