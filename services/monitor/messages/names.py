"""Looks up the names of receivers of webhooks, without a thread for each: a name server that does
not answer delays the webhooks of that name alone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiodns

from services.monitor.domain.receivers import Address, literal_address

# A query is repeated once; a name server that does not answer costs so much.
QUERY_SECONDS = 2.0
TRIES = 2


class NameUnknownError(Exception):
    """A name has no address, or no name server says so in time."""


@dataclass
class Names:
    """What the machine's name servers and its file of hosts say."""

    # Of tests; empty: the machine's.
    servers: Sequence[str] = ()
    _resolver: aiodns.DNSResolver | None = field(default=None, repr=False)

    async def close(self) -> None:
        """End what is being looked up."""
        if self._resolver is not None:
            await self._resolver.close()
            self._resolver = None

    async def addresses(self, host: str, port: int) -> list[Address]:
        """The addresses of a name. Raises NameUnknownError."""
        literal = literal_address(host)
        if literal is not None:
            return [literal]
        if self._resolver is None:
            # Made by the first webhook: it belongs to the loop that runs then.
            self._resolver = aiodns.DNSResolver(
                self.servers or None, timeout=QUERY_SECONDS, tries=TRIES
            )
        try:
            found = await self._resolver.getaddrinfo(
                host, family=socket.AF_UNSPEC, port=port, type=socket.SOCK_STREAM
            )
        except (aiodns.error.DNSError, UnicodeError, ValueError) as problem:
            raise NameUnknownError(host) from problem
        nodes: Any = found.nodes
        literals = [_address(node.addr[0]) for node in nodes]
        return [each for each in literals if each is not None]


def _address(text: str | bytes) -> Address | None:
    """The address of an answer, without the interface that a link-local one has."""
    text = text.decode() if isinstance(text, bytes) else text
    return literal_address(text.partition("%")[0])
