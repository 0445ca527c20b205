"""Cursors of the queue, sealed for readers: a place names the task there, which may be hidden.

The scheduler's own cursor is encrypted with a key that every gateway process has, and opened again
for the next page. ``main.build`` makes one for the route of the queue.
"""

from __future__ import annotations

from joserfc import jwe, jwk
from joserfc.errors import JoseError

from services.gateway.problems import invalid

_HEADER = {"alg": "dir", "enc": "A256GCM"}


class QueueCursors:
    """Seals and opens them with a key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = jwk.OctKey.import_key(key)

    def seal(self, place: str) -> str:
        """A cursor that says nothing; empty for no place."""
        return jwe.encrypt_compact(_HEADER, place, self._key) if place else ""

    def open(self, cursor: str) -> str:
        """The scheduler's place; empty for no cursor. 422 for what ``seal`` did not make."""
        if not cursor:
            return ""
        try:
            opened = jwe.decrypt_compact(cursor, self._key, algorithms=[*_HEADER.values()])
            return (opened.plaintext or b"").decode("ascii")
        except (JoseError, ValueError):
            fix = "give next_cursor of the page before, or leave it out"
            raise invalid("cursor", cursor, "is not a cursor of this list", fix) from None
