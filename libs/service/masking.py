"""Replaces the values of secrets in a stream of bytes, before these are stored anywhere.

Used by the process that writes the output of a node's ranks, and by log-collector for pods. The
result does not depend on how the
stream is cut into pieces: what may be the beginning of a value is held back until that is known.
Standard library only, because a node's programs import it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import accumulate, compress, zip_longest
from math import ceil
from operator import attrgetter, getitem
from threading import Lock
from time import thread_time
from urllib.parse import quote, quote_plus
from weakref import WeakSet, WeakValueDictionary

from libs.contracts.limits import SECRET_CHARACTERS_MIN

MASK = b"***"
# A longer line of a value is searched in parts of about the same length, so that little is held
# back.
PART_BYTES_MAX = 256
# So many texts are searched, because each costs time; the values themselves before encoded forms,
# and of each value the first ones before more of another one.
FORMS_MAX = 256
# Of so many values at least the first line is searched, although that is more.
VALUES_MAX = 2048
# So much of the beginning of a value may be shown: an unfinished line often ends with a letter
# with which some value begins.
SHOWN_BYTES_MAX = 2
# A shorter rest of a value tells nothing.
REST_BYTES_MIN = 4
# So many transitions are known in all automata together: they take about 100 MB then, which only
# text made of the beginnings of many long values reaches. The one with the most begins again.
TRANSITIONS_MAX = 200_000
# To search for each text individually is quicker than the automaton on all but hostile input. Where
# it takes longer than this, it is not tried again for so many bytes.
SEARCH_SECONDS_PER_BYTE = 1e-7
GIVEN_UP_BYTES = 1 << 20
SEARCHES_PER_CHECK = 16


def secret_forms(values: Iterable[str]) -> tuple[bytes, ...]:
    """The texts by which values are found: each line of a value, and the value in the encodings in
    which programs print it. What is too short is left out: it would be found everywhere."""
    values = tuple(values)
    found = dict.fromkeys(_in_turn(_long(_lines(value)) for value in values))
    found |= dict.fromkeys(_in_turn(_long(_encoded(value)) for value in values))
    return tuple(found)[: max(FORMS_MAX, min(len(values), VALUES_MAX))]


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
    data = text.encode()
    size = ceil(len(data) / max(1, ceil(len(data) / PART_BYTES_MAX)))
    for begin in range(0, len(data), max(1, size)):
        yield data[begin : begin + size]


class _State(dict[int, "_State"]):
    """A state of an automaton, as its transitions by the next byte. ``text`` is the longest end of
    what was read that some form begins with, and goes on after."""

    __slots__ = ("automaton", "found", "text")

    def __init__(self, automaton: Automaton, text: bytes, found: int) -> None:
        super().__init__()
        self.automaton, self.text = automaton, text
        # The length of the longest form that ends here; 0 if none does.
        self.found = found

    def __missing__(self, byte: int) -> _State:
        return self.automaton.transition(self, byte)


class _Room:
    """What all automata together may know. Whoever uses it holds the lock."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.automata: WeakSet[Automaton] = WeakSet()
        # At least what they know: those that are gone are noticed when there is no room.
        self.known = 0

    def take(self) -> None:
        """Make room for one more transition."""
        if self.known >= TRANSITIONS_MAX:
            self.known = sum(each.transitions for each in self.automata)
        while self.known >= TRANSITIONS_MAX:
            largest = max(self.automata, key=lambda each: each.transitions)
            self.known -= largest.transitions
            largest.clear()
        self.known += 1


_room = _Room()


