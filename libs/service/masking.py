"""Replaces the values of secrets in a stream of bytes, before these are stored anywhere.

Used by the process that writes the output of a node's ranks. The result does not depend on how the
stream is cut into pieces: what may be the beginning of a value is held back until that is known.
Standard library only, because a node's programs import it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import zip_longest
from math import ceil
from urllib.parse import quote, quote_plus

from libs.contracts.limits import SECRET_CHARACTERS_MIN

MASK = b"***"
# A longer line of a value is searched in parts of about the same length, so that little is held
# back.
PART_CHARACTERS_MAX = 256
# So many texts are searched, because each costs time; the values themselves before encoded forms,
# and of each value the first ones before more of another one.
FORMS_MAX = 256
# So much of the beginning of a value may be shown: an unfinished line often ends with a letter
# with which some value begins.
SHOWN_BYTES_MAX = 2
# A shorter rest of a value tells nothing.
REST_BYTES_MIN = 4


def secret_forms(values: Iterable[str]) -> tuple[bytes, ...]:
    """The texts by which values are found: each line of a value, and the value in the encodings in
    which programs print it. What is too short is left out: it would be found everywhere."""
    values = tuple(values)
    found = dict.fromkeys(_in_turn(_long(_lines(value)) for value in values))
    found |= dict.fromkeys(_in_turn(_long(_encoded(value)) for value in values))
    return tuple(found)[:FORMS_MAX]


def _long(forms: Iterable[bytes]) -> Iterable[bytes]:
    return dict.fromkeys(form for form in forms if len(form) >= SECRET_CHARACTERS_MIN)


def _in_turn(forms: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The first form of each value, the second of each, and so on: a value of many lines leaves
    room for the others."""
    for turn in zip_longest(*forms):
        yield from (form for form in turn if form is not None)


def _lines(value: str) -> Iterator[bytes]:
    for line in re.split(r"[\r\n]+", value):
        yield from _parts(line.strip())


def _encoded(value: str) -> Iterator[bytes]:
    value = value.strip()
    if len(value) < SECRET_CHARACTERS_MIN:
        return
    texts = [
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        *_base64(value.encode()),
    ]
    for text in texts:
        yield from _parts(text)


def _base64(data: bytes) -> Iterator[str]:
    """What is the same in every base64 text that holds these bytes, for the three positions at
    which they may begin."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        left = (before + len(data)) % 3
        last = {0: None, 1: -3, 2: -2}[left]
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(before) + data)[first:last].decode()


def _parts(text: str) -> Iterator[bytes]:
    """A text in parts of equal length."""
    size = ceil(len(text) / max(1, ceil(len(text) / PART_CHARACTERS_MAX)))
    for begin in range(0, len(text), max(1, size)):
        yield text[begin : begin + size].encode()


class Masker:
    """Masks one stream. ``forms`` are texts without line ends; ``resumed``: the beginning of the
    stream is lost, so it may begin within a value."""

    def __init__(self, forms: Sequence[bytes], *, resumed: bool = False) -> None:
        # Of texts that begin at one place, the longest is replaced.
        self._forms = sorted(forms, key=len, reverse=True)
        self._longest = max(map(len, forms), default=0)
        self._by_first: dict[int, list[bytes]] = {}
        for form in self._forms:
            self._by_first.setdefault(form[0], []).append(form)
        # The beginning of a value, perhaps: less than the longest text.
        self._held = b""
        # What has been shown of it.
        self._shown = b""
        self._resumed = resumed

    @property
    def may_release(self) -> bool:
        """Whether ``release`` has something."""
        short = len(self._shown) < len(self._held) <= SHOWN_BYTES_MAX
        return short and not self._resumed

    def release(self) -> bytes:
        """What is held back, if it is too little to tell anything. If the value follows, the rest
        of it is masked."""
        shown, self._shown = self._shown, self._held
        return self._held[len(shown) :]

    def feed(self, data: bytes) -> bytes:
        """The next bytes, masked; what may be the beginning of a value comes later."""
        return self._not_shown(self._fed(data))

    def flush(self) -> bytes:
        """What is held back, at the end of the stream. Most of a value counts as the value."""
        held, self._held = self._held, b""
        return self._not_shown(MASK if len(held) >= SECRET_CHARACTERS_MIN else held)

    def _not_shown(self, result: bytes) -> bytes:
        """The result without what of it has been shown."""
        shown = self._shown
        if not shown:
            return result
        size = min(len(shown), len(result))
        while shown[:size] != result[:size]:
            size -= 1
        self._shown = shown[size:] if size == len(result) else b""
        return result[size:]

    def _fed(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
        if self._resumed:
            if any(data in form for form in self._forms):
                self._held = data
                return b""
            return self._rest_of_value(data)
        return self._replaced(data)

    def _rest_of_value(self, data: bytes) -> bytes:
        """The first bytes of a stream that may begin within a value."""
        self._resumed = False
        for size in range(min(len(data), self._longest), REST_BYTES_MIN - 1, -1):
            if any(form.endswith(data[:size]) for form in self._forms):
                return MASK + self._replaced(data[size:])
        return self._replaced(data)

    def _replaced(self, data: bytes) -> bytes:
        """The bytes up to where a value may begin that is not complete; these are held back."""
        found = [
            (at, number) for number, form in enumerate(self._forms) if (at := data.find(form)) >= 0
        ]
        open_ends = self._open_ends(data)
        if not found:
            end = open_ends[0] if open_ends else len(data)
            self._held = data[end:]
            return data[:end]
        heapify(found)
        return b"".join(self._pieces(data, found, open_ends))

    def _pieces(
        self, data: bytes, found: list[tuple[int, int]], open_ends: list[int]
    ) -> Iterator[bytes]:
        """The pieces of the result. ``found``: the next place of each text, as a heap."""
        at = 0
        while True:
            end = next((each for each in open_ends if each >= at), len(data))
            place, number = found[0]
            if place >= end:
                self._held = data[end:]
                yield data[at:end]
                return
            form = self._forms[number]
            if place >= at:
                yield data[at:place]
                yield MASK
                at = place + len(form)
            again = data.find(form, at)
            heapreplace(found, (again if again >= 0 else len(data), number))

    def _open_ends(self, data: bytes) -> list[int]:
        """Where the rest of the bytes is the beginning of a text, and not all of it."""
        begin = max(0, len(data) - self._longest + 1, data.rfind(b"\n") + 1, data.rfind(b"\r") + 1)
        return [
            at
            for at in range(begin, len(data))
            if any(
                len(form) > len(data) - at and form.startswith(data[at:])
                for form in self._by_first.get(data[at], ())
            )
        ]
