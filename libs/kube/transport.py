"""The only user of kubernetes_asyncio: the API server's address, credentials, requests, streams.

``client.py`` calls this; tests wrap it to fail, or to die, at a chosen call. It does not use the
package's models: thousands of pods as such objects would cost more than the pods.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject

from libs.service.loop import pause

CONNECT_SECONDS = 10.0
# Many calls are refused at once when a token expires: one renewal serves them all.
RENEW_SECONDS_MIN = 1.0
Query = Mapping[str, str] | Sequence[tuple[str, str]]
# What reading an answer raises when its connection breaks.
BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class ConnectionFailedError(Exception):
    """No answer arrived: it is unknown whether the request took effect."""


class UpgradeRefusedError(ConnectionFailedError):
    """The API server answered an upgrade with another status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the API server answered {status} to an upgrade")
        self.status = status


class ConfigurationError(Exception):
    """There is no cluster to connect to, or no credentials for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Session:
    """Connections that share the credentials read at one time."""

    rest: RESTClientObject
    # Answers that callers read.
    streams: WeakSet[aiohttp.ClientResponse] = field(
        default_factory=WeakSet[aiohttp.ClientResponse]
    )

    @property
    def http(self) -> aiohttp.ClientSession:
        return self.rest.pool_manager

    @property
    def is_read(self) -> bool:
        return any(not response.closed for response in self.streams)


class Transport:
    """Requests to one API server, with the configured credentials.

    ``connections_max`` 0 is no limit. Each method raises ``ConfigurationError``, and
    ``ConnectionFailedError`` where no whole answer came.
    """

    def __init__(self, kubeconfig: Path | None, connections_max: int) -> None:
        self._kubeconfig = kubeconfig
        self._connections_max = connections_max
        self._configuration: Configuration | None = None
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        # The sessions before renewals: the last one, whose calls may still end, and those whose
        # answers are still read.
        self._retired: list[_Session] = []
        self._renewed_s = -math.inf

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Query,
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> Answer:
        """One request."""
        session, arguments = await self._request(path, query, headers)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with session.http.request(
                method, **arguments, data=body, timeout=timeout
            ) as response:
                return Answer(response.status, response.headers, await response.read())
        except BROKEN as problem:
            raise failed(problem) from problem

    async def open(
        self, path: str, *, query: Query, read_seconds: float | None
    ) -> aiohttp.ClientResponse:
        """One answer, to be read and closed by the caller; what breaks it then is ``BROKEN``.

        ``read_seconds`` bounds the wait for each piece.
        """
        session, arguments = await self._request(path, query, {})
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=read_seconds)
        try:
            response = await session.http.get(**arguments, timeout=timeout)
        except BROKEN as problem:
            raise failed(problem) from problem
        session.streams.add(response)
        return response

    @asynccontextmanager
    async def socket(
        self, path: str, *, query: Query, protocol: str, seconds: float
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """A web socket that is only read: its messages."""
        # An upgrade that accepts only JSON is answered with 406.
        session, arguments = await self._request(path, query, {"Accept": "*/*"})
        url = "ws" + arguments.pop("url").removeprefix("http")
        try:
            async with (
                asyncio.timeout(seconds),
                cast(
                    "AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]",
                    session.http.ws_connect(url, **arguments, protocols=(protocol,)),
                ) as opened,
            ):
                yield _messages(opened)
        except aiohttp.WSServerHandshakeError as problem:
            raise UpgradeRefusedError(problem.status) from problem
        except BROKEN as problem:
            raise failed(problem) from problem

    @asynccontextmanager
    async def dialog(
        self,
        path: str,
        *,
        query: Query,
        protocols: Sequence[str],
        open_seconds: float,
        heartbeat_seconds: float,
    ) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """A web socket for both directions, for as long as it lasts. ``UpgradeRefusedError`` if the
        server answers something else."""
        session, arguments = await self._request(path, query, {"Accept": "*/*"})
        url = "ws" + arguments.pop("url").removeprefix("http")
        try:
            async with asyncio.timeout(open_seconds):
                opened = cast(
                    "aiohttp.ClientWebSocketResponse",
                    await session.http.ws_connect(
                        url, **arguments, protocols=protocols, heartbeat=heartbeat_seconds
                    ),
                )
        except aiohttp.WSServerHandshakeError as problem:
            raise UpgradeRefusedError(problem.status) from problem
        except BROKEN as problem:
            raise failed(problem) from problem
        try:
            yield opened
        finally:
            await opened.close()

    async def renew(self) -> None:
        """Read the credentials again: a token or certificate may have expired."""
        now_s = asyncio.get_running_loop().time()
        async with self._opening:
            if now_s - self._renewed_s >= RENEW_SECONDS_MIN:
                self._renewed_s = now_s
                # A session that still has a reader stays open: the reader would wait for ever.
                unused = [each for each in self._retired if not each.is_read]
                self._retired = [each for each in self._retired if each.is_read]
                if self._session is not None:
                    self._retired.append(self._session)
                    self._session = None
                for each in unused:
                    await each.rest.close()

    async def close(self) -> None:
        """Hang up."""
        async with self._opening:
            self._closed = True
            held, self._retired = self._retired, []
            if self._session is not None:
                held.append(self._session)
                self._session = None
            for each in held:
                for response in tuple(each.streams):
                    hang_up(response)
                await each.rest.close()
        # What was hung up closes its socket in the loop's next round.
        await pause(0)

    async def connect(self) -> str:
        """Read the credentials now instead of at the first call. Returns the server's URL."""
        configuration, _ = await self._connected()
        return configuration.host or ""

    async def _connected(self) -> tuple[Configuration, _Session]:
        async with self._opening:
            if self._closed:
                raise ConnectionFailedError("we have hung up")
            if self._configuration is None or self._session is None:
                self._configuration = await _configured(self._kubeconfig)
                self._session = _Session(
                    RESTClientObject(self._configuration, maxsize=self._connections_max)
                )
            return self._configuration, self._session

    async def _request(
        self, path: str, query: Query, headers: Mapping[str, str]
    ) -> tuple[_Session, dict[str, Any]]:
        """The session, and the arguments of each of its requests."""
        configuration, session = await self._connected()
        rest = session.rest
        try:
            token = await configuration.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError) as problem:
            # A pod's token is a file that is read again before it expires.
            raise ConfigurationError(f"the token cannot be read: {problem}") from problem
        authorization = {"Authorization": token} if token else {}
        arguments: dict[str, Any] = {
            "url": f"{configuration.host}{path}" + (f"?{urlencode(query)}" if query else ""),
            "headers": {"Accept": "application/json", "Accept-Encoding": "identity"}
            | dict(headers)
            | authorization,
        }
        if rest.proxy:
            arguments["proxy"] = rest.proxy
        if rest.server_hostname:
            arguments["server_hostname"] = rest.server_hostname
        return session, arguments