class Automaton:
    """Finds all of some forms in one pass over a text, in a time that depends on the length of the
    text and not on the forms (Aho and Corasick). States are made when a text first needs them."""

    def __init__(self, forms: Sequence[bytes]) -> None:
        self.forms = sorted(set(forms))
        self.longest = max(map(len, self.forms), default=0)
        self._backward = sorted(form[::-1] for form in self.forms)
        # For each of these, the longest other one that it begins with.
        self._shorter: list[int] = []
        for number, form in enumerate(self._backward):
            before = number - 1
            while before >= 0 and not form.startswith(self._backward[before]):
                before = self._shorter[before]
            self._shorter.append(before)
        self._states: dict[tuple[bytes, int], _State] = {}
        self.clear()
        with _room.lock:
            _room.automata.add(self)

    def clear(self) -> None:
        """Begin again with no transition. States that are in use stay valid."""
        for state in self._states.values():
            state.clear()  # or one that is in use would keep all others in memory
        self._states = {}
        # How many are known.
        self.transitions = 0
        self.start = self._state(b"", 0)

    def _state(self, text: bytes, found: int) -> _State:
        state = self._states.get((text, found))
        if state is None:
            state = self._states[text, found] = _State(self, text, found)
        return state

    def _longest_at_end(self, text: bytes) -> int:
        """The length of the longest form with which a text ends; 0 if it ends with none."""
        backward = text[::-1]
        at = bisect_right(self._backward, backward) - 1
        while at >= 0 and not backward.startswith(self._backward[at]):
            at = self._shorter[at]
        return len(self._backward[at]) if at >= 0 else 0

    def transition(self, state: _State, byte: int) -> _State:
        """The state after one more byte, where that is not known yet."""
        text = state.text + bytes((byte,))
        found = self._longest_at_end(text)
        # Each turn makes the text shorter, and each byte made it longer by one: on average there
        # are less than two.
        while text and not self._may_go_on(text):
            text = text[1:]
        with _room.lock:
            _room.take()
            self.transitions += 1
            after = state[byte] = self._state(text, found)
        return after

    def _may_go_on(self, text: bytes) -> bool:
        """Whether a text is the beginning of a form, and not all of it."""
        at = bisect_right(self.forms, text)
        return at < len(self.forms) and self.forms[at].startswith(text)


# Ranks of one run have the same values.
_automata: WeakValueDictionary[tuple[bytes, ...], Automaton] = WeakValueDictionary()


def _automaton_of(forms: Sequence[bytes]) -> Automaton:
    key = tuple(forms)
    found = _automata.get(key)
    if found is None:
        found = _automata[key] = Automaton(key)
    return found


