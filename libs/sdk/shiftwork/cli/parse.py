"""Parses arguments: durations, times, ``K=V`` pairs. Pure; called by the commands."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Sequence, cast
from urllib.parse import urlsplit

from shiftwork.cli import guide
from shiftwork.cli.failures import usage
from shiftwork.cli.task_options import CONTRACTS, ENDED, LIVE, PRIORITIES, RUN_MODES

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SIZE = re.compile(r"(\d{1,15})(?:([KMGT]i?)B?)?")
_BYTES = {
    None: 1,
    **{f"{sign}i": 1024 ** (n + 1) for n, sign in enumerate("KMGT")},
    **{sign: 1000 ** (n + 1) for n, sign in enumerate("KMGT")},
}
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

LOOPBACK = ("127.0.0.1", "::1", "localhost")

STATES = LIVE + ENDED


def is_loopback(url: str) -> bool:
    """True if an address is this machine's own."""
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False


def duration(text: str, option: str) -> float:
    """Seconds of ``90``, ``90s``, ``15m``, ``4h`` or ``2d``."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        negative = text.strip().startswith("-") and _DURATION.fullmatch(text.strip()[1:])
        why = "is not a duration" + (": it is negative" if negative else "")
        raise usage(f"{text!r} {why}", where=option, fix="write 90, 90s, 15m, 4h or 2d")
    return float(found[1]) * _SECONDS[found[2]]


def size(text: str, option: str) -> int:
    """Bytes of ``1048576``, ``512Mi``, ``8GiB`` or ``8G``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise usage(f"{text!r} is not a size", where=option, fix="write 512Mi, 8Gi or bytes")
    return int(found[1]) * _BYTES[found[2]]


def timestamp(text: str, option: str, now: datetime, *, ahead: bool = False) -> str:
    """RFC 3339 in UTC of a time, or of a duration ago (``ahead``: from now): ``15m`` or
    ``2026-11-21T10:00:00Z``. A time without a zone is of this machine's."""
    fix = "write 15m, 2026-11-21 or 2026-11-21T10:00:00Z"
    try:
        if _DURATION.fullmatch(text.strip()):
            span = timedelta(seconds=duration(text, option))
            at = now + span if ahead else now - span
        else:
            at = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise usage(f"{text!r} is beyond the years 1 to 9999", where=option, fix=fix) from None
    except ValueError:
        raise usage(f"{text!r} is not a time", where=option, fix=fix) from None


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """``{"K": "V"}`` of ``["K=V"]``. The value may be empty or hold further signs."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            example = f"{option} KEY=VALUE" if option.startswith("-") else f"{text or 'KEY'}=VALUE"
            raise usage(f"{text!r} is not KEY=VALUE", where=option, fix=f"write {example}")
        found[name] = value
    return found


def taints(texts: list[str], option: str) -> list[str]:
    """``KEY`` or ``KEY=VALUE``, each as it is."""
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or (sign and not value):
            again = f"{option} " if option.startswith("-") else ""
            fix = f"write {again}KEY or {again}KEY=VALUE"
            raise usage(f"{text!r} is not KEY or KEY=VALUE", where=option, fix=fix)
    return list(texts)


def choice(word: str, choices: Sequence[str], kind: str, option: str) -> str:
    """The word, if it is one of these. Raises Failure with what may have been meant, else."""
    if word not in choices:
        fix = f"{guide.meant(word, choices)} choose of {', '.join(choices)}".strip()
        article = "an" if kind[:1] in "aeiou" else "a"
        raise usage(f"{word!r} is not {article} {kind}", where=option, fix=fix)
    return word


def states(text: str, option: str) -> list[str]:
    """The states of ``queued,running``."""
    words = [word.strip().lower() for word in text.split(",")]
    return [choice(word, STATES, "state", option) for word in words if word]


def priority(text: str, option: str) -> str:
    """A level in the API's spelling; ``very-high`` and ``VERY_HIGH`` are understood."""
    return choice(_level(text), PRIORITIES, "priority", option)


def contract(text: str, option: str) -> str:
    """A contract in the API's spelling; ``tf-config`` and ``TF_CONFIG`` are understood."""
    return choice(_level(text), CONTRACTS, "contract", option)


def run_mode(text: str, option: str) -> str:
    """A mode in the API's spelling."""
    return choice(_level(text), RUN_MODES, "mode", option)


def is_priority(text: str) -> bool:
    """True for a level."""
    return _level(text) in PRIORITIES


def _level(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def fields(value: object) -> dict[str, Any]:
    """A JSON object as it is; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """A JSON list as it is; an empty one for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def at(text: str | None) -> datetime | None:
    """A time of the API; None if absent or not one."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(_MICROSECONDS.sub(_padded, text).replace("Z", "+00:00"))
    except ValueError:
        return None


# Before Python 3.11 a fraction must have 3 or 6 digits.
_MICROSECONDS = re.compile(r"\.(\d+)")


def _padded(found: re.Match[str]) -> str:
    return "." + found[1][:6].ljust(6, "0")