def hang_up(response: aiohttp.ClientResponse) -> None:
    """End the connection of an answer that is not read to its end.

    A polite end of TLS waits for the server, outside of the pool that closing the client waits for:
    the loop may end first, and the socket is left open.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _messages(opened: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    async for message in opened:
        if message.type is aiohttp.WSMsgType.BINARY:
            yield message.data


def failed(problem: BaseException) -> ConnectionFailedError:
    """The error for a broken connection."""
    reason = str(problem) or type(problem).__name__
    return ConnectionFailedError(f"the API server does not answer ({reason[:200]})")


def _loaded_in_cluster(configuration: Configuration) -> bool:
    """Load the pod's own account. False if it has none and KUBECONFIG names another."""
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        if "KUBECONFIG" not in os.environ:  # noqa: TID251 - kubectl's own variable
            raise
        return False
    return True


async def _configured(kubeconfig: Path | None) -> Configuration:
    """Load the given file, else the pod's own account, else KUBECONFIG as kubectl does."""
    configuration = Configuration()
    inside = "KUBERNETES_SERVICE_HOST" in os.environ  # noqa: TID251 - Kubernetes' own sign
    try:
        if kubeconfig is None and inside and _loaded_in_cluster(configuration):
            return configuration
        # The package reads KUBECONFIG when it is imported.
        own = os.environ.get("KUBECONFIG")  # noqa: TID251 - kubectl's own variable
        await config.load_kube_config(
            config_file=str(kubeconfig) if kubeconfig else own,
            client_configuration=configuration,
        )
    except (config.ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as problem:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the kubeconfig"
        raise ConfigurationError(f"{where} cannot be used: {problem}") from problem
    return configuration
