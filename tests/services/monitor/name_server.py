"""A real name server on loopback, which answers some names and never answers others."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import cast

NO_SUCH_NAME = 3
A = 1


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """Answers with these addresses; names in ``silent`` get no answer."""

    addresses: dict[str, list[str]]
    silent: set[str] = field(default_factory=set[str])
    asked: list[str] = field(default_factory=list[str])
    where: str = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels: list[str] = []
        at = 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        question = data[12 : at + 5]
        (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
        name = ".".join(labels).lower()
        self.asked.append(name)
        if name in self.silent:
            return
        known = name in self.addresses
        found = self.addresses.get(name, []) if kind == A else []
        answers = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", A, 1, 0, 4) + IPv4Address(each).packed
            for each in found
        )
        flags = 0x8180 | (0 if known else NO_SUCH_NAME)
        head = data[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0)
        self._transport.sendto(head + question + answers, addr)


@contextlib.asynccontextmanager
async def name_server(*silent: str, **addresses: list[str]) -> AsyncGenerator[NameServer]:
    """One that answers, of names in ``lab.test``, these."""
    known = {f"{name}.lab.test": found for name, found in addresses.items()}
    server = NameServer(known, {f"{name}.lab.test" for name in silent})
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", 0))
    host, port = transport.get_extra_info("sockname")
    server.where = f"{host}:{port}"
    try:
        yield server
    finally:
        transport.close()