class Masker:
    """Masks one stream: each stretch of bytes that forms cover becomes one mask. ``forms`` are
    texts without line ends; ``resumed``: the beginning of the stream is lost, so it may begin
    within a value.

    Places are counted in bytes of the stream.
    """

    def __init__(self, forms: Sequence[bytes], *, resumed: bool = False) -> None:
        self._automaton = _automaton_of(forms)
        self._forms = self._automaton.forms
        self._state = self._automaton.start
        # How much of the stream has been read. Its end, which is the text of the state, may be the
        # beginning of a value.
        self._size = 0
        # The stretches of bytes that are covered and not all passed on.
        self._covered: list[tuple[int, int]] = []
        # The end of the last stretch for which a mask was passed on.
        self._masked = -1
        # So far something has been shown of what is held back.
        self._shown = 0
        self._searched_from = 0
        # What may be the rest of a value, at the beginning of a resumed stream.
        self._rest: bytes | None = b"" if resumed else None

    @property
    def held(self) -> bytes:
        """What is held back: the beginning of a value, perhaps."""
        return self._rest if self._rest is not None else self._state.text

    @property
    def may_release(self) -> bool:
        """Whether ``release`` has something."""
        short = len(self.held) <= SHOWN_BYTES_MAX and self._shown < self._size
        return short and bool(self.held) and self._rest is None and not self._covered

    def release(self) -> bytes:
        """What is held back, if it is too little to tell anything. If the value follows, the rest
        of it is masked."""
        held, shown = self.held, self._shown
        self._shown = self._size
        return held[max(0, shown - (self._size - len(held))) :]

    def take_back(self) -> bytes:
        """What is held back; the caller feeds it again, with what follows."""
        held = self.held
        if self._rest is not None:
            self._rest = b""
        else:
            self._size -= len(held)
            self._state = self._automaton.start
        return held

    def forget(self) -> None:
        """What follows is not what was held back: no value goes on in it."""
        self._covered.clear()
        self._rest = None

    def copy(self) -> Masker:
        """One with the same state, which goes on by itself."""
        other = copy(self)
        other._covered = list(self._covered)  # noqa: SLF001 - of the same class
        return other

    def feed(self, data: bytes) -> bytes:
        """The next bytes, masked; what may be the beginning of a value comes later."""
        if self._rest is not None:
            self._rest += data
            if any(self._rest in form for form in self._forms):
                return b""
            data, self._rest = self._rest, None
            self._cover(0, self._rest_of_value(data))
        text = self._state.text + data
        self._advance(data)
        return self._passed(text, self._size - len(self._state.text))

    def flush(self) -> bytes:
        """What is held back, at the end of the stream. Most of a value counts as the value."""
        text = self.held
        if self._rest is not None:
            self._rest, self._size = None, len(text)
        if len(text) >= SECRET_CHARACTERS_MIN:
            self._cover(self._size - len(text), self._size)
        self._state = self._automaton.start
        return self._passed(text, self._size)

    def _passed(self, text: bytes, end: int) -> bytes:
        """The result up to a place. ``text`` is what has been held back and read since."""
        at = self._size - len(text)
        if not self._covered and self._shown <= at:
            return text[: end - at]
        first, parts = at, list[bytes]()
        for begin, covered_to in self._covered:
            if begin >= end:
                break
            parts.append(text[max(at, self._shown) - first : max(0, begin - first)])
            if begin > self._masked or self._masked == begin < self._shown:
                parts.append(MASK)
            self._masked = at = min(covered_to, end)
        parts.append(text[max(at, self._shown) - first : end - first])
        self._covered = [each for each in self._covered if each[1] > end]
        return b"".join(parts)

    def _rest_of_value(self, data: bytes) -> int:
        """With how many bytes of the rest of a value a stream begins."""
        for size in range(min(len(data), self._automaton.longest), REST_BYTES_MIN - 1, -1):
            if any(form.endswith(data[:size]) for form in self._forms):
                return size
        return 0

    def _cover(self, begin: int, end: int) -> None:
        """Note bytes that are masked, together with those noted before that touch them. These may
        end later, because what is held back is searched again."""
        while self._covered and self._covered[-1][1] >= begin:
            last, until = self._covered.pop()
            begin, end = min(begin, last), max(end, until)
        if begin < end:
            self._covered.append((begin, end))

    # -- searching

    def _advance(self, data: bytes) -> None:
        """Find the forms that end in these bytes, and the state after them."""
        places = None
        if len(data) > len(self._forms) and self._size >= self._searched_from:
            places = self._search(self._state.text + data)
            if places is None:
                self._searched_from = self._size + len(data) + GIVEN_UP_BYTES
        if places is None:
            self._run(data)
            return
        first = self._size - len(self._state.text)
        for end, begin in sorted(places):
            self._cover(first + begin, first + end)
        # The state depends on the last bytes alone.
        at = max(0, len(data) - self._automaton.longest + 1, data.rfind(b"\n") + 1)
        state = self._automaton.start if at else self._state
        self._state = deque(accumulate(data[at:], getitem, initial=state), maxlen=1).pop()
        self._size += len(data)

    def _search(self, text: bytes) -> list[tuple[int, int]] | None:
        """The end and the beginning of each form in a text, by searching for each individually;
        None if that takes too long."""
        late = thread_time() + len(text) * SEARCH_SECONDS_PER_BYTE
        places: list[tuple[int, int]] = []
        searches = 0
        for form in self._forms:
            at = 0
            while at >= 0:
                at = text.find(form, at)
                if at >= 0:
                    places.append((at + len(form), at))
                    at += 1
                searches += 1
                if not searches % SEARCHES_PER_CHECK and thread_time() > late:
                    return None
        return places

    def _run(self, data: bytes) -> None:
        states = list(accumulate(data, getitem, initial=self._state))
        self._state = states[-1]
        del states[0]
        lengths = map(_FOUND, states)
        for at, state in compress(enumerate(states, self._size + 1), lengths):
            self._cover(at - state.found, at)
        self._size += len(data)


_FOUND = attrgetter("found")
