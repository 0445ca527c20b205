"""A WebSocket (RFC 6455) of one client, over an HTTP connection that was upgraded.

Standard library only, and without threads: the caller waits for the socket itself, together with
the terminal. Called by ``terminal``. The library ``websockets`` would be needed in every user's
environment, and an event loop cannot wait for files as standard input.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import struct
from typing import Any, Iterator

TEXT, BYTES, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MESSAGE_BYTES_MAX = 1 << 20
_FINAL, _MASKED = 0x80, 0x80
_HEAD_BYTES = 2
_SHORT, _MIDDLE, _LONG = 125, 126, 127


class Closed(Exception):  # noqa: N818 - the end of a conversation, not a mistake
    """The connection has ended, or is no WebSocket."""


def key() -> str:
    """A fresh key for the upgrade."""
    return base64.b64encode(os.urandom(16)).decode()


def answer_of(offered: str) -> str:
    """What the server has to answer to a key."""
    # The protocol's own choice; nothing depends on its strength.
    return base64.b64encode(hashlib.sha1((offered + _GUID).encode()).digest()).decode()  # noqa: S324


class WebSocket:
    """An upgraded connection. ``received``: bytes that came behind the answer to the upgrade."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._received = bytearray(received)
        self._to_send = bytearray()
        self._message = bytearray()
        self._kind = 0

    def fileno(self) -> int:
        """For ``select``."""
        return self._connection.fileno()

    @property
    def pending(self) -> int:
        """How many bytes wait until the server takes them."""
        return len(self._to_send)

    def send(self, kind: int, data: bytes) -> None:
        """Queue one message; ``flush`` sends it."""
        head = bytearray([_FINAL | kind])
        if len(data) <= _SHORT:
            head.append(_MASKED | len(data))
        elif len(data) < 1 << 16:
            head += struct.pack("!BH", _MASKED | _MIDDLE, len(data))
        else:
            head += struct.pack("!BQ", _MASKED | _LONG, len(data))
        mask = os.urandom(4)
        self._to_send += head + mask + _masked(data, mask)
        self.flush()

    def flush(self) -> None:
        """Send what the connection takes now."""
        while self._to_send:
            try:
                sent = self._connection.send(self._to_send[: 1 << 16])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise Closed(str(error)) from error
            del self._to_send[:sent]

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """The messages that have come: their kind and data. Raises Closed at the end."""
        ended = self._read()
        while True:
            found = self._frame()
            if found is None:
                break
            kind, data = found
            if kind == PING:
                self.send(PONG, data)
            elif kind == CLOSE:
                raise Closed(data[2:].decode("utf-8", "replace"))
            elif kind in (TEXT, BYTES):
                yield kind, data
        if ended:
            raise Closed("the connection was cut off")

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _read(self) -> bool:
        """Read what is there; True at the end of the connection."""
        while True:
            try:
                data = self._connection.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError:
                return True
            if not data:
                return True
            self._received += data
            if len(self._received) > _MESSAGE_BYTES_MAX:
                # The rest is read after these were handled.
                pending: Any = getattr(self._connection, "pending", None)
                if pending is None or not pending():
                    return False

    def _frame(self) -> tuple[int, bytes] | None:
        """The next whole message; None if it has not come yet."""
        while True:
            raw = self._received
            if len(raw) < _HEAD_BYTES:
                return None
            length, start = raw[1] & 0x7F, _HEAD_BYTES
            for marker, form in ((_MIDDLE, "!H"), (_LONG, "!Q")):
                if length == marker:
                    start += struct.calcsize(form)
                    if len(raw) < start:
                        return None
                    (length,) = struct.unpack_from(form, raw, _HEAD_BYTES)
                    break
            if length + len(self._message) > _MESSAGE_BYTES_MAX:
                raise Closed("a message of the server is too long")
            if len(raw) < start + length:
                return None
            first, data = raw[0], bytes(raw[start : start + length])
            del raw[: start + length]
            kind = first & 0x0F
            if kind >= CLOSE:
                return kind, data
            self._kind = kind or self._kind
            self._message += data
            if first & _FINAL:
                whole = bytes(self._message)
                self._message.clear()
                return self._kind, whole


def _masked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    pad = (mask * (size // 4 + 1))[:size]
    number = int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")
    return number.to_bytes(size, "big")
