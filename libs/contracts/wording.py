"""Parts of messages for people: counted nouns, suggestions, and names that nothing has. Pure.

Messages name routes of the API; the command line shows its commands in their places.

The command line, which is installed without this library, has the same in ``shiftwork.cli``.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from libs.contracts.messages import FieldError, Refusal, RefusalCode

# Of a value in an error.
VALUE_SHOWN_MAX = 80
# A misspelt name is compared with so many names, none of them longer: each takes up to 0.2 ms.
COMPARED_MAX = 128
COMPARED_CHARACTERS_MAX = 48
# Of one answer so many names are compared with those that are known.
SUGGESTED_MAX = 10
# Seconds of a unit, and from how many of them on a duration is written in it.
_SPANS = ((86_400.0, "day", 2.0), (3600.0, "h", 1.0), (60.0, "min", 1.0))
# Names below this part of each other's length are never near.
_LENGTHS = 3 / 7


def cut(text: str, characters_max: int = VALUE_SHOWN_MAX) -> str:
    """The text, with ``…`` for what is beyond its first characters."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def field_error(field: str, value: object, message: str, fix: str) -> FieldError:
    """An error of one field. Long values are cut; callers give no secret as ``value``."""
    return FieldError(field=field, value=cut(as_text(value)), message=message, fix=fix)


def as_text(value: object) -> str:
    """A value as people write it in JSON and YAML: ``true``, not ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def counted(number: float, noun: str) -> str:
    """A number with its noun: ``1 run``, ``3 runs``."""
    shown = str(number) if isinstance(number, int) else f"{round(number, 3):g}"
    return f"{shown} {plural(number, noun)}"


def plural(number: float, noun: str) -> str:
    """The noun that goes with a number: ``run`` or ``runs``."""
    return noun if number == 1 else f"{noun}s"


def are(number: float) -> str:
    """The verb that goes with so many."""
    return "is" if number == 1 else "are"


def duration(seconds: float) -> str:
    """A duration as people write it: ``40 s``, ``12 min``, ``3.5 h``, ``30 days``."""
    for size, unit, least in _SPANS:
        if abs(seconds) >= size * least:
            count = f"{round(seconds / size, 1):.1f}".removesuffix(".0")
            return f"{count} {unit}s" if unit == "day" else f"{count} {unit}"
    return f"{seconds:.0f} s"


def meant(word: str, known: Iterable[str]) -> str:
    """``did you mean NAME?`` for the known name that is nearest; empty if none is near.

    It compares the first ``COMPARED_MAX`` names of a similar length. Callers with more names choose
    some; callers with more than one word use ``Suggestions``.
    """
    if len(word) > COMPARED_CHARACTERS_MAX:
        return ""
    shortest, longest = len(word) * _LENGTHS, min(COMPARED_CHARACTERS_MAX, len(word) / _LENGTHS)
    similar = (each for each in known if shortest <= len(each) <= longest)
    compared = list(islice(similar, COMPARED_MAX))
    near = get_close_matches(word, compared, n=1, cutoff=0.6) if compared else []
    return f"did you mean {near[0]}?" if near else ""


class Suggestions:
    """``meant`` for the first ``SUGGESTED_MAX`` words of one answer alone: a document with many
    misspelt names occupies the process no longer than one with a few."""

    def __init__(self) -> None:
        self.left = SUGGESTED_MAX

    def meant(self, word: str, known: Iterable[str]) -> str:
        """The same as ``meant``; empty for further words."""
        if not self.left:
            return ""
        self.left -= 1
        return meant(word, known)


def no_such(field: str, kind: str, name: str, known: Iterable[str] = ()) -> FieldError:
    """The error of a name that no ``kind`` has: ``user``, ``team``, ``node`` and so on."""
    name = cut(name)
    fix = f"{meant(name, known)} GET /v1/{kind}s lists them".strip()
    return FieldError(field=field, value=name, message=f'there is no {kind} "{name}"', fix=fix)


def not_found(field: str, kind: str, name: str, known: Iterable[str] = ()) -> Refusal:
    """The same as a refusal."""
    error = no_such(field, kind, name, known)
    near, question, _ = error.fix.partition("?")
    detail = f"{error.message}; {near}?" if question else error.message
    return Refusal(code=RefusalCode.NOT_FOUND, detail=detail, errors=(error,))
