"""Sends one message to a webhook: signed, bounded in time and size, and only to an address that
was checked before the connection was made."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from ipaddress import IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from libs.bus.trust import trust
from libs.service.version import VERSION
from services.monitor.domain.receivers import (
    Address,
    Network,
    first_allowed,
)
from services.monitor.domain.retries import Result
from services.monitor.domain.signature import headers_of
from services.monitor.messages.names import Names, NameUnknownError
from services.monitor.store import MessageRow, NotificationRow

# Of an answer's body nothing is used.
ANSWER_BYTES_MAX = 4096
Outcome = tuple[Result, str]


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The sender of webhooks, with the site's settings."""

    networks: tuple[Network, ...]
    ca_file: Path | None
    seconds_max: float
    names: Names

    async def send(self, row: NotificationRow, message: MessageRow, now: datetime) -> Outcome:
        """Send a message once. Redirects are not followed."""
        try:
            async with asyncio.timeout(self.seconds_max):
                return await self._send(row, message, now)
        except TimeoutError:
            return Result.UNREACHABLE, f"no answer within {self.seconds_max:g} s"
        except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as problem:
            return Result.UNREACHABLE, f"{type(problem).__name__}: {problem}"

    async def _send(self, row: NotificationRow, message: MessageRow, now: datetime) -> Outcome:
        parts = urlsplit(row.url)
        host, encrypted = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if encrypted else 80)
        address = await self._resolve(host, port, encrypted=encrypted)
        if address is None:
            return Result.UNREACHABLE, f"{host} is no address that this site sends to"
        body = message.body.encode()
        headers = {
            "host": parts.netloc,
            "content-type": "application/json",
            "user-agent": f"shiftwork/{VERSION}",
            **headers_of(row.secret, message.id, int(now.timestamp()), body),
        }
        literal = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
        target = parts._replace(netloc=f"{literal}:{port}").geturl()
        context: ssl.SSLContext | bool = trust(self.ca_file) if encrypted else False
        async with (
            # Neither proxies nor credentials of this machine.
            httpx.AsyncClient(verify=context, trust_env=False, timeout=self.seconds_max) as client,
            client.stream(
                "POST",
                target,
                content=body,
                headers=headers,
                # The certificate has to be the name's, although the address is connected to.
                extensions={"sni_hostname": host},
            ) as reply,
        ):
            received = 0
            async for part in reply.aiter_raw():
                received += len(part)
                if received > ANSWER_BYTES_MAX:
                    break
        return _outcome(reply.status_code)

    async def _resolve(self, host: str, port: int, *, encrypted: bool) -> Address | None:
        """The one address to connect to; None: this host has none, or none that may be
        reached."""
        try:
            addresses = await self.names.addresses(host, port)
        except NameUnknownError:
            # The same answer for both: it must not tell which names the site's name server knows.
            return None
        return first_allowed(addresses, self.networks, encrypted=encrypted)


def _outcome(status: int) -> Outcome:
    if httpx.codes.is_success(status):
        return Result.DELIVERED, ""
    if status == HTTPStatus.GONE:
        return Result.GONE, "the receiver answered 410: it wants no more"
    problem = f"the receiver answered {status}"
    busy = httpx.codes.is_server_error(status) or status in (
        httpx.codes.TOO_MANY_REQUESTS,
        httpx.codes.REQUEST_TIMEOUT,
    )
    return (Result.UNREACHABLE if busy else Result.REFUSED), problem
